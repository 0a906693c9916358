"""Sockets, the event loop and threads: what a server needs below its protocol."""
