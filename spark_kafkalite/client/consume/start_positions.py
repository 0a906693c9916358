"""Where a consumer starts in partitions that it has no position in: committed offsets, ends of logs, times.

A partition of a group's consumer starts from what the group has committed; without that, and in every other consumer,
from where ``auto.offset.reset`` points. Look-ups run in the read-ahead's keeper thread, a topic at a time, because one
that does not exist must not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_kafkalite.client.config import ConsumerConfig
from spark_kafkalite.client.consume.list_offsets import OffsetAndTimestamp, offsets_for
from spark_kafkalite.client.consume.partition_state import COMMITTED
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import ClosedError, KafkaliteError, OffsetOutOfRange
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, CommittedOffset, TopicPartition

# One topic's look-up while others wait.
_SHORT_MS: Final = 2_000

# Returns what the group has committed, without the partitions it has not.
FetchCommitted = Callable[[list[TopicPartition], Deadline], Mapping[TopicPartition, CommittedOffset]]


@dataclass(slots=True)
class FoundPositions:
    """The outcome of a round of look-ups; partitions in neither are still to be looked up."""

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    # Of the record before each position, -1 where that is not known.
    leader_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    failed: dict[TopicPartition, KafkaliteError] = field(default_factory=dict)

    def add(self, topic_partition: TopicPartition, position: int, leader_epoch: int) -> None:
        """Note where a partition starts."""
        self.positions[topic_partition] = position
        self.leader_epochs[topic_partition] = leader_epoch


class StartPositions:
    """Looks positions up for one consumer."""

    def __init__(
        self, config: ConsumerConfig, cluster: ClusterClient, clock: Clock, fetch_committed: FetchCommitted | None
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._fetch_committed = fetch_committed

    def first_reset(self) -> int | None:
        """Return what to look a new partition's position up by; None: it has none until the user seeks."""
        return self.reset() if self._fetch_committed is None else COMMITTED

    def reset(self) -> int | None:
        """Return what ``auto.offset.reset`` means: EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, or None."""
        return {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}.get(self._config.offset_reset)

    def find(self, wanted: Mapping[TopicPartition, int], *, auto_create: bool) -> FoundPositions:
        """Look positions up by COMMITTED, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP or a timestamp. Raises ClosedError."""
        found = FoundPositions()
        timestamps = {each: place for each, place in wanted.items() if place != COMMITTED}
        timestamps.update(self._without_commit([each for each in wanted if each not in timestamps], found))
        topics = {each.topic for each in timestamps}
        for topic in topics:
            part = {each: timestamp for each, timestamp in timestamps.items() if each.topic == topic}
            try:
                for each, answer in self._by_time(part, auto_create, short=len(topics) > 1).items():
                    found.add(each, answer.offset, answer.leader_epoch)
            except ClosedError:
                raise
            except KafkaliteError as error:
                found.failed.update(dict.fromkeys(part, error))
        return found

    def _without_commit(self, wanted: list[TopicPartition], found: FoundPositions) -> dict[TopicPartition, int]:
        """Take committed offsets into ``found``, and return where the others start."""
        if not wanted or self._fetch_committed is None:
            return {}
        try:
            committed = self._fetch_committed(wanted, self._deadline(short=True))
        except ClosedError:
            raise
        except KafkaliteError as error:
            found.failed.update(dict.fromkeys(wanted, error))
            return {}
        for each in wanted:
            if each in committed:
                found.add(each, committed[each].offset, committed[each].leader_epoch)
        left = [each for each in wanted if each not in committed]
        place = self.reset()
        if place is None:
            for each in left:
                found.failed[each] = OffsetOutOfRange(
                    f"{each}: group {self._config.group_id!r} has not committed an offset and auto.offset.reset=none: "
                    "call seek() first, or set it to earliest or latest"
                )
            return {}
        return dict.fromkeys(left, place)

    def _by_time(
        self, timestamps: Mapping[TopicPartition, int], auto_create: bool, *, short: bool
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        answers = offsets_for(
            self._cluster,
            timestamps,
            self._deadline(short=short),
            isolation=self._config.isolation,
            allow_auto_create=auto_create,
        )
        missing = {each: LATEST_TIMESTAMP for each, answer in answers.items() if answer is None}
        if missing:
            # A time after the last record: the end of the log.
            answers.update(offsets_for(self._cluster, missing, self._deadline(), isolation=self._config.isolation))
        return {each: answer for each, answer in answers.items() if answer is not None}

    def _deadline(self, *, short: bool = False) -> Deadline:
        timeout_ms = self._config.client.request_timeout_ms
        return Deadline.after_ms(min(timeout_ms, _SHORT_MS) if short else timeout_ms, self._clock)
