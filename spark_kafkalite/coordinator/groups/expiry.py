"""Deletes what nobody needs of groups any more: expired offsets, those of deleted topics, groups without offsets.

Deleting means writing tombstones; the offsets go from memory when those are committed. What has expired is said in
``offsets.py``. An empty group without offsets goes at the first look that finds it so, as in Kafka; it is dead before
its tombstone is written, so that a member who joins meanwhile begins a new group, whose records come behind.

One task does all of it, a look every ``offsets.retention.check.interval.ms`` and one after each deletion of topics.
A look at many groups gives way to the event loop between them, and writes as it goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.offsets import expired_offsets
from spark_kafkalite.coordinator.groups.records import GroupKey, OffsetKey
from spark_kafkalite.coordinator.groups.shard import GroupShard, Shards
from spark_kafkalite.coordinator.groups.writer import Entry
from spark_kafkalite.errors import KafkaError

logger = logging.getLogger(__name__)

# The loop is given back after this long.
_SLICE_S: Final = 0.005
# Tombstones of one append.
_ENTRIES_AT_ONCE: Final = 1000


class OffsetExpiry:
    """See the module's text."""

    def __init__(self, shards: Shards, clock: Clock, retention_ms: Callable[[], int]) -> None:
        """``retention_ms`` says how long offsets are kept, as of now."""
        self._shards = shards
        self._clock = clock
        self._retention_ms = retention_ms
        self._deleted_topics: set[str] = set()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, interval_s: float) -> None:
        """Begin to look every so often."""
        self._task = asyncio.get_running_loop().create_task(self._run(interval_s))

    async def stop(self) -> None:
        """End; what was not deleted is looked at after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def topics_deleted(self, names: Collection[str]) -> None:
        """Delete the offsets committed for these topics soon."""
        if names:
            self._deleted_topics.update(names)
            self._wanted.set()

    async def _run(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        next_look_s = loop.time() + interval_s
        while True:
            timer = loop.call_at(next_look_s, self._wanted.set)
            await self._wanted.wait()
            timer.cancel()
            self._wanted.clear()
            topics, self._deleted_topics = self._deleted_topics, set()
            try:
                if topics:
                    await self.delete_topics(topics)
                if loop.time() >= next_look_s:
                    await self.look()
            except Exception:
                logger.exception("looking for expired offsets failed")
            if loop.time() >= next_look_s:
                next_look_s = loop.time() + interval_s

    async def look(self) -> int:
        """Delete what has expired, and groups that have nothing left; return how many offsets went."""

        def entries(shard: GroupShard, group: Group) -> list[Entry]:
            expired = expired_offsets(group, shard.offsets, self._clock.wall_ms(), self._retention_ms())
            return [(OffsetKey(group.group_id, *topic_partition), None) for topic_partition in expired]

        deleted = await self._sweep(entries)
        await self._sweep(self._dead_group)
        if deleted:
            logger.info("deleted %d committed offsets that had expired", deleted)
        return deleted

    async def delete_topics(self, names: Collection[str]) -> int:
        """Delete all offsets committed for these topics; return how many went."""

        def entries(shard: GroupShard, group: Group) -> list[Entry]:
            return [(key, None) for key in shard.offsets.keys(group.group_id) if key.topic in names]

        return await self._sweep(entries)

    def _dead_group(self, shard: GroupShard, group: Group) -> list[Entry]:
        """End a group that has neither members nor offsets; return its tombstone."""
        if not group.is_empty or group.pending or shard.offsets.has_any(group.group_id):
            return []
        group.delete()
        del shard.groups[group.group_id]
        return [(GroupKey(group.group_id), None)] if group.is_stored else []

    async def _sweep(self, entries_of: Callable[[GroupShard, Group], list[Entry]]) -> int:
        """Write the tombstones that ``entries_of`` gives for each group; return how many were committed."""
        written = 0
        until_s = time.monotonic() + _SLICE_S
        for shard in self._shards:
            entries: list[Entry] = []
            for group in list(shard.groups.values()):
                entries += entries_of(shard, group)
                if len(entries) >= _ENTRIES_AT_ONCE or time.monotonic() >= until_s:
                    written += await _write(shard, entries)
                    entries = []
                    await asyncio.sleep(0)
                    until_s = time.monotonic() + _SLICE_S
            written += await _write(shard, entries)
        return written


async def _write(shard: GroupShard, entries: list[Entry]) -> int:
    if not entries:
        return 0
    try:
        await shard.append(entries)
    except KafkaError as error:
        # They are still there, and the next look finds them again.
        logger.debug("%d tombstones for __consumer_offsets-%d failed: %s", len(entries), shard.partition, error)
        return 0
    return len(entries)
