"""Consumer groups: what members and committed offsets mean, apart from sockets, logs and brokers."""
