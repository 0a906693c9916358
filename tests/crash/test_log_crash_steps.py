"""A few runs of random work on logs are stopped in every single operation of the disk (see ``log_model``).

The harness itself is tried out besides, on logs with bugs put in: a sync, a directory's sync or a check is skipped, a
file is renamed before it is synced, a recovery point is believed too early. Each must make a run fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log import log_starts
from spark_kafkalite.log.directories.checkpoints import Checkpoints
from spark_kafkalite.log.files import small_files
from spark_kafkalite.log.files.fs import Fs, write_whole
from spark_kafkalite.log.files.offset_checkpoint import OffsetCheckpoint
from spark_kafkalite.log.flush import FlushJob
from spark_kafkalite.log.loading import scan
from spark_kafkalite.log.local_log import LocalLog
from spark_kafkalite.log.log_starts import LogStartCheckpoint
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments import write_ahead
from spark_kafkalite.log.segments.active_segment import ActiveSegment
from spark_kafkalite.log.segments.segment_list import Segments
from spark_kafkalite.log.segments.write_ahead import WriteAhead
from spark_kafkalite.log.steps import Steps
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.memory_fs import CrashMode
from tests.crash.log_model import crash_and_check

# Two older runs, and two with truncations to below the log start.
SEEDS = [(540, False), (580, False), (268, True), (356, True)]
# Each run in one way that a crash can leave a disk; in each way for the soak.
CASES = [
    pytest.param(seed, below_start, mode, marks=[] if mode is chosen else [pytest.mark.soak])
    for (seed, below_start), chosen in zip(
        SEEDS, (CrashMode.PROCESS, CrashMode.POWER, CrashMode.POWER_TORN, CrashMode.POWER_TORN), strict=True
    )
    for mode in CrashMode
]
# How many seeds are tried for a planted bug, from the one on that is recorded to find it.
SEARCHED = 1500


@pytest.mark.parametrize(("seed", "below_start", "mode"), CASES)
def test_stopped_in_every_operation_of_a_run(seed: int, below_start: bool, mode: CrashMode) -> None:
    for stop_at in range(1, 10_000):
        try:
            stopped = crash_and_check(seed, stop_at, mode, steps=30, below_start=below_start)
        except Exception as error:
            raise AssertionError(f"seed {seed}, stopped at {stop_at}, {mode}: {error}") from error
        if not stopped:
            assert stop_at > 100, "the run was too short to say anything"
            return
    pytest.fail("the run never came to its end")


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(CrashMode.PROCESS, marks=pytest.mark.soak),
        pytest.param(CrashMode.POWER, marks=pytest.mark.soak),
        CrashMode.POWER_TORN,
    ],
)
def test_stopped_in_every_operation_of_a_run_that_writes_ahead(
    mode: CrashMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead, "PIECE_BYTES", 100)
    for stop_at in range(1, 10_000):
        try:
            stopped = crash_and_check(71, stop_at, mode, steps=25, ahead=True)
        except Exception as error:
            raise AssertionError(f"stopped at {stop_at}, {mode}: {error}") from error
        if not stopped:
            assert stop_at > 100, "the run was too short to say anything"
            return
    pytest.fail("the run never came to its end")


@pytest.mark.parametrize(
    ("seed", "stop_at"),
    [
        # A log start went back when the names that retention had changed did not survive a power cut.
        (45, None),
        # Segments below the log start that came back in part made recovery take later ones for foreign.
        (580, None),
        # The first log start to move after a restart took those of other logs out of the checkpoint.
        (540, None),
        (790, None),
        # A leader epoch's start offset lost its last digit in a torn write and was believed.
        (1931, 241),
    ],
)
@pytest.mark.parametrize("mode", CrashMode)
def test_seed_that_once_failed(mode: CrashMode, seed: int, stop_at: int | None) -> None:
    stop_at = stop_at or random.Random(seed).randrange(1, 400)
    crash_and_check(seed, stop_at, mode, below_start=False)
    crash_and_check(seed, stop_at, mode, below_start=False, stop_recovery_too=True)


# The harness itself is tried out on logs that are wrong.


def find(first: int, mode: CrashMode, *, ahead: bool = False) -> None:
    """Run seed after seed until one fails."""
    with pytest.raises(Exception) as found:
        for seed in range(first, first + SEARCHED):
            crash_and_check(seed, random.Random(seed).randrange(1, 400), mode, ahead=ahead)
    # The planted bug itself must not raise: its function would no longer fit what it replaces.
    assert not isinstance(found.value, (TypeError, AttributeError, NameError)), found.value
    print(f"seed {seed} found it: {found.type.__name__} {found.value}")


def _skip_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlushJob, "run", lambda self: None)


def _believe_every_crc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan.kernel, "check_crc", lambda buffer, position, size: None)


def _count_appends_as_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = PartitionLog.finish_flush

    def hasty(self: PartitionLog, job: FlushJob) -> None:
        job.end_offset = self.log_end_offset
        finish(self, job)

    monkeypatch.setattr(PartitionLog, "finish_flush", hasty)


def _forget_the_old_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    roll = PartitionLog.roll

    def careless(self: PartitionLog, base_offset: int | None = None) -> None:
        roll(self, base_offset)
        self.local.unsynced.files.clear()

    monkeypatch.setattr(PartitionLog, "roll", careless)


def _keep_a_torn_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_all(self: object, header: object, base_offset: int, bytes_left: int) -> None:
        return None

    def no_check(buffer: bytes, position: int, size: int) -> None:
        if len(buffer) < position + size:
            raise CorruptMessage("cut")

    monkeypatch.setattr(scan.Scan, "_fault", take_all)
    monkeypatch.setattr(scan.kernel, "check_crc", no_check)


def _keep_later_segments_when_truncating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segments, "truncate", lambda self, offset, created_ms: offset)


def _skip_syncs_of_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FlushJob.run

    def careless(self: FlushJob) -> None:
        self.unsynced.directories.clear()
        run(self)

    monkeypatch.setattr(FlushJob, "run", careless)


def _rename_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(fs: Fs, path: str, data: bytes, *, sync: bool = True) -> None:
        file = fs.open(path + ".tmp", create=True)
        file.truncate(0)
        write_whole(file, data)
        fs.rename(path + ".tmp", path)
        fs.sync_directory(path.rpartition("/")[0])

    monkeypatch.setattr(small_files, "replace_file", hasty)


def _forget_the_directory_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(fs: Fs, path: str, data: bytes, *, sync: bool = True) -> None:
        file = fs.open(path + ".tmp", create=True)
        file.truncate(0)
        write_whole(file, data)
        file.sync()
        fs.rename(path + ".tmp", path)

    monkeypatch.setattr(small_files, "replace_file", forgetful)


def _write_the_recovery_point_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(
        self: Checkpoints, path: str, logs: Mapping[TopicPartition, PartitionLog]
    ) -> tuple[OffsetCheckpoint, OffsetCheckpoint]:
        points = self._recovery_points[path]
        points.set({key: int(log.log_end_offset) for key, log in logs.items()})
        return points, self._set_cleaned_offsets(path, logs)

    monkeypatch.setattr(Checkpoints, "_set_recovery_points", early)


def _move_log_starts_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogStartCheckpoint, "write", lambda self: None)


def _forget_other_log_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_starts.LogStarts, "take_up", lambda self, directory, *_: self._checkpoints[directory])


def _keep_the_recovery_point_when_truncating(monkeypatch: pytest.MonkeyPatch) -> None:
    before = LocalLog._before_truncation

    def careless(self: LocalLog, offset: int) -> Steps[None]:
        note = self._note_recovery_points

        def note_in_memory() -> Callable[[], None]:
            note()
            return lambda: None

        self._note_recovery_points = note_in_memory  # type: ignore[method-assign]
        try:
            yield from before(self, offset)
        finally:
            self._note_recovery_points = note  # type: ignore[method-assign]

    monkeypatch.setattr(LocalLog, "_before_truncation", careless)


def _keep_log_starts_when_truncating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_starts.LogStarts, "note_truncated", lambda self, log: lambda: None)


def _take_log_starts_back_before_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLog, "sync_truncation", lambda self: None)


def _never_stop_what_is_written_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteAhead, "stop", lambda self: None)
    monkeypatch.setattr(ActiveSegment, "holds", lambda self, ahead: not ahead.is_stopped)


def _write_the_header_ahead_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = WriteAhead.run

    def hasty(self: WriteAhead) -> None:
        self._file.pwrite(memoryview(self.batch)[:61], self._position)
        run(self)

    monkeypatch.setattr(WriteAhead, "run", hasty)


def _leave_what_was_written_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: ActiveSegment) -> None:
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    monkeypatch.setattr(ActiveSegment, "drop_ahead", careless)


@pytest.mark.parametrize(
    ("bug", "seed"),
    [
        (_never_stop_what_is_written_ahead, 0),
        (_write_the_header_ahead_too, 0),
        (_leave_what_was_written_ahead, 4),
    ],
)
def test_seeded_bug_of_writing_ahead_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], seed: int
) -> None:
    monkeypatch.setattr(write_ahead, "PIECE_BYTES", 100)
    bug(monkeypatch)
    find(seed, CrashMode.PROCESS, ahead=True)


@pytest.mark.parametrize(
    ("bug", "seed"),
    [
        (_skip_sync, 0),
        (_skip_syncs_of_directories, 0),
        (_rename_before_the_sync, 0),
        (_forget_the_directory_of_a_checkpoint, 11),
        (_write_the_recovery_point_before_the_sync, 9),
        (_move_log_starts_before_they_are_written, 0),
        (_forget_other_log_starts, 35),
        (_keep_the_recovery_point_when_truncating, 19),
        (_keep_log_starts_when_truncating, 268),
        (_take_log_starts_back_before_the_cut, 356),
        (_believe_every_crc, 1),
        (_count_appends_as_flushed, 101),
        (_forget_the_old_segment, 3),
        (_keep_a_torn_tail, 1),
        (_keep_later_segments_when_truncating, 10),
    ],
)
def test_seeded_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], seed: int
) -> None:
    bug(monkeypatch)
    # What a power cut shows only when nothing is left that was not synced.
    mode = CrashMode.POWER if bug is _take_log_starts_back_before_the_cut else CrashMode.POWER_TORN
    find(seed, mode)
