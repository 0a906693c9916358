"""Consumers that coordinate through the registry, without a coordinator."""
