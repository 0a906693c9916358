"""Deletes expired offsets, offsets of deleted topics, and groups without offsets.

Deleting means writing tombstones; the offsets leave memory when those are committed. ``offsets.py`` decides what has
expired. An empty group without offsets is deleted by the first look that finds it so, as in Kafka. It, too, stays until
its tombstone is committed. A member that joins meanwhile keeps it, and its next record comes behind the tombstone.

One task does all of it, a look every ``offsets.retention.check.interval.ms`` and one after each deletion of topics. A
look goes group by group (``sweep.py``), and between two groups others have their turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.groups_state import GroupShards, GroupsState
from spark_kafkalite.coordinator.groups.offsets import expired_offsets
from spark_kafkalite.coordinator.groups.records import GroupKey, OffsetKey, RecordEntry
from spark_kafkalite.coordinator.sweep import sweep
from spark_kafkalite.slices import Slices

logger = logging.getLogger(__name__)


class OffsetExpiry:
    """See the module's text."""

    def __init__(self, shards: GroupShards, slices: Slices, clock: Clock, retention_ms: Callable[[], int]) -> None:
        """``retention_ms`` returns how long offsets are kept at present."""
        self._shards = shards
        self._slices = slices
        self._clock = clock
        self._retention_ms = retention_ms
        self._deleted_topics: set[str] = set()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, interval_s: float) -> None:
        """Begin to look every so often."""
        self._task = asyncio.get_running_loop().create_task(self._run(interval_s))

    async def stop(self) -> None:
        """End; the next start deletes what is left."""
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

        def expired(state: GroupsState, group: Group) -> list[RecordEntry]:
            partitions = expired_offsets(group, state.offsets, self._clock.wall_ms(), self._retention_ms())
            return [(OffsetKey(group.group_id, *topic_partition), None) for topic_partition in partitions]

        deleted = await self._sweep(expired)
        await self._sweep(_unneeded)
        if deleted:
            logger.info("deleted %d committed offsets that had expired", deleted)
        return deleted

    async def delete_topics(self, names: Collection[str]) -> int:
        """Delete all offsets committed for these topics; return how many went."""

        def of_topics(state: GroupsState, group: Group) -> list[RecordEntry]:
            return [(key, None) for key in state.offsets.keys(group.group_id) if key.topic in names]

        return await self._sweep(of_topics)

    async def _sweep(self, tombstones_of: Callable[[GroupsState, Group], list[RecordEntry]]) -> int:
        """Write the tombstones that are given for each group; return how many were committed."""

        def steps(state: GroupsState) -> Iterator[list[RecordEntry]]:
            for group in list(state.groups.values()):
                if state.holds(group):
                    yield tombstones_of(state, group)

        return await self._slices.run(sweep(self._shards, steps))


def _unneeded(state: GroupsState, group: Group) -> list[RecordEntry]:
    """Return the tombstone of a group that has neither members nor offsets; one that was never written goes at once."""
    if not group.is_empty or group.pending or state.offsets.has_any(group.group_id):
        return []
    if group.is_stored:
        return [(GroupKey(group.group_id), None)]
    del state.groups[group.group_id]
    return []
