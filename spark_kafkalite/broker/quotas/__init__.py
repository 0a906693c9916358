"""Quotas: what clients may produce, fetch and ask in a second, and how many connections they may open."""
