"""Shards under a second coordinator: loading, leader epochs, giving up, damaged records."""

from __future__ import annotations

import asyncio
import random

import crc32c
import pytest

from spark_kafkalite.coordinator import shard as shard_module
from spark_kafkalite.coordinator import shards as shards_module
from spark_kafkalite.coordinator.open_transactions import ProducerIdAndEpoch
from spark_kafkalite.coordinator.shard import Shard
from spark_kafkalite.errors import CoordinatorLoadInProgress, KafkaStorageError, NotCoordinator
from spark_kafkalite.records import kernel
from spark_kafkalite.records.assemble import RetainedRecords, reassemble
from spark_kafkalite.records.control import Marker, build_marker
from spark_kafkalite.records.layout import HEADER_BYTES
from tests.seeds import SEED
from tests.unit.coordinator.counters import Counters, counter_host, served, shards_over
from tests.unit.coordinator.host_double import until, with_loop

ONE = (b"\0\0c", b"\0\0\0\1")


@with_loop
async def test_a_load_finds_what_was_committed() -> None:
    host = counter_host()
    _, shard = await served(host)
    await shard.append([("a", 1), ("b", 1)])
    await shard.append([("a", 2), ("b", None), ("c", 3)])
    await shard.append([("c", None)])
    await shard.append([("c", 4)])
    _, again = await served(host)
    assert again.state.values == shard.state.values == {"a": 2, "c": 4}
    assert sorted(again.state.applied) == [("a", 2), ("c", 4)], "what was overtaken is not decoded"


@with_loop
async def test_a_large_log_is_loaded_in_pieces() -> None:
    host = counter_host()
    seed = SEED
    print("seed", seed)
    chance = random.Random(seed)
    expected: dict[bytes, bytes | None] = {}
    for _ in range(6):
        records = [
            (b"\0\0%d" % chance.randrange(2000), None if chance.random() < 0.1 else b"\0\0\0\1") for _ in range(1500)
        ]
        expected.update(records)
        host.add(*records)
    _, shard = await served(host)
    assert shard.state.values.keys() == {key[2:].decode() for key, value in expected.items() if value is not None}


@with_loop
async def test_two_versions_of_a_key_are_one_key() -> None:
    host = counter_host()
    host.add(ONE, (b"\0\1c", b"\0\0\0\2"), (b"\0\0d", b"\0\0\0\5"), (b"\0\1d", None))
    _, shard = await served(host)
    assert shard.state.values == {"c": 2}


@with_loop
async def test_records_that_cannot_be_read_are_skipped_with_a_line() -> None:
    host = counter_host()
    host.add((b"\0\7c", b"\0\0\0\1"), (None, b"x"), (b"\0\0d", b"short"), ONE)
    _, shard = await served(host)
    assert shard.state.values == {"c": 1}


def test_the_line_about_them_names_the_partition_and_why(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        host = counter_host()
        host.add((b"\0\7c", b"\0\0\0\1"), (b"\0\7d", b"\0\0\0\1"), ONE)
        await served(host)

    asyncio.run(run())
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("spark_kafkalite")]
    assert lines == [
        "__counters-0: skipped 1 records: no counter: b'\\x00\\x07c'",
        "__counters-0: skipped 1 records: no counter: b'\\x00\\x07d'",
    ]


@with_loop
async def test_while_it_loads_and_elsewhere_clients_are_told_so() -> None:
    host = counter_host()
    shards = shards_over(host)
    with pytest.raises(NotCoordinator, match="counter 'c'"):
        shards.shard_of("c")
    host.gate = asyncio.Event()
    host.add(ONE)
    shards.lead(0, 1)
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorLoadInProgress, match="the counters of __counters-0 are being loaded"):
        shards.shard_of("c")
    assert shards.is_loading and list(shards) == []
    seen: list[Shard[Counters]] = []
    shards.on_loaded.append(seen.append)
    host.gate.set()
    await until(lambda: bool(seen))
    assert shards.shard_of("c").state.values == {"c": 1}
    assert list(shards) == seen
    host.partitions = 0
    with pytest.raises(NotCoordinator):
        shards.shard_of("c")


@with_loop
async def test_a_write_while_it_loads_is_refused() -> None:
    host = counter_host()
    host.gate = asyncio.Event()
    host.add(ONE)
    shards = shards_over(host)
    loading = Shard(host, 0, 1, Counters, shards._clock)
    with pytest.raises(CoordinatorLoadInProgress):
        await loading.append([("c", 2)])
    assert len(host.batches) == 1 and list(loading.open_keys()) == []


