"""The broker: sockets, requests, hosted partitions. The packages below it (log, wire, registry) do not know it."""
