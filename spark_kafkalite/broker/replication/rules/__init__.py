"""What replication decides, as pure rules: time, messages and registry snapshots in, effects out (rules R1-R16)."""