@pytest.mark.parametrize("problem", ["damaged", "disk", "bug"])
def test_a_log_that_cannot_be_read_is_tried_again(
    problem: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shards_module, "_LOAD_AGAIN_S", 0.0)

    async def run() -> None:
        host = counter_host()
        host.add(ONE)
        host.add((b"\0\0d", b"\0\0\0\2"))
        whole, read = host.batches[1], host.read_replicated

        async def failing(partition: int):  # type: ignore[no-untyped-def]
            async for one in read(partition):
                yield one
                raise KafkaStorageError("the disk failed") if problem == "disk" else RuntimeError("a bug")

        if problem == "damaged":
            host.batches[1] = whole[:-1] + b"?"
        else:
            host.read_replicated = failing  # type: ignore[method-assign]
        shards = shards_over(host)
        shards.lead(0, 1)
        for _ in range(50):
            await asyncio.sleep(0)
        assert caplog.text.count("cannot be loaded") == 1
        shards._clock.advance(ms=60_000)  # type: ignore[attr-defined]
        for _ in range(50):
            await asyncio.sleep(0)
        assert caplog.text.count("cannot be loaded") == 2
        # Half of it is not served: that would take the rest back.
        with pytest.raises(CoordinatorLoadInProgress):
            shards.shard_of("c")
        host.batches[1], host.read_replicated = whole, read  # type: ignore[method-assign]
        await until(lambda: not shards.is_loading)
        assert shards.shard_of("c").state.values == {"c": 1, "d": 2}
        shards.close()

    asyncio.run(run())
    assert (
        "the counters of __counters-0 cannot be loaded, trying again every 0 s; their clients have to wait: "
        in caplog.text
    )


@with_loop
async def test_a_load_that_was_overtaken_changes_nothing() -> None:
    host = counter_host()
    host.add(ONE)
    host.gate = asyncio.Event()
    shards = shards_over(host)
    loaded: list[Shard[Counters]] = []
    shards.on_loaded.append(loaded.append)
    shards.lead(0, 1)
    await asyncio.sleep(0)
    shards.lead(0, 2)
    shards.lead(0, 1)
    host.gate.set()
    await until(lambda: not shards.is_loading)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [shard.leader_epoch for shard in loaded] == [2]
    assert shards.shard_of("c").leader_epoch == 2


@with_loop
async def test_a_shard_that_resigns_while_it_applies_does_not_serve() -> None:
    host = counter_host()
    host.add(*((b"\0\0%d" % number, b"\0\0\0\1") for number in range(900)))
    shards = shards_over(host)
    applied: list[int] = []
    apply = Counters.apply

    def resigning(self: Counters, *records: object) -> None:
        apply(self, *records)  # type: ignore[arg-type]
        applied.append(len(self.values))
        if len(applied) == 2:
            shards.resign(0)

    loaded: list[object] = []
    shards.on_loaded.append(loaded.append)
    shards._new_state = lambda open_keys: _with(resigning, open_keys)
    shards.lead(0, 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert applied[1] == 2 * shard_module._APPLIED_AT_ONCE
    assert loaded == [] and not shards.is_loading
    with pytest.raises(NotCoordinator):
        shards.shard_of("c")


def _with(apply: object, open_keys: object) -> Counters:
    state = type("Resigning", (Counters,), {"apply": apply})(open_keys)
    assert isinstance(state, Counters)
    return state


@with_loop
async def test_who_waits_when_leadership_goes_is_told() -> None:
    host = counter_host()
    shards, shard = await served(host)
    host.held = True
    resigned: list[Shard[Counters]] = []
    shards.on_resigned.append(resigned.append)
    in_flight = shard.append([("c", 1)])
    await until(lambda: len(host.batches) == 1)
    waiting = shard.append([("c", 2)])
    shards.resign(0)
    for one in (in_flight, waiting, shard.append([("c", 3)])):
        with pytest.raises(NotCoordinator, match="does not coordinate the counters of __counters-0"):
            await one
    assert resigned == [shard]
    host.release()
    await asyncio.sleep(0)
    # What is committed after that is the next load's to find.
    assert shard.state.values == {}
    host.held = False
    assert (await served(host))[1].state.values == {"c": 1}


@with_loop
async def test_an_epoch_that_is_over_writes_nothing() -> None:
    host = counter_host()
    _, shard = await served(host)
    host.leader_epoch = 2
    with pytest.raises(NotCoordinator):
        await shard.append([("c", 1)])
    assert host.batches == []


@with_loop
async def test_a_new_epoch_begins_with_what_the_last_one_committed_and_not_with_what_it_waits_for() -> None:
    host = counter_host()
    shards, old = await served(host)
    await old.append([("c", 1)])
    host.held = True
    waiting = old.append([("c", 2)])
    await until(lambda: len(host.open) == 1)
    lost = host.batches.pop()
    host.leader_epoch = 2
    shards.lead(0, 2)
    with pytest.raises(NotCoordinator):
        await waiting
    host.held = False
    await until(lambda: not shards.is_loading)
    new = shards.shard_of("c")
    assert new is not old and new.state.values == {"c": 1}
    # Told late of the old epoch's batch, the new one is not changed by it.
    host.release()
    await asyncio.sleep(0)
    assert new.state.values == {"c": 1} and lost not in host.batches


P7, P8 = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 3)


