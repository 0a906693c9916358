"""A group's committed offsets, wherever they lie: at its coordinator, in the registry, or in both."""
