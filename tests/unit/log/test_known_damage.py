"""A log of which something is missing or cannot be read: what reads say, what is known of it, and how it heals."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.damaged_ranges import Ranges
from spark_kafkalite.log.files.fs import write_whole
from spark_kafkalite.log.files.needs_thread import NeedsThread, NotInMemory, without_waiting
from spark_kafkalite.log.files.small_files import read_damaged_ranges
from spark_kafkalite.log.known_damage import Survey
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.segments.segment import LOG_SUFFIX, Segment
from spark_kafkalite.log.truncation import truncate_to
from spark_kafkalite.records.layout import HEADER_BYTES
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import end_of, header_of, make_batch, values_of

LogOpener = Callable[..., PartitionLog]

# Ten batches of two records in each segment.
_PER_SEGMENT = 20
_COUNT = 70
_FILE = "/data/t-0/damaged-ranges"


class _Listener:
    """Notes the ranges of each change."""

    def __init__(self, log: PartitionLog, told: list[Ranges]) -> None:
        self._log = log
        self._told = told

    def damage_changed(self) -> None:
        self._told.append(self._log.damaged_ranges)

    def damage_reported(self) -> None: ...


def append(log: PartitionLog, count: int) -> None:
    for first in range(0, count, 2):
        batch = make_batch([b"value %03d" % n for n in (first, first + 1)])
        log.append_as_leader(batch, header_of(batch), 0)


@pytest.fixture
def log(open_log: LogOpener) -> PartitionLog:
    size_bytes = len(make_batch([b"value %03d" % n for n in (0, 1)]))
    log = open_log(segment_bytes=10 * size_bytes, index_interval_bytes=2 * size_bytes)
    append(log, _COUNT)
    log.flush()
    log.local.known_damage.is_kept = True
    assert [each.base_offset for each in log.segments] == [0, 20, 40, 60]
    return log


def read(log: PartitionLog, offset: int) -> list[int]:
    """Return the offsets that one read gives, as the loop reads: with a thread where that is needed."""
    for _ in range(20):
        try:
            with without_waiting():
                piece = log.read(offset, 1 << 20, log.log_end_offset)
        except NeedsThread as missing:
            missing.run()
            continue
        return [] if piece is None else [each for each, _ in values_of(piece.read()) if each >= offset]
    raise AssertionError("the read comes to no end")


def readable(log: PartitionLog) -> list[int]:
    """Return all offsets that can be read, each asked for by itself."""
    found = []
    for offset in range(log.log_end_offset):
        try:
            found.append(read(log, offset)[0])
        except KafkaStorageError:
            continue
    return found


def second(log: PartitionLog) -> Segment:
    return list(log.segments)[1]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_a_file_that_cannot_be_read_leaves_open_what_is_damaged(
    log: PartitionLog, fs: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    write_whole(fs.open(_FILE, create=True), b"rubbish", 0)
    damage = log.local.known_damage
    damage.load(0, _COUNT)
    assert damage.ranges == damage.unknown == ((0, _COUNT),)
    damage.log_acceptance(damage.ranges, "no replica has them")
    loaded, accepted = errors(caplog)
    assert loaded == (
        f"{_FILE}: its checksum is missing or wrong; so it is not known which of the 70 offsets of t-0 are damaged, "
        "and all count as damaged. This replica copies them from its leader, if that has them. If no other replica "
        "has them, readers get what can be read"
    )
    assert accepted == (
        f"t-0: it is not known which of the offsets 0 to 69 are damaged: {_FILE} could not be read, and no other "
        "replica is known to have them whole. They count as sound from now on, and readers get what can be read: "
        "check them with kafkalite dump-log /data/t-0"
    )
    damage.accept(*damage.ranges[0])
    assert readable(log) == list(range(_COUNT))
    # What is found to be damaged later is known again.
    damage.add(20, 40)
    damage.log_acceptance(damage.ranges, "no replica has them")
    assert errors(caplog)[2] == (
        "t-0: offsets 20 to 39 are lost: no replica has them; readers pass over them from now on"
    )


@pytest.mark.parametrize("left_batches", [0, 1, 4, 9])
def test_a_segment_that_was_cut_costs_its_records_and_no_others(
    log: PartitionLog, fs: MemoryFs, caplog: pytest.LogCaptureFixture, left_batches: int
) -> None:
    told: list[Ranges] = []
    log.local.known_damage.listener = _Listener(log, told)
    segment = second(log)
    # Within a batch.
    segment.file.truncate(segment.size_bytes // 10 * left_batches + 30)
    lost = (20 + 2 * left_batches, 40)
    assert readable(log) == [*range(lost[0]), *range(40, _COUNT)]
    assert (log.damaged_ranges, log.is_damaged, told) == ((lost,), True, [(lost,)])
    assert read_damaged_ranges(fs, _FILE) == [lost]
    (line,) = errors(caplog)
    assert line.startswith(
        f"t-0: offsets {lost[0]} to {lost[1] - 1} cannot be read from {segment.log_path}: it ends at"
    )
    # Up to the damage, and not into it, whatever a read asks for.
    if left_batches:
        assert read(log, 20) == list(range(20, lost[0]))


def test_a_segment_that_is_gone_costs_its_records_and_no_others(
    log: PartitionLog, fs: MemoryFs, caplog: pytest.LogCaptureFixture
) -> None:
    segment = second(log)
    log.segments.forget_files()
    fs.unlink(segment.log_path)
    assert readable(log) == [*range(20), *range(40, _COUNT)]
    assert log.damaged_ranges == ((20, 40),)
    assert len(errors(caplog)) == 1 and segment.log_path in errors(caplog)[0]


def test_a_header_that_is_none_costs_what_lies_up_to_the_next_known_batch(log: PartitionLog) -> None:
    segment = second(log)
    batch_bytes = segment.size_bytes // 10
    segment.file.pwrite(b"\xff" * HEADER_BYTES, 4 * batch_bytes)
    with pytest.raises(KafkaStorageError):
        read(log, 28)
    ((start, end),) = log.damaged_ranges
    assert start == 28 and 30 <= end < 40, "the index knows a batch behind it"
    assert readable(log) == [*range(start), *range(end, _COUNT)]


def test_bytes_that_cannot_be_read_are_an_error_of_their_records_alone(
    log: PartitionLog, fs: MemoryFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = second(log)
    batch_bytes = segment.size_bytes // 10
    bad = range(4 * batch_bytes, 5 * batch_bytes)
    whole = type(segment.file).pread

    def pread(self: object, length: int, position: int) -> bytes:
        is_hit = position < bad.stop and position + length > bad.start
        if getattr(self, "path", "") == segment.log_path and is_hit:
            raise OSError(errno.EIO, "Input/output error")
        return whole(self, length, position)  # type: ignore[arg-type]

    monkeypatch.setattr(type(segment.file), "pread", pread)
    with pytest.raises(KafkaStorageError):
        read(log, 28)
    ((start, end),) = log.damaged_ranges
    assert start == 28 and 30 <= end < 40
    assert read(log, 0) == list(range(20)) and read(log, 40) == list(range(40, 60))
    # What is before it is not cut off with it, though one read of all of it fails.
    truncate_to(log, start)
    assert (log.log_end_offset, readable(log)) == (start, list(range(start)))


def test_a_bad_sector_where_an_index_entry_points_hides_nothing_before_it(
    open_log: LogOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of one record: its last offset, which the index has, is the offset that cannot be read."""
    log = open_log(index_interval_bytes=0)
    batch = make_batch([b"value"])
    for _ in range(10):
        log.append_as_leader(bytearray(batch), header_of(batch), 0)
    log.flush()
    log.local.known_damage.is_kept = True
    file_type, bad_at = type(log.segments.active.file), 7 * len(batch) + 3
    whole = file_type.pread

    def pread(self: object, length: int, position: int) -> bytes:
        if position <= bad_at < position + length:
            raise OSError(errno.EIO, "Input/output error")
        return whole(self, length, position)  # type: ignore[arg-type]

    monkeypatch.setattr(file_type, "pread", pread)
    log.local.reader.forget_positions()
    with pytest.raises(KafkaStorageError):
        read(log, 7)
    assert log.damaged_ranges[0][0] == 7
    assert read(log, 3) == [3, 4, 5, 6]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_passing_error_makes_nothing_known(log: PartitionLog, fs: MemoryFs, error: int) -> None:
    log.segments.forget_files()
    log.local.reader.forget_positions()
    fs.fail("open", error, path_part=LOG_SUFFIX, times=3)
    with pytest.raises(KafkaStorageError):
        read(log, 20)
    assert not log.is_damaged and not fs.exists(_FILE)
    for _ in range(3):
        try:
            assert read(log, 20) == list(range(20, 40))
            break
        except KafkaStorageError:
            continue


