"""The embedded registry: ZooKeeper's data tree in this process, kept in SQLite."""
