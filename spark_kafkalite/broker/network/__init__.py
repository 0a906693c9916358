"""Sockets, connections, and the session of each client."""
