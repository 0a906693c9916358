"""Fetch requests and responses for the fetchers: positions in, one result per topic-partition out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import BrokerUnreachable, FrameError
from spark_kafkalite.model import NO_LEADER_EPOCH, IsolationLevel, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import Memory
from spark_kafkalite.wire.packed import FetchPartition, FetchRequest, pack_fetch_request, parse_fetch_response


class FetchFrom(NamedTuple):
    """Where to read one partition from. ``leader_epoch`` -1: do not have it compared.

    ``last_fetched_epoch`` is that of the record before ``offset``, -1 where it is not known (:mod:`.truncation`).
    """

    topic_partition: TopicPartition
    offset: int
    leader_epoch: int
    max_bytes: int
    last_fetched_epoch: int = NO_LEADER_EPOCH


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
    ``diverging_epoch``, (epoch, end offset), comes with neither records nor an error: see :mod:`.truncation`.
    ``current_leader``, (node id, leader epoch), is of a partition that is led elsewhere.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    records: memoryview | None
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


class Fetched(NamedTuple):
    """What one fetch brought: its own error code, and each partition's part.

    ``throttle_time_ms``: for how long the broker reads nothing more from the client, which is over its quota (KIP-219).
    """

    error_code: int
    results: dict[TopicPartition, PartitionFetched]
    throttle_time_ms: int


def fetch(
    connection: BrokerConnection,
    positions: Iterable[FetchFrom],
    limits: FetchLimits,
    deadline: Deadline,
    client_id: str,
    into: Memory | None = None,
) -> Fetched:
    """Send one fetch and return what it brought.

    ``into`` is used for the answer when it is large enough; the records are then valid until it is used again.
    Raises BrokerUnreachable, UnsupportedVersion.
    """
    send_fetch(connection, positions, limits, client_id)
    return receive_fetch(connection, deadline, into)


def send_fetch(
    connection: BrokerConnection, positions: Iterable[FetchFrom], limits: FetchLimits, client_id: str
) -> None:
    """Send one fetch; :func:`receive_fetch` returns its answer. Several may be on their way.

    Raises BrokerUnreachable, UnsupportedVersion.
    """
    version = connection.version(ApiKey.FETCH)
    correlation_id = connection.next_correlation_id()
    topics: dict[str, list[FetchPartition]] = {}
    for each in positions:
        partition = FetchPartition(
            each.topic_partition.partition, each.offset, each.max_bytes, each.leader_epoch, each.last_fetched_epoch
        )
        topics.setdefault(each.topic_partition.topic, []).append(partition)
    # No session: every request names all of its partitions.
    request = FetchRequest(
        list(topics.items()),
        limits.max_wait_ms,
        limits.min_bytes,
        limits.max_bytes,
        int(limits.isolation),
        rack_id=limits.rack,
    )
    body = pack_fetch_request(correlation_id, client_id, version, request)
    connection.send_frame(correlation_id, ApiKey.FETCH, version, [body])


def receive_fetch(connection: BrokerConnection, deadline: Deadline, into: Memory | None = None) -> Fetched:
    """Return what :func:`fetch` does, for the oldest fetch without an answer. Raises BrokerUnreachable."""
    version = connection.version(ApiKey.FETCH)
    frame = connection.receive_frame(deadline, into)
    try:
        answer = parse_fetch_response(frame, version)
    except FrameError as error:
        connection.close()
        raise BrokerUnreachable(f"broker {connection.name}: its answer to a fetch cannot be read: {error}") from error
    results: dict[TopicPartition, PartitionFetched] = {}
    for topic, fetched in answer.topics:
        assert isinstance(topic, str)  # ids come with later versions than this client speaks
        for item in fetched:
            records = item.records
            results[TopicPartition(topic, item.partition)] = PartitionFetched(
                item.error_code,
                item.high_watermark,
                item.last_stable_offset,
                item.log_start_offset,
                item.aborted_transactions,
                records if isinstance(records, memoryview) and len(records) else None,
                item.diverging_epoch,
                item.current_leader,
            )
    return Fetched(answer.error_code, results, answer.throttle_time_ms)
