"""Real parts for tests: brokers, Apache Kafka, HDFS, a clock that is set by hand.

Public, because other tests on a spark-kafkalite broker need the same parts; ``testing.pytest_plugin`` brings the
fixtures. Nothing in the package imports this one.

Every outside part answers ``available()``: None when it can be started here, otherwise the reason in one line, which
a test gives when it skips. Every process started here listens on loopback only, keeps its files in a directory that
its caller chose, and ends with the process that started it, however that one ends.
"""
