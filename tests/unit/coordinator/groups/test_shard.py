"""Shards over a log in memory: loading, writing many commits at once, leader epochs, and what clients are told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_kafkalite.coordinator.groups import shard as shard_module
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.groups.records import (
    GroupKey,
    GroupMetadata,
    OffsetKey,
    OffsetValue,
    encode_key,
    encode_value,
)
from spark_kafkalite.coordinator.groups.shard import GroupShard, Shards, partition_for
from spark_kafkalite.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidCommitOffsetSize,
    KafkaError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.unit.coordinator.groups.log_double import LogDouble

T0 = TopicPartition("t", 0)


def commit(offset: int, group: str = "g", partition: int = 0) -> list[tuple[OffsetKey, OffsetValue]]:
    return [(OffsetKey(group, "t", partition), OffsetValue(offset, commit_timestamp_ms=1))]


def shards_over(log: LogDouble, partitions: int = 1) -> Shards:
    return Shards(
        log.append_committed, log.read_committed_log, lambda: partitions, ManualClock(), GroupLimits(), lambda: 5.0
    )


async def loaded(log: LogDouble) -> tuple[Shards, GroupShard]:
    shards = shards_over(log)
    shards.lead(0, log.leader_epoch)
    await until(lambda: not shards.is_loading)
    return shards, shards.shard_of("g")


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


def with_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@pytest.mark.parametrize(
    ("group", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("my-group", -1906497762),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -(2**31)),
        ("caf\u00e9", 3045921),
        ("\U0001f600 smile", -1559691765),
    ],
)
def test_groups_are_spread_as_java_does(group: str, java_hash: int) -> None:
    # From String.hashCode itself.
    assert partition_for(group, 50) == (0 if java_hash == -(2**31) else abs(java_hash) % 50)


@with_loop
async def test_commits_of_one_pass_of_the_loop_are_one_batch() -> None:
    log = LogDouble()
    _, shard = await loaded(log)
    done = [shard.append(commit(number, f"g{number}")) for number in range(50)]
    assert log.batches == [] and shard.offsets.of("g7") == {}
    await asyncio.gather(*done)
    assert [len(rows) for rows in log.records()] == [50]
    assert shard.offsets.of("g7") == {T0: OffsetValue(7, commit_timestamp_ms=1)}
    await shard.append(commit(51))
    assert len(log.batches) == 2


@with_loop
async def test_batches_stay_bounded_and_requests_whole() -> None:
    log = LogDouble()
    _, shard = await loaded(log)
    metadata = "m" * 30_000
    requests = [
        [(OffsetKey(f"g{number}", "t", part), OffsetValue(1, metadata=metadata)) for part in range(10)]
        for number in range(5)
    ]
    await asyncio.gather(*(shard.append(request) for request in requests))
    written = log.records()
    assert [len(rows) for rows in written] == [10] * 5
    assert max(map(len, log.batches)) < 400_000


@with_loop
async def test_a_commit_is_shown_when_it_is_committed_and_not_before() -> None:
    log = LogDouble()
    _, shard = await loaded(log)
    await shard.append(commit(1))
    log.held = True
    second, third = shard.append(commit(2)), shard.append(commit(3))
    await until(lambda: len(log.batches) == 2)
    assert shard.offsets.of("g")[T0].offset == 1
    assert shard.offsets.pending("g") == {OffsetKey("g", "t", 0)}
    log.release()
    await asyncio.gather(second, third)
    assert shard.offsets.of("g")[T0].offset == 3
    assert shard.offsets.pending("g") == set()


@with_loop
async def test_a_load_finds_what_was_committed() -> None:
    log = LogDouble()
    _, shard = await loaded(log)
    await shard.append([*commit(1), *commit(5, partition=1)])
    await shard.append([*commit(7), (OffsetKey("gone", "t", 0), OffsetValue(1)), (OffsetKey("g", "t", 1), None)])
    await shard.append([(OffsetKey("gone", "t", 0), None)])
    empty = GroupMetadata("consumer", 4, None, None, 9)
    await shard.append([(GroupKey("members"), empty), (GroupKey("deleted"), empty)])
    await shard.append([(GroupKey("deleted"), None)])
    _, again = await loaded(log)
    assert again.offsets.of("g") == {T0: OffsetValue(7, commit_timestamp_ms=1)}
    assert sorted(again.groups) == ["g", "members"]
    assert again.groups["members"].generation == 4
    assert again.groups["g"].is_empty and not again.groups["g"].is_stored


@with_loop
async def test_random_histories_are_loaded_as_they_were_shown() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    log = LogDouble()
    _, shard = await loaded(log)
    keys = [OffsetKey(f"g{group}", "t", part) for group in range(5) for part in range(4)]
    for _ in range(200):
        entries = [
            (key, None if chance.random() < 0.2 else OffsetValue(chance.randrange(1000)))
            for key in chance.sample(keys, chance.randrange(1, 6))
        ]
        done = shard.append(entries)
        if chance.random() < 0.5:
            await done
    await done
    _, again = await loaded(log)
    assert {group: dict(again.offsets.of(group)) for group in again.offsets.groups()} == {
        group: dict(shard.offsets.of(group)) for group in shard.offsets.groups()
    }


@with_loop
async def test_records_that_cannot_be_read_are_skipped() -> None:
    log = LogDouble()
    _, shard = await loaded(log)
    batch = kernel.OpenBatch(1 << 20)
    for key, value in ((b"\0\3\0\1g", b"later"), (None, b"x"), (b"\0\1", b""), (b"\0\2\0\1g", b"\0\7")):
        batch.append(1, key, value)
    log.batches.append(bytes(batch.build()))
    await shard.append(commit(3))
    _, again = await loaded(log)
    assert again.offsets.of("g")[T0].offset == 3


@with_loop
async def test_while_it_loads_and_elsewhere_clients_are_told_so() -> None:
    log = LogDouble()
    shards = shards_over(log)
    with pytest.raises(NotCoordinator):
        shards.shard_of("g")
    log.gate = asyncio.Event()
    log.batches.append(bytes(_one_commit()))
    shards.lead(0, 1)
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorLoadInProgress):
        shards.shard_of("g")
    assert shards.is_loading and list(shards) == []
    seen: list[GroupShard] = []
    shards.on_loaded.append(seen.append)
    log.gate.set()
    await until(lambda: bool(seen))
    assert shards.shard_of("g").offsets.of("g")[T0].offset == 3
    assert list(shards) == seen
    with pytest.raises(NotCoordinator):
        shards_over(log, 0).shard_of("g")


def _one_commit() -> bytearray:
    batch = kernel.OpenBatch(1 << 20)
    for key, value in commit(3):
        batch.append(1, encode_key(key), encode_value(value))
    return batch.build()


def test_a_log_that_cannot_be_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "_LOAD_AGAIN_S", 0.0)

    async def run() -> None:
        log = LogDouble()
        log.batches = [bytes(_one_commit()), bytes(_one_commit())]
        whole, log.batches[1] = log.batches[1], log.batches[1][:-1] + b"?"
        shards = shards_over(log)
        shards.lead(0, 1)
        for _ in range(50):
            await asyncio.sleep(0)
        # Half of it is not served: that would take offsets back.
        with pytest.raises(CoordinatorLoadInProgress):
            shards.shard_of("g")
        log.batches[1] = whole
        await until(lambda: not shards.is_loading)
        assert shards.shard_of("g").offsets.of("g")[T0].offset == 3
        shards.close()

    asyncio.run(run())


@with_loop
async def test_a_load_that_was_overtaken_changes_nothing() -> None:
    log = LogDouble()
    log.batches.append(bytes(_one_commit()))
    log.gate = asyncio.Event()
    shards = shards_over(log)
    loaded_shards: list[GroupShard] = []
    shards.on_loaded.append(loaded_shards.append)
    shards.lead(0, 1)
    await asyncio.sleep(0)
    shards.lead(0, 2)
    shards.lead(0, 1)
    log.gate.set()
    await until(lambda: not shards.is_loading)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [shard.leader_epoch for shard in loaded_shards] == [2]
    assert shards.shard_of("g").leader_epoch == 2


@with_loop
async def test_who_waits_when_leadership_goes_is_told() -> None:
    log = LogDouble()
    shards, shard = await loaded(log)
    log.held = True
    resigned: list[GroupShard] = []
    shards.on_resigned.append(resigned.append)
    in_flight = shard.append(commit(1))
    await until(lambda: len(log.batches) == 1)
    waiting = shard.append(commit(2))
    shards.resign(0)
    for one in (in_flight, waiting, shard.append(commit(3))):
        with pytest.raises(NotCoordinator):
            await one
    assert resigned == [shard]
    log.release()
    await asyncio.sleep(0)
    # What is committed after that is the next load's to find.
    assert shard.offsets.of("g") == {}
    log.held = False
    assert (await loaded(log))[1].offsets.of("g")[T0].offset == 1


@with_loop
async def test_an_epoch_that_is_over_writes_nothing() -> None:
    log = LogDouble()
    _, shard = await loaded(log)
    log.leader_epoch = 2
    with pytest.raises(NotCoordinator):
        await shard.append(commit(1))
    assert log.batches == []


CASES: list[tuple[KafkaError, type[KafkaError]]] = [
    (NotEnoughReplicas(""), CoordinatorNotAvailable),
    (NotLeaderOrFollower(""), NotCoordinator),
    (MessageTooLarge(""), InvalidCommitOffsetSize),
    (RequestTimedOut(""), RequestTimedOut),
]


@pytest.mark.parametrize(("error", "told"), CASES)
def test_what_clients_are_told_of_an_append_that_failed(error: KafkaError, told: type[KafkaError]) -> None:
    async def run() -> None:
        log = LogDouble()
        _, shard = await loaded(log)
        log.error = error
        with pytest.raises(told):
            await shard.append(commit(1))
        assert shard.offsets.of("g") == {} and not shard.offsets.has_any("g")
        log.error = None
        await shard.append(commit(2))
        assert shard.offsets.of("g")[T0].offset == 2

    asyncio.run(run())


@with_loop
async def test_one_large_request_does_not_spoil_those_beside_it() -> None:
    log = LogDouble()
    _, shard = await loaded(log)
    log.largest_batch, log.too_large = 5000, MessageTooLarge("too large")
    small = [shard.append(commit(number, f"g{number}")) for number in range(3)]
    large = shard.append([(OffsetKey("large", "t", 0), OffsetValue(1, metadata="x" * 6000))])
    results: list[Any] = await asyncio.gather(*small, large, return_exceptions=True)
    assert results[:3] == [None] * 3
    assert isinstance(results[3], InvalidCommitOffsetSize)
    assert [shard.offsets.of(f"g{number}")[T0].offset for number in range(3)] == [0, 1, 2]


@with_loop
async def test_a_caller_that_has_gone_holds_nobody_up() -> None:
    log = LogDouble()
    _, shard = await loaded(log)
    first, second = shard.append(commit(1)), shard.append(commit(2, "other"))
    first.cancel()
    await second
    assert shard.offsets.of("g")[T0].offset == 1
