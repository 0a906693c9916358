"""What a batch read makes of a cluster that changes while it is planned; the cluster is a dictionary."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.offset_options import OffsetSpec
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading import batch_reader
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.cluster_offsets import Assigned
from spark_kafkalite.spark.reading.offset_ranges import Offsets

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class ShrinkingCluster:
    """Lists two partitions of nine records, of which one is gone when offsets are asked for."""

    def __init__(self, options: object) -> None:
        self._options = options

    def assigned(self) -> Assigned:
        return Assigned((T0, T1), {"t": b"1" * 16})

    def resolved(self, spec: OffsetSpec, partitions: Iterable[TopicPartition], *, starting: bool) -> Offsets:
        return {tp: 0 if starting else 9 for tp in partitions if tp != T1}

    def within_log(self, spec: OffsetSpec, end: Offsets) -> Offsets:
        return end


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_partition_that_goes_while_a_batch_is_planned_is_lost_data(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_reader, "ClusterOffsets", ShrinkingCluster)
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "failOnDataLoss": fails}
    reader = KafkaliteBatchReader(reader_options(options), READ_SCHEMA)
    if fails == "true":
        with pytest.raises(SparkConditionError, match=r"KAFKA_DATA_LOSS.PARTITIONS_DELETED\] .* t-1 disappeared"):
            reader.partitions()
    else:
        assert [str(each) for task in reader.partitions() for each in task.ranges] == ["t-0[0, 9)"]
        assert "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] failOnDataLoss=false: t-1 disappeared just now" in caplog.text
