"""``kafkalite offsets``."""
