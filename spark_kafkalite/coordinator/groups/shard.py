"""The coordinator's part of ``__consumer_offsets``: for each partition that this broker leads, its groups and offsets.

A :class:`GroupShard` belongs to one leader epoch of one partition. It is made when the broker begins to lead, reads the
log, serves, and is thrown away when leadership goes; a later epoch gets a new one. So a write that was begun under one
epoch can never change what another epoch has read, and a broker that leads no longer can write nothing: every append
names the epoch and fails when it is over.

::

    LOADING    reads the log from its start; requests get COORDINATOR_LOAD_IN_PROGRESS and clients ask again
    ACTIVE     serves
    RESIGNED   over; whatever still waits gets NOT_COORDINATOR and clients look for the new coordinator

Offsets change only when their records are committed: until then fetches show what was before. Records that did not
commit in time may be committed later; who asked was told so, and asks again. A group's own state is changed by whoever
writes its metadata; only a load makes groups of what the log says.

This package knows neither logs nor brokers: ``append_committed`` and ``read_committed_log`` are given to it. All of it
runs in the event loop, and between looking at a shard and changing it nothing is awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, cast

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.groups.offsets import GroupOffsets
from spark_kafkalite.coordinator.groups.records import (
    GroupMetadata,
    OffsetKey,
    OffsetValue,
    UnreadableRecord,
    decode_key,
    decode_value,
)
from spark_kafkalite.coordinator.groups.writer import AppendCommitted, Entry, OnDone, RecordWriter
from spark_kafkalite.errors import CoordinatorLoadInProgress, KafkaError, KafkaliteError, NotCoordinator
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.records.kernel import ColumnBuilder, Columns
from spark_kafkalite.records.layout import BatchHeader

logger = logging.getLogger(__name__)

LoggedBatches = AsyncIterator[tuple[BatchHeader, memoryview]]
# Gives a partition's committed batches from the log's start on.
ReadCommittedLog = Callable[[int], LoggedBatches]

# Records that are read, and of those that count decoded, in one piece of work of the loop: about two milliseconds.
_READ_AT_ONCE: Final = 1000
_DECODED_AT_ONCE: Final = 250
_OLDEST_OFFSET_KEY: Final = b"\0\0"
_OFFSET_KEY: Final = b"\0\1"
_REMEMBERED_CHARS: Final = 255
_LOAD_AGAIN_S: Final = 5.0
# Each holds a piece of its log in memory.
_LOADS_AT_ONCE: Final = 2


def partition_for(group_id: str, partition_count: int) -> int:
    """Return the partition of ``__consumer_offsets`` that a group belongs to: Java's hash of the id, without its sign.

    Source: GroupMetadataManager.partitionFor, java.lang.String.hashCode and Utils.abs of Apache Kafka.
    """
    # Ids may have 32767 bytes, and nobody's should fill a cache with them.
    remember = len(group_id) <= _REMEMBERED_CHARS
    return (_partition_for if remember else _partition_for.__wrapped__)(group_id, partition_count)


@lru_cache(maxsize=10_000)
def _partition_for(group_id: str, partition_count: int) -> int:
    units = group_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    # The smallest int32 has no positive counterpart.
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count


class ShardState(Enum):
    """What a shard can do for its groups; see the module's text."""

    LOADING = "loading"
    ACTIVE = "active"
    RESIGNED = "resigned"


