"""Brokers, clusters, ZooKeeper and Java programs as child processes, for the command line and for tests."""
