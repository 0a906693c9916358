"""``kafkalite groups``, and what else reads or moves the offsets of groups."""
