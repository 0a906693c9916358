"""The compaction: which published files are merged, and how the merged ones take their place."""
