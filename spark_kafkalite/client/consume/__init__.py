"""The consumer, and fetching ahead."""
