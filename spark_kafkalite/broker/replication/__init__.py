"""Hosted partitions: their leaders, how far they are safe, when they are flushed."""
