from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from spark_kafkalite.errors import (
    ClosedError,
    CorruptMessage,
    InvalidProducerEpoch,
    KafkaStorageError,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    UnknownProducerId,
)
from spark_kafkalite.log import reader
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.needs_thread import without_waiting
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import AppendResult, PartitionLog
from spark_kafkalite.log.producer_state import ProducerIdLimits
from spark_kafkalite.log.segments.segment import Segment
from spark_kafkalite.log.truncation import truncate_fully, truncate_to
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import end_of, header_of, make_batch, make_stored_batch, values_of

LogOpener = Callable[..., PartitionLog]

_YEAR_MS = 365 * 86_400_000


def append(log: PartitionLog, count: int = 1, *, epoch: int = 0, **batch: object) -> AppendResult:
    data = make_batch(count, **batch)  # type: ignore[arg-type]
    return log.append_as_leader(data, header_of(data), epoch)


def all_values(log: PartitionLog, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    offset = int(log.log_start_offset)
    while (piece := log.read(offset, max_bytes, log.log_end_offset)) is not None:
        records = values_of(piece.read())
        found += [record for record in records if record[0] >= offset]
        offset = end_of(piece.read())
    return found


# Append


def test_offsets_are_given_without_gaps(open_log: LogOpener) -> None:
    log = open_log()
    assert append(log, 3) == AppendResult(0, 2, -1, False)
    assert append(log, 2) == AppendResult(3, 4, -1, False)
    assert log.log_end_offset == 5
    assert [offset for offset, _ in all_values(log)] == [0, 1, 2, 3, 4]


def test_stored_batch_is_the_sent_one_but_for_offset_and_epoch(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 5)
    sent = make_batch(3, codec="gzip")
    before = bytes(sent)
    log.append_as_leader(sent, header_of(sent), 4)
    piece = log.read(5, 1 << 20, 8)
    assert piece is not None
    stored = piece.read()
    assert stored[16:] == before[16:]
    assert (header_of(stored).base_offset, header_of(stored).partition_leader_epoch) == (5, 4)
    kernel.check_crc(stored, 0, len(stored))


def test_log_append_time_is_the_clock_as_it_is(open_log: LogOpener, clock: ManualClock) -> None:
    log = open_log(message_timestamp_type="LogAppendTime")
    right_ms = clock.wall_ms()
    assert append(log).log_append_time_ms == right_ms
    clock.jump_wall(_YEAR_MS)
    assert append(log).log_append_time_ms == right_ms + _YEAR_MS
    clock.jump_wall(-_YEAR_MS)
    assert append(log).log_append_time_ms == right_ms
    piece = log.read(2, 1 << 20, 3)
    assert piece is not None
    stored = piece.read()
    assert header_of(stored).max_timestamp == right_ms
    assert header_of(stored).attributes & 0x08
    kernel.check_crc(stored, 0, len(stored))
    log.close()
    for clean in (True, False):
        again = open_log(message_timestamp_type="LogAppendTime", clean=clean)
        assert append(again).log_append_time_ms == right_ms
        again.close()


def test_one_moment_of_a_wrong_clock_is_one_record_s(open_log: LogOpener, clock: ManualClock) -> None:
    """Look-ups by time and rolls by time, with a record from the future in the middle."""
    settings = {"message_timestamp_type": "LogAppendTime", "segment_ms": 10_000, "index_interval_bytes": 1}
    log = open_log(**settings)
    times: list[int] = []
    for step in range(8):
        clock.jump_wall(1000)
        wrong_ms = _YEAR_MS if step == 3 else 0
        clock.jump_wall(wrong_ms)
        times.append(append(log).log_append_time_ms)
        clock.jump_wall(-wrong_ms)
    # The record from the future has begun a segment, in which nothing is older: it is the first at or after any time.
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    log.close()
    for clean in (True, False):
        log = open_log(clean=clean, **settings)
        for wanted_ms in (times[0], times[1] + 1, times[2], times[5], times[3], times[3] + 1):
            found = log.offset_for_timestamp(wanted_ms, log.log_end_offset)
            expected = next(((offset, time) for offset, time in enumerate(times) if time >= wanted_ms), None)
            assert (found and (found.offset, found.timestamp_ms)) == expected
        largest = log.offset_of_max_timestamp(log.log_end_offset)
        assert largest is not None
        assert (largest.offset, largest.timestamp_ms) == (3, times[3])
        log.close()


def test_segment_made_by_a_clock_that_was_ahead_rolls_by_time(open_log: LogOpener, clock: ManualClock) -> None:
    clock.jump_wall(_YEAR_MS)
    log = open_log(segment_ms=10_000)
    append(log, 1, timestamp_ms=-1)
    clock.jump_wall(-_YEAR_MS)
    append(log, 1, timestamp_ms=-1)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_batch_larger_than_a_segment_is_refused(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=200)
    with pytest.raises(RecordListTooLarge, match=r"segment\.bytes=200"):
        append(log, 100)
    assert log.log_end_offset == 0


def test_duplicate_is_answered_with_the_original_and_not_written(open_log: LogOpener) -> None:
    log = open_log()
    append(log)
    first = append(log, 3, producer_id=9, producer_epoch=0, base_sequence=0)
    append(log, 2, producer_id=9, producer_epoch=0, base_sequence=3)
    size = log.size_bytes
    again = append(log, 3, producer_id=9, producer_epoch=0, base_sequence=0)
    assert again == AppendResult(first.base_offset, first.last_offset, -1, True)
    assert (log.size_bytes, log.log_end_offset) == (size, 6)


def test_sequence_errors_write_nothing(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 3, producer_id=9, producer_epoch=1, base_sequence=0)
    with pytest.raises(OutOfOrderSequenceNumber):
        append(log, 1, producer_id=9, producer_epoch=1, base_sequence=4)
    with pytest.raises(InvalidProducerEpoch):
        append(log, 1, producer_id=9, producer_epoch=0, base_sequence=3)
    assert log.log_end_offset == 3
    assert append(log, 1, producer_id=9, producer_epoch=1, base_sequence=3).base_offset == 3


def test_sequence_without_producer_id_does_not_count(open_log: LogOpener) -> None:
    log = open_log()
    for _ in range(2):
        assert not append(log, base_sequence=0).duplicate
    assert log.log_end_offset == 2


# Roll


def test_full_segment_rolls(open_log: LogOpener, fs: MemoryFs) -> None:
    size = len(make_batch(1))
    log = open_log(segment_bytes=3 * size)
    for _ in range(7):
        append(log)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    assert sorted(path.rpartition("/")[2] for path in fs.files() if path.endswith((".log", ".snapshot", ".index"))) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000003.index",
        "00000000000000000003.log",
        "00000000000000000003.snapshot",
        "00000000000000000006.log",
        "00000000000000000006.snapshot",
    ]
    assert [offset for offset, _ in all_values(log)] == list(range(7))


