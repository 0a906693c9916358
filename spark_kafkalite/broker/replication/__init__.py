"""Hosted partitions: who leads them, how far they are safe, when they are flushed."""
