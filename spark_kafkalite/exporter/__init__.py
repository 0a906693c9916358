"""``kafkalite exporter``: a whole cluster, its topics and groups, under the names of kafka_exporter."""