def test_segment_rolls_when_record_time_has_passed(open_log: LogOpener) -> None:
    log = open_log(segment_ms=1000)
    append(log, timestamp_ms=5000)
    append(log, timestamp_ms=6000)
    assert len(log.segments) == 1
    append(log, timestamp_ms=6001)
    assert len(log.segments) == 2


def test_segment_without_timestamps_rolls_by_its_age(open_log: LogOpener, clock: ManualClock) -> None:
    log = open_log(segment_ms=1000)
    append(log, timestamp_ms=-1)
    clock.advance(ms=1000)
    append(log, timestamp_ms=-1)
    assert len(log.segments) == 1
    clock.advance(ms=1)
    append(log, timestamp_ms=-1)
    assert len(log.segments) == 2


def test_segment_rolls_before_relative_offsets_overflow(open_log: LogOpener) -> None:
    log = open_log()
    copy_at_once(log, make_stored_batch(0, 0))
    copy_at_once(log, make_stored_batch(2**31 - 1, 0))
    assert len(log.segments) == 1
    copy_at_once(log, make_stored_batch(2**31, 0))
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]


def test_segment_rolls_when_its_index_is_full(open_log: LogOpener) -> None:
    log = open_log(index_interval_bytes=0, segment_index_bytes=36)
    for _ in range(20):
        append(log)
    assert len(log.segments) > 1
    assert all(segment.time_index.count <= 4 for segment in log.segments)
    assert all(segment.offset_index.count <= 4 for segment in log.segments)


def test_jitter_makes_a_segment_roll_early_but_never_at_once(open_log: LogOpener) -> None:
    log = open_log(segment_ms=1000, segment_jitter_ms=10**9)
    assert 0 <= log.segments.active.roll_jitter_ms < 1000
    assert open_log().segments.active.roll_jitter_ms == 0


def test_jitter_counts_until_the_segment_rolls_whatever_else_changes(open_log: LogOpener) -> None:
    log = open_log(segment_ms=1000, segment_jitter_ms=999)
    log.segments.active.roll_jitter_ms = 400
    log.update_config(open_log(segment_ms=1000, segment_jitter_ms=999, flush_ms=5).config)
    for timestamp_ms, segments in ((5000, 1), (5600, 1), (5601, 2)):
        append(log, timestamp_ms=timestamp_ms)
        assert len(log.segments) == segments
    log.update_config(open_log(segment_ms=1000).config)
    assert log.segments.active.roll_jitter_ms == 0


