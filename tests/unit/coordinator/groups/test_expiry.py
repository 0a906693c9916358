"""What expiry deletes, and what it leaves alone."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafkalite.coordinator.groups.expiry import OffsetExpiry
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.groups_state import GroupShard, GroupsState
from spark_kafkalite.coordinator.groups.records import GroupKey, GroupMetadata, OffsetKey, OffsetValue, RecordEntry
from spark_kafkalite.errors import NotEnoughReplicas
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.patience import wait_until_async
from tests.unit.coordinator.groups.group_world import join_request
from tests.unit.coordinator.groups.test_groups_state import group_shards, records
from tests.unit.coordinator.host_double import HostDouble, until
from tests.unit.slice_clock import SliceClock

HOUR_MS = 3_600_000


async def prepared(log: HostDouble, clock: ManualClock) -> tuple[OffsetExpiry, GroupShard]:
    shards = group_shards(log)
    shards.lead(0, 1)
    while shards.is_loading:
        await asyncio.sleep(0)
    slices = Slices(asyncio.get_running_loop(), SliceClock())
    return OffsetExpiry(shards, slices, clock, lambda: HOUR_MS), shards.shard_of("g")


async def commit(shard: GroupShard, clock: ManualClock, group: str, topic: str = "t") -> None:
    shard.state.group_or_new(group)
    await shard.append([(OffsetKey(group, topic, 0), OffsetValue(1, commit_timestamp_ms=clock.wall_ms()))])


def test_expired_offsets_and_their_groups_go() -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        await commit(shard, clock, "old")
        await shard.append([(GroupKey("stored"), GroupMetadata("consumer", 1, None, None, clock.wall_ms()))])
        expiry, shard = await prepared(log, clock)
        clock.advance(ms=HOUR_MS - 1)
        await commit(shard, clock, "new")
        assert await expiry.look() == 0
        assert sorted(shard.state.groups) == ["new", "old"], "a group with neither members nor offsets is not kept"
        assert records(log)[-1] == [(GroupKey("stored"), None)]
        clock.advance(ms=1)
        assert await expiry.look() == 1
        assert sorted(shard.state.groups) == ["new"]
        assert [list(shard.state.offsets.groups()), records(log)[-1]] == [["new"], [(OffsetKey("old", "t", 0), None)]]
        _, again = await prepared(log, clock)
        assert sorted(again.state.groups) == ["new"]

    asyncio.run(run())


def test_a_group_that_a_commit_is_on_its_way_for_stays() -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        log.held = True
        shard.state.group_or_new("g")
        done = shard.append([(OffsetKey("g", "t", 0), OffsetValue(1))])
        assert await expiry.look() == 0
        assert list(shard.state.groups) == ["g"]
        await asyncio.sleep(0)
        log.release()
        await done

    asyncio.run(run())


def test_offsets_of_deleted_topics_go() -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        for group in ("g", "h"):
            for topic in ("t", "kept"):
                await commit(shard, clock, group, topic)
        expiry.start(3600)
        expiry.topics_deleted(["t", "never-read"])
        while len(shard.state.offsets) > 2:
            await asyncio.sleep(0)
        await expiry.stop()
        assert {key.topic for group in ("g", "h") for key in shard.state.offsets.keys(group)} == {"kept"}

    asyncio.run(run())


def test_many_groups_are_gone_through_in_pieces() -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        for first in range(0, 5000, 100):
            entries = [
                (OffsetKey(f"g{n}", "t", 0), OffsetValue(1, commit_timestamp_ms=0)) for n in range(first, first + 100)
            ]
            await shard.append(entries)
            for key, _ in entries:
                shard.state.group_or_new(key.group)
        clock.advance(ms=HOUR_MS)
        batches = len(log.batches)
        assert await expiry.look() == 5000
        assert shard.state.groups == {} and len(shard.state.offsets) == 0
        assert len(log.batches) - batches >= 5

    asyncio.run(run())


def test_tombstones_that_cannot_be_written_leave_the_offsets() -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        await commit(shard, clock, "old")
        clock.advance(ms=HOUR_MS)
        log.error = NotEnoughReplicas("one broker is away")
        assert await expiry.look() == 0
        assert list(shard.state.groups) == ["old"] and len(shard.state.offsets) == 1
        log.error = None
        assert await expiry.look() == 1

    asyncio.run(run())


def test_a_group_that_goes_while_a_look_pauses_is_left_alone() -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        for number in range(3):
            shard.state.group_or_new(f"g{number}")
        second = shard.state.groups["g1"]

        def forget(state: GroupsState, group: Group) -> list[RecordEntry]:
            looked_at.append(group.group_id)
            state.groups.pop("g1", None)
            state.group_or_new("g1")
            return []

        looked_at: list[str] = []
        assert await expiry._sweep(forget) == 0
        assert looked_at == ["g0", "g2"] and not shard.state.holds(second)

    asyncio.run(run())


def test_a_group_whose_tombstone_cannot_be_written_is_found_again() -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        await shard.append([(GroupKey("g"), GroupMetadata("consumer", 1, None, None, clock.wall_ms()))])
        log.error = NotEnoughReplicas("one broker is away")
        await expiry.look()
        assert list(shard.state.groups) == ["g"]
        log.error = None
        await expiry.look()
        assert shard.state.groups == {}
        assert records(log)[-1] == [(GroupKey("g"), None)]

    asyncio.run(run())


def test_a_group_that_is_joined_while_its_tombstone_is_written_stays() -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        expiry, shard = await prepared(log, clock)
        await shard.append([(GroupKey("g"), GroupMetadata("consumer", 4, None, None, clock.wall_ms()))])
        log.held = True
        looking = asyncio.ensure_future(expiry.look())
        await until(lambda: bool(log.open))
        group = shard.state.groups["g"]
        group.join(join_request(), 1, 0)
        log.release()
        await looking
        assert shard.state.holds(group) and group.generation == 5

    asyncio.run(run())


def test_looks_go_on_by_themselves_and_a_failed_one_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        log, clock = HostDouble(), ManualClock()
        shards = group_shards(log)
        shards.lead(0, 1)
        await until(lambda: not shards.is_loading)
        shard, looks = shards.shard_of("g"), 0

        def retention_ms() -> int:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise RuntimeError("a bug")
            return HOUR_MS

        expiry = OffsetExpiry(shards, Slices(asyncio.get_running_loop(), SliceClock()), clock, retention_ms)
        await commit(shard, clock, "old")
        expiry.start(0.001)
        await wait_until_async(lambda: looks >= 3, "it looks again and again", poll_s=0.001)
        clock.advance(ms=HOUR_MS)
        await wait_until_async(lambda: not len(shard.state.offsets), "the offset expires", poll_s=0.001)
        await expiry.stop()

    asyncio.run(run())
    assert "looking for expired offsets failed" in caplog.text
