"""A registry that is lost, or older than the logs, is made from what the hosts of a cluster have."""
