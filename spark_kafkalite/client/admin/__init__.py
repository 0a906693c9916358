"""Administration of topics, settings, groups and logs."""
