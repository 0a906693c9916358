"""The broker's settings, those of topics and groups, and their changes while it runs."""
