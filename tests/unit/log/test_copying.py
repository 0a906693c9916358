"""A follower's log takes what its leader has run by run: the same files as batch by batch, in bounded turns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log import copied_batches, copying
from spark_kafkalite.log.copying import copy_at_once, copy_in_turns
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import make_batch, make_stored_batch

LogOpener = Callable[..., PartitionLog]
LARGE = 900


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied_batches, "_RUN_BATCHES", 7)
    monkeypatch.setattr(copied_batches, "_RUN_BYTES", LARGE)
    monkeypatch.setattr(copying, "INLINE_BATCH_BYTES", LARGE)


def files_of(fs: MemoryFs, log: PartitionLog) -> dict[str, bytes]:
    log.local.write_indexes()
    found = {}
    for entry in fs.entries(log.local.directory):
        if entry.name.endswith(("log", "index")):
            file = fs.open(f"{log.local.directory}/{entry.name}")
            found[entry.name] = file.pread(file.size(), 0)
    return found


def some_batches(random_source: random.Random) -> list[bytearray]:
    """Return batches as a leader may have them: gaps, epochs, times to and fro, some of them large."""
    batches, offset, epoch, sequence = [], random_source.randrange(3), 0, 0
    for _ in range(random_source.randrange(1, 60)):
        count = random_source.randrange(1, 4)
        idempotent = (
            {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence} if random_source.random() < 0.5 else {}
        )
        size = LARGE if random_source.random() < 0.1 else 3
        batch = make_batch([b"v" * size] * count, timestamp_ms=random_source.randrange(1, 5000), **idempotent)
        sequence += count if idempotent else 0
        epoch += random_source.random() < 0.1
        kernel.stamp(batch, 0, offset, epoch)
        batches.append(batch)
        offset += count + (random_source.random() < 0.2)
    return batches


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("seed", range(30))
def test_runs_leave_the_files_that_single_batches_leave(seed: int) -> None:
    print(f"seed {seed}")
    random_source = random.Random(seed)
    batches = some_batches(random_source)
    properties = {"segment.bytes": "4000", "segment.ms": "3000", "index.interval.bytes": "200"}
    logs = []
    for _ in range(2):
        fs, clock = MemoryFs(), ManualClock()
        fs.make_directories("/data")
        host = LogHost.alone(OpenFiles(fs), "/data", clock)
        config = TopicConfig.from_properties(properties)
        logs.append((fs, PartitionLog.create(host, "/data/t-0", TopicPartition("t", 0), b"i" * 16, config)))
    (fs_apart, apart), (fs_together, together) = logs
    for batch in batches:
        copy_at_once(apart, batch)
    left = list(batches)
    while left:
        count = random_source.randrange(1, 40)
        some, left = left[:count], left[count:]
        copy_at_once(together, b"".join(some))
    assert files_of(fs_together, together) == files_of(fs_apart, apart)
    assert together.epochs.entries == apart.epochs.entries
    assert (together.log_end_offset, together.size_bytes) == (apart.log_end_offset, apart.size_bytes)
    assert together.producers.state.entries() == apart.producers.state.entries()


def test_a_run_is_one_write(open_log: LogOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    copy_at_once(log, make_stored_batch(0, 0))
    file, writes = log.segments.active.file, []
    pwrite = file.pwrite
    monkeypatch.setattr(type(file), "pwrite", lambda _, data, at: writes.append(len(data)) or pwrite(data, at))
    data = b"".join(make_stored_batch(number, 0) for number in range(1, 301))
    copy_at_once(log, data)
    assert writes == [len(data)]
    assert log.log_end_offset == 301


def test_others_have_their_turn_between_runs(open_log: LogOpener) -> None:
    log = open_log()
    log.readiness.prepare()
    data = b"".join(make_stored_batch(number, 0) for number in range(1200))
    ends = [log.log_end_offset for _ in copy_in_turns(log, data)]
    assert ends == [500, 1000]
    assert log.log_end_offset == 1200


@pytest.mark.usefixtures("small_runs")
def test_a_thread_checks_and_writes_a_large_batch(open_log: LogOpener) -> None:
    log = open_log()
    log.readiness.prepare()
    batch = make_stored_batch(1, 0, [b"x" * LARGE])
    copying = copy_in_turns(log, make_stored_batch(0, 0) + batch)
    pieces = [next(copying), next(copying)]
    assert pieces[0] is None and pieces[1] is not None
    # What it writes counts only when the owner of the log says so.
    pieces[1].run()
    assert log.log_end_offset == 1
    assert [*copying] == [] and log.log_end_offset == 2
    found = log.read(1, 1 << 20, 2)
    assert found is not None and found.read() == batch


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("at", [70, -1])
def test_a_large_batch_that_is_damaged_does_not_count(open_log: LogOpener, at: int) -> None:
    log = open_log()
    damaged = make_stored_batch(1, 0, [b"x" * LARGE])
    damaged[at] ^= 1
    with pytest.raises(CorruptMessage):
        copy_at_once(log, make_stored_batch(0, 0) + damaged)
    assert log.log_end_offset == 1
    size = log.size_bytes
    sound = make_stored_batch(1, 0)
    copy_at_once(log, sound)
    assert (log.log_end_offset, log.segments.active.file.size()) == (2, size + len(sound))


@pytest.mark.usefixtures("small_runs")
def test_another_role_goes_on_where_a_large_batch_was_given_up(open_log: LogOpener) -> None:
    log = open_log()
    copying = copy_in_turns(log, make_stored_batch(0, 0, [b"x" * LARGE]))
    piece = next(copying)
    assert piece is not None
    batch = make_batch([b"led"])
    log.append_as_leader(batch, kernel.read_header(batch), 1)
    # The thread comes too late.
    piece.run()
    copying.close()
    found = log.read(0, 1 << 20, 1)
    assert found is not None and found.read() == batch
    assert log.segments.active.file.size() == log.size_bytes == len(batch)
