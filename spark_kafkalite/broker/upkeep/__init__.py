"""A broker's periodic work: retention, compaction, checks of its disks, checkpoints."""
