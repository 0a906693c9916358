"""What a broker does by the clock: retention, compaction, a look at its disks, checkpoints."""
