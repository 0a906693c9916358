"""Gaps between offsets that a recovery finds: compaction's stay, what a power cut has taken is a hole, or the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import MAX_INT32
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import header_of, make_batch, make_stored_batch

LogOpener = Callable[..., PartitionLog]
POLICIES = ["delete", "compact"]


def append(log: PartitionLog) -> int:
    data = make_batch(1)
    return log.append_as_leader(data, header_of(data), 0).base_offset


def offsets(log: PartitionLog) -> list[int]:
    """Read as a consumer does: its position moves by the ends of batches. Fails where it does not come to the end."""
    found: list[int] = []
    position = int(log.log_start_offset)
    # As the leader of the only replica does.
    log.local.known_damage.accept()
    while (piece := log.read(position, 1 << 20, log.log_end_offset)) is not None:
        headers = kernel.scan_headers(piece.read())
        found += [header.base_offset for header in headers if header.record_count]
        position = headers[-1].next_offset
    assert position == log.log_end_offset, f"a reader stays at {position} for ever"
    return found


def rolled_behind_unflushed(log: PartitionLog, fs: MemoryFs, *, later: int = 0) -> None:
    """Two batches of which one is flushed, and a next segment of which only the name is on the disk.

    So it is when another log's fsync has committed the file system's journal just behind a roll.
    """
    append(log)
    log.flush()
    append(log)
    log.roll()
    for _ in range(later):
        append(log)
    fs.sync_directory("/")
    fs.sync_directory("/data")
    fs.sync_directory("/data/t-0")


def test_gap_is_damage_unless_the_topic_is_compacted(open_log: LogOpener) -> None:
    log = open_log()
    copy_at_once(log, make_stored_batch(0, 0) + make_stored_batch(5, 0))
    assert open_log(clean=False, cleanup_policy="compact").log_end_offset == 6
    assert open_log(clean=False).log_end_offset == 1


def test_gap_is_allowed_where_the_cleaner_has_been(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=100)
    copy_at_once(log, make_stored_batch(0, 0) + make_stored_batch(5, 0) + make_stored_batch(7, 0))
    assert len(log.segments) == 3
    assert offsets(open_log(clean=False, cleaned_until_offset=8, segment_bytes=100)) == [0, 5, 7]
    assert offsets(open_log(clean=False, cleaned_until_offset=5, segment_bytes=100)) == [0, 5]
    assert offsets(open_log(clean=False, segment_bytes=100)) == [0]


@pytest.mark.parametrize("recovery_point", [0, 1])
@pytest.mark.parametrize("policy", POLICIES)
def test_empty_segment_behind_what_the_power_took(
    open_log: LogOpener, fs: MemoryFs, policy: str, recovery_point: int
) -> None:
    rolled_behind_unflushed(open_log(cleanup_policy=policy), fs)
    after = fs.crash(CrashMode.POWER)
    assert after.exists("/data/t-0/00000000000000000002.log")
    log = open_log(on=after, clean=False, recovery_point=recovery_point, cleanup_policy=policy)
    assert offsets(log) == [0]
    assert append(log) == 1
    assert not after.exists("/data/t-0/00000000000000000002.log")
    assert offsets(open_log(on=after, clean=False, cleanup_policy=policy)) == [0, 1]


@pytest.mark.parametrize("recovery_point", [0, 1])
@pytest.mark.parametrize("policy", POLICIES)
def test_torn_segment_behind_what_the_power_took(
    open_log: LogOpener, fs: MemoryFs, policy: str, recovery_point: int
) -> None:
    rolled_behind_unflushed(open_log(cleanup_policy=policy), fs)
    after = fs.crash(CrashMode.POWER)
    after.open("/data/t-0/00000000000000000002.log").pwrite(b"\0" * 200, 0)
    log = open_log(on=after, clean=False, recovery_point=recovery_point, cleanup_policy=policy)
    assert offsets(log) == [0]
    assert append(log) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_records_behind_what_the_power_took_stay(open_log: LogOpener, fs: MemoryFs, policy: str) -> None:
    log = open_log(cleanup_policy=policy)
    rolled_behind_unflushed(log, fs, later=2)
    log.segments.active.file.sync()
    after = fs.crash(CrashMode.POWER)
    again = open_log(on=after, clean=False, recovery_point=1, cleanup_policy=policy)
    assert again.damaged_ranges == ((1, 2),) and not again.was_whole
    assert append(again) == 4
    assert offsets(again) == [0, 2, 3, 4]


def test_what_no_checkpoint_knows_may_have_been_compacted(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(cleanup_policy="compact")
    rolled_behind_unflushed(log, fs, later=2)
    log.segments.active.file.sync()
    assert offsets(open_log(on=fs.crash(CrashMode.POWER), clean=False, cleanup_policy="compact")) == [0, 2, 3]


@pytest.mark.parametrize(("recovery_point", "cleaned_until_offset"), [(2, 0), (0, 2), (1, 2)])
def test_cleaned_end_stays_the_end(
    open_log: LogOpener, fs: MemoryFs, recovery_point: int, cleaned_until_offset: int
) -> None:
    # Offsets that were given are not given again, though nothing is left of them and the active segment is empty.
    rolled_behind_unflushed(open_log(cleanup_policy="compact"), fs)
    log = open_log(
        on=fs.crash(CrashMode.POWER),
        clean=False,
        recovery_point=recovery_point,
        cleaned_until_offset=cleaned_until_offset,
        cleanup_policy="compact",
    )
    assert append(log) == 2


def test_followers_gaps_lie_within_segments(open_log: LogOpener) -> None:
    settings = {"segment_bytes": 100, "cleanup_policy": "compact"}
    log = open_log(**settings)
    copy_at_once(log, make_stored_batch(0, 0))
    log.flush()
    copy_at_once(log, make_stored_batch(5, 0) + make_stored_batch(9, 0))
    assert [segment.base_offset for segment in log.segments] == [0, 1, 6]
    assert offsets(open_log(clean=False, recovery_point=1, **settings)) == [0, 5, 9]
    far = 10 + MAX_INT32
    copy_at_once(log, make_stored_batch(far, 0))
    assert log.segments.active.base_offset == 10
    copy_at_once(log, make_stored_batch(2 * far, 0))
    assert log.segments.active.base_offset == 2 * far
