"""The writer under a second coordinator: batches, order, timeouts, refusals, and what is bounded."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from spark_kafkalite.coordinator import record_writer
from spark_kafkalite.coordinator.open_transactions import ProducerIdAndEpoch
from spark_kafkalite.coordinator.shard import Shard
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from spark_kafkalite.records import kernel
from spark_kafkalite.records.control import Marker, build_marker
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.seeds import SEED
from tests.unit.coordinator.counters import Counters, counter_host, served
from tests.unit.coordinator.host_double import until, with_loop


@with_loop
async def test_what_comes_in_one_pass_of_the_loop_is_one_batch() -> None:
    host = counter_host()
    _, shard = await served(host)
    done = [shard.append([(f"c{number}", number)]) for number in range(50)]
    assert host.batches == [] and shard.state.values == {}
    await asyncio.gather(*done)
    assert [len(batch) for batch in host.raw_records()] == [50]
    assert shard.state.values == {f"c{number}": number for number in range(50)}
    await shard.append([("c", 51)])
    assert len(host.batches) == 2


@with_loop
async def test_batches_stay_bounded_and_a_callers_records_together() -> None:
    host = counter_host()
    _, shard = await served(host)
    requests = [[("k" * 10_000 + f"{number}-{part}", part) for part in range(10)] for number in range(9)]
    await asyncio.gather(*(shard.append(request) for request in requests))
    assert [len(batch) for batch in host.raw_records()] == [30] * 3
    assert max(map(len, host.batches)) < record_writer._BATCH_BYTES + 110_000


@with_loop
async def test_records_are_applied_when_they_are_committed_and_not_before() -> None:
    host = counter_host()
    _, shard = await served(host)
    host.held = True
    first = shard.append([("c", 1)])
    await until(lambda: len(host.batches) == 1)
    second = shard.append([("d", 2)])
    assert shard.state.values == {} and list(shard.open_keys()) == ["c", "d"]
    await until(lambda: len(host.batches) == 2)
    host.release()
    await asyncio.gather(first, second)
    assert shard.state.values == {"c": 1, "d": 2} and list(shard.open_keys()) == []


@with_loop
async def test_callers_are_told_in_the_order_of_the_log_however_commits_are_told_of() -> None:
    host = counter_host()
    _, shard = await served(host)
    host.held = True
    told: list[int] = []
    for number in range(4):
        shard.write([("c", number)], lambda error, number=number: told.append(number))  # type: ignore[misc]
        await until(lambda: len(host.open) == number + 1)  # noqa: B023
    held, host.open = host.open, []
    host.held = False
    for place in (2, 1):
        held[place].set_result(place)
        await asyncio.sleep(0)
    assert told == [], "the records before them are not known to be committed"
    # This one is committed at once, and is behind them in the log.
    last = shard.append([("c", 9)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not last.done()
    held[0].set_result(0)
    await asyncio.sleep(0)
    assert told == [0, 1, 2]
    held[3].set_result(3)
    await last
    assert told == [0, 1, 2, 3]
    assert [value for _, value in shard.state.applied] == [0, 1, 2, 3, 9]


@with_loop
async def test_who_waits_too_long_is_told_so_and_the_records_are_applied_when_they_are_committed() -> None:
    host = counter_host(timeout_ms=1)
    _, shard = await served(host)
    host.held = True
    late = shard.append([("c", 1)])
    with pytest.raises(RequestTimedOut, match=r"^__counters-0: not committed within commit\.timeout\.ms"):
        await late
    assert shard.state.values == {} and list(shard.open_keys()) == ["c"], "it may still be committed"
    again = shard.append([("c", 2)])
    await until(lambda: len(host.open) == 2)
    host.release()
    await again
    assert [value for _, value in shard.state.applied] == [1, 2], "memory is what a load would find"
    _, loaded = await served(host)
    assert loaded.state.values == shard.state.values == {"c": 2}


@with_loop
async def test_what_a_timeout_is_called_is_for_the_coordinator_to_say() -> None:
    class Impatient(Counters):
        def told(self, error: KafkaError) -> KafkaError:
            return CoordinatorNotAvailable(str(error)) if isinstance(error, RequestTimedOut) else super().told(error)

    host = counter_host(timeout_ms=1)
    shards = Shards(host, Impatient, ManualClock())
    shards.lead(0, 1)
    await until(lambda: not shards.is_loading)
    host.held = True
    with pytest.raises(CoordinatorNotAvailable, match="not committed within"):
        await shards.shard_of("c").append([("c", 1)])


@with_loop
async def test_what_waits_for_its_commit_is_bounded() -> None:
    host = counter_host(timeout_ms=60_000)
    _, shard = await served(host)
    host.held = True
    name = "k" * 100_000
    waiting = []
    while sum(map(len, host.batches)) < record_writer._MOST_OPEN_BYTES:
        waiting += [shard.append([(f"{name}{len(waiting)}", 1)]) for _ in range(10)]
        await asyncio.sleep(0)
    with pytest.raises(CoordinatorNotAvailable, match="wait to be committed"):
        await shard.append([("c", 1)])
    assert len(host.batches) < 100
    host.release()
    await asyncio.gather(*waiting)
    host.held = False
    await shard.append([("c", 1)])


TOLD: list[tuple[KafkaError, type[KafkaError]]] = [
    (UnknownTopicOrPartition(""), CoordinatorNotAvailable),
    (NotEnoughReplicas(""), CoordinatorNotAvailable),
    (NotEnoughReplicasAfterAppend(""), CoordinatorNotAvailable),
    (NotLeaderOrFollower(""), NotCoordinator),
    (FencedLeaderEpoch(""), NotCoordinator),
    (UnknownLeaderEpoch(""), NotCoordinator),
    (KafkaStorageError(""), NotCoordinator),
    # What is too large is for each coordinator to say.
    (MessageTooLarge(""), MessageTooLarge),
    (RecordListTooLarge(""), RecordListTooLarge),
]


@pytest.mark.parametrize(("error", "told"), TOLD)
def test_what_callers_are_told_of_an_append_that_failed(error: KafkaError, told: type[KafkaError]) -> None:
    async def run() -> None:
        host = counter_host()
        _, shard = await served(host)
        host.error = error
        with pytest.raises(told):
            await shard.append([("c", 1)])
        assert shard.state.values == {} and list(shard.open_keys()) == []
        host.error = None
        await shard.append([("c", 2)])
        assert shard.state.applied == [("c", 2)]

    asyncio.run(run())


@with_loop
async def test_an_append_that_fails_before_others_are_committed_is_told_at_once() -> None:
    host = counter_host()
    _, shard = await served(host)
    host.held = True
    waiting = shard.append([("c", 1)])
    await until(lambda: len(host.open) == 1)
    host.error = NotEnoughReplicas("one is away")
    with pytest.raises(CoordinatorNotAvailable):
        await shard.append([("d", 2)])
    host.release()
    await waiting
    assert shard.state.values == {"c": 1}


@with_loop
async def test_one_large_request_does_not_spoil_those_beside_it() -> None:
    host = counter_host()
    _, shard = await served(host)
    host.largest_batch, host.too_large = 5000, MessageTooLarge("too large")
    requests = [shard.append([(f"c{number}", number)]) for number in range(3)]
    requests.insert(1, shard.append([("x" * 6000, 1)]))
    results: list[Any] = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), MessageTooLarge, type(None), type(None)]
    assert shard.state.applied == [("c0", 0), ("c1", 1), ("c2", 2)]


@with_loop
async def test_records_that_cannot_be_encoded_spoil_nothing() -> None:
    host = counter_host()
    _, shard = await served(host)
    before = shard.append([("a", 1)])
    with pytest.raises(ValueError, match="no int32"):
        shard.append([("b", 1), ("c", 1 << 31)])
    await before
    assert [len(batch) for batch in host.raw_records()] == [1]
    with pytest.raises(ValueError, match="no int32"):
        shard.append([("c", 1 << 31)])
    await shard.append([("d", 4)])
    assert shard.state.values == {"a": 1, "d": 4}


@with_loop
async def test_a_caller_that_has_gone_or_fails_holds_nobody_up() -> None:
    host = counter_host()
    _, shard = await served(host)
    gone, last = shard.append([("a", 1)]), asyncio.get_running_loop().create_future()
    gone.cancel()

    def fail(error: KafkaError | None) -> None:
        raise RuntimeError("a bug of the caller")

    shard.write([("b", 2)], fail)
    shard.write([("c", 3)], last.set_result)
    assert await last is None
    assert shard.state.values == {"a": 1, "b": 2, "c": 3}


@with_loop
async def test_records_that_cannot_be_applied_are_told_of_and_hold_nobody_up() -> None:
    host = counter_host()
    _, shard = await served(host)
    bad, good = shard.append([("a", -1)]), shard.append([("b", 2)])
    with pytest.raises(CoordinatorNotAvailable, match="cannot be applied"):
        await bad
    await good
    assert shard.state.values == {"b": 2}


@with_loop
async def test_a_failure_that_is_no_answer_of_the_log_is_told_as_one() -> None:
    host = counter_host()
    _, shard = await served(host)
    host.error = RuntimeError("a bug")
    with pytest.raises(CoordinatorNotAvailable, match="__counters-0 cannot be written: a bug"):
        await shard.append([("c", 1)])


@with_loop
async def test_a_bug_of_the_host_does_not_keep_those_behind_it_waiting() -> None:
    host = counter_host()
    _, shard = await served(host)
    append = host.append_committed

    def broken(partition: int, batch: bytearray, leader_epoch: int) -> int:
        raise OSError("a bug")

    host.append_committed = broken  # type: ignore[method-assign]
    with pytest.raises(CoordinatorNotAvailable, match="cannot be written: a bug"):
        await shard.append([("c", 1)])
    host.append_committed = append  # type: ignore[method-assign]
    await shard.append([("c", 2)])
    assert shard.state.applied == [("c", 2)]


@with_loop
async def test_who_is_told_may_write_more_or_give_the_partition_up() -> None:
    host = counter_host()
    shards, shard = await served(host)
    outcomes: list[object] = []

    def write_more(error: KafkaError | None) -> None:
        outcomes.append(error)
        shard.write([("b", 2)], resign)

    def resign(error: KafkaError | None) -> None:
        outcomes.append(error)
        shards.resign(0)

    # Three batches of one pass; the callers of the first hand in another, which ends the shard.
    large = "k" * record_writer._BATCH_BYTES
    shard.write([(large, 1)], write_more)
    shard.write([(large, 2)], outcomes.append)
    shard.write([(large, 3)], outcomes.append)
    rest = shard.append([("c", 3)])
    await asyncio.gather(rest, return_exceptions=True)
    await until(lambda: len(outcomes) == 4)
    assert outcomes == [None] * 4
    host.held = True
    last = [shard.append([("c", 4)]), shard.append([("d", 5)])]
    assert [type(each) for each in await asyncio.gather(*last, return_exceptions=True)] == [NotCoordinator] * 2


@with_loop
async def test_resigning_from_within_a_pass_tells_everybody_of_that_pass() -> None:
    host = counter_host()
    shards, shard = await served(host)
    host.largest_batch, host.too_large = 3000, MessageTooLarge("too large")
    outcomes: list[tuple[str, object]] = []

    def tell(name: str) -> Any:
        def told(error: KafkaError | None) -> None:
            outcomes.append((name, type(error)))
            if name == "a":
                shards.resign(0)

        return told

    for name in ("a", "b"):
        shard.write([(name * 2000, 1)], tell(name))
    shard.write([("c" * record_writer._BATCH_BYTES, 1)], tell("c"))
    shard.write([("d", 1)], tell("d"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(name for name, _ in outcomes) == ["a", "b", "c", "d"]
    assert dict(outcomes)["a"] is type(None) and dict(outcomes)["d"] is NotCoordinator


@with_loop
async def test_who_was_told_of_a_commit_is_not_told_of_the_timeout() -> None:
    host = counter_host(timeout_ms=20)
    _, shard = await served(host)
    host.held = True
    told: list[KafkaError | None] = []
    shard.write([("c", 1)], told.append)
    await until(lambda: len(host.open) == 1)
    host.release()
    await asyncio.sleep(0.05)
    assert told == [None]


@pytest.mark.parametrize("late", [None, NotLeaderOrFollower("the epoch is over")])
def test_everybody_is_told_once_whatever_comes_after_the_end(late: KafkaError | None) -> None:
    async def run() -> None:
        host = counter_host(timeout_ms=1)
        shards, shard = await served(host)
        host.held = True
        told: list[KafkaError | None] = []
        shard.write([("c", 1)], told.append)
        await until(lambda: len(host.open) == 1)
        shard.write([("d", 1)], told.append)
        shards.resign(0)
        assert [type(error) for error in told] == [NotCoordinator] * 2
        host.release(late)
        await asyncio.sleep(0.01)
        assert len(told) == 2 and shard.state.applied == [] and len(host.batches) == 1

    asyncio.run(run())


P7, P8 = ProducerIdAndEpoch(7, 2), ProducerIdAndEpoch(8, 0)
COMMIT, ABORT = Marker(commits=True, coordinator_epoch=4), Marker(commits=False, coordinator_epoch=4)


@with_loop
async def test_records_of_a_transaction_are_a_batch_of_their_own_and_markers_keep_their_place() -> None:
    host = counter_host()
    clock = ManualClock()
    shards = Shards(host, Counters, clock)
    shards.lead(0, 1)
    await until(lambda: not shards.is_loading)
    shard = shards.shard_of("c")
    told: list[object] = []
    plain = [shard.append([("a", 1), ("b", 1)]), shard.append([("c", 1)])]
    first = shard.append([("a", 2)], P7)
    second = shard.append([("a", 3), ("d", 3)], P7)
    shard.end_transaction(P7, COMMIT, told.append)
    last = [shard.append([("b", 4)]), shard.append([("b", 5)])]
    assert host.batches == [] and list(shard.open_keys()) == ["a", "b", "c", "a", "a", "d", "b", "b"]
    await asyncio.gather(*plain, first, second, *last)
    headers = [kernel.read_header(batch) for batch in host.batches]
    assert [(each.producer_id, each.producer_epoch, each.base_sequence) for each in headers] == [
        (-1, -1, -1), (7, 2, 0), (7, 2, 0), (7, 2, -1), (-1, -1, -1),
    ]  # fmt: skip
    assert [(each.is_transactional, each.record_count) for each in headers] == [
        (False, 3), (True, 1), (True, 2), (True, 1), (False, 2),
    ]  # fmt: skip
    marker = build_marker(7, 2, COMMIT, clock.wall_ms())
    kernel.stamp(marker, 0, 6, 1)
    assert host.batches[3] == marker
    assert told == [None]
    assert shard.state.heard == [
        ("a", 1, 0, None), ("b", 1, 1, None), ("c", 1, 2, None), ("a", 2, 3, P7), ("a", 3, 4, P7), ("d", 3, 5, P7),
        (P7, True), ("b", 4, 7, None), ("b", 5, 8, None),
    ]  # fmt: skip
    assert shard.state.values == {"a": 3, "b": 5, "c": 1, "d": 3}
    _, again = await served(host)
    assert again.state.values == shard.state.values


@with_loop
async def test_a_marker_counts_when_it_is_committed_and_not_before() -> None:
    host = counter_host()
    _, shard = await served(host)
    await shard.append([("a", 1)], P7)
    host.held = True
    told: list[object] = []
    shard.end_transaction(P7, COMMIT, told.append)
    await until(lambda: bool(host.open))
    assert (told, shard.state.values) == ([], {})
    host.release()
    await until(lambda: bool(told))
    assert (told, shard.state.values) == ([None], {"a": 1})


@with_loop
async def test_a_marker_that_is_refused_ends_nothing() -> None:
    host = counter_host()
    _, shard = await served(host)
    await shard.append([("a", 1)], P7)
    told: list[Any] = []
    host.error = NotEnoughReplicas("few")
    shard.end_transaction(P7, COMMIT, told.append)
    await until(lambda: bool(told))
    assert [type(error) for error in told] == [CoordinatorNotAvailable]
    host.error = InvalidProducerEpoch("epoch 2 is older than 3")
    shard.end_transaction(P7, ABORT, told.append)
    await until(lambda: len(told) == 2)
    assert type(told[1]) is InvalidProducerEpoch
    assert shard.state.open.producers_of
    shard.resign()
    shard.end_transaction(P7, COMMIT, told.append)
    assert [type(error) for error in told[2:]] == [NotCoordinator]
    with pytest.raises(NotCoordinator):
        await shard.append([("a", 1)], P7)


def test_markers_too_wait_behind_a_full_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_writer, "_MOST_OPEN_BYTES", 100)

    async def run() -> None:
        host = counter_host()
        _, shard = await served(host)
        host.held = True
        first = shard.append([("a" * 200, 1)], P7)
        await until(lambda: bool(host.open))
        told: list[Any] = []
        shard.end_transaction(P7, COMMIT, told.append)
        assert [type(error) for error in told] == [CoordinatorNotAvailable]
        host.release()
        await first

    asyncio.run(run())


@with_loop
async def test_random_transactions_end_as_a_load_finds_them() -> None:
    print("seed", SEED)
    chance = random.Random(SEED)
    host = counter_host(timeout_ms=60_000)
    _, shard = await served(host)
    outcomes: list[object] = []
    for number in range(1500):
        host.held = chance.random() < 0.5
        host.error = NotEnoughReplicas("few") if chance.random() < 0.1 else None
        producer = ProducerIdAndEpoch(chance.randrange(3), 0)
        if chance.random() < 0.2:
            shard.end_transaction(producer, COMMIT if chance.random() < 0.6 else ABORT, outcomes.append)
        else:
            names = chance.sample("abcdefgh", chance.randrange(1, 4))
            entries = [(name, None if chance.random() < 0.2 else chance.randrange(99)) for name in names]
            shard.write(entries, outcomes.append, producer if chance.random() < 0.7 else None)
        if chance.random() < 0.5:
            await asyncio.sleep(0)
        if host.open and chance.random() < 0.5:
            host.commit(chance.choice(host.open))
        if number % 100 == 99:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            host.release()
            await until(lambda: len(outcomes) == number + 1)  # noqa: B023
            _, loaded = await served(host)
            assert loaded.state.values == shard.state.values
            assert {(each, *one) for each, records in loaded.state.open for one in records} == {
                (each, *one) for each, records in shard.state.open for one in records
            }
    assert len({type(each) for each in outcomes}) == 2


@with_loop
async def test_random_histories_end_as_a_load_finds_them() -> None:
    seed = SEED
    print("seed", seed)
    chance = random.Random(seed)
    host = counter_host(timeout_ms=60_000)
    _, shard = await served(host)
    host.largest_batch, host.too_large = 400, MessageTooLarge("too large")
    waiting: list[asyncio.Future[None]] = []
    for _ in range(400):
        host.held = chance.random() < 0.5
        host.error = NotEnoughReplicas("few") if chance.random() < 0.1 else None
        names = chance.sample("abcdefgh", chance.randrange(1, 5))
        size = 1 if chance.random() < 0.9 else 300
        entries = [(name * size, None if chance.random() < 0.2 else chance.randrange(99)) for name in names]
        waiting.append(shard.append(entries))
        if chance.random() < 0.5:
            await asyncio.sleep(0)
        if host.open and chance.random() < 0.5:
            # In any order: what tells of commits need not keep it.
            host.commit(chance.choice(host.open))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    host.release()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in outcomes} <= {type(None), CoordinatorNotAvailable, MessageTooLarge}
    applied = _all_in(host, shard)
    assert shard.state.applied == applied, "applied once, in the order of the log"
    _, loaded = await served(host)
    assert loaded.state.values == shard.state.values


def _all_in(host: Any, shard: Shard[Counters]) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    for key, value in (record for batch in host.raw_records() for record in batch):
        assert key is not None
        found.append((key[2:].decode(), None) if value is None else shard.state.decode(key, value))
    return found
