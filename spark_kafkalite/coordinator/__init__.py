"""Coordinators: what is kept in a compacted internal topic and served by whoever leads the key's partition."""
