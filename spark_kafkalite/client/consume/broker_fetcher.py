"""Fetches from one broker, one request at a time: the connection, the receive buffer, and what errors ask for.

What all that reads ahead shares (:class:`.range_fetcher.RangeFetcher`, :class:`.read_ahead.ReadAhead`). What to fetch
and when, how often to try again, and where to go on when an offset is not in the log is up to each of them.

A fetcher belongs to one thread, which calls :meth:`BrokerFetcher.connect` and then :meth:`BrokerFetcher.fetch`; only
``close()`` may come from any. Memory goes back to the pool once every piece of an answer is used up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Self

from spark_kafkalite.client.consume.fetch_requests import FetchFrom, FetchLimits, PartitionFetched, fetch
from spark_kafkalite.client.consume.fetched import AnswerMemory, BufferPool, FetchedBatches, unreadable
from spark_kafkalite.client.consume.passed_offsets import PassedOffsets
from spark_kafkalite.client.consume.truncation import EpochEnds, check_not_truncated
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline, is_retriable, needs_refresh
from spark_kafkalite.errors import (
    BrokerUnreachable,
    ClosedError,
    CorruptMessage,
    KafkaliteError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.layout import MAX_INT64
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import Memory
from spark_kafkalite.wire.rights import refusal


class AfterError(Enum):
    """What a reader does after a fetch, or one partition's part of it, has failed."""

    # The offset is not in the log: the reader decides where to go on.
    MOVE = auto()
    # The same fetch may succeed after a pause.
    RETRY = auto()
    # It may succeed after a pause, at the broker that leads the partition by then.
    FIND_LEADER = auto()
    # It fails again however often it is tried.
    GIVE_UP = auto()


def after_error(error: KafkaliteError) -> AfterError:
    """Return what an error of a fetch asks for."""
    if isinstance(error, OffsetOutOfRange):
        return AfterError.MOVE
    # Kafka calls CORRUPT_MESSAGE retriable, for producers: a broker's damaged log does not repair itself.
    if isinstance(error, CorruptMessage) or not is_retriable(error):
        return AfterError.GIVE_UP
    return AfterError.FIND_LEADER if needs_refresh(error) else AfterError.RETRY


class FetchAnswer:
    """What one fetch brought. Make the pieces within a ``with`` block: until its end the memory is surely kept."""

    __slots__ = ("_check_crcs", "_is_throttled", "_limits", "_memory", "_results", "throttle_time_ms")

    def __init__(
        self,
        results: Mapping[TopicPartition, PartitionFetched],
        memory: AnswerMemory | None,
        limits: FetchLimits,
        check_crcs: bool,
        *,
        throttle_time_ms: int = 0,
        is_throttled: bool = False,
    ) -> None:
        """``throttle_time_ms``: for how long the broker reads nothing more from the client. ``is_throttled``: what the
        answer leaves out, it leaves out because the client is over its quota."""
        self.throttle_time_ms = throttle_time_ms
        self._is_throttled = is_throttled
        self._results = results
        self._memory = memory
        self._limits = limits
        self._check_crcs = check_crcs

    def __enter__(self) -> Self:
        if self._memory is not None:
            # An empty first piece would else give the buffer back.
            self._memory.add_user()
        return self

    def __exit__(self, *_: object) -> None:
        if self._memory is not None:
            self._memory.release()

    def is_throttled(self, position: FetchFrom) -> bool:
        """Whether the answer lacks one partition because the client is over its quota; ask again."""
        return self._is_throttled and position.topic_partition not in self._results

    def of(self, position: FetchFrom) -> PartitionFetched:
        """Return one partition's part, or raise the broker's error for it; see :func:`after_error`.

        Raises LogTruncated when the log has lost what was read. A diverging epoch in what is returned is the one to
        fetch with next.
        """
        topic_partition, offset = position.topic_partition, position.offset
        fetched = self._results.get(topic_partition)
        if fetched is None:
            raise UnknownTopicOrPartition(f"{topic_partition}: the broker's answer to a fetch leaves it out")
        if not fetched.error_code:
            if fetched.diverging_epoch is not None:
                check_not_truncated(topic_partition, offset, fetched.diverging_epoch)
            return fetched
        error = refusal(ApiKey.FETCH, fetched.error_code, f"{topic_partition}: cannot be fetched from offset {offset}")
        if isinstance(error, CorruptMessage):
            raise unreadable(topic_partition, offset, error)
        raise error

    def piece(
        self,
        position: FetchFrom,
        fetched: PartitionFetched,
        until_offset: int = MAX_INT64,
        passed: PassedOffsets | None = None,
        least_offset: int = 0,
    ) -> FetchedBatches:
        """Return the batches of one partition's part, from the position up to ``until_offset`` (exclusive).

        ``passed``, ``least_offset``: see :class:`.fetched.FetchedBatches`.
        Raises CorruptMessage (2) as :class:`.fetched.FetchedBatches` does.
        """
        return FetchedBatches(
            position.topic_partition,
            fetched,
            position.offset,
            until_offset=until_offset,
            isolation=self._limits.isolation,
            check_crcs=self._check_crcs,
            memory=self._memory,
            passed=passed,
            least_offset=least_offset,
        )


