"""A task's command is acknowledged on the connection that PySpark reads tasks from."""

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_kafkalite.spark.workers.early_ack import EarlyAck

pytestmark = [pytest.mark.spark, pytest.mark.versions]


def ack_source():
    """Return a source whose rows say whether a task acknowledged its command. A local class is pickled by value."""

    class AskedAck(EarlyAck):
        def __setstate__(self, state):
            from spark_kafkalite.spark.workers import early_ack

            super().__setstate__(state)
            self.descriptor = early_ack.jvm_descriptor()

    class AckReader(DataSourceReader):
        def __init__(self):
            self.asked = AskedAck()
            # An empty state is not set.
            self.asked.subject = ""

        def partitions(self):
            return [InputPartition(number) for number in range(4)]

        def read(self, partition):
            import os
            import sys

            # The stream from which pyspark.daemon has the worker read its tasks.
            frame = sys._getframe()
            while frame.f_code.co_name != "worker" or "infile" not in frame.f_locals:
                frame = frame.f_back
            of_pyspark = os.fstat(frame.f_locals["infile"].fileno())
            yield (os.path.samestat(os.fstat(self.asked.descriptor), of_pyspark),)

    class AckSource(DataSource):
        @classmethod
        def name(cls):
            return "asked_acks"

        def schema(self):
            return "of_pyspark BOOLEAN"

        def reader(self, schema):
            return AckReader()

    return AckSource


def test_each_task_acknowledges_its_command(spark):
    spark.dataSource.register(ack_source())
    # From the second time on, workers are used again.
    for _ in range(2):
        assert [row.of_pyspark for row in spark.read.format("asked_acks").load().collect()] == [True] * 4
