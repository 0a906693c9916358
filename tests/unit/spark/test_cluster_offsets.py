"""What the source says of the topics that its options name."""

import logging
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from spark_kafkalite.client.network.metadata import PartitionInfo, TopicInfo
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.conditions import SparkConditionError
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


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"brokersUnreachableTimeout": "1s"}, "brokersUnreachableTimeout=1000ms"),
        (
            {"fetchOffset.numRetries": "2", "kafka.default.api.timeout.ms": "400"},
            "fetchOffset.numRetries=2 times kafka.default.api.timeout.ms=400; brokersUnreachableTimeout is not set",
        ),
    ],
)
def test_a_query_gives_up_with_the_brokers_that_were_tried_the_time_and_the_option(
    unused_address: str, given: dict[str, str], said: str
) -> None:
    servers = {"kafka.bootstrap.servers": unused_address, "subscribe": "t", "fetchOffset.retryIntervalMs": "50"}
    lookup = ClusterOffsets(reader_options({**servers, **given}))
    with pytest.raises(SparkConditionError) as caught:
        lookup.latest([TopicPartition("t", 0)])
    line = str(caught.value).splitlines()[-1]
    assert line.startswith(f"[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers={unused_address}: no broker answers")
    tried, _, after = line.partition("; given up after ")
    assert unused_address in tried.partition("; tried ")[2]
    assert after.partition(" s ")[2] == f"({said}); start the broker, or correct the address"
