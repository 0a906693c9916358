"""A truncation in steps: what threads do of it, and what nobody may do meanwhile."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.small_files import LEADER_EPOCH_FILE, read_epochs
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.steps import run_steps
from spark_kafkalite.log.truncation import full_truncation, truncation_to
from spark_kafkalite.net.outbox import FileEndedError, FileRange, Outbox
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import make_batch, make_stored_batch
from tests.unit.log.conftest import DIRECTORY, LogOpener

# Files in memory have no descriptor; nothing is sent from it.
ANY_FILE = SimpleNamespace(fileno=lambda: 0)


class ZeroWindow:
    """A reader that takes nothing."""

    turn_bytes = 1 << 20
    unsent_bytes = 0

    def send(self, *_: object) -> None:
        return None

    send_file = send


def filled(open_log: LogOpener) -> PartitionLog:
    log = open_log(segment_bytes=300, index_interval_bytes=0)
    for number in range(12):
        copy_at_once(log, make_stored_batch(number, number // 4))
    log.flush()
    return log


def test_what_a_reader_does_not_take_is_called_off_before_any_file_changes(open_log: LogOpener) -> None:
    """F25: else it would get the records that are written there next."""
    log = filled(open_log)
    before, behind = log.read(0, 100, 12), log.read(9, 100, 12)
    assert before is not None
    assert behind is not None
    outboxes = []
    for found in (before, behind):
        outbox = Outbox(ZeroWindow(), memoryview(bytearray(100)))  # type: ignore[arg-type]
        outbox.put(([b"", FileRange(ANY_FILE, found.position, found.length, found.sending)], found.length))
        outbox.pieces.popleft()
        assert not outbox.flush()
        outboxes.append(outbox)
    # Found before, and put into an answer only afterwards.
    late = FileRange(ANY_FILE, behind.position, behind.length, behind.sending)
    size_bytes = behind.file.size()
    steps = truncation_to(log, 5)
    next(steps).run()
    piece = next(steps)
    assert behind.file.size() == size_bytes
    assert not outboxes[0].flush()
    with pytest.raises(FileEndedError):
        outboxes[1].flush()
    piece.run()
    run_steps(steps)
    assert late.read() is None
    late.begin()
    assert late.is_cut


def test_nobody_else_works_on_the_log_meanwhile(open_log: LogOpener) -> None:
    log = filled(open_log)
    steps = truncation_to(log, 5)
    for piece in steps:
        assert not log.local.is_usable
        assert log.start_flush() is None
        with pytest.raises(KafkaStorageError, match="is being truncated"):
            copy_at_once(log, make_stored_batch(12, 3))
        piece.run()
    assert log.local.is_usable
    assert (log.log_end_offset, log.recovery_point, log.epochs.entries) == (5, 5, [(0, 0), (1, 4)])
    copy_at_once(log, make_stored_batch(5, 7))


def test_a_flush_that_has_begun_before_counts_for_nothing_after(open_log: LogOpener) -> None:
    log = filled(open_log)
    copy_at_once(log, make_stored_batch(12, 3))
    job = log.start_flush()
    assert job is not None
    steps = truncation_to(log, 5)
    next(steps).run()
    job.run()
    log.finish_flush(job)
    run_steps(steps)
    assert (log.recovery_point, log.log_end_offset) == (5, 5)
    copy_at_once(log, make_stored_batch(5, 7))
    assert log.recovery_point == 5


def test_a_failed_piece_ends_the_log(open_log: LogOpener) -> None:
    log = filled(open_log)
    steps = truncation_to(log, 5)
    next(steps).run()
    piece = next(steps)
    piece.fail(OSError(5, "Input/output error"))
    with pytest.raises(KafkaStorageError, match="cannot truncate"):
        next(steps)
    assert log.failure is not None
    assert not log.local.truncating


def test_on_a_read_only_disk_nothing_is_begun(open_log: LogOpener) -> None:
    """What cannot stop halfway would take the log directory offline."""
    log = filled(open_log)
    end = log.log_end_offset
    log.disk.out_of_room("append to t-0", OSError(30, "Read-only file system"))
    for steps in (truncation_to(log, 5), full_truncation(log, 0)):
        with pytest.raises(KafkaStorageError, match="mount it for writing"):
            run_steps(steps)
    assert log.failure is None and log.local.is_usable and log.log_end_offset == end
    assert log.disk.resume()
    run_steps(truncation_to(log, 5))
    assert log.log_end_offset == 5


@pytest.mark.parametrize("is_killed", [False, True])
def test_without_room_for_small_files_the_cut_is_made_all_the_same(
    open_log: LogOpener, fs: MemoryFs, is_killed: bool
) -> None:
    log = filled(open_log)
    fs.fail("pwrite", errno.ENOSPC, path_part="leader-epoch")
    run_steps(truncation_to(log, 5))
    assert (log.log_end_offset, log.failure, log.epochs.unwritten) == (5, None, True)
    assert log.disk.resume()
    for offset in range(5, 9):
        copy_at_once(log, make_stored_batch(offset, 1))
    # What the file of epochs says of offset 8 is of the log that was cut.
    if is_killed:
        again = open_log(clean=False, recovery_point=5, on=fs.crash(CrashMode.PROCESS))
        assert (again.log_end_offset, again.epochs.entries) == (9, [(0, 0), (1, 4)])
    else:
        job = log.start_flush()
        assert job is not None
        job.run()
        log.finish_flush(job)
        assert not log.epochs.unwritten
        assert read_epochs(fs, f"{DIRECTORY}/{LEADER_EPOCH_FILE}") == [(0, 0), (1, 4)]


def test_without_room_for_the_recovery_point_nothing_is_begun(
    open_log: LogOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(open_log)
    is_full = True

    def write() -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log.local, "_note_recovery_points", lambda: write)
    for steps in (truncation_to(log, 5), full_truncation(log, 0)):
        with pytest.raises(KafkaStorageError, match="cannot lower the recovery point of t-0: No space left on device"):
            run_steps(steps)
        assert log.failure is None and log.local.is_usable
        assert (log.log_end_offset, log.recovery_point) == (12, 12)
    is_full = False
    assert log.disk.resume()
    run_steps(truncation_to(log, 5))
    assert (log.log_end_offset, log.recovery_point) == (5, 5)


def test_producers_go_back_with_the_log(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=400, index_interval_bytes=0)
    ends = []
    for sequence in range(8):
        batch = make_batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence)
        kernel.stamp(batch, 0, sequence, 2)
        ends.append(bytes(batch))
        copy_at_once(log, batch)
    run_steps(truncation_to(log, 5))
    # As the leader now, it takes what comes after what is left, and knows what is there.
    for sequence, is_duplicate in ((4, True), (5, False)):
        batch = make_batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence)
        result = log.append_as_leader(batch, kernel.read_header(batch), 3)
        assert result.duplicate is is_duplicate
        assert result.base_offset == sequence


def test_the_hole_of_a_start_is_forgotten_when_it_is_cut_off(open_log: LogOpener) -> None:
    log = filled(open_log)
    log._go_on_at_end(20, "the last segment has lost its end")
    assert log.damaged_ranges == ((12, 20),)
    run_steps(truncation_to(log, 15))
    # The batch that spans it begins before.
    assert (log.log_end_offset, log.damaged_ranges) == (12, ())
