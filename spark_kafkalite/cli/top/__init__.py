"""``kafkalite top``: a cluster as it is now, refreshed each second."""
