"""Fetch requests and answers as the fetchers want them: positions in, one result per topic-partition out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_kafkalite.client.connection import FETCH, BrokerConnection
from spark_kafkalite.client.retry import Deadline
from spark_kafkalite.errors import BrokerUnreachable, FrameError
from spark_kafkalite.model import IsolationLevel, TopicPartition
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic


class FetchFrom(NamedTuple):
    """Where to read one partition from. ``leader_epoch`` -1: do not have it compared."""

    topic_partition: TopicPartition
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchLimits(NamedTuple):
    """What holds for a whole fetch."""

    min_bytes: int
    max_bytes: int
    max_wait_ms: int
    isolation: IsolationLevel
    rack: str = ""


class PartitionFetched(NamedTuple):
    """One partition's part of an answer. ``records`` is a view into the answer, None when there is nothing.

    ``last_stable_offset`` and ``high_watermark`` are -1 with an error; ``aborted`` are (producer id, first offset).
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    records: memoryview | None


def fetch(
    connection: BrokerConnection,
    positions: Iterable[FetchFrom],
    limits: FetchLimits,
    deadline: Deadline,
    client_id: str,
    into: bytearray | None = None,
) -> tuple[int, dict[TopicPartition, PartitionFetched]]:
    """Send one fetch and return its own error code and each partition's result.

    ``into`` is used for the answer when it is large enough; the records are then valid until it is used again.
    Raises BrokerUnreachable, UnsupportedVersion.
    """
    version = connection.version(FETCH)
    correlation_id = connection.next_correlation_id()
    topics: dict[str, list[FetchPartition]] = {}
    for each in positions:
        partition = FetchPartition(
            partition=each.topic_partition.partition,
            current_leader_epoch=each.leader_epoch,
            fetch_offset=each.offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=each.max_bytes,
        )
        topics.setdefault(each.topic_partition.topic, []).append(partition)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=int(limits.isolation),
        # No session: every request names all of its partitions.
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
        rack_id=limits.rack,
    )
    body = codec.encode_request(request, version, correlation_id, client_id)
    connection.send_frame(correlation_id, FETCH, version, [body])
    frame = connection.receive_frame(deadline, into)
    try:
        _, answer = codec.decode_response(FETCH, version, frame)
    except FrameError as error:
        connection.close()
        raise BrokerUnreachable(f"broker {connection.name}: its answer to a fetch cannot be read: {error}") from error
    results: dict[TopicPartition, PartitionFetched] = {}
    for topic in answer.responses:
        for item in topic.partitions:
            aborted = item.aborted_transactions
            records = item.records
            results[TopicPartition(topic.topic, item.partition_index)] = PartitionFetched(
                item.error_code,
                item.high_watermark,
                item.last_stable_offset,
                item.log_start_offset,
                None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted],
                memoryview(records) if records is not None and len(records) else None,
            )
    return answer.error_code, results