class GroupShard:
    """The groups and offsets of one partition under one leader epoch."""

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        append_committed: AppendCommitted,
        clock: Clock,
        limits: GroupLimits,
        commit_timeout_s: Callable[[], float],
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.state = ShardState.LOADING
        self.groups: dict[str, Group] = {}
        self._limits = limits
        self._writer = RecordWriter(partition, leader_epoch, append_committed, clock, commit_timeout_s, self._committed)
        self.offsets = GroupOffsets(self._writer.open_offset_keys)

    def append(self, entries: Sequence[Entry]) -> asyncio.Future[None]:
        """Write records, all or none; the future is done when they are committed and the offsets among them in force.

        It raises what clients are to be told: NotCoordinator (16), CoordinatorNotAvailable (15),
        InvalidCommitOffsetSize (28), RequestTimedOut (7) when the records may or may not be committed later. A group's
        metadata is not taken over: who writes it knows what it says.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: KafkaError | None) -> None:
            if done.done():
                # Whoever waited has gone.
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.write(entries, tell)
        return done

    def write(self, entries: Sequence[Entry], on_done: OnDone) -> None:
        """As :meth:`append`, for those who come by the thousands: ``on_done`` gets None or the error."""
        if self.state is ShardState.ACTIVE:
            self._writer.append(entries, on_done)
        else:
            on_done(self.unavailable())

    def _committed(self, entries: Sequence[Entry]) -> None:
        replay = self.offsets.replay
        for key, value in entries:
            if isinstance(key, OffsetKey):
                replay(key, cast("OffsetValue | None", value))
            elif value is not None and (group := self.groups.get(key.group)) is not None:
                group.apply(cast("GroupMetadata", value))

    def group_or_new(self, group_id: str) -> Group:
        """Return a group; a new one, of which nothing is written, if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self._limits)
        return group

    def unavailable(self) -> KafkaError:
        """Return what a request gets while the shard does not serve."""
        if self.state is ShardState.LOADING:
            return CoordinatorLoadInProgress(f"the groups of __consumer_offsets-{self.partition} are being loaded")
        return NotCoordinator(f"this broker does not coordinate the groups of __consumer_offsets-{self.partition}")

    async def load(self, batches: LoggedBatches) -> bool:
        """Read the log into memory and begin to serve; return False when the shard resigned meanwhile.

        Raises KafkaliteError when the log cannot be read: serving what has been read so far would take offsets back.
        """
        skipped: Counter[str] = Counter()
        # The last value of each key: most records are overtaken by later ones, and need not be decoded.
        last: dict[bytes, bytes] = {}
        builder = ColumnBuilder(False)
        async for header, batch in batches:
            if header.is_transactional:
                skipped["it belongs to a transaction, and transactions are not served"] += header.record_count
                continue
            add_batch(builder, batch, 0, header)
            # Many small batches, or one large one.
            if builder.count >= _READ_AT_ONCE:
                await _take_last(builder.finish(), last)
                if self.state is not ShardState.LOADING:
                    return False
        await _take_last(builder.finish(), last)
        metadata = await self._replay(last, skipped)
        if self.state is not ShardState.LOADING:
            return False
        for problem, count in skipped.items():
            logger.warning("__consumer_offsets-%d: skipped %d records: %s", self.partition, count, problem)
        self.groups = {
            group_id: Group.from_metadata(group_id, stored, self._limits) for group_id, stored in metadata.items()
        }
        for group_id in self.offsets.groups():
            self.group_or_new(group_id)
        self.state = ShardState.ACTIVE
        return True

    async def _replay(self, last: dict[bytes, bytes], skipped: Counter[str]) -> dict[str, GroupMetadata]:
        """Replay the offsets among the records that count; return the groups' metadata."""
        self.offsets = GroupOffsets(self._writer.open_offset_keys)
        metadata: dict[str, GroupMetadata] = {}
        for number, (raw_key, raw_value) in enumerate(last.items(), 1):
            try:
                key = decode_key(raw_key)
                value = decode_value(key, raw_value)
            except UnreadableRecord as error:
                skipped[str(error)] += 1
                continue
            if isinstance(value, OffsetValue) and isinstance(key, OffsetKey):
                self.offsets.replay(key, value)
            elif isinstance(value, GroupMetadata):
                metadata[key.group] = value
            if number % _DECODED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return metadata

    def resign(self) -> None:
        """Serve no more; whoever waits for an append is told to look for the coordinator."""
        self.state = ShardState.RESIGNED
        self._writer.close(self.unavailable())

    def __repr__(self) -> str:
        return f"<GroupShard {self.partition} epoch={self.leader_epoch} {self.state.value} groups={len(self.groups)}>"


async def _take_last(columns: Columns, last: dict[bytes, bytes]) -> None:
    """Keep the last value of each key; tombstones take a key out, and a record without a key says nothing."""
    for first in range(0, columns.count, _READ_AT_ONCE):
        for row in range(first, min(first + _READ_AT_ONCE, columns.count)):
            key, value = columns.key_at(row), columns.value_at(row)
            if key is None:
                continue
            if key.startswith(_OLDEST_OFFSET_KEY):
                # The same key as a newer version writes it.
                key = _OFFSET_KEY + key[2:]
            if value is None:
                last.pop(key, None)
            else:
                last[key] = value
        await asyncio.sleep(0)