def test_an_error_that_does_not_come_again_makes_nothing_known(log: PartitionLog, fs: MemoryFs) -> None:
    log.local.reader.forget_positions()
    fs.fail("pread", errno.EIO, path_part=f"{20:020d}{LOG_SUFFIX}")
    assert read(log, 26) == list(range(26, 40))
    assert not log.is_damaged


@pytest.mark.parametrize("harm", ["gone", "cut", "empty", "unreadable"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_where_only_an_index_is_wrong_it_is_made_anew(
    log: PartitionLog, fs: MemoryFs, harm: str, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    segment = second(log)
    path = segment.log_path.removesuffix(LOG_SUFFIX) + suffix
    size_bytes = len(fs.files()[path])
    log.segments.forget_files()
    log.local.reader.forget_positions()
    match harm:
        case "gone":
            fs.unlink(path)
        case "cut":
            fs.open(path).truncate(size_bytes - 3)
        case "empty":
            fs.open(path).truncate(0)
        case _:
            fs.fail("pread", errno.EIO, path_part=path, times=1)
    segment._max_timestamp = None
    assert segment.max_timestamp[1] >= 20
    assert read(log, 39) == [39]
    assert readable(log) == list(range(_COUNT))
    assert not log.is_damaged and not errors(caplog)
    assert path in fs.files(), "it is on the disk again"


def test_an_index_that_a_thread_cannot_read_is_made_anew(log: PartitionLog, fs: MemoryFs) -> None:
    segment = second(log)
    log.local.reader.forget_positions()
    whole = type(segment.file).pread
    path = segment.log_path.removesuffix(LOG_SUFFIX) + ".index"
    cold = [True]

    def pread(self: object, length: int, position: int) -> bytes:
        if getattr(self, "path", "") == path and cold:
            if cold.pop():
                cold.append(False)
                raise NotInMemory(self, position, length)  # type: ignore[arg-type]
            raise OSError(errno.EIO, "Input/output error")
        return whole(self, length, position)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(segment.file), "pread", pread)
        assert read(log, 36) == list(range(36, 40))
    assert not cold and not log.is_damaged


def test_bytes_that_are_missing_while_they_are_sent_are_looked_for_with_the_next_read(log: PartitionLog) -> None:
    piece = log.read(60, 1 << 20, _COUNT)
    assert piece is not None
    log.segments.active.file.truncate(piece.length // 2)
    # What is in the active segment is sent without a look.
    log.local.known_damage.suspect(60)
    with without_waiting(), pytest.raises(Survey):
        log.read(0, 1 << 20, _COUNT)
    log.local.known_damage.suspect(60)
    with pytest.raises(KafkaStorageError):
        read(log, 68)
    assert log.damaged_ranges == ((64, 70),)
    assert read(log, 60) == [60, 61, 62, 63]


def test_a_doubt_that_was_in_vain_changes_nothing(log: PartitionLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log.local.known_damage.suspect(36, "somebody says so")
    assert read(log, 0) == list(range(20))
    assert [each.levelno for each in caplog.records] == [logging.INFO] and not log.is_damaged
    # A later read that fails there is looked at, not refused for what was found before.
    segment = second(log)
    segment.file.truncate(segment.size_bytes // 2)
    with pytest.raises(KafkaStorageError):
        read(log, 36)
    assert log.is_damaged


def test_a_look_up_by_time_says_what_reads_say(log: PartitionLog) -> None:
    segment = second(log)
    segment.file.truncate(segment.size_bytes // 2)

    def by_time() -> object:
        for _ in range(20):
            try:
                with without_waiting():
                    return log.offset_for_timestamp(2**60, log.log_end_offset)
            except NeedsThread as missing:
                missing.run()
        raise AssertionError("the look-up comes to no end")

    for each in log.segments:
        each._max_timestamp = (2**61, each.base_offset)
    with pytest.raises(KafkaStorageError):
        by_time()
    assert log.damaged_ranges == ((30, 40),)
    with pytest.raises(KafkaStorageError):
        by_time()


# What is known


def test_what_is_known_is_known_by_the_next_run(log: PartitionLog, open_log: LogOpener, fs: MemoryFs) -> None:
    segment = second(log)
    segment.file.truncate(segment.size_bytes // 2)
    with pytest.raises(KafkaStorageError):
        read(log, 30)
    log.close()
    again = open_log()
    assert again.damaged_ranges == ((30, 40),)
    with pytest.raises(KafkaStorageError):
        read(again, 35)
    fs.open(_FILE).truncate(5)
    again.close()
    assert open_log().damaged_ranges == ((0, 70),), "a damaged file says that something is damaged"


def test_a_check_of_where_to_cut_makes_no_file(log: PartitionLog, fs: MemoryFs) -> None:
    segment = second(log)
    third = list(log.segments)[2]
    segment.file.pwrite(b"\xff" * HEADER_BYTES, segment.size_bytes // 2)
    log.segments.forget_files()
    fs.unlink(third.log_path)
    for offset in (30, 50):
        with pytest.raises(KafkaStorageError):
            read(log, offset)
    start = log.damaged_ranges[-1][0]
    log.local.check_cut(start)
    assert not fs.exists(third.log_path), "the cut may not come, and the file would hide that one is missing"
    truncate_to(log, start)
    assert (log.log_end_offset, len(log.damaged_ranges)) == (start, 1)


@pytest.mark.parametrize("harm", ["cut", "gone", "header"])
def test_cut_back_to_the_damage_and_copied_again_it_is_whole(log: PartitionLog, fs: MemoryFs, harm: str) -> None:
    segment = second(log)
    if harm == "cut":
        segment.file.truncate(segment.size_bytes // 2)
    elif harm == "gone":
        log.segments.forget_files()
        fs.unlink(segment.log_path)
    else:
        segment.file.pwrite(b"\xff" * HEADER_BYTES, segment.size_bytes // 2)
    with pytest.raises(KafkaStorageError):
        read(log, 30)
    start = log.damaged_ranges[0][0]
    truncate_to(log, start)
    assert (log.log_end_offset, log.damaged_ranges, fs.exists(_FILE)) == (start, (), False)
    assert readable(log) == list(range(start))
    append(log, _COUNT - start)
    assert readable(log) == list(range(_COUNT))
    log.close()


def test_what_lies_below_the_log_start_is_missed_by_nobody(log: PartitionLog) -> None:
    log.local.known_damage.add(22, 44)
    log.advance_log_start(30)
    assert log.damaged_ranges == ((30, 44),)
    log.advance_log_start(50)
    assert not log.is_damaged


def test_what_is_found_in_files_that_a_truncation_changes_is_not_believed(log: PartitionLog) -> None:
    segment = second(log)
    segment.file.truncate(segment.size_bytes // 2)
    damage = log.local.known_damage
    damage.files_change()
    damage.survey(30, _COUNT, "it was read before")
    assert not log.is_damaged
    damage.keep(0, _COUNT)
    damage.survey(30, _COUNT, "it was read before")
    assert log.damaged_ranges == ((30, 40),)


def test_a_reader_of_the_last_batch_is_not_sent_into_the_damage(log: PartitionLog) -> None:
    log.local.known_damage.add(66, 70)
    piece = log.read(64, 1, log.log_end_offset)
    assert piece is not None and end_of(piece.read()) == 66
    with pytest.raises(KafkaStorageError):
        log.read(66, 1, log.log_end_offset)


@pytest.mark.parametrize("index", [1, 3], ids=["sealed", "active"])
@pytest.mark.parametrize("harm", ["values", "length"])
def test_what_is_lost_between_other_batches_is_passed_over(log: PartitionLog, index: int, harm: str) -> None:
    segment = list(log.segments)[index]
    size_bytes = len(make_batch([b"value %03d" % n for n in (0, 1)]))
    # The second batch: its values, or its length, so that the next one is found by the index.
    segment.file.pwrite(b"\xff" * 4, size_bytes + (HEADER_BYTES if harm == "values" else 8))
    start = segment.base_offset + 2
    damage = log.local.known_damage
    damage.survey(start, log.log_end_offset, "it was read before")
    ((found_start, end),) = damage.ranges
    assert found_start == start < end < log.log_end_offset and (end == start + 2 or harm == "length")
    fillers = damage.passed_over.prepare(damage.ranges, log.epochs.epoch_at)
    # A truncation may come first: then nothing stands for what is copied there.
    assert damage.passed_over.is_empty
    damage.passed_over.add(fillers)
    damage.accept(start, end)
    found: list[int] = []
    offset = 0
    while offset < _COUNT:
        piece = log.read(offset, 1 << 20, log.log_end_offset)
        assert piece is not None
        found += [each for each, _ in values_of(piece.read()) if each >= offset]
        offset = end_of(piece.read())
    assert found == [each for each in range(_COUNT) if not start <= each < end]
    # A reader in the middle gets it, too; not where it may not read so far, or has no room.
    piece = log.read(end - 1, 1 << 20, log.log_end_offset)
    assert piece is not None and (piece.start_offset, end_of(piece.read())) == (end - 1, end)
    assert log.read(start, 1 << 20, end - 1) is None
    assert log.read(start, 10, log.log_end_offset, at_least_one=False) is None
    # It is not found again, until the log is cut back there.
    damage.survey(start, log.log_end_offset, "it was read again")
    assert damage.ranges == ()
    damage.keep(0, end - 1)
    damage.survey(start, log.log_end_offset, "it was read again")
    assert damage.ranges == ((start, end),)


@pytest.mark.parametrize("harm", ["cut", "gone", "cut to nothing", "both"])
def test_what_is_lost_at_the_ends_of_segments_is_spanned_for_good(
    log: PartitionLog, open_log: LogOpener, fs: MemoryFs, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, segment, third, _ = log.segments
    if harm in ("gone", "both"):
        log.segments.forget_files()
        fs.unlink(third.log_path if harm == "both" else segment.log_path)
    if harm != "gone":
        segment.file.truncate(0 if harm == "cut to nothing" else segment.size_bytes // 2 + 30)
    left = [offset for offset in range(_COUNT) if offset not in range(20, 60)]
    left += {"cut": [*range(20, 30), *range(40, 60)], "both": [*range(20, 30)]}.get(harm, [*range(40, 60)])
    assert readable(log) == sorted(left)
    damage = log.local.known_damage
    lost = damage.ranges
    assert damage.passed_over.prepare(lost, log.epochs.epoch_at) == []
    for each in lost:
        damage.accept(*each)
    damage.write()
    # A reader at the damage is given a batch without records first, and comes to what is behind it.
    offset, found = 0, []
    while offset < _COUNT:
        piece = log.read(offset, 1 << 20, log.log_end_offset)
        assert piece is not None
        data = piece.read()
        found += [each for each, _ in values_of(data)]
        offset = end_of(data)
    assert found == sorted(left)
    # After a crash too nothing is found to be missing, and the batches follow each other without a gap.
    log.close()
    caplog.clear()
    again = open_log(clean=False, index_interval_bytes=64)
    assert (again.damaged_ranges, again.was_whole, errors(caplog)) == ((), True, [])


@pytest.mark.parametrize(
    "seems_to_be", [34 | 1 << 63, 34 | 1 << 40, 34 | 1 << 8, 35, 42, 38, 32, 33, 2], ids=lambda offset: f"{offset}"
)
@pytest.mark.parametrize("way", ["a look-up", "a check"])
def test_a_batch_whose_base_offset_has_changed_is_not_passed_over(
    log: PartitionLog, seems_to_be: int, way: str
) -> None:
    """No CRC covers it. Look-ups, which go by offsets, and checks find that it does not fit the batches around it."""
    segment = log.segments.floor(20)
    # The batch of 34 and 35; the next one is of 36 and 37.
    position = {header.base_offset: at for at, header in segment.headers(0)}[34]
    segment.file.pwrite(seems_to_be.to_bytes(8, "big"), position)
    if way == "a check":
        log.local.known_damage.suspect(34)
    with pytest.raises(KafkaStorageError):
        read(log, 34)
    assert log.damaged_ranges == ((34, 36),)
    assert read(log, 32) == [32, 33]
