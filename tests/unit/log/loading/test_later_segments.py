"""A log that was stopped in order goes on behind damage that its first append finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from spark_kafkalite.log.files.fs import write_whole
from spark_kafkalite.log.files.needs_thread import NeedsThread, without_waiting
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.readiness import EndDamaged
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import make_batch, values_of

LogOpener = Callable[..., PartitionLog]
DIRECTORY = "/data/t-0"
FIRST = f"{DIRECTORY}/00000000000000000000.log"
VALUES = [b"value %d" % number * 5 for number in range(12)]
MAGIC, RECORD = 16, 70


def append(log: PartitionLog, value: bytes) -> int:
    batch = make_batch([value])
    return log.append_as_leader(batch, kernel.read_header(batch), 0).base_offset


def stopped_with(open_log: LogOpener, fs: MemoryFs, *headers: int, records: Sequence[int] = ()) -> bytes:
    """Stop a log in order, and damage headers and records of batches of it; return the bytes of all batches."""
    log = open_log()
    for value in VALUES:
        append(log, value)
    log.close()
    content = bytearray(fs.files()[FIRST])
    starts = [position for position, _ in log.segments.active.headers(0)]
    for number in headers:
        content[starts[number] + MAGIC] = 7
    for number in records:
        content[starts[number] + RECORD] ^= 1
    write_whole(fs.open(FIRST), content)
    fs.sync_everything("/")
    return bytes(content)


def start(open_log: LogOpener, **settings: object) -> PartitionLog:
    """Start quickly: the end of the log is known, and not read."""
    log = open_log(recovery_point=len(VALUES), high_watermark=len(VALUES), last_record_epoch=0, **settings)
    assert log.segments.active.unread_until_offset == len(VALUES)
    return log


def records(log: PartitionLog) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for segment in log.segments:
        for position, header in segment.headers(0):
            found.update(values_of(segment.file.pread(header.size_bytes, position)))
    return found


def all_but(*missing: int) -> dict[int, bytes | None]:
    return {number: value for number, value in enumerate(VALUES) if number not in missing}


@pytest.mark.parametrize("is_in_thread", [False, True], ids=["at once", "by a thread"])
def test_only_what_is_damaged_is_missing(
    open_log: LogOpener,
    fs: MemoryFs,
    caplog: pytest.LogCaptureFixture,
    is_in_thread: bool,
) -> None:
    content = stopped_with(open_log, fs, 3, 4, records=[8])
    log = start(open_log)
    if is_in_thread:
        missing = log.readiness.missing()
        assert isinstance(missing, EndDamaged)
        missing.work()
        assert log.readiness.missing() is None
    assert append(log, b"new") == len(VALUES)
    assert records(log) == all_but(3, 4, 8) | {len(VALUES): b"new"}
    assert log.damaged_ranges == ((3, 5), (8, 9))
    # No byte that the disk had is gone.
    kept = b"".join(data for path, data in fs.files().items() if path.endswith(".torn"))
    logs = b"".join(data for path, data in sorted(fs.files().items()) if path.endswith(".log"))
    assert len(kept) + len(logs) == len(content) + len(make_batch([b"new"]))
    (line,) = [each.getMessage() for each in caplog.records if "offsets are missing" in each.getMessage()]
    assert "t-0: 3 offsets are missing" in line and "3 to 4 (00000000000000000000.log is damaged" in line
    # The next start finds the same.
    log.flush()
    for again in (
        open_log(clean=False, on=fs.crash(CrashMode.PROCESS)),
        open_log(clean=False, on=fs.crash(CrashMode.POWER)),
    ):
        assert records(again) == records(log) and again.log_end_offset == len(VALUES) + 1
        assert again.damaged_ranges == ((3, 5), (8, 9))


def test_what_is_damaged_at_the_end_is_given_to_no_other_record(open_log: LogOpener, fs: MemoryFs) -> None:
    stopped_with(open_log, fs, 5, 11)
    # More than one batch lies between, so that it is in no record of one.
    log = start(open_log, max_message_bytes=150)
    assert append(log, b"new") == len(VALUES)
    assert records(log) == all_but(5, 11) | {len(VALUES): b"new"}
    assert log.damaged_ranges == ((5, 6), (11, 12))


def test_look_ups_by_time_find_what_lies_behind(open_log: LogOpener, fs: MemoryFs) -> None:
    stopped_with(open_log, fs, 5)
    log = start(open_log)

    def needed() -> NeedsThread | None:
        with without_waiting():
            try:
                assert log.offset_of_max_timestamp(len(VALUES)) is not None
            except NeedsThread as missing:
                return missing
        return None

    missing = needed()
    assert isinstance(missing, EndDamaged)
    missing.work()
    assert needed() is None
    assert records(log) == all_but(5)


def test_a_crash_before_the_log_goes_on_loses_nothing(open_log: LogOpener, fs: MemoryFs) -> None:
    stopped_with(open_log, fs, 5)
    log = start(open_log)
    missing = log.readiness.missing()
    assert missing is not None
    missing.work()
    assert FIRST.replace("00.log", "06.log") in fs.files()
    again = open_log(clean=False, on=fs.crash(CrashMode.POWER))
    assert records(again) == all_but(5) and again.damaged_ranges == ((5, 6),)
