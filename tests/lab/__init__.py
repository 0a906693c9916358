"""The project's own laboratory: Apache Kafka, HDFS, an identity provider, certificates, contract suites."""