def test_index_interval_says_how_many_entries_there_are(open_log: LogOpener) -> None:
    log = open_log(index_interval_bytes=0)
    for _ in range(10):
        append(log)
    dense = log.segments.active.offset_index.count
    log.update_config(open_log(index_interval_bytes=10**6).config)
    for _ in range(10):
        append(log)
    assert (dense, log.segments.active.offset_index.count) == (9, 9)


# Read


@pytest.fixture
def long_log(open_log: LogOpener) -> PartitionLog:
    """300 batches of three records in several segments, with index entries every few batches."""
    log = open_log(segment_bytes=8000, index_interval_bytes=500)
    for number in range(300):
        append(log, 3, timestamp_ms=1000 + 10 * number)
    assert len(log.segments) > 3
    return log


@pytest.mark.parametrize("reopened", [False, True])
def test_every_offset_can_be_read_from(long_log: PartitionLog, open_log: LogOpener, reopened: bool) -> None:
    log = long_log
    if reopened:
        log.close()
        log = open_log(segment_bytes=8000, index_interval_bytes=500)
    for offset in range(0, 900, 7):
        piece = log.read(offset, 1, 900)
        assert piece is not None
        header = header_of(piece.read())
        assert header.base_offset <= offset <= header.last_offset
        assert piece.length == header.size_bytes, "one batch, because no more was asked for"


@pytest.mark.parametrize("max_bytes", [1, 150, 1000, 3000, 10**9])
def test_reads_go_through_the_whole_log(long_log: PartitionLog, max_bytes: int) -> None:
    assert [offset for offset, _ in all_values(long_log, max_bytes)] == list(range(900))


def test_reads_keep_to_their_limit_in_whole_batches(long_log: PartitionLog) -> None:
    piece = long_log.read(0, 2000, 900)
    assert piece is not None
    assert 1000 < piece.length <= 2000
    assert sum(header.size_bytes for header in kernel.scan_headers(piece.read())) == piece.length


def test_first_batch_comes_whole_or_not_at_all(long_log: PartitionLog) -> None:
    assert long_log.read(0, 10, 900) is not None
    assert long_log.read(0, 10, 900, at_least_one=False) is None


@pytest.mark.parametrize("until_offset", [3, 4, 5, 6, 300, 601])
def test_nothing_at_or_after_the_bound_is_read(long_log: PartitionLog, until_offset: int) -> None:
    offset, seen = 0, 0
    while (piece := long_log.read(offset, 1 << 20, until_offset)) is not None:
        seen = offset = kernel.scan_headers(piece.read())[-1].next_offset
    assert seen == until_offset // 3 * 3, "a batch that only partly lies below the bound is not shown"


def test_read_at_the_end_gives_nothing_and_outside_is_an_error(long_log: PartitionLog) -> None:
    assert long_log.read(900, 100, 900) is None
    assert long_log.read(900, 100, 10**9) is None
    with pytest.raises(OffsetOutOfRange, match="901"):
        long_log.read(901, 100, 900)
    long_log.advance_log_start(10)
    with pytest.raises(OffsetOutOfRange):
        long_log.read(9, 100, 900)
    piece = long_log.read(10, 1, 900)
    assert piece is not None
    assert header_of(piece.read()).base_offset == 9


def test_offset_in_a_gap_gives_the_batch_after_it(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=100, cleanup_policy="compact")
    for base in (0, 10, 20):
        copy_at_once(log, make_stored_batch(base, 0))
    piece = log.read(11, 1000, 21)
    assert piece is not None
    assert header_of(piece.read()).base_offset == 20
    assert log.read(11, 1000, 15) is None


def test_slice_outlives_its_log_and_its_segment(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=100)
    for _ in range(3):
        append(log)
    piece = log.read(0, 1 << 20, 3)
    assert piece is not None
    before = piece.read()
    truncate_fully(log, 100)
    log.close()
    assert piece.read() == before


def test_damaged_header_is_an_error_of_the_read(long_log: PartitionLog, fs: MemoryFs) -> None:
    fs.open("/data/t-0/00000000000000000000.log").pwrite(b"\xff" * 40, 0)
    with pytest.raises(KafkaStorageError):
        long_log.read(1, 1, 900)
    assert long_log.damaged_ranges[0][0] == 0


def test_failed_read_is_a_storage_error_and_the_log_goes_on(long_log: PartitionLog, fs: MemoryFs) -> None:
    long_log.local.reader.forget_positions()
    fs.fail("pread", path_part=".log")
    with pytest.raises(KafkaStorageError):
        long_log.read(2, 1, 900)
    assert long_log.failure is None and not long_log.is_damaged, "it can be read again"
    assert long_log.read(2, 1, 900) is not None


