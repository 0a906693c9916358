"""One broker among others: its registry sessions and its view of the cluster."""
