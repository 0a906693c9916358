"""The lag of streaming queries, in records and in seconds.

Where a query is comes from its own reports; where the logs end does, too, or from brokers. Lag in seconds is the age of
the record that the query reads next. Only the log has it: one fetch of one batch for each partition that is behind,
remembered until the query has moved on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from spark_kafkalite.client.consume.list_offsets import offsets_for
from spark_kafkalite.client.consume.record_timestamps import record_timestamps
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import LATEST_TIMESTAMP, IsolationLevel, TopicPartition
from spark_kafkalite.spark.options.options import ReaderOptions
from spark_kafkalite.spark.workers.connections import cluster_for, reading_config

# How long a time that could not be read is not asked for again.
_UNKNOWN_FOR_S: Final = 10.0
# How long brokers may take to tell the times of all queries.
ASK_TIMEOUT_MS: Final = 5_000

# (query id, partition) of what is asked for.
QueryPartition = tuple[str, TopicPartition]


class QueryPartitionLag(NamedTuple):
    """How far a query is behind in one partition.

    ``offset`` is the next one that the query will read, as of its last report; ``end_offset`` the end of the log, as of
    then or now.
    ``seconds`` is the age of the record there, by its timestamp: 0 where nothing waits, None where it is not known.
    """

    query_id: str
    query_name: str | None
    group_id: str | None
    topic: str
    partition: int
    offset: int
    end_offset: int
    seconds: float | None = None

    @property
    def lag(self) -> int:
        """Offsets that are waiting."""
        return max(0, self.end_offset - self.offset)


class QueryReport(NamedTuple):
    """When Spark last reported a running query, in seconds since 1970."""

    query_id: str
    query_name: str | None
    reported_s: float


def timestamps_of(
    options: ReaderOptions, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the times of the records at or after these offsets, in ms; what cannot be read now is left out."""
    try:
        cluster = cluster_for(reading_config(options.client).client, options.client)
        snapshot = cluster.refresh({tp.topic for tp in offsets}, deadline)
        there = {tp: offset for tp, offset in offsets.items() if snapshot.leader(*tp) in snapshot.nodes}
        return record_timestamps(cluster, there, deadline)
    except KafkaliteError:
        return {}


def log_ends_of(
    options: ReaderOptions, last_known: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the ends of these partitions' logs, for read_committed their last stable offsets.

    A partition whose end cannot be had now has the last known one.
    """
    isolation = IsolationLevel.READ_COMMITTED if options.read_committed else IsolationLevel.READ_UNCOMMITTED
    try:
        cluster = cluster_for(reading_config(options.client).client, options.client)
        snapshot = cluster.refresh({tp.topic for tp in last_known}, deadline)
        wanted = {tp: LATEST_TIMESTAMP for tp in last_known if snapshot.leader(*tp) in snapshot.nodes}
        answers = offsets_for(cluster, wanted, deadline, isolation=isolation, last_known=last_known)
    except KafkaliteError:
        return dict(last_known)
    return {**last_known, **{tp: answer.offset for tp, answer in answers.items() if answer is not None}}


class RecordTimes:
    """The times of the records that queries read next. Not for several threads at once."""

    def __init__(
        self,
        ask: Callable[
            [ReaderOptions, Mapping[TopicPartition, int], Deadline], Mapping[TopicPartition, int]
        ] = timestamps_of,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._now_s = now_s
        # By query and partition: the offset, its record's time in ms or None, and when that was asked for.
        self._known: dict[QueryPartition, tuple[int, int | None, float]] = {}

    def look_up(
        self, wanted: Iterable[tuple[str, ReaderOptions, Mapping[TopicPartition, int]]], deadline: Deadline
    ) -> None:
        """Ask for times that are not known: of each query's sources, what they read next. Forgets all others."""
        before, self._known = self._known, {}
        for query_id, options, offsets in wanted:
            missing = {}
            for tp, offset in offsets.items():
                known = before.get((query_id, tp))
                if known is not None and known[0] == offset and not self._is_worth_asking(known):
                    self._known[query_id, tp] = known
                else:
                    missing[tp] = offset
            found = self._ask(options, missing, deadline) if missing and not deadline.passed() else {}
            for tp, offset in missing.items():
                timestamp = found.get(tp, -1)
                self._known[query_id, tp] = (offset, timestamp if timestamp >= 0 else None, self._now_s())

    def _is_worth_asking(self, known: tuple[int, int | None, float]) -> bool:
        return known[1] is None and self._now_s() - known[2] >= _UNKNOWN_FOR_S

    def aged(self, lag: QueryPartitionLag, now_ms: int) -> QueryPartitionLag:
        """Return the lag with its seconds."""
        if not lag.lag:
            return lag._replace(seconds=0.0)
        offset, timestamp, _ = self._known.get((lag.query_id, TopicPartition(lag.topic, lag.partition)), (-1, None, 0))
        if offset != lag.offset or timestamp is None:
            return lag
        # A producer's clock may be ahead of ours.
        return lag._replace(seconds=max(0, now_ms - timestamp) / 1000)