class BrokerFetcher:
    """A connection of its own to one broker, and fetches over it."""

    def __init__(
        self, cluster: ClusterClient, pool: BufferPool, *, check_crcs: bool = True, new_buffer_bytes: int = 0
    ) -> None:
        """``new_buffer_bytes`` is for a caller that knows how large answers will be; with 0 a new buffer is as large as
        the answer that it is made for.
        """
        self._cluster = cluster
        self._pool = pool
        self._check_crcs = check_crcs
        self._new_buffer_bytes = new_buffer_bytes
        self._lock = threading.Lock()
        self._connection: BrokerConnection | None = None
        self._epoch_ends: EpochEnds | None = None
        self._node_id = -1
        self._closed = False

    def __repr__(self) -> str:
        return f"BrokerFetcher({self._connection})"

    def connect(self, node_id: int, deadline: Deadline) -> None:
        """Be connected to this broker, and to no other. Raises BrokerUnreachable, ClosedError."""
        connection = self._connection
        if connection is not None and not connection.closed and self._node_id == node_id:
            return
        self.disconnect()
        connection = self._cluster.connect(node_id, deadline)
        with self._lock:
            self._connection, self._node_id = connection, node_id
            self._epoch_ends = EpochEnds(connection)
            closed = self._closed
        if closed:
            connection.close()
            raise ClosedError("the reader has been closed")

    def disconnect(self) -> None:
        """Let go of the connection, because the partition may be led by another broker."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def fetch(self, positions: Iterable[FetchFrom], limits: FetchLimits, deadline: Deadline) -> FetchAnswer:
        """Fetch from the broker that is connected. Raises its error for the whole fetch, or BrokerUnreachable."""
        connection, epoch_ends = self._connection, self._epoch_ends
        if connection is None or epoch_ends is None:
            raise BrokerUnreachable("no broker is connected")
        positions = list(positions)
        if parted := epoch_ends.parted(positions, deadline):
            positions = [each for each in positions if each.topic_partition not in parted]
            if not positions:
                return FetchAnswer(parted, None, limits, self._check_crcs)
            # These are news: the others are not waited for.
            limits = limits._replace(max_wait_ms=0)
        buffer = self._pool.take()
        if buffer is None and self._new_buffer_bytes:
            buffer = bytearray(self._new_buffer_bytes)
        code, results, throttle_ms = fetch(
            connection, positions, limits, deadline, self._cluster.config.client_id, buffer
        )
        if code:
            raise refusal(ApiKey.FETCH, code, f"broker {connection.name} refuses the fetch")
        leaders = {each: part.current_leader for each, part in results.items() if part.current_leader is not None}
        if leaders:
            self._cluster.take_leaders(leaders)
        memory = self._memory_of(results, buffer)
        # An answer to a client over its quota has no parts (KIP-219).
        return FetchAnswer(
            {**results, **parted},
            memory,
            limits,
            self._check_crcs,
            throttle_time_ms=throttle_ms,
            is_throttled=throttle_ms > 0 and not results,
        )

    def _memory_of(
        self, results: Mapping[TopicPartition, PartitionFetched], offered: Memory | None
    ) -> AnswerMemory | None:
        """Return the memory that the answer lies in: what was offered for it, or a new buffer if that was too small."""
        for fetched in results.values():
            if fetched.records is not None:
                used = fetched.records.obj
                if used is not offered and isinstance(used, Memory):
                    if offered is not None:
                        self._pool.give(offered)
                    offered = used
                break
        return None if offered is None else AnswerMemory(self._pool, offered)

    def close(self) -> None:
        """Close for good, from any thread; a fetch that is going on ends with BrokerUnreachable."""
        with self._lock:
            self._closed = True
        self.disconnect()
