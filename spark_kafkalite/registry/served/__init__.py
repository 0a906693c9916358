"""ZooKeeper's protocol over the embedded tree, for other processes."""
