from __future__ import annotations

import logging
import random
import struct
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import OutOfOrderSequenceNumber
from spark_kafkalite.log.files.fs import read_whole, replace_file, write_whole
from spark_kafkalite.log.loading import scan
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.lab.batches import end_of, header_of, make_batch, make_stored_batch, values_of
from tests.unit.log.loading.looks import Looks

LogOpener = Callable[..., PartitionLog]
FIRST = "/data/t-0/00000000000000000000"


def append(log: PartitionLog, count: int = 1, *, epoch: int = 0, **batch: object) -> int:
    data = make_batch(count, **batch)  # type: ignore[arg-type]
    return log.append_as_leader(data, header_of(data), epoch).base_offset


def offsets(log: PartitionLog, until: int | None = None) -> list[int]:
    found: list[int] = []
    offset = int(log.log_start_offset)
    # As the leader of the only replica does.
    log.local.known_damage.accept()
    while (piece := log.read(offset, 1 << 20, log.log_end_offset if until is None else until)) is not None:
        found += [each for each, _ in values_of(piece.read())]
        offset = end_of(piece.read())
    return found


def test_log_without_a_clean_stop_comes_back_whole(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=400, index_interval_bytes=100)
    for number in range(30):
        append(log, 2, epoch=number // 10, timestamp_ms=1000 + number)
    before = open_log(clean=False, segment_bytes=400, index_interval_bytes=100)
    assert offsets(before) == list(range(60))
    assert before.epochs.entries == log.epochs.entries
    assert before.recovery_point == 60
    assert before.recovered_segments == len(log.segments)
    assert [segment.max_timestamp for segment in before.segments] == [segment.max_timestamp for segment in log.segments]
    for ours, theirs in zip(before.segments, log.segments, strict=True):
        assert [ours.offset_index.entry(n) for n in range(ours.offset_index.count)] == [
            theirs.offset_index.entry(n) for n in range(theirs.offset_index.count)
        ]


def test_only_segments_from_the_recovery_point_on_are_scanned(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100)
    for _ in range(6):
        append(log)
    log.flush()
    append(log)
    assert open_log(clean=False, recovery_point=7, segment_bytes=100).recovered_segments == 1
    # The indexes of the segment that ends at the recovery point may not be on the disk.
    assert open_log(clean=False, recovery_point=6, segment_bytes=100).recovered_segments == 2
    assert open_log(clean=False, recovery_point=5, segment_bytes=100).recovered_segments == 3


def test_bytes_below_the_recovery_point_are_not_checked_again(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    for _ in range(4):
        append(log)
    size = len(make_batch(1))
    fs.open(FIRST + ".log").pwrite(b"\xff", size - 1)
    assert open_log(clean=False, recovery_point=4).log_end_offset == 4
    again = open_log(clean=False, recovery_point=0)
    assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (0, 4, 3 * size)
    assert again.damaged_ranges == ((0, 1),)
    assert len(fs.files()[FIRST + ".log.torn"]) == size


@pytest.mark.parametrize("is_like_batches", [False, True])
def test_a_large_batch_that_is_unfinished_takes_no_longer_for_what_is_in_it(
    open_log: LogOpener, fs: MemoryFs, monkeypatch: pytest.MonkeyPatch, *, is_like_batches: bool
) -> None:
    """Of the byte that is a batch's magic, or of what looks like many large batches; the latter is kept."""
    log = open_log()
    append(log, 2)
    whole_bytes = log.size_bytes
    value = forged_header(5, 1 << 20) if is_like_batches else b"\2"
    torn = bytes(make_stored_batch(2, 0, [value * ((2 << 20) // len(value))]))[:-1]
    fs.open(FIRST + ".log").pwrite(torn, whole_bytes)
    looks = Looks(monkeypatch)
    again = open_log(clean=False)
    # All of the small ones, and of the large ones as many as have 32 MiB together.
    assert looks.candidates <= 40
    assert looks.checked_bytes <= 33 << 20
    assert (again.log_end_offset, again.size_bytes) == (2, whole_bytes)
    assert fs.files().get(FIRST + ".log.torn") == (torn if is_like_batches else None)
    assert append(again) == 2


def forged_header(base_offset: int, size_bytes: int) -> bytes:
    """Return a header that looks like one of a batch of that size, but for its CRC."""
    return struct.pack(">qiibIhiqqqhii", base_offset, size_bytes - 12, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1)


@pytest.mark.parametrize("damaged", [[2], [4], [2, 4], [2, 4, 6]])
def test_segments_go_on_behind_their_bad_batches(
    open_log: LogOpener, fs: MemoryFs, caplog: pytest.LogCaptureFixture, damaged: list[int]
) -> None:
    before = damage_first_batches(open_log, fs, damaged)
    recovered = open_log(clean=False, segment_bytes=200)
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert f"t-0: {len(damaged)} offsets are missing in /data/t-0: " in line
    for base in damaged:
        name = f"{base:020d}.log"
        assert f"{base} to {base} ({name}: cut at position 0" in line
        assert f"; what lay there is kept in {name}.torn)" in line
        assert fs.files()[f"/data/t-0/{name}.torn"] == before[f"/data/t-0/{name}"][: len(make_batch(1))]
    assert recovered.damaged_ranges == tuple((base, base + 1) for base in damaged) and not recovered.was_whole
    assert append(recovered) == 8
    sound = [each for each in range(9) if each not in damaged]
    assert offsets(recovered) == sound
    caplog.clear()
    recovered.flush()
    again = open_log(clean=False, recovery_point=9, segment_bytes=200)
    assert (again.log_end_offset, offsets(again)) == (9, sound)


def damage_first_batches(open_log: LogOpener, fs: MemoryFs, damaged: list[int]) -> dict[str, bytes]:
    """Damage the first batches of some of four segments of two batches each; return the files with the damage."""
    log = open_log(segment_bytes=200)
    for _ in range(8):
        append(log)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6]
    for base in damaged:
        fs.open(f"/data/t-0/{base:020d}.log").pwrite(b"\xff", 70)
    return fs.files()


def test_a_segment_of_which_nothing_is_sound_hides_no_later_one(open_log: LogOpener, fs: MemoryFs) -> None:
    """The next one begins badly, too, and goes on."""
    damage_first_batches(open_log, fs, [2, 4])
    fs.open("/data/t-0/00000000000000000002.log").truncate(75)
    recovered = open_log(clean=False, segment_bytes=200)
    assert [segment.base_offset for segment in recovered.segments] == [0, 2, 5, 6]
    assert recovered.damaged_ranges == ((2, 5),)
    assert offsets(recovered) == [0, 1, 5, 6, 7]


def test_segments_that_hold_nothing_are_not_kept(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100)
    for _ in range(3):
        append(log)
    fs.open("/data/t-0/00000000000000000001.log").truncate(10)
    fs.open("/data/t-0/00000000000000000002.log").pwrite(bytes(log.segments.active.size_bytes), 0)
    assert open_log(clean=False, segment_bytes=100).log_end_offset == 1
    assert not [path for path in fs.files() if ".torn" in path]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_missing_segment_is_a_hole(open_log: LogOpener, fs: MemoryFs, policy: str) -> None:
    log = open_log(segment_bytes=100, cleanup_policy=policy)
    for _ in range(4):
        append(log)
    fs.unlink("/data/t-0/00000000000000000002.log")
    # Without any checkpoint a compacted log may have been cleaned there.
    recovered = open_log(clean=False, recovery_point=1, segment_bytes=100, cleanup_policy=policy)
    assert recovered.log_end_offset == 4
    assert recovered.damaged_ranges == ((2, 3),) and not recovered.was_whole
    assert offsets(recovered) == [0, 1, 3]
    assert not [path for path in fs.files() if ".torn" in path]


@pytest.mark.parametrize("point", [0, 1])
def test_a_missing_last_segment_is_noticed_by_the_snapshot_of_its_beginning(
    open_log: LogOpener, fs: MemoryFs, caplog: pytest.LogCaptureFixture, point: int
) -> None:
    log = open_log(segment_bytes=100)
    for _ in range(3):
        append(log)
    before = fs.crash(CrashMode.PROCESS)
    # A kill loses nothing.
    assert open_log(clean=False, recovery_point=1, segment_bytes=100, on=before).was_whole and not caplog.records
    fs.unlink("/data/t-0/00000000000000000002.log")
    gone = fs.crash(CrashMode.PROCESS)
    # Never flushed, if that is known.
    known = {"recovery_point": point} if point else {"points_are_known": True}
    recovered = open_log(clean=False, segment_bytes=100, on=gone, **known)
    assert recovered.log_end_offset == 2 and not recovered.was_whole
    assert ["the last segment is missing, which began at offset 2" in each for each in caplog.messages] == [True]
    # What a clean stop leaves at the end of a log is no sign of that.
    log = open_log(segment_bytes=1000, on=gone)
    append(log)
    log.close()
    assert open_log(clean=False, recovery_point=3, on=gone).was_whole


@pytest.mark.parametrize("known_epoch", [1, 2])
def test_an_older_segment_behind_a_gap_is_set_aside(open_log: LogOpener, fs: MemoryFs, known_epoch: int) -> None:
    """It was truncated, and a power loss has brought it back: the log has gone on under a later leader epoch. Where the
    records of that are gone, the file of leader epochs knows."""
    log = open_log(segment_bytes=100)
    for epoch in (0, 2, 1):
        append(log, epoch=epoch)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    log.epochs.replace([(0, 0), (known_epoch, 1)])
    log.epochs.write()
    fs.unlink("/data/t-0/00000000000000000001.log")
    recovered = open_log(clean=False, segment_bytes=100)
    assert fs.exists("/data/t-0/00000000000000000002.log.torn") == (known_epoch == 2)
    assert recovered.damaged_ranges == ((1, 3 if known_epoch == 2 else 2),)
    assert recovered.log_end_offset == 3


def test_segment_that_came_back_after_a_truncation_is_removed(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=300)
    for _ in range(6):
        append(log)
    write_whole(fs.open("/data/t-0/00000000000000000005.log", create=True), b"")
    again = open_log(clean=False, segment_bytes=300)
    assert offsets(again) == list(range(6))
    assert [segment.base_offset for segment in again.segments] == [segment.base_offset for segment in log.segments]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd size"])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_index_is_rebuilt(open_log: LogOpener, fs: MemoryFs, suffix: str, damage: str, clean: bool) -> None:
    settings = {"segment_bytes": 1000, "index_interval_bytes": 100}
    log = open_log(**settings)
    for _ in range(40):
        append(log)
    log.close()
    before = read_whole(fs, FIRST + suffix)
    if damage == "missing":
        fs.unlink(FIRST + suffix)
    else:
        write_whole(fs.open(FIRST + suffix), b"x", len(before))
    again = open_log(clean=clean, recovery_point=40, **settings)
    assert offsets(again) == list(range(40))
    again.close()
    assert read_whole(fs, FIRST + suffix) == before


def test_the_line_about_an_index_that_does_not_fit_names_its_segment_once(
    open_log: LogOpener, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(index_interval_bytes=100)
    for _ in range(10):
        append(log)
    active = log.segments.active
    active.offset_index.append(99, active.size_bytes + 1)
    # As a fast start leaves it.
    active.unread_until_offset = log.log_end_offset
    active.read_tail()
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.count(FIRST) == 1 and "its index points to" in line and line.endswith("its indexes are rebuilt")


def test_index_that_does_not_fit_its_log_is_rebuilt(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(index_interval_bytes=100)
    for _ in range(10):
        append(log)
    log.close()
    fs.open(FIRST + ".index").pwrite(b"\0\0\0\1", 0)
    size = len(read_whole(fs, FIRST + ".index"))
    fs.open(FIRST + ".index").pwrite(struct.pack(">ii", 5, 17), size - 8)
    again = open_log(index_interval_bytes=100)
    assert offsets(again) == list(range(10))
    assert again.recovered_segments == 1


def test_rests_of_interrupted_work_are_removed(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log)
    log.close()
    for name in ("x.tmp", "00000000000000000000.log.cleaned", "00000000000000000009.log.deleted"):
        fs.open(f"/data/t-0/{name}", create=True)
    for name in ("00000000000000000009.index", "00000000000000000009.timeindex"):
        fs.open(f"/data/t-0/{name}", create=True)
    fs.open("/data/t-0/notes", create=True)
    open_log()
    names = [entry.name for entry in fs.entries("/data/t-0")]
    assert "notes" in names, "what is not ours stays"
    assert not [name for name in names if name.endswith((".tmp", ".cleaned", ".deleted")) or "09." in name]


def test_epoch_zero_comes_back(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log, epoch=0)
    log.flush()
    fs.unlink("/data/t-0/leader-epoch-checkpoint")
    assert open_log(clean=False).epochs.entries == [(0, 0)]


@pytest.mark.parametrize("clean", [True, False])
def test_damaged_epoch_file_is_rebuilt_from_the_log(open_log: LogOpener, fs: MemoryFs, clean: bool) -> None:
    log = open_log(segment_bytes=200)
    for number in range(12):
        append(log, epoch=number // 3)
    log.close()
    replace_file(fs, "/data/t-0/leader-epoch-checkpoint", b"")
    again = open_log(clean=clean, recovery_point=12, segment_bytes=200)
    assert again.epochs.entries == [(0, 0), (1, 3), (2, 6), (3, 9)]
    assert open_log(clean=True, recovery_point=12, segment_bytes=200).epochs.entries == again.epochs.entries


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "entries",
    [
        f"1\n{2**31 - 2} 0",
        f"1\n{2**31 - 1} 0",
        f"1\n{10**30} 0",
        f"3\n0 0\n1 1\n2 {10**30}",
        f"3\n0 0\n1 1\n9 {2**63 - 1}",
        "3\n0 0\n1 1\n9 5000",
    ],
)
def test_epoch_file_that_no_election_has_written(open_log: LogOpener, fs: MemoryFs, clean: bool, entries: str) -> None:
    log = open_log()
    for epoch in (0, 1):
        append(log, epoch=epoch)
    log.flush()
    replace_file(fs, "/data/t-0/leader-epoch-checkpoint", f"0\n{entries}\n".encode())
    assert open_log(clean=clean).epochs.entries == [(0, 0), (1, 1)]


def test_batch_with_an_epoch_that_no_election_has_come_to(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    for epoch in (0, 1, 1):
        append(log, epoch=epoch)
    log.flush()
    fs.open(FIRST + ".log").pwrite((2**31 - 2).to_bytes(4, "big"), len(make_batch(1)) + 12)
    fs.unlink("/data/t-0/leader-epoch-checkpoint")
    for clean in (True, False):
        again = open_log(clean=clean)
        assert (again.epochs.latest, offsets(again)) == (1, [0, 1, 2])


def test_epochs_of_what_was_cut_are_forgotten(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log, epoch=0)
    append(log, epoch=1)
    fs.open(FIRST + ".log").truncate(len(make_batch(1)) + 30)
    again = open_log(clean=False)
    assert (again.log_end_offset, again.epochs.entries) == (1, [(0, 0)])


@pytest.mark.parametrize("clean", [True, False])
def test_producers_come_back(open_log: LogOpener, clean: bool) -> None:
    log = open_log(segment_bytes=300)
    for number in range(20):
        append(log, producer_id=9, producer_epoch=2, base_sequence=number)
    if clean:
        log.close()
    again = open_log(clean=clean, segment_bytes=300)
    last = make_batch(1, producer_id=9, producer_epoch=2, base_sequence=19)
    assert again.append_as_leader(last, header_of(last), 0).duplicate
    assert append(again, producer_id=9, producer_epoch=2, base_sequence=20) == 20


def test_after_a_crash_all_five_batches_are_known(open_log: LogOpener) -> None:
    log = open_log()
    for number in range(8):
        append(log, producer_id=9, producer_epoch=2, base_sequence=number)
    again = open_log(clean=False)
    early = make_batch(1, producer_id=9, producer_epoch=2, base_sequence=3)
    assert again.append_as_leader(early, header_of(early), 0).base_offset == 3


def test_after_a_clean_stop_what_was_in_flight_may_be_repeated(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=250)
    for number in range(8):
        append(log, producer_id=9, producer_epoch=2, base_sequence=number)
        append(log, producer_id=8, producer_epoch=0, base_sequence=number)
    log.close()
    again = open_log(segment_bytes=250)
    for number in (4, 5, 6, 7):
        repeated = make_batch(1, producer_id=9, producer_epoch=2, base_sequence=number)
        assert again.append_as_leader(repeated, header_of(repeated), 0) == (2 * number, 2 * number, -1, True)
    with pytest.raises(OutOfOrderSequenceNumber):
        append(again, producer_id=9, producer_epoch=2, base_sequence=2)
    with pytest.raises(OutOfOrderSequenceNumber):
        append(again, producer_id=8, producer_epoch=0, base_sequence=9)
    assert append(again, producer_id=8, producer_epoch=0, base_sequence=8) == 16


def test_stale_snapshot_beyond_the_log_is_not_believed(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log, producer_id=9, producer_epoch=0, base_sequence=0)
    append(log, producer_id=9, producer_epoch=0, base_sequence=1)
    log.close()
    fs.open(FIRST + ".log").truncate(len(make_batch(1)))
    again = open_log(clean=False)
    assert again.log_end_offset == 1
    assert append(again, producer_id=9, producer_epoch=0, base_sequence=1) == 1
    assert not fs.exists("/data/t-0/00000000000000000002.snapshot")


def test_snapshots_of_clean_stops_do_not_pile_up(open_log: LogOpener, fs: MemoryFs) -> None:
    for number in range(6):
        log = open_log()
        append(log, producer_id=9, producer_epoch=0, base_sequence=number)
        log.close()
    open_log()
    assert len([entry for entry in fs.entries("/data/t-0") if entry.name.endswith(".snapshot")]) <= 2


def test_snapshots_of_a_recovery_survive_a_power_loss(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=200)
    for number in range(9):
        append(log, producer_id=7, producer_epoch=0, base_sequence=number)
    open_log(clean=False, segment_bytes=200)
    for directory in ("/", "/data"):
        fs.sync_directory(directory)
    after = fs.crash(CrashMode.POWER)
    snapshots = [entry for entry in after.entries("/data/t-0") if entry.name.endswith(".snapshot")]
    assert len(snapshots) == len(log.segments) - 1
    assert all(entry.size_bytes for entry in snapshots)


def test_log_start_beyond_what_is_left_starts_anew(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    for _ in range(5):
        append(log)
    fs.open(FIRST + ".log").truncate(len(make_batch(1)))
    again = open_log(clean=False, start=4, high_watermark=4)
    assert (again.log_start_offset, again.log_end_offset) == (4, 4)
    assert append(again) == 4


def test_log_start_survives_when_it_is_checkpointed(open_log: LogOpener) -> None:
    log = open_log()
    for number in range(5):
        append(log, epoch=number)
    again = open_log(clean=False, start=3)
    assert again.log_start_offset == 3
    assert again.epochs.entries == [(3, 3), (4, 4)]


def test_large_batches_are_checked_in_pieces(
    open_log: LogOpener, fs: MemoryFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "READ_BYTES", 1000)
    monkeypatch.setattr(scan, "_WHOLE_BATCH_BYTES", 4000)
    log = open_log()
    sizes = [10, 900, 2500, 3900, 4100, 30_000, 7]
    for size in sizes:
        data = make_batch([b"x" * size])
        log.append_as_leader(data, header_of(data), 0)
    assert open_log(clean=False).log_end_offset == len(sizes)
    fs.open(FIRST + ".log").pwrite(b"y", log.size_bytes - len(make_batch([b"x" * 7])) - 20)
    again = open_log(clean=False)
    assert offsets(again, until=5) == list(range(5))
    assert again.log_end_offset == 7, "the last batch is whole, so its offset has been given"


def test_progress_is_told(fs: MemoryFs, open_log: LogOpener) -> None:
    log = open_log(segment_bytes=100)
    append(log)
    append(log)
    seen: list[tuple[str, int]] = []
    host = LogHost(log.host.files, log.host.clock, log.disk, on_bytes=lambda path, count: seen.append((path, count)))
    PartitionLog.open(host, log.directory, log.topic_partition, log.topic_id, log.config, LastRun(clean=False))
    size = len(make_batch(1))
    assert seen == [(FIRST + ".log", size), ("/data/t-0/00000000000000000001.log", size)]


# Torn tails ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound() -> tuple[bytes, list[int]]:
    """A segment of six batches of two records and where each starts; the last three may be torn."""
    data, starts = bytearray(), []
    for number in range(6):
        starts.append(len(data))
        data += make_stored_batch(number * 2, number // 2, [b"first of %d" % number, b"second of %d" % number])
    return bytes(data), starts


def recovered(open_log: LogOpener, content: bytes) -> tuple[PartitionLog, bytes]:
    """Recover a log whose file holds ``content``; its name is that of a new file system."""
    fs = MemoryFs()
    fs.make_directories("/data/t-0")
    write_whole(fs.open(FIRST + ".log", create=True), content)
    log = open_log(clean=False, on=fs)
    return log, fs.files()[FIRST + ".log"]


def check_prefix(
    open_log: LogOpener,
    content: bytes,
    sound: tuple[bytes, list[int]],
    batches: int,
    goes_on_at: range | int | None = None,
) -> None:
    """The log is the first ``batches`` sound batches, exactly, and can be appended to: there, or ``goes_on_at``, behind
    whole batches that cannot stay."""
    data, starts = sound
    log, left = recovered(open_log, content)
    assert left == data[: [*starts, len(data)][batches]]
    goes_on_at = batches * 2 if goes_on_at is None else goes_on_at
    assert log.log_end_offset in (goes_on_at if isinstance(goes_on_at, range) else [goes_on_at])
    assert log.log_end_offset == append(log, epoch=9)


def test_tail_cut_at_every_byte(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, starts = sound
    for length in range(starts[3], len(data) + 1):
        whole = sum(end <= length for end in [*starts[1:], len(data)])
        check_prefix(open_log, data[:length], sound, whole)


def test_tail_zeroed_from_every_byte(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, starts = sound
    for length in range(starts[3], len(data)):
        content = data[:length] + bytes(len(data) - length + 100)
        whole = sum(
            content[start:end] == data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)
        )
        check_prefix(open_log, content, sound, whole)


def test_every_flipped_bit_of_a_batch_that_the_crc_covers(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, starts = sound
    for position in range(starts[4] + 16, starts[5]):
        content = bytearray(data)
        content[position] ^= 1 << (position % 8)
        check_prefix(open_log, bytes(content), sound, 4, goes_on_at=12)


def test_every_flipped_bit_of_the_fields_that_it_does_not(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, starts = sound
    for bit in range(12 * 8):
        content = bytearray(data)
        content[starts[4] + bit // 8] ^= 0x80 >> (bit % 8)
        # A base offset that is wrong may look as if it fitted.
        check_prefix(open_log, bytes(content), sound, 4, goes_on_at=range(8, 8 + len(data)))


@pytest.mark.parametrize("length", [0, -1, 1, 48, 2**31 - 1, -(2**31), 10_000])
def test_length_that_cannot_be(open_log: LogOpener, sound: tuple[bytes, list[int]], length: int) -> None:
    data, starts = sound
    content = bytearray(data)
    struct.pack_into(">i", content, starts[4] + 8, length)
    check_prefix(open_log, bytes(content), sound, 4, goes_on_at=12)


@pytest.mark.parametrize("base_offset", [0, 6, 7, 9, 10_000, 2**31 + 7, 2**31 + 8, -1, 2**62])
def test_base_offset_that_does_not_follow(
    open_log: LogOpener, sound: tuple[bytes, list[int]], base_offset: int
) -> None:
    data, starts = sound
    content = bytearray(data)
    struct.pack_into(">q", content, starts[4], base_offset)
    check_prefix(open_log, bytes(content), sound, 4, goes_on_at=12)


def test_epoch_that_goes_back(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, starts = sound
    content = bytearray(data)
    struct.pack_into(">i", content, starts[4] + 12, 0)
    check_prefix(open_log, bytes(content), sound, 4, goes_on_at=12)


def test_older_formats_are_not_taken_for_batches(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, starts = sound
    for magic in (0, 1, 3, 0xFF):
        content = bytearray(data)
        content[starts[4] + 16] = magic
        check_prefix(open_log, bytes(content), sound, 4, goes_on_at=12)


def test_repeated_block_and_sound_batch_after_a_hole(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, starts = sound
    check_prefix(open_log, data + data[starts[3] : starts[5]], sound, 6)
    check_prefix(open_log, data + bytes(64) + make_stored_batch(12, 5), sound, 6, goes_on_at=13)
    check_prefix(open_log, data[: starts[4]] + b"garbage" * 9 + data[starts[4] :], sound, 4, goes_on_at=12)
    # Nothing is left of what was between them.
    check_prefix(open_log, data[: starts[4]] + data[starts[5] :], sound, 4, goes_on_at=8)


def test_random_bytes_for_a_tail(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, starts = sound
    chance = random.Random(20261121)
    for _ in range(500):
        start = chance.choice(starts[3:])
        content = data[:start] + chance.randbytes(chance.randrange(400))
        check_prefix(open_log, content, sound, starts.index(start))


def test_foreign_batch_with_a_sound_crc(open_log: LogOpener, sound: tuple[bytes, list[int]]) -> None:
    data, _ = sound
    stale = make_stored_batch(4711, 9, 3)
    kernel.check_crc(stale, 0, len(stale))
    check_prefix(open_log, data + stale, sound, 6)