@with_loop
async def test_a_load_finds_what_transactions_have_committed() -> None:
    host = counter_host()
    host.add(counter("a", 1), counter("b", 1))
    host.add(counter("a", 2), counter("b", 2), producer=P7)
    host.add(counter("a", 3), producer=P8)
    host.add(counter("b", 4))
    host.add(counter("c", 5), producer=P8)
    host.end(P8, Marker(commits=False, coordinator_epoch=0))
    host.end(P7, Marker(commits=True, coordinator_epoch=0))
    _, shard = await served(host)
    assert shard.state.values == {"a": 2, "b": 4}, "a record that lies behind is not replaced by one that lies before"
    assert not shard.state.open.producers_of


@with_loop
async def test_a_load_hands_over_what_open_transactions_have_written() -> None:
    host = counter_host()
    host.add(counter("a", 1), counter("b", 1))
    host.add(counter("a", 2), counter("b", 2), counter("d", None), producer=P7)
    host.add(counter("b", 3))
    _, shard = await served(host)
    assert shard.state.values == {"a": 1, "b": 3}
    assert shard.state.heard == [
        ("a", 1, 0, None),
        ("b", 3, 5, None),
        ("a", 2, 2, P7),
        ("d", None, 4, P7),
    ]
    done = asyncio.get_running_loop().create_future()
    shard.end_transaction(P7, Marker(commits=True, coordinator_epoch=0), done.set_result)
    assert await done is None
    assert shard.state.values == {"a": 2, "b": 3}


@with_loop
async def test_an_emptied_or_unknown_control_batch_ends_nothing() -> None:
    host = counter_host()
    host.add(counter("a", 1), producer=P7)
    header = kernel.read_header(build_marker(7, 0, Marker(commits=True, coordinator_epoch=0), 1))
    host.store(reassemble(header, RetainedRecords(0, 0, -1, False, bytearray(HEADER_BYTES))))
    _, shard = await served(host)
    assert (shard.state.values, list(shard.state.open.producers_of)) == ({}, ["a"])


def test_a_marker_that_cannot_be_read_is_skipped_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        host = counter_host()
        host.add(counter("a", 1), producer=P7)
        marker = build_marker(7, 0, Marker(commits=True, coordinator_epoch=0), 1)
        marker[70] = 1  # its value is null
        marker[17:21] = _crc(marker)
        host.store(marker)
        _, shard = await served(host)
        assert shard.state.values == {}

    asyncio.run(run())
    assert "__counters-0: skipped 1 records: the transaction marker at offset 1 ends inside" in caplog.text
    assert "its transaction stays open" in caplog.text


@with_loop
async def test_many_markers_without_records_are_read_in_pieces() -> None:
    host = counter_host()
    for number in range(2500):
        host.end(ProducerIdAndEpoch(number, 0), Marker(commits=True, coordinator_epoch=0))
    shards = shards_over(host)
    shards.lead(0, 1)
    passes = 0
    while shards.is_loading:
        passes += 1
        await asyncio.sleep(0)
    assert 3 <= passes < 50


def counter(name: str, value: int | None) -> tuple[bytes, bytes | None]:
    return b"\0\0" + name.encode(), None if value is None else value.to_bytes(4, "big")


def _crc(batch: bytearray) -> bytes:
    return crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
