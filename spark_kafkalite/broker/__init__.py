"""The broker: sockets, requests, hosted partitions. Everything below it (log, wire, registry) knows nothing of it."""
