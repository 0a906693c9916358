"""``kafkalite offsets``: of partitions, of groups, and of streaming queries' checkpoints."""
