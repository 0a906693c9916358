"""Brokers, clusters and ZooKeeper as child processes, for the command line and for the fixtures."""
