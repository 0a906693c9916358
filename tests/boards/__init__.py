"""The pictures of our board in docs/images, from a real cluster, exporter, Spark query and Prometheus."""
