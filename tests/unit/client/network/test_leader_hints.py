"""Refusals that say who leads now (KIP-951): followed at once, while metadata are stale and pauses long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.client.config import ClientConfig, consumer_config, producer_config
from spark_kafkalite.client.consume.range_fetcher import RangeFetcher, columns_from
from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.lifecycle import Lifecycle
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.metadata import ClusterSnapshot, merge, with_leaders
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.produce.accumulator import Accumulator
from spark_kafkalite.client.produce.delivery import Delivery, ProducerBatch
from spark_kafkalite.client.produce.producer_phase import ProducerPhase, producer_lifecycle
from spark_kafkalite.client.produce.sender import Sender
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import NotLeaderOrFollower
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.kernel import OpenBatch
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages import fetch, metadata, produce
from spark_kafkalite.wire.packed import NodeEndpoint
from tests.lab.batches import make_batch
from tests.lab.model_broker import ModelBroker
from tests.patience import PATIENCE_S

T0 = TopicPartition("t", 0)
STALE_EPOCH, EPOCH = 3, 9
# A client that waits for a pause, or for metadata, does not end within a test.
SLOW = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000}


class Moved:
    """Broker 1, which led partition 0, and broker 2, which leads it; metadata name broker 1 still."""

    def __init__(self) -> None:
        self.former = ModelBroker({"t": 1}, self._refuse)
        self.leader = ModelBroker({"t": 1}, self._metadata_only)
        self.refused = 0

    def open(self, host: str, port: int, *rest: Any) -> BrokerConnection:
        return (self.former if host == "former" else self.leader).open(host, port, *rest)

    def client(self, config: ClientConfig) -> ClusterClient:
        return ClusterClient(config, SYSTEM_CLOCK, self.open)

    def _metadata_only(self, api_key: int, request: Any) -> Any:
        return stale_metadata() if api_key == ApiKey.METADATA else None

    def _refuse(self, api_key: int, request: Any) -> Any:
        code = NotLeaderOrFollower.code
        if api_key == ApiKey.PRODUCE:
            self.refused += 1
            hint = produce.LeaderIdAndEpoch(leader_id=2, leader_epoch=EPOCH)
            part = produce.PartitionProduceResponse(index=0, error_code=code, base_offset=-1, current_leader=hint)
            topic = produce.TopicProduceResponse(name="t", partition_responses=[part])
            endpoint = produce.NodeEndpoint(node_id=2, host="leader", port=1)
            return produce.ProduceResponse(responses=[topic], node_endpoints=[endpoint])
        if api_key == ApiKey.FETCH:
            self.refused += 1
            leader = fetch.LeaderIdAndEpoch(leader_id=2, leader_epoch=EPOCH)
            data = fetch.PartitionData(partition_index=0, error_code=code, high_watermark=-1, current_leader=leader)
            return fetch.FetchResponse(responses=[fetch.FetchableTopicResponse(topic="t", partitions=[data])])
        return self._metadata_only(api_key, request)


def stale_metadata(epoch: int = STALE_EPOCH) -> metadata.MetadataResponse:
    part = metadata.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=epoch)
    return metadata.MetadataResponse(
        brokers=[
            metadata.MetadataResponseBroker(node_id=1, host="former", port=1),
            metadata.MetadataResponseBroker(node_id=2, host="leader", port=1),
        ],
        topics=[metadata.MetadataResponseTopic(name="t", partitions=[part])],
    )


@pytest.fixture
def moved() -> Iterator[Moved]:
    made = Moved()
    yield made
    made.former.close()
    made.leader.close()


def test_a_producer_goes_where_the_refusal_says(moved: Moved) -> None:
    config = producer_config({"bootstrap.servers": "former:1"}, SLOW)
    cluster = moved.client(config.client)
    cluster.refresh(["t"], Deadline.after_ms(10_000))
    accumulator = Accumulator(config, config.max_in_flight)
    life: Lifecycle[ProducerPhase] = producer_lifecycle()
    sender = Sender(config, cluster, accumulator, life, SYSTEM_CLOCK)
    sender.start()
    sent = []
    for number in range(3):
        records = OpenBatch(1_000)
        records.append(1, None, b"%d" % number, None)
        batch = ProducerBatch("t", 0, SYSTEM_CLOCK.monotonic_s(), 10, records=records)
        with accumulator.lock:
            assert accumulator.try_reserve(10)
            accumulator.add_closed(accumulator.queue("t", 0, cluster.snapshot.leader("t", 0)), batch)
        sent.append(Delivery(batch, 0, 1))
    sender.wake()
    assert [each.result(PATIENCE_S).offset for each in sent] == [0, 1, 2]
    assert moved.refused >= 1
    assert cluster.refresh(["t"], Deadline.after_ms(10_000)).leader("t", 0) == 2
    sender.refuse_records(ProducerPhase.CLOSING)
    sender.join(PATIENCE_S)
    cluster.close()


def test_a_consumer_goes_where_the_refusal_says(moved: Moved) -> None:
    moved.leader.append(T0, make_batch([b"0", b"1"]))
    config = consumer_config({"bootstrap.servers": "former:1"}, {**SLOW, "fetch_max_wait_ms": 50})
    cluster = moved.client(config.client)
    cluster.refresh(["t"], Deadline.after_ms(10_000))
    ahead = ReadAhead(config, cluster, SYSTEM_CLOCK)
    ahead.assign([T0])
    ahead.move([T0], 0, None)
    with ahead.lock:
        state = ahead.states[T0]
        assert ahead.changed.wait_for(lambda: state.buffered or state.error is not None, PATIENCE_S)
        assert state.error is None
    assert moved.refused >= 1
    ahead.close()
    cluster.close()


def test_a_range_is_read_where_the_refusal_says(moved: Moved) -> None:
    moved.leader.append(T0, make_batch([b"0", b"1"]))
    cluster = moved.client(consumer_config({"bootstrap.servers": "former:1"}, SLOW).client)
    cluster.refresh(["t"], Deadline.after_ms(10_000))
    with RangeFetcher(cluster, T0, 0, 2, timeout_ms=int(1_000 * PATIENCE_S)) as fetcher:
        assert sum(columns.count for columns in columns_from(fetcher)) == 2
    assert moved.refused == 1
    cluster.close()


def test_only_news_of_a_leader_that_can_be_reached_counts() -> None:
    known = merge(ClusterSnapshot(), stale_metadata(), {"t"})
    assert with_leaders(known, {T0: (2, STALE_EPOCH)}, ()) is known
    assert with_leaders(known, {T0: (2, STALE_EPOCH - 1)}, ()) is known
    assert with_leaders(known, {T0: (7, EPOCH)}, ()) is known
    assert with_leaders(known, {TopicPartition("other", 0): (2, EPOCH)}, ()) is known
    moved = with_leaders(known, {T0: (7, EPOCH)}, [NodeEndpoint(7, "new", 9)])
    assert (moved.leader("t", 0), moved.nodes[7].address) == (7, "new:9")
    assert known.leader("t", 0) == 1
    assert merge(moved, stale_metadata(EPOCH - 1), {"t"}).leader("t", 0) == 7
