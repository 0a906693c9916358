"""What expiry deletes, and what it leaves alone."""

from __future__ import annotations

import asyncio

from spark_kafkalite.coordinator.groups.expiry import OffsetExpiry
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.groups.records import GroupKey, GroupMetadata, OffsetKey, OffsetValue
from spark_kafkalite.coordinator.groups.shard import GroupShard, Shards
from spark_kafkalite.errors import NotEnoughReplicas
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.unit.coordinator.groups.log_double import LogDouble

HOUR_MS = 3_600_000


async def prepared(log: LogDouble, clock: ManualClock) -> tuple[OffsetExpiry, GroupShard]:
    shards = Shards(log.append_committed, log.read_committed_log, lambda: 1, clock, GroupLimits(), lambda: 5.0)
    shards.lead(0, 1)
    while shards.is_loading:
        await asyncio.sleep(0)
    return OffsetExpiry(shards, clock, lambda: HOUR_MS), shards.shard_of("g")


async def commit(shard: GroupShard, clock: ManualClock, group: str, topic: str = "t") -> None:
    shard.group_or_new(group)
    await shard.append([(OffsetKey(group, topic, 0), OffsetValue(1, commit_timestamp_ms=clock.wall_ms()))])


def test_expired_offsets_and_their_groups_go() -> None:
    async def run() -> None:
        log, clock = LogDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        await commit(shard, clock, "old")
        await shard.append([(GroupKey("stored"), GroupMetadata("consumer", 1, None, None, clock.wall_ms()))])
        expiry, shard = await prepared(log, clock)
        clock.advance(ms=HOUR_MS - 1)
        await commit(shard, clock, "new")
        assert await expiry.look() == 0
        assert sorted(shard.groups) == ["new", "old"], "a group with neither members nor offsets is not kept"
        assert log.records()[-1] == [(GroupKey("stored"), None)]
        clock.advance(ms=1)
        assert await expiry.look() == 1
        assert sorted(shard.groups) == ["new"]
        assert [list(shard.offsets.groups()), log.records()[-1]] == [["new"], [(OffsetKey("old", "t", 0), None)]]
        _, again = await prepared(log, clock)
        assert sorted(again.groups) == ["new"]

    asyncio.run(run())


def test_a_group_that_a_commit_is_on_its_way_for_stays() -> None:
    async def run() -> None:
        log, clock = LogDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        log.held = True
        shard.group_or_new("g")
        done = shard.append([(OffsetKey("g", "t", 0), OffsetValue(1))])
        assert await expiry.look() == 0
        assert list(shard.groups) == ["g"]
        await asyncio.sleep(0)
        log.release()
        await done

    asyncio.run(run())


def test_offsets_of_deleted_topics_go() -> None:
    async def run() -> None:
        log, clock = LogDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        for group in ("g", "h"):
            for topic in ("t", "kept"):
                await commit(shard, clock, group, topic)
        expiry.start(3600)
        expiry.topics_deleted(["t", "never-read"])
        while len(shard.offsets) > 2:
            await asyncio.sleep(0)
        await expiry.stop()
        assert {key.topic for group in ("g", "h") for key in shard.offsets.keys(group)} == {"kept"}

    asyncio.run(run())


def test_many_groups_are_gone_through_in_pieces() -> None:
    async def run() -> None:
        log, clock = LogDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        for first in range(0, 5000, 100):
            entries = [
                (OffsetKey(f"g{n}", "t", 0), OffsetValue(1, commit_timestamp_ms=0)) for n in range(first, first + 100)
            ]
            await shard.append(entries)
            for key, _ in entries:
                shard.group_or_new(key.group)
        clock.advance(ms=HOUR_MS)
        batches = len(log.batches)
        assert await expiry.look() == 5000
        assert shard.groups == {} and len(shard.offsets) == 0
        assert len(log.batches) - batches >= 5

    asyncio.run(run())


def test_tombstones_that_cannot_be_written_leave_the_offsets() -> None:
    async def run() -> None:
        log, clock = LogDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        await commit(shard, clock, "old")
        clock.advance(ms=HOUR_MS)
        log.error = NotEnoughReplicas("one broker is away")
        assert await expiry.look() == 0
        assert list(shard.groups) == ["old"] and len(shard.offsets) == 1
        log.error = None
        assert await expiry.look() == 1

    asyncio.run(run())
