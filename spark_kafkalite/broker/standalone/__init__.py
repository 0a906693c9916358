"""A broker that is its own cluster: its registry, and what its log directories know of it."""
