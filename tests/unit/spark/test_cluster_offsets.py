"""What the source says of the topics that its options name."""

import logging
from types import SimpleNamespace

import pytest

from spark_kafkalite.client.network.metadata import PartitionInfo, TopicInfo
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.options import reader_options


def test_a_pattern_that_matches_nothing_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    lookup = ClusterOffsets(reader_options({"kafka.bootstrap.servers": "h:1", "subscribePattern": "evntq"}))
    there: dict[str, TopicInfo] = {}
    lookup._cluster = SimpleNamespace(all_topics=lambda deadline: there)  # type: ignore[assignment]
    for _ in range(2):
        assert lookup.assigned().partitions == ()
    assert [record.message for record in caplog.records] == [
        "subscribePattern=evntq: no topic's name matches, so nothing is read until there is one that does"
    ]
    partition = PartitionInfo(0, 1, 0, (1,), (1,), ())
    there["evntq"] = TopicInfo("evntq", bytes(16), False, (partition,))
    assert lookup.assigned().partitions == (TopicPartition("evntq", 0),)
    assert len(caplog.records) == 1