def test_who_reads_what_another_has_read_walks_no_headers(open_log: LogOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(segment_bytes=3000, index_interval_bytes=1000)
    for number in range(60):
        append(log, 1 + number % 3)
    first = all_values(log, 300)
    assert len(log.segments) > 1
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "headers", lambda *_, **__: pytest.fail("headers are read"))
        assert all_values(log, 300) == first
    # What is cut off and written again has other ends.
    truncate_to(log, 60)
    kept = [record for record in first if record[0] < log.log_end_offset]
    append(log, 9)
    assert all_values(log, 300)[: len(kept)] == kept
    assert all_values(log, 300) == all_values(log)


# Look-ups by time


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("reopened", [False, True])
def test_first_record_at_or_after_a_time_is_found_inside_its_batch(
    open_log: LogOpener, codec: str, reopened: bool
) -> None:
    log = open_log(segment_bytes=3000, index_interval_bytes=200)
    for number in range(60):
        base = 1000 + number * 100
        append(log, 4, timestamps_ms=[base, base + 10, base + 20, base + 30], codec=codec, epoch=number // 20)
    if reopened:
        log.close()
        log = open_log(segment_bytes=3000, index_interval_bytes=200)
    for wanted, offset, found_ms in [
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 1010),
        (1031, 4, 1100),
        (6925, 239, 6930),
    ]:
        found = log.offset_for_timestamp(wanted, 240)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (offset, found_ms)
    assert log.offset_for_timestamp(6931, 240) is None
    last = log.offset_for_timestamp(5000, 240)
    assert last is not None
    assert last.leader_epoch == 2


def test_times_out_of_order_give_the_first_record_that_is_late_enough(open_log: LogOpener) -> None:
    log = open_log(index_interval_bytes=0)
    for time in (500, 100, 900, 300, 900, 1000, 50):
        append(log, timestamp_ms=time)
    expected = {100: 0, 500: 0, 501: 2, 900: 2, 901: 5, 1000: 5}
    for wanted, offset in expected.items():
        found = log.offset_for_timestamp(wanted, 7)
        assert found is not None
        assert found.offset == offset
    assert log.offset_for_timestamp(1001, 7) is None


def test_look_up_by_time_keeps_to_log_start_and_bound(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 4, timestamps_ms=[1, 2, 3, 4])
    append(log, 4, timestamps_ms=[5, 6, 7, 8])
    assert log.offset_for_timestamp(6, 5) is None
    log.advance_log_start(2)
    found = log.offset_for_timestamp(1, 8)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (2, 3)


def test_record_with_the_largest_timestamp(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=300, index_interval_bytes=0)
    assert log.offset_of_max_timestamp(10**9) is None
    for times in ([5, 9], [20, 3], [7, 20], [30, 8]):
        append(log, 2, timestamps_ms=times, codec="gzip")
    best = log.offset_of_max_timestamp(8)
    assert best is not None
    assert (best.offset, best.timestamp_ms) == (6, 30)
    earlier = log.offset_of_max_timestamp(6)
    assert earlier is not None
    assert (earlier.offset, earlier.timestamp_ms) == (2, 20)


def test_a_look_up_by_time_takes_turns_where_it_may_not_wait(
    open_log: LogOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_WALKED_AT_ONCE", 10)
    log = open_log(segment_bytes=4000, index_interval_bytes=0)
    for _ in range(95):
        append(log, timestamp_ms=5)
    append(log, timestamp_ms=6)
    turns = 0
    while True:
        turns += 1
        try:
            with without_waiting():
                found = log.offset_for_timestamp(6, 96)
                break
        except reader.WalkGoesOn:
            # Another look-up in between does not lose the first one's place.
            assert log.offset_for_timestamp(5, 96) == (0, 5, 0)
    assert found == (95, 6, 0)
    assert log.offset_for_timestamp(6, 96) == found
    assert 3 <= turns <= 12


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_look_up_by_time_leaves_unpacking_to_a_thread(open_log: LogOpener, codec: str) -> None:
    log = open_log()
    append(log, 4, timestamps_ms=[1, 2, 3, 4], codec=codec)
    for look_up in (lambda: log.offset_for_timestamp(3, 4), lambda: log.offset_of_max_timestamp(4)):
        expected = look_up()
        with without_waiting():
            with pytest.raises(reader.DecodeFirst) as asked:
                look_up()
            asked.value.work()
            assert look_up() == expected
            with pytest.raises(reader.DecodeFirst):
                look_up()
    # What a thread found does not outlive the batch.
    with without_waiting():
        with pytest.raises(reader.DecodeFirst) as late:
            log.offset_for_timestamp(3, 4)
        truncate_to(log, 0)
        late.value.work()
        assert log.offset_for_timestamp(3, 4) is None
    append(log, 4, timestamps_ms=[7, 8, 9, 9], codec=codec)
    with without_waiting(), pytest.raises(reader.DecodeFirst):
        log.offset_for_timestamp(3, 4)


def test_the_largest_visible_timestamp_is_found_without_walking_the_segment(open_log: LogOpener) -> None:
    log = open_log(index_interval_bytes=0)
    chance = random.Random(7)
    times = [chance.randrange(1000) for _ in range(200)] + list(range(2000, 2300)) + [5000]
    for at in times:
        append(log, timestamp_ms=at)
    for until in [1, 2, 50, 199, 200, 350, 500, 501]:
        largest = max(times[:until])
        assert log.offset_of_max_timestamp(until) == (times.index(largest), largest, 0)
    log.advance_log_start(100)
    largest = max(times[100:150])
    assert log.offset_of_max_timestamp(150) == (times.index(largest, 100), largest, 0)
    headers = []
    segment = log.segments.active
    walk = type(segment).headers

    def counted(self: object, *arguments: int, **options: int) -> object:
        for found in walk(segment, *arguments, **options):
            headers.append(found)
            yield found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(segment), "headers", counted)
        assert log.offset_of_max_timestamp(490) == (489, 2289, 0)
    assert len(headers) < 20


