"""Large batches are written before they are appended: what changes the log's end meanwhile, and what fails."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_kafkalite.errors import KafkaStorageError, OutOfOrderSequenceNumber, RecordListTooLarge
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.partition_log import AppendResult, PartitionLog
from spark_kafkalite.log.segments import write_ahead
from spark_kafkalite.log.segments.write_ahead import WriteAhead
from spark_kafkalite.log.truncation import truncate_fully, truncate_to
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import end_of, header_of, make_batch, make_stored_batch, values_of
from tests.patience import PATIENCE_S

LogOpener = Callable[..., PartitionLog]

PIECES = 4
SMALL = [b"small"]
LARGE = [b"%d" % number * 150 for number in range(6)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(make_batch(LARGE)) - 61
    monkeypatch.setattr(write_ahead, "PIECE_BYTES", -(-size // PIECES))


def append(log: PartitionLog, batch: bytearray, ahead: WriteAhead | None = None) -> AppendResult:
    return log.append_as_leader(batch, header_of(batch), 3, ahead)


def begin(log: PartitionLog, batch: bytearray, pieces: int = 0) -> WriteAhead:
    ahead = log.write_ahead(batch, header_of(batch))
    assert ahead is not None
    for _ in range(pieces):
        assert ahead.write_piece()
    return ahead


def file_bytes(log: PartitionLog) -> bytes:
    file = log.segments.active.file
    return file.pread(file.size(), 0)


def all_records(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    offset = int(log.log_start_offset)
    while (piece := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        found += values_of(piece.read())
        offset = end_of(piece.read())
    return found


def test_the_result_is_that_of_an_append_and_nothing_counts_before_it(open_log: LogOpener) -> None:
    log = open_log()
    append(log, make_batch(SMALL))
    state = (log.log_end_offset, log.size_bytes)
    batch = make_batch(LARGE, producer_id=4, producer_epoch=0, base_sequence=0)
    ahead = begin(log, batch, PIECES)
    assert not ahead.write_piece()
    assert (log.log_end_offset, log.size_bytes) == state
    found = log.read(0, 1 << 20, 100)
    assert found is not None
    assert found.length == log.size_bytes
    # Where the header belongs is nothing that could be taken for one.
    assert file_bytes(log)[state[1] : state[1] + 61] == bytes(61)
    assert append(log, batch, ahead) == AppendResult(1, 6, -1, False)
    append(log, make_batch(SMALL))
    expected = open_log().segments.active.file
    plain = make_stored_batch(0, 3, SMALL) + batch + make_stored_batch(7, 3, SMALL)
    assert file_bytes(log) == bytes(plain) == expected.pread(1 << 20, 0)
    kernel.check_crc(batch, 0, len(batch))
    assert header_of(batch).base_offset == 1


def test_the_header_is_written_last_and_alone(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    batch = make_batch(LARGE)
    ahead = begin(log, batch)
    ahead.run()
    before = fs.operations
    append(log, batch, ahead)
    assert fs.operations == before + 1


def test_time_of_append_is_stamped_by_the_thread(open_log: LogOpener, clock: ManualClock) -> None:
    log = open_log(message_timestamp_type="LogAppendTime")
    batch = make_batch(LARGE)
    began_ms = clock.wall_ms()
    ahead = begin(log, batch)
    clock.advance(ms=5000)
    ahead.run()
    assert append(log, batch, ahead).log_append_time_ms == began_ms
    found = log.read(0, 1 << 20, 6)
    assert found is not None
    stored = found.read()
    assert (header_of(stored).max_timestamp, header_of(stored).attributes & 8) == (began_ms, 8)
    kernel.check_crc(stored, 0, len(stored))
    assert log.segments.active.max_timestamp == (began_ms, 5)


def test_it_begins_a_segment_where_it_does_not_fit(open_log: LogOpener) -> None:
    size = len(make_batch(LARGE))
    log = open_log(segment_bytes=size + 10)
    append(log, make_batch(SMALL))
    batch = make_batch(LARGE)
    ahead = begin(log, batch, PIECES)
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    append(log, batch, ahead)
    assert [segment.size_bytes for segment in log.segments] == [len(make_batch(SMALL)), size]
    with pytest.raises(RecordListTooLarge):
        log.write_ahead(make_batch([bytes(size)]), header_of(make_batch(1)))


def test_what_is_not_going_to_be_written_is_not_written_ahead(open_log: LogOpener) -> None:
    log = open_log()
    batch = make_batch(LARGE, producer_id=4, producer_epoch=0, base_sequence=0)
    append(log, make_batch(LARGE, producer_id=4, producer_epoch=0, base_sequence=0))
    assert log.write_ahead(batch, header_of(batch)) is None
    assert append(log, batch).duplicate
    wrong = make_batch(LARGE, producer_id=4, producer_epoch=0, base_sequence=9)
    with pytest.raises(OutOfOrderSequenceNumber):
        log.write_ahead(wrong, header_of(wrong))
    assert file_bytes(log) == bytes(batch)[:8] + file_bytes(log)[8:]
    assert log.segments.active.file.size() == log.size_bytes


def test_the_disk_s_room_is_taken_once(open_log: LogOpener) -> None:
    log = open_log()
    log.disk.budget_bytes = before = 1 << 20
    batch = make_batch(LARGE)
    append(log, batch, begin(log, batch, PIECES))
    assert log.disk.budget_bytes == before - len(batch)


def _append_another(log: PartitionLog) -> None:
    append(log, make_batch(SMALL))


def _follow(log: PartitionLog) -> None:
    copy_at_once(log, make_stored_batch(int(log.log_end_offset), 3, SMALL))


def _begin_another(log: PartitionLog) -> None:
    begin(log, make_batch(LARGE))


def _fail(log: PartitionLog) -> None:
    log.local.fatal_error("flush", OSError(errno.EIO, "bad disk"))


# What changes the end of the segment, or relies on it.
CHANGES: list[Callable[[PartitionLog], None]] = [
    PartitionLog.roll,
    PartitionLog.write_small_files,
    lambda log: truncate_to(log, 1),
    lambda log: truncate_fully(log, 7),
    _append_another,
    _follow,
    _begin_another,
    _fail,
]


@pytest.mark.parametrize("pieces", range(PIECES + 1))
@pytest.mark.parametrize("change", CHANGES)
def test_whoever_changes_the_end_stops_it_and_cuts_off_what_was_written(
    open_log: LogOpener, fs: MemoryFs, change: Callable[[PartitionLog], None], pieces: int
) -> None:
    log = open_log()
    for _ in range(3):
        append(log, make_batch(SMALL))
    batch = make_batch(LARGE)
    ahead = begin(log, batch, pieces)
    change(log)
    before = fs.files()
    ahead.run()
    assert fs.files() == before
    assert ahead.is_stopped and not log.local.holds(ahead)
    for segment in log.segments:
        assert segment.file.size() == segment.size_bytes
    if log.failure is not None:
        with pytest.raises(KafkaStorageError, match="bad disk"):
            log.write_ahead(batch, header_of(batch))
        return
    # Once more from the start; and the slow way, when somebody appends it as if nothing had happened.
    again = begin(log, batch, PIECES)
    expected = all_records(log)
    for attempt in (again, ahead):
        expected += [(int(log.log_end_offset) + number, value) for number, value in enumerate(LARGE)]
        append(log, batch, attempt)
        assert all_records(log) == expected
    log.close()
    assert all_records(open_log(recovery_point=log.log_end_offset)) == expected


@pytest.mark.parametrize("pieces", range(PIECES + 1))
@pytest.mark.parametrize("clean", [True, False])
def test_the_end_of_the_log_s_use(open_log: LogOpener, fs: MemoryFs, pieces: int, clean: bool) -> None:
    log = open_log()
    append(log, make_batch(SMALL))
    ahead = begin(log, make_batch(LARGE), pieces)
    log.close(clean=clean)
    size = fs.open(f"/data/t-0/{0:020d}.log").size()
    ahead.run()
    assert fs.open(f"/data/t-0/{0:020d}.log").size() == size
    if clean:
        assert size == log.size_bytes
    log = open_log(clean=clean, recovery_point=1 if clean else 0)
    assert all_records(log) == [(0, b"small")]
    assert log.segments.active.file.size() == log.size_bytes


@pytest.mark.parametrize("piece", range(PIECES + 1))
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, None])
def test_a_write_that_fails(open_log: LogOpener, fs: MemoryFs, piece: int, error: int | None) -> None:
    """In any piece or in the header, which comes last; ``None``: it is cut short."""
    log = open_log()
    append(log, make_batch(SMALL))
    if error is None:
        # The header's write is tried again, as any append's, so that the system says what is wrong.
        fs.fail("pwrite", skip=piece, written=20, times=2 if piece == PIECES else 1)
    else:
        fs.fail("pwrite", error, skip=piece)
    batch = make_batch(LARGE)
    ahead = begin(log, batch)
    ahead.run()
    assert (ahead.error is None) == (piece == PIECES)
    with pytest.raises(KafkaStorageError):
        append(log, batch, ahead)
    assert (log.log_end_offset, log.segments.active.file.size()) == (1, log.size_bytes)
    assert (log.failure is not None) == (error == errno.EIO)
    if error == errno.EIO:
        return
    assert log.disk.resume()
    append(log, batch, begin(log, batch, PIECES))
    assert [offset for offset, _ in all_records(log)] == list(range(7))


def test_a_full_disk_has_its_room_again(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log, make_batch(SMALL))
    used = sum(map(len, fs.files().values()))
    fs.capacity_bytes = used + len(make_batch(LARGE)) // 2
    batch = make_batch(LARGE)
    ahead = begin(log, batch)
    ahead.run()
    with pytest.raises(KafkaStorageError, match="takes no records"):
        append(log, batch, ahead)
    assert sum(map(len, fs.files().values())) == used
    with pytest.raises(KafkaStorageError, match="takes no records"):
        log.write_ahead(batch, header_of(batch))


def test_a_tail_that_cannot_be_cut_off_ends_the_log(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log, make_batch(SMALL))
    begin(log, make_batch(LARGE), PIECES)
    fs.fail("truncate", times=2)
    with pytest.raises(KafkaStorageError):
        append(log, make_batch(SMALL))
    assert log.failure is not None
    log.close(clean=False)
    again = open_log(on=fs.crash(CrashMode.PROCESS), clean=False)
    assert all_records(again) == [(0, b"small")]


@pytest.mark.parametrize("mode", CrashMode)
@pytest.mark.parametrize("preallocate", ["true", "false"])
def test_a_crash_in_the_middle_leaves_a_tail_that_recovery_cuts(
    open_log: LogOpener, fs: MemoryFs, mode: CrashMode, preallocate: str
) -> None:
    settings = {"preallocate": preallocate, "segment_bytes": 10_000}
    log = open_log(**settings)
    append(log, make_batch(SMALL))
    log.flush()
    batch = make_batch(LARGE)
    ahead = begin(log, batch)
    left = PIECES
    while True:
        for seed in range(20):
            after = fs.crash(mode, random.Random(seed))
            recovered = open_log(on=after, clean=False, **settings)
            assert all_records(recovered) == [(0, b"small")], f"seed {seed}"
            assert recovered.segments.active.file.size() == recovered.size_bytes
        if not ahead.write_piece():
            break
        # A flush for others puts the bytes on the disk, and does not make them count.
        log.flush()
        left -= 1
    assert left == 0
    append(log, batch, ahead)
    for seed in range(20):
        ends = {int(open_log(on=fs.crash(mode, random.Random(seed)), clean=False, **settings).log_end_offset)}
        assert ends <= ({7} if mode is CrashMode.PROCESS else {1, 7}), f"seed {seed}"


def test_stopping_waits_for_a_piece_that_is_being_written(tmp_path: Path) -> None:
    """The owner cuts the file back after ``stop``: nothing may be written behind its back then."""
    file = OpenFiles(OsFs()).open_apart(f"{tmp_path}/f", create=True)
    in_piece, go_on = threading.Event(), threading.Event()

    class HeldFile:
        path = "held"

        def pwrite(self, data: memoryview, position: int) -> int:
            in_piece.set()
            assert go_on.wait(PATIENCE_S)
            return file.pwrite(data, position)

    ahead = WriteAhead(HeldFile(), 0, make_batch(LARGE), -1)  # type: ignore[arg-type]
    writer = threading.Thread(target=ahead.run)
    writer.start()
    assert in_piece.wait(PATIENCE_S)
    stopper = threading.Thread(target=ahead.stop)
    stopper.start()
    stopper.join(0.05)
    assert stopper.is_alive()
    go_on.set()
    stopper.join(PATIENCE_S)
    size = file.size()
    writer.join(PATIENCE_S)
    assert size == file.size() == 61 + write_ahead.PIECE_BYTES
