"""Metrics over HTTP, as Prometheus reads them: for a broker's own, and for those of the exporter of a cluster."""
