"""A group's committed offsets in either store: at its coordinator, in the registry, or in both."""
