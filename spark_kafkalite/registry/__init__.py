"""Where the cluster keeps what its brokers must agree on: members, topics, leaders, the controller, producer id blocks.

One small interface (``store.Store``) over ZooKeeper's data model; the paths and payloads (``znodes``) are those of
Apache Kafka with ZooKeeper, so that existing tools can read them. Everything above the interface is the same for the
embedded registry of a single host and for an ensemble.
"""
