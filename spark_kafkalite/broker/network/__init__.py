"""Sockets, connections, and what a client is known by."""
