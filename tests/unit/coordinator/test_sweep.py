"""Sweeps over the shards of a second coordinator: what is written, what is waited for, what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from spark_kafkalite.coordinator import sweep as sweep_module
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.coordinator.sweep import sweep
from spark_kafkalite.errors import NotEnoughReplicas
from spark_kafkalite.slices import Slices
from tests.unit.coordinator.counters import Counters, Entry, counter_host, served
from tests.unit.coordinator.host_double import until, with_loop
from tests.unit.slice_clock import SliceClock


def zeros(state: Counters) -> Iterator[list[Entry]]:
    """The tombstones of counters that are 0, one a step."""
    for name in list(state.values):
        yield [(name, None)] if state.values.get(name) == 0 else []


async def swept(shards: Shards[Counters]) -> int:
    # The clock stands still, so that no slice is over before the sweep waits: what one pass writes is counted.
    return await Slices(asyncio.get_running_loop(), SliceClock()).run(sweep(shards, zeros))


@with_loop
async def test_what_the_steps_find_is_written_and_counted_when_it_is_committed() -> None:
    host = counter_host()
    shards, shard = await served(host)
    await shard.append([(f"c{number}", number % 2) for number in range(10)])
    assert await swept(shards) == 5
    assert sorted(shard.state.values) == [f"c{number}" for number in range(1, 10, 2)]
    assert len(host.batches) == 2, "found in one pass of the loop, written as one batch"
    assert await swept(shards) == 0


@with_loop
async def test_a_sweep_waits_when_much_is_on_its_way() -> None:
    host = counter_host()
    shards, shard = await served(host)
    await shard.append([(f"c{number}", 0) for number in range(2500)])
    host.held = True
    sweeping = asyncio.ensure_future(swept(shards))
    for first in range(0, 2500, sweep_module._MOST_OPEN):
        expected = min(2500 - first, sweep_module._MOST_OPEN)
        await until(lambda: len(list(shard.open_keys())) == expected)  # noqa: B023
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(list(shard.open_keys())) == expected
        host.release()
    assert await sweeping == 2500
    assert shard.state.values == {}


@with_loop
async def test_what_cannot_be_written_is_left_to_the_next_sweep() -> None:
    host = counter_host()
    shards, shard = await served(host)
    await shard.append([("c", 0)])
    host.error = NotEnoughReplicas("one is away")
    assert await swept(shards) == 0
    host.error = None
    assert await swept(shards) == 1


@with_loop
async def test_a_shard_that_resigns_in_the_middle_is_left() -> None:
    host = counter_host()
    shards, shard = await served(host)
    await shard.append([(f"c{number}", 0) for number in range(9)])
    looked_at: list[str] = []

    def resigning(state: Counters) -> Iterator[list[Entry]]:
        for name in list(state.values):
            looked_at.append(name)
            if len(looked_at) == 3:
                shards.resign(0)
            yield [(name, None)]

    assert await Slices(asyncio.get_running_loop(), SliceClock()).run(sweep(shards, resigning)) == 0
    assert looked_at == ["c0", "c1", "c2"] and len(host.batches) == 1