class Shards:
    """The shards of this broker, one for each partition of ``__consumer_offsets`` that it leads.

    ``on_loaded`` and ``on_resigned`` are called with a shard when it begins to serve and when it has ceased to.
    """

    def __init__(
        self,
        append_committed: AppendCommitted,
        read_committed_log: ReadCommittedLog,
        partition_count: Callable[[], int],
        clock: Clock,
        limits: GroupLimits,
        commit_timeout_s: Callable[[], float],
    ) -> None:
        """``partition_count``: how many partitions ``__consumer_offsets`` has, 0 while there is none."""
        self._append_committed = append_committed
        self._read_committed_log = read_committed_log
        self._partition_count = partition_count
        self._clock = clock
        self._limits = limits
        self._commit_timeout_s = commit_timeout_s
        self._shards: dict[int, GroupShard] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._may_load = asyncio.Semaphore(_LOADS_AT_ONCE)
        self.on_loaded: list[Callable[[GroupShard], None]] = []
        self.on_resigned: list[Callable[[GroupShard], None]] = []

    def shard_of(self, group_id: str) -> GroupShard:
        """Return the shard that serves a group. Raises NotCoordinator (16), CoordinatorLoadInProgress (14)."""
        count = self._partition_count()
        shard = self._shards.get(partition_for(group_id, count)) if count else None
        if shard is None:
            raise NotCoordinator(f"this broker does not coordinate group {group_id!r}")
        if shard.state is not ShardState.ACTIVE:
            raise shard.unavailable()
        return shard

    def __iter__(self) -> Iterator[GroupShard]:
        """Iterate over the shards that serve now."""
        return iter([shard for shard in self._shards.values() if shard.state is ShardState.ACTIVE])

    @property
    def is_loading(self) -> bool:
        """Whether some groups of this broker are not known yet."""
        return any(shard.state is ShardState.LOADING for shard in self._shards.values())

    def lead(self, partition: int, leader_epoch: int) -> None:
        """Load a partition that this broker leads under this epoch from now on."""
        present = self._shards.get(partition)
        if present is not None:
            if present.leader_epoch >= leader_epoch:
                return
            self.resign(partition)
        shard = GroupShard(
            partition, leader_epoch, self._append_committed, self._clock, self._limits, self._commit_timeout_s
        )
        self._shards[partition] = shard
        task = asyncio.get_running_loop().create_task(self._load(shard))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def resign(self, partition: int) -> None:
        """Serve a partition's groups no more."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.resign()
            for listener in self.on_resigned:
                listener(shard)

    async def _load(self, shard: GroupShard) -> None:
        while not await self._try_load(shard):
            await asyncio.sleep(_LOAD_AGAIN_S)

    async def _try_load(self, shard: GroupShard) -> bool:
        """Load a shard; return False when it is worth another try."""
        try:
            async with self._may_load:
                began_s = self._clock.monotonic_s()
                if not await shard.load(self._read_committed_log(shard.partition)):
                    return True
        except Exception as error:
            if shard.state is not ShardState.LOADING:
                return True
            logger.error(
                "the groups of __consumer_offsets-%d cannot be loaded, trying again in %.0f s: %s",
                shard.partition,
                _LOAD_AGAIN_S,
                error,
                exc_info=None if isinstance(error, KafkaliteError) else error,
            )
            return False
        taken_s = self._clock.monotonic_s() - began_s
        level = logging.INFO if taken_s > 1 else logging.DEBUG
        counts = len(shard.groups), len(shard.offsets)
        text = "__consumer_offsets-%d: loaded %d groups with %d offsets in %.3f s"
        logger.log(level, text, shard.partition, *counts, taken_s)
        for listener in self.on_loaded:
            listener(shard)
        return True

    def close(self) -> None:
        """Resign everything, because the broker stops."""
        for task in self._loads:
            task.cancel()
        for partition in list(self._shards):
            self.resign(partition)
