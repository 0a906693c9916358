"""Compaction: which logs, which segments, and the copy."""
