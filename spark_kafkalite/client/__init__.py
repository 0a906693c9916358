"""Clients of a Kafka cluster: producer, consumer and admin; synchronous, with background threads, over plain sockets.

Nothing here imports the broker. Everything works the same against spark-kafkalite and against Apache Kafka.
"""
