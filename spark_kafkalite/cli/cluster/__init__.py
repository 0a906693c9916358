"""``kafkalite cluster``: several brokers on this host, and what a cluster's brokers hold and lead."""