def test_records_without_timestamps_are_found_by_no_time(open_log: LogOpener) -> None:
    log = open_log()
    append(log, timestamp_ms=-1)
    assert log.offset_for_timestamp(0, 1) is None
    assert log.offset_of_max_timestamp(1) is None


# Follower


def test_follower_keeps_offsets_and_epochs(open_log: LogOpener) -> None:
    log = open_log()
    batches = make_stored_batch(0, 0, 2) + make_stored_batch(2, 3, 2)
    copy_at_once(log, batches)
    assert (log.log_start_offset, log.log_end_offset) == (0, 4)
    assert log.epochs.entries == [(0, 0), (3, 2)]
    piece = log.read(0, 1 << 20, 4)
    assert piece is not None
    assert piece.read() == batches


@pytest.mark.parametrize(
    "batches",
    [
        b"",
        make_stored_batch(5, 1) + b"\0",
        make_stored_batch(5, 1) + make_stored_batch(5, 1),
        make_stored_batch(4, 1),
        make_stored_batch(5, 0),
        make_stored_batch(5, 2) + make_stored_batch(6, 1),
        make_stored_batch(5, 1) + make_stored_batch(6, 1)[:-1],
        make_stored_batch(5, 1)[:-1] + b"\xff",
    ],
    ids=["empty", "rest", "repeated", "known", "older epoch", "epoch back", "cut", "crc"],
)
def test_follower_writes_nothing_of_a_bad_answer(open_log: LogOpener, batches: bytes) -> None:
    log = open_log()
    copy_at_once(log, make_stored_batch(0, 1, 5))
    with pytest.raises(CorruptMessage):
        copy_at_once(log, batches)
    assert log.log_end_offset == 5


def test_follower_knows_producers(open_log: LogOpener) -> None:
    log = open_log()
    batch = make_batch(2, producer_id=9, producer_epoch=0, base_sequence=0)
    kernel.stamp(batch, 0, 0, 0)
    copy_at_once(log, batch)
    assert append(log, 2, producer_id=9, producer_epoch=0, base_sequence=0).duplicate


# Disk errors


@pytest.mark.parametrize("written", [None, 1, 40])
def test_failed_append_leaves_no_trace_and_is_the_last(open_log: LogOpener, fs: MemoryFs, written: int | None) -> None:
    log = open_log()
    append(log, 2)
    size = log.size_bytes
    if written is not None:
        fs.fail("pwrite", written=written)
    fs.fail("pwrite", errno.ENOSPC)
    with pytest.raises(KafkaStorageError, match="t-0"):
        append(log, 2)
    assert (log.log_end_offset, log.size_bytes) == (2, size)
    assert len(fs.files()["/data/t-0/00000000000000000000.log"]) == size
    with pytest.raises(KafkaStorageError):
        append(log, 2)
    assert [offset for offset, _ in all_values(log)] == [0, 1], "reads go on"


