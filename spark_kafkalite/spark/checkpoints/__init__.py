"""The checkpoints of streaming queries: offsets, topic ids, commits, and moves by an operator."""
