"""Produce requests and answers as the sender wants them: batches in, one outcome per topic-partition out."""

from __future__ import annotations

from typing import NamedTuple

from spark_kafkalite.client.connection import PRODUCE, Buffer
from spark_kafkalite.client.delivery import ProducerBatch
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


class ProduceOutcome(NamedTuple):
    """What became of one partition's batch. ``log_append_time_ms`` is -1 unless the broker gave the timestamp."""

    error_code: int
    base_offset: int
    log_append_time_ms: int
    error_message: str | None


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
    by_topic: dict[str, list[PartitionProduceData]] = {}
    for batch in batches:
        data = PartitionProduceData(index=batch.partition, records=batch.encoded)
        by_topic.setdefault(batch.topic, []).append(data)
    request = ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=data) for topic, data in by_topic.items()],
    )
    return [codec.encode_request(request, version, correlation_id, client_id)]


def read_produce_answer(frame: memoryview, version: int) -> dict[tuple[str, int], ProduceOutcome]:
    """Return the outcome of each partition in an answer. Raises FrameError."""
    _, answer = codec.decode_response(PRODUCE, version, frame)
    outcomes: dict[tuple[str, int], ProduceOutcome] = {}
    for topic in answer.responses:
        for item in topic.partition_responses:
            message = item.error_message
            if item.record_errors:
                first = item.record_errors[0]
                message = f"{message or ''} record {first.batch_index}: {first.batch_index_error_message or 'refused'}"
            outcomes[topic.name, item.index] = ProduceOutcome(
                item.error_code, item.base_offset, item.log_append_time_ms, message
            )
    return outcomes
