"""Produce requests and responses for the sender: batches in, one outcome per topic-partition out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from spark_kafkalite.client.network.sockets import Buffer
from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.packed import NodeEndpoint, ProducedPartition, pack_produce_request, parse_produce_response


class ProduceOutcome(NamedTuple):
    """What became of one partition's batch. ``log_append_time_ms`` is -1 unless the broker gave the timestamp.

    ``record_errors`` are (record index, text) of records that the broker refused for themselves; it may name the first
    of them alone, or none.
    """

    error_code: int
    base_offset: int
    log_append_time_ms: int
    error_message: str | None
    record_errors: Sequence[tuple[int, str | None]] = ()


def encode_produce(
    batches: list[ProducerBatch],
    *,
    version: int,
    correlation_id: int,
    client_id: str,
    acks: int,
    timeout_ms: int,
) -> list[Buffer]:
    """Return the pieces of a request that holds these encoded batches, at most one for a partition."""
    by_topic: dict[str, list[tuple[int, Buffer | None]]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append((batch.partition, batch.encoded))
    pieces, _ = pack_produce_request(correlation_id, client_id, version, acks, timeout_ms, list(by_topic.items()))
    # A request holds no file slices: all of its pieces are buffers.
    return cast(list[Buffer], pieces)


class ProduceAnswer(NamedTuple):
    """A whole answer. ``leaders`` are (node id, leader epoch) of partitions that are led elsewhere (version 10).

    ``throttle_time_ms``: for how long the broker reads nothing more from the client, which is over its quota.
    """

    outcomes: dict[tuple[str, int], ProduceOutcome]
    leaders: dict[TopicPartition, tuple[int, int]]
    endpoints: Sequence[NodeEndpoint]
    throttle_time_ms: int


def read_produce_answer(frame: memoryview, version: int) -> ProduceAnswer:
    """Return the outcome of each partition in an answer, and the new leaders of refused ones. Raises FrameError."""
    outcomes: dict[tuple[str, int], ProduceOutcome] = {}
    leaders: dict[TopicPartition, tuple[int, int]] = {}
    response = parse_produce_response(frame, version)
    for topic, partitions in response.topics:
        for item in partitions:
            outcomes[topic, item.partition] = ProduceOutcome(
                item.error_code, item.base_offset, item.log_append_time_ms, _said(item), item.record_errors
            )
            if item.current_leader is not None:
                leaders[TopicPartition(topic, item.partition)] = item.current_leader
    return ProduceAnswer(outcomes, leaders, response.node_endpoints, response.throttle_time_ms)


def _said(item: ProducedPartition) -> str | None:
    """Return the broker's text on the batch, followed by that on the first wrong record where it differs."""
    if not item.record_errors:
        return item.error_message
    index, text = item.record_errors[0]
    if text is not None and text == item.error_message:
        return item.error_message
    return f"{item.error_message + ': ' if item.error_message else ''}record {index}: {text or 'refused'}"