def test_short_write_is_made_whole_when_there_is_room(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    fs.fail("pwrite", written=10)
    append(log, 2)
    assert [offset for offset, _ in all_values(log)] == [0, 1]


def test_full_disk_stops_appends_at_a_batch(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log)
    fs.capacity_bytes = sum(map(len, fs.files().values())) + 5 * len(make_batch(1)) + 20
    with pytest.raises(KafkaStorageError):
        for _ in range(10):
            append(log)
    assert log.log_end_offset == 6
    fs.capacity_bytes = None
    assert [offset for offset, _ in all_values(open_log(clean=False))] == list(range(6))


@pytest.mark.parametrize("operation", ["create", "pwrite", "rename"])
def test_failed_roll_ends_the_log_without_losing_records(open_log: LogOpener, fs: MemoryFs, operation: str) -> None:
    log = open_log(segment_bytes=100, index_interval_bytes=0)
    append(log)
    fs.fail(operation)
    with pytest.raises(KafkaStorageError):
        append(log)
    assert log.log_end_offset == 1
    fs.fail(operation, times=0)
    assert [offset for offset, _ in all_values(open_log(clean=False, segment_bytes=100))] == [0]


def test_closed_log_refuses_appends(open_log: LogOpener) -> None:
    log = open_log()
    log.close()
    log.close()
    with pytest.raises(ClosedError):
        append(log)


# Flush


def test_flush_moves_the_recovery_point_to_what_was_written_before_it(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 3)
    job = log.start_flush()
    assert job is not None
    append(log, 2)
    assert log.start_flush() is None, "one flush at a time"
    job.run()
    assert log.recovery_point == 0
    log.finish_flush(job)
    assert (log.recovery_point, log.local.unflushed_records) == (3, 2)
    log.flush()
    assert log.local.unflushed_records == 0
    assert log.start_flush() is None


def test_failed_flush_is_not_tried_again(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log()
    append(log)
    fs.fail("sync")
    job = log.start_flush()
    assert job is not None
    job.run()
    with pytest.raises(KafkaStorageError, match="flush"):
        log.finish_flush(job)
    assert log.recovery_point == 0
    assert log.start_flush() is None
    with pytest.raises(KafkaStorageError):
        append(log)


def test_flush_covers_segments_that_rolled(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100)
    for _ in range(4):
        append(log)
    assert log.local.has_sealed_unflushed
    log.flush()
    assert (log.recovery_point, log.local.has_sealed_unflushed) == (4, False)


def test_flush_that_a_truncation_overtook_says_nothing(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 5)
    job = log.start_flush()
    assert job is not None
    truncate_to(log, 0)
    append(log, 5)
    job.run()
    log.finish_flush(job)
    assert log.recovery_point == 0


def test_flush_is_due_by_records(open_log: LogOpener, clock: ManualClock) -> None:
    log = open_log(flush_messages=3)
    append(log, 2)
    assert not log.local.flush_due(clock.monotonic_s())
    append(log)
    assert log.local.flush_due(clock.monotonic_s())
    log.flush()
    assert not log.local.flush_due(clock.monotonic_s())


def test_flush_is_due_by_the_age_of_the_oldest_record(open_log: LogOpener, clock: ManualClock) -> None:
    log = open_log(flush_ms=500)
    assert log.local.flush_deadline_s() is None
    append(log)
    clock.advance(ms=499)
    append(log)
    assert not log.local.flush_due(clock.monotonic_s())
    clock.advance(ms=1)
    assert log.local.flush_due(clock.monotonic_s())
    assert log.local.flush_deadline_s() == clock.monotonic_s()
    job = log.start_flush()
    assert job is not None
    append(log)
    job.run()
    log.finish_flush(job)
    assert not log.local.flush_due(clock.monotonic_s())
    clock.advance(ms=500)
    assert log.local.flush_due(clock.monotonic_s())


# Truncate


@pytest.mark.parametrize(
    ("to", "end"), [(0, 0), (1, 0), (3, 3), (7, 6), (9, 9), (12, 12), (899, 897), (900, 900), (999, 900)]
)
@pytest.mark.parametrize("reopened", [False, True])
def test_truncation_cuts_at_a_batch(
    long_log: PartitionLog, open_log: LogOpener, to: int, end: int, reopened: bool
) -> None:
    log = long_log
    if reopened:
        log.close()
        log = open_log(segment_bytes=8000, index_interval_bytes=500)
    truncate_to(log, to)
    assert log.log_end_offset == end
    assert append(log, 3, timestamp_ms=10**6).base_offset == end
    assert [offset for offset, _ in all_values(log)] == list(range(end + 3))
    found = log.offset_for_timestamp(10**6, 10**9)
    assert found is not None
    assert found.offset == end
    log.close()
    again = open_log(segment_bytes=8000, index_interval_bytes=500)
    assert [offset for offset, _ in all_values(again)] == list(range(end + 3))


def test_truncation_takes_epochs_and_producers_back(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=300)
    append(log, producer_id=9, producer_epoch=0, base_sequence=0)
    for number in range(1, 8):
        append(log, epoch=number, producer_id=9, producer_epoch=0, base_sequence=number)
    truncate_to(log, 3)
    assert log.epochs.entries == [(0, 0), (1, 1), (2, 2)]
    assert not append(log, epoch=9, producer_id=9, producer_epoch=0, base_sequence=3).duplicate
    assert append(log, epoch=9, producer_id=9, producer_epoch=0, base_sequence=2).duplicate


def test_truncation_takes_the_recovery_point_back(open_log: LogOpener) -> None:
    log = open_log()
    for _ in range(4):
        append(log)
    log.flush()
    truncate_to(log, 2)
    assert log.recovery_point == 2


def test_full_truncation_goes_on_at_another_offset(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 5)
    truncate_fully(log, 1000)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries) == (1000, 1000, [])
    assert append(log).base_offset == 1000
    log.close()
    assert open_log().log_start_offset == 1000


def test_full_truncation_forgets_producers_for_good(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=100)
    for sequence in range(4):
        append(log, producer_id=9, producer_epoch=0, base_sequence=sequence)
    truncate_fully(log, 1000)
    append(log)
    log.flush()
    for again in (log, open_log(clean=False)):
        assert not again.producers.state.producers


# The rest


def test_epochs_follow_appends(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 2, epoch=0)
    append(log, 2, epoch=4)
    assert log.epochs.latest == 4
    assert log.end_offset_for_epoch(0) == (0, 2)
    assert log.end_offset_for_epoch(3) == (0, 2)
    assert log.end_offset_for_epoch(4) == (4, 4)
    log.assign_leader_epoch(7)
    assert log.end_offset_for_epoch(7) == (7, 4)


def test_log_start_only_moves_forward_and_within_the_log(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 5)
    assert log.advance_log_start(3)
    assert not log.advance_log_start(2)
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(6)
    assert log.log_start_offset == 3


def test_silent_producers_expire_by_the_wall_clock(open_log: LogOpener, clock: ManualClock) -> None:
    log = open_log()
    append(log, timestamp_ms=1000, producer_id=9, producer_epoch=0, base_sequence=5)
    clock.advance(ms=1001)
    log.producers.state.limits.expiration_ms = 1001
    list(log.expire_producers())
    assert len(log.producers.state) == 1
    log.producers.state.limits.expiration_ms = 1000
    list(log.expire_producers())
    assert len(log.producers.state) == 0


def test_forgotten_producer_is_refused_and_begins_anew(
    open_log: LogOpener, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    log.producers.state.limits.max_ids = 10
    for producer_id in range(30):
        append(log, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "t-0: 1 idle producer ids were forgotten" in caplog.text
    clock.advance(ms=60_000)
    append(log, producer_id=99, producer_epoch=0, base_sequence=0)
    assert "t-0: 20 idle producer ids were forgotten" in caplog.text
    log.advance_log_start(3)
    for clean in (True, True, False):
        with pytest.raises(UnknownProducerId) as caught:
            append(log, producer_id=0, producer_epoch=0, base_sequence=1)
        assert caught.value.log_start_offset == 3, "the Java client gives up without it"
        assert log.log_end_offset == 31
        end = log.log_end_offset
        log.close(clean=clean)
        log = open_log(clean=clean, recovery_point=31 if clean else 0, start=3)
        log.producers.state.limits.max_ids = 10
        assert log.log_end_offset == end
    append(log, producer_id=0, producer_epoch=1, base_sequence=0)
    append(log, producer_id=0, producer_epoch=1, base_sequence=1)


@pytest.mark.parametrize("clean", [True, False])
def test_large_snapshots_do_not_pile_up(fs: MemoryFs, open_log: LogOpener, clean: bool) -> None:
    log = open_log(segment_bytes=20_000)
    for producer_id in range(4000):
        append(log, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        if producer_id % 100 == 0:
            log.flush()
    assert len(log.segments) > 10
    log.flush()
    log.roll()

    def snapshot_bytes() -> list[int]:
        sizes = [entry.size_bytes for entry in fs.entries(log.directory) if entry.name.endswith(".snapshot")]
        return [size for size in sizes if size > 64 * 1024]

    assert 3 <= len(snapshot_bytes()) <= 5
    log.close(clean=clean)
    again = open_log(clean=clean, recovery_point=int(log.recovery_point), segment_bytes=20_000)
    assert len(again.producers.state) == 4000
    assert len(snapshot_bytes()) <= 4
    for producer_id in (0, 2000, 3999):
        append(again, producer_id=producer_id, producer_epoch=0, base_sequence=1)


def test_recovery_without_snapshots_forgets_too(fs: MemoryFs, open_log: LogOpener) -> None:
    """It reads every batch, so it knows whom it has forgotten as the running log did."""
    log = open_log()
    for producer_id in range(30):
        append(log, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    limits = ProducerIdLimits(max_ids=10)
    host = LogHost(log.host.files, ManualClock(), log.disk, limits)
    again = PartitionLog.open(host, log.directory, log.topic_partition, log.topic_id, log.config, LastRun(clean=False))
    assert len(again.producers.state) <= 10
    with pytest.raises(UnknownProducerId):
        append(again, producer_id=0, producer_epoch=0, base_sequence=1)
    assert append(again, producer_id=29, producer_epoch=0, base_sequence=1).base_offset == 30


def test_changed_settings_hold_from_the_next_append(open_log: LogOpener) -> None:
    log = open_log()
    append(log)
    log.update_config(open_log(segment_bytes=100).config)
    append(log)
    assert len(log.segments) == 2


def test_representation_shows_the_state(open_log: LogOpener) -> None:
    log = open_log()
    append(log, 4)
    assert repr(log) == ("PartitionLog(t-0, log_start_offset=0, recovery_point=0, log_end_offset=4, segments=1)")


# Remove


def test_retired_segments_leave_their_readers_alone(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100, index_interval_bytes=1)
    for number in range(5):
        append(log, producer_id=7, base_sequence=number)
    early = log.read(0, 1000, 5)
    dropped = log.segments.drop_oldest(2)
    assert [segment.base_offset for segment in dropped] == [0, 1]
    assert [segment.base_offset for segment in log.segments] == [2, 3, 4]
    retired = log.retire(dropped)
    assert all(path.endswith(".deleted") and fs.exists(path) for path in retired)
    names = {path.rpartition("/")[2] for path in retired}
    assert names >= {f"{0:020d}.log.deleted", f"{1:020d}.log.deleted", f"{1:020d}.snapshot.deleted"}
    left = [path for path in fs.files() if f"{0:020d}." in path or f"{1:020d}." in path]
    assert all(path.endswith(".deleted") for path in left)
    assert early is not None
    assert header_of(early.read()).base_offset == 0
    assert log.advance_log_start(2)
    assert [offset for offset, _ in all_values(log)] == [2, 3, 4]
    # A retry of the last batch is still recognised.
    assert append(log, producer_id=7, base_sequence=4).duplicate


def test_newest_snapshot_stays(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100)
    for number in range(3):
        append(log, producer_id=7, base_sequence=number)
    log.roll()
    first, second, third = log.segments.drop_oldest(3)
    assert not [path for path in log.retire([first, second, third]) if path.endswith(f"{3:020d}.snapshot.deleted")]
    assert fs.exists(f"/data/t-0/{3:020d}.snapshot")


def test_active_segment_is_never_dropped(open_log: LogOpener) -> None:
    log = open_log(segment_bytes=100)
    append(log)
    append(log)
    with pytest.raises(ValueError, match="cannot drop 2 of 1 sealed segments"):
        log.segments.drop_oldest(2)
    assert len(log.segments) == 2


def test_segments_that_cannot_be_renamed_fail_the_log(open_log: LogOpener, fs: MemoryFs) -> None:
    log = open_log(segment_bytes=100)
    append(log)
    append(log)
    fs.fail("rename", path_part=".deleted")
    with pytest.raises(KafkaStorageError, match="cannot remove segments of t-0"):
        log.retire(log.segments.drop_oldest(1))
    assert log.failure is not None
    assert log.read(1, 1000, 2) is not None


class Sent:
    """A range as its sender sees it."""

    def __init__(self, log: PartitionLog, offset: int) -> None:
        found = log.read(offset, 1, log.log_end_offset)
        assert found is not None
        self.position, self.length, self.is_cut = found.position, found.length, False
        self.sending = found.sending
        found.sending.begin(self)


@pytest.mark.parametrize(
    ("truncate", "cut"),
    [
        (lambda log: truncate_to(log, 5), [False] * 5 + [True]),
        (lambda log: truncate_to(log, 3), [False] * 3 + [True] * 3),
        (lambda log: truncate_to(log, 1), [False] + [True] * 5),
        (lambda log: truncate_to(log, 6), [False] * 6),
        (lambda log: truncate_fully(log, 2), [True] * 6),
        # What retention takes is sent to its end.
        (lambda log: (log.advance_log_start(6), log.roll(), log.drop_hidden(9)), [False] * 6),
    ],
)
def test_a_truncation_calls_off_what_is_being_sent_of_what_it_cuts(
    open_log: LogOpener, truncate: Callable[[PartitionLog], None], cut: list[bool]
) -> None:
    """Across a roll: what was found in the active segment is called off in the sealed one."""
    log = open_log()
    for _ in range(2):
        append(log)
    ranges = [Sent(log, 0)]
    log.roll()
    append(log)
    ranges += [Sent(log, offset) for offset in (1, 2)]
    for _ in range(3):
        append(log)
    ranges += [Sent(log, offset) for offset in (3, 4, 5)]
    log.flush()
    truncate(log)
    assert [one.is_cut for one in ranges] == cut
    for one in ranges:
        one.sending.end(one)
        assert one not in (one.sending._ranges or ())
