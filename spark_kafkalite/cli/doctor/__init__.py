"""``kafkalite doctor``: checks that a host, and Spark's executors, can work with a cluster."""
