"""Offsets of ends and times, with leaders that do not know their end yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.client.config import consumer_config
from spark_kafkalite.client.consume.list_offsets import OffsetAndTimestamp, offsets_for
from spark_kafkalite.client.group.lag import partition_lags
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import LeaderNotAvailable, NotLeaderOrFollower, OffsetNotAvailable
from spark_kafkalite.model import LATEST_TIMESTAMP, TopicPartition
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.lab.batches import make_batch
from tests.lab.model_broker import ModelBroker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOT_AVAILABLE, NO_LEADER, NOT_LEADER = OffsetNotAvailable.code, LeaderNotAvailable.code, NotLeaderOrFollower.code
FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


class Elected:
    """A broker whose first answers on partition 0 have an error; it knows the end of partition 1."""

    def __init__(self, code: int, times: int) -> None:
        self.code, self.left = code, times
        self.broker = ModelBroker({"t": 2}, self._answer)
        for tp in (T0, T1):
            self.broker.append(tp, make_batch([b"%d" % number for number in range(7)]))

    def _answer(self, api_key: int, request: Any) -> ListOffsetsResponse | None:
        if api_key != ApiKey.LIST_OFFSETS or not self.left:
            return None
        if request.topics[0].partitions[0].timestamp != LATEST_TIMESTAMP:
            return None
        self.left -= 1
        parts = [
            ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=7)
            if each.partition_index
            else ListOffsetsPartitionResponse(partition_index=0, error_code=self.code)
            for each in request.topics[0].partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=parts)])


@pytest.fixture
def elected(request: pytest.FixtureRequest) -> Iterator[Elected]:
    made = Elected(*request.param)
    yield made
    made.broker.close()


@pytest.fixture
def cluster(elected: Elected) -> Iterator[ClusterClient]:
    config = consumer_config({"bootstrap.servers": "model:1"}, FAST).client
    client = ClusterClient(config, SYSTEM_CLOCK, elected.broker.open)
    yield client
    client.close()


def ends(cluster: ClusterClient, last_known: dict[TopicPartition, int] | None = None) -> dict[TopicPartition, Any]:
    wanted = dict.fromkeys([T0, T1], LATEST_TIMESTAMP)
    return offsets_for(cluster, wanted, Deadline.after_ms(20_000), last_known=last_known)


@pytest.mark.parametrize("elected", [(NOT_AVAILABLE, 3), (NO_LEADER, 3)], indirect=True)
def test_an_end_that_is_not_known_yet_is_waited_for(cluster: ClusterClient, elected: Elected) -> None:
    assert {tp: each.offset for tp, each in ends(cluster).items()} == {T0: 7, T1: 7}
    assert not elected.left


@pytest.mark.parametrize("elected", [(NOT_AVAILABLE, 1_000_000), (NO_LEADER, 1_000_000)], indirect=True)
def test_who_knows_an_end_from_before_hears_that_there_is_no_news(cluster: ClusterClient, elected: Elected) -> None:
    found = ends(cluster, {T0: 5, T1: 5})
    assert found[T0] == OffsetAndTimestamp(5, -1, -1)
    assert found[T1].offset == 7


@pytest.mark.parametrize("elected", [(NOT_AVAILABLE, 1_000_000)], indirect=True)
def test_a_group_s_lag_where_the_end_is_not_known_is_not_known(cluster: ClusterClient, elected: Elected) -> None:
    lags = partition_lags(cluster, {T0: 5, T1: 5}, Deadline.after_ms(20_000))
    assert (lags[T0].records, lags[T0].log_end_offset, lags[T1].records) == (None, None, 2)


@pytest.mark.parametrize("elected", [(NOT_LEADER, 3)], indirect=True)
def test_another_error_is_no_answer_whatever_was_known(cluster: ClusterClient, elected: Elected) -> None:
    assert ends(cluster, {T0: 5})[T0].offset == 7


@pytest.mark.parametrize("elected", [(NOT_AVAILABLE, 1_000_000)], indirect=True)
def test_a_planner_keeps_the_end_it_has(cluster: ClusterClient, elected: Elected) -> None:
    options = {"kafka.bootstrap.servers": "model:1", "subscribe": "t", "fetchOffset.retryIntervalMs": "1"}
    lookup = ClusterOffsets(reader_options(options))
    lookup._cluster = cluster
    assert lookup.latest([T0, T1], {T0: 6, T1: 6}) == {T0: 6, T1: 7}
