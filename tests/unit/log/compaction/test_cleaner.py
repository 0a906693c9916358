from __future__ import annotations

import errno

import pytest

from spark_kafkalite.log.compaction.clean_job import UncleanableLog
from spark_kafkalite.log.compaction.cleaner import clean
from spark_kafkalite.log.files.fs import read_whole, write_whole
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.active_segment import ActiveSegment
from spark_kafkalite.records.assemble import empty_batch
from spark_kafkalite.records.compression import CODECS
from spark_kafkalite.records.layout import DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.unit.log.compaction.cleaned_log import NOW_MS, CleanedLog, Rec, stored


@pytest.fixture
def log(fs: MemoryFs) -> CleanedLog:
    return CleanedLog(fs)


def leftovers(fs: MemoryFs) -> list[str]:
    return [path for path in fs.files() if path.endswith(".cleaned")]


def test_last_value_of_each_key_stays_at_its_offset(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1"), Rec(b"b", b"1"), Rec(b"a", b"2")]), stored(3, [Rec(b"c", b"1")])])
    log.add_segment([stored(4, [Rec(b"b", b"2"), Rec(b"d", None)])])
    result = log.clean()
    assert log.values() == {2: (b"a", b"2"), 3: (b"c", b"1"), 4: (b"b", b"2"), 5: (b"d", None)}
    assert (result.end_offset, result.records_read, result.records_kept) == (6, 6, 4)
    assert [group.sources for group in result.groups] == [(0, 4)]
    assert result.next_horizon_ms == NOW_MS + 1000


def test_batch_keeps_everything_but_its_records(log: CleanedLog) -> None:
    records = [
        Rec(b"a", b"1", NOW_MS, [("h", b"x"), ("n", None)]),
        Rec(b"b", b"2" * 300, NOW_MS + 9),
        Rec(b"c", b"", NOW_MS - 5, [("é", b"")]),
    ]
    for codec in CODECS.values():
        base = log.end_offset
        log.add_segment(
            [stored(base, records, codec=codec, producer=(7, 1, 2**31 - 2)), stored(base + 3, records[1:2])]
        )
    before = {batch.header.base_offset: batch for batch in log.batches()}
    log.clean(segment_bytes=1)
    for base in range(0, 16, 4):
        assert base not in log.records()
    (last,) = (batch for batch in log.batches() if batch.header.base_offset == 16)
    old = before[16].header
    assert last.records == {16: records[0], 18: records[2]}
    assert last.header == old._replace(
        batch_length=last.header.batch_length, crc=last.header.crc, record_count=2, max_timestamp=NOW_MS
    )
    assert last.header.last_sequence == old.last_sequence == 0


def test_batches_that_stay_are_the_same_bytes_and_a_clean_segment_is_not_written(log: CleanedLog) -> None:
    log.add_segment([stored(n, [Rec(b"%d" % n, b"v")], codec=n % 5) for n in range(20)])
    log.add_segment([stored(n, [Rec(b"%d" % n, b"v")], codec=n % 5) for n in range(20, 40)])
    before = log.data()
    result = log.clean(segment_bytes=1)
    assert result.groups == () and result.bytes_written == 0 and result.end_offset == 40
    log.clean()
    assert log.data() == before and len(log.sources) == 1


def test_first_change_in_the_middle_of_a_segment_copies_what_came_before(log: CleanedLog) -> None:
    batches = [stored(n, [Rec(b"%02d" % n, b"v" * 50_000)]) for n in range(100)]
    log.add_segment([*batches, stored(100, [Rec(b"99", b"v")]), stored(101, [Rec(b"x", b"v")])])
    before = log.data()
    log.clean()
    assert log.data() == before[: 99 * len(batches[0])] + before[100 * len(batches[0]) :]


def test_records_without_a_key_go(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(None, b"1"), Rec(b"", b"2"), Rec(None, None)])])
    log.clean()
    assert log.values() == {1: (b"", b"2")}


@pytest.mark.parametrize("codec", [0, 4])
def test_tombstone_lives_until_its_horizon_and_its_time_stays(log: CleanedLog, codec: int) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1")])])
    log.add_segment([stored(1, [Rec(b"a", None, NOW_MS - 10**9), Rec(b"b", b"1", NOW_MS, [("h", b"v")])], codec=codec)])
    log.clean(NOW_MS)
    (batch,) = log.batches()
    assert batch.header.attributes == codec | DELETE_HORIZON_BIT
    assert batch.header.base_timestamp == NOW_MS + 1000
    assert batch.header.max_timestamp == NOW_MS
    assert batch.records == {1: Rec(b"a", None, NOW_MS - 10**9), 2: Rec(b"b", b"1", NOW_MS, [("h", b"v")])}
    assert log.clean(NOW_MS + 999).groups == ()
    assert log.clean(NOW_MS + 999).next_horizon_ms == NOW_MS + 1000
    result = log.clean(NOW_MS + 1000)
    assert log.values() == {2: (b"b", b"1")} and result.next_horizon_ms == -1
    assert log.records()[2].timestamp_ms == NOW_MS


def test_horizon_counts_from_the_first_cleaning_that_covers_the_tombstone(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1"), Rec(b"b", b"1"), Rec(b"b", None)])])
    assert log.clean(dedupe_buffer_bytes=48).end_offset == 1
    assert all(not batch.header.attributes for batch in log.batches())
    log.clean(NOW_MS + 5000)
    assert log.batches()[0].header.base_timestamp == NOW_MS + 6000


def test_tombstone_in_the_dirty_part_stays_even_past_its_horizon(log: CleanedLog) -> None:
    """A cleaning whose checkpoint a crash took away: the value that the tombstone deletes may be there still."""
    log.add_segment([stored(0, [Rec(b"a", b"1")])])
    log.add_segment([stored(1, [Rec(b"a", None)])])
    result = clean(log.fs, log.job(segment_bytes=1), lambda count: None)
    _, tombstone = result.groups
    log.fs.rename(log.path(1) + ".cleaned", log.path(1))
    log.sources[1] = log.sources[1]._replace(size_bytes=tombstone.size_bytes)
    log.clean(NOW_MS + 10**6, segment_bytes=1)
    assert log.values() == {1: (b"a", None)}
    log.clean(NOW_MS + 10**6)
    assert log.values() == {}


def test_timestamp_too_far_from_a_horizon_keeps_its_batch_without_one(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(b"a", None), Rec(b"b", b"1")], base_timestamp=-(2**63))])
    before = log.data()
    result = log.clean()
    assert log.data() == before and result.next_horizon_ms == -1


def test_log_append_time_stays(log: CleanedLog) -> None:
    log.add_segment(
        [
            stored(0, [Rec(b"a", b"1"), Rec(b"b", None)], attributes=LOG_APPEND_TIME_BIT, max_timestamp=NOW_MS + 77),
            stored(2, [Rec(b"a", b"2")]),
        ]
    )
    log.clean()
    first = log.batches()[0]
    assert first.header.attributes == LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT
    assert first.records == {1: Rec(b"b", None, NOW_MS + 77)}


def test_last_batch_of_an_active_producer_stays_without_records(log: CleanedLog) -> None:
    log.add_segment(
        [
            stored(0, [Rec(b"a", b"1")], producer=(7, 0, 0), codec=4),
            stored(1, [Rec(b"a", b"2"), Rec(b"a", b"3")], producer=(7, 0, 1), codec=4),
            stored(3, [Rec(b"a", b"1")], producer=(8, 3, 5)),
            stored(4, [Rec(b"a", b"4")]),
        ]
    )
    result = log.clean(last_offset_by_producer={7: 2})
    empty, last = (batch.header for batch in log.batches())
    assert (empty.base_offset, empty.last_offset, empty.record_count, empty.size_bytes) == (1, 2, 0, 61)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence, empty.last_sequence) == (7, 0, 1, 2)
    assert (empty.codec, empty.base_timestamp, empty.max_timestamp) == (0, -1, -1)
    assert last.base_offset == 4 and result.records_kept == 1
    before = log.data()
    log.clean(last_offset_by_producer={7: 2})
    assert log.data() == before
    log.clean(last_offset_by_producer={7: 9})
    assert [batch.header.base_offset for batch in log.batches()] == [4]


def test_last_batch_stays_without_records_so_that_readers_get_to_its_end(log: CleanedLog) -> None:
    log.add_segment(
        [stored(0, [Rec(b"a", b"1")]), stored(1, [Rec(b"b", b"1"), Rec(None, b"1")]), stored(3, [Rec(b"b", None)])]
    )
    log.clean()
    log.clean(NOW_MS + 1000)
    assert [(batch.header.base_offset, list(batch.records)) for batch in log.batches()] == [(0, [0]), (3, [])]
    log.add_segment([stored(4, [Rec(b"c", b"1")])])
    log.clean()
    assert [(batch.header.base_offset, list(batch.records)) for batch in log.batches()] == [(0, [0]), (4, [4])]


def test_markers_and_transactions_replace_nothing_and_markers_stay(log: CleanedLog) -> None:
    marker = stored(3, [Rec(b"\0\0\0\0", b"\0" * 6)], producer=(9, 0, -1), attributes=0x30)
    log.add_segment(
        [
            stored(0, [Rec(b"a", b"1"), Rec(b"b", b"1")]),
            stored(2, [Rec(b"a", None)], producer=(9, 0, 0), attributes=0x10),
            marker,
            stored(4, [Rec(b"b", b"3")], producer=(9, 0, 1), attributes=0x10),
            marker.replace(b"\0\0\0\0\0\0\0\3", b"\0\0\0\0\0\0\0\5", 1),
            stored(6, [Rec(b"b", b"4")]),
        ]
    )
    for _ in range(2):
        log.clean(NOW_MS)
        log.clean(NOW_MS + 10**6)
        assert [batch.header.base_offset for batch in log.batches()] == [0, 2, 3, 5, 6]
        assert log.values() == {0: (b"a", b"1"), 2: (b"a", None), 6: (b"b", b"4")}


def test_records_below_the_log_start_go(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1")], producer=(7, 0, 0)), stored(1, [Rec(b"b", b"1"), Rec(b"c", b"1")])])
    log.clean(log_start_offset=2, last_offset_by_producer={7: 0})
    assert [(batch.header.base_offset, list(batch.records)) for batch in log.batches()] == [(0, []), (1, [2])]


def test_more_keys_than_fit_are_cleaned_in_several_runs(log: CleanedLog) -> None:
    for first in range(0, 120, 10):
        log.add_segment([stored(first, [Rec(b"%d" % (n % 30), b"%d" % n) for n in range(first, first + 10)])])
    ends = []
    while log.checkpoint < 120:
        ends.append(log.clean(dedupe_buffer_bytes=24 * 12).end_offset)
    assert ends[0] == 10 and ends == sorted(set(ends)) and len(ends) < 20
    assert log.values() == {n: (b"%d" % (n % 30), b"%d" % n) for n in range(90, 120)}


def test_one_batch_with_more_keys_than_fit_is_cleaned_in_part(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(b"%d" % (n % 50), b"%d" % n) for n in range(100)])])
    while log.checkpoint < 100:
        assert log.clean(dedupe_buffer_bytes=24 * 9).end_offset > 0
    assert list(log.values()) == list(range(50, 100))


def test_neighbours_are_merged_within_the_limits(log: CleanedLog) -> None:
    size = len(stored(0, [Rec(b"0", b"v")]))
    for n in range(9):
        log.add_segment([stored(n, [Rec(b"%d" % n, b"v")])])
    log.clean(segment_bytes=3 * size + 1)
    assert [source.base_offset for source in log.sources] == [0, 3, 6]
    assert len(log.values()) == 9


def test_everything_from_the_first_source_not_given_on_is_untouched(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1"), Rec(b"b", b"1")])])
    log.add_segment([stored(2, [Rec(b"a", b"2")])])
    job = log.job(sources=tuple(log.sources[:1]), until_offset=2)
    result = clean(log.fs, job, lambda count: None)
    assert result.groups == () and result.end_offset == 2


def test_indexes_are_those_of_a_segment_that_was_appended_to(log: CleanedLog) -> None:
    for first in range(0, 400, 200):
        log.add_segment(
            [
                stored(n, [Rec(b"%d" % (n % 7), b"v", NOW_MS + n % 50), Rec(b"%d" % n, b"w" * 40)])
                for n in range(first, first + 200, 2)
            ]
        )
    (group,) = log.clean(index_interval_bytes=300).groups
    fs = MemoryFs()
    fs.make_directories("/other")
    rebuilt = ActiveSegment(OpenFiles(fs), "/other", 0, 0, 0)
    for batch in log.batches():
        header = batch.header
        rebuilt.take_up(rebuilt.size_bytes, header.size_bytes, header.last_offset, header.max_timestamp, 300)
    sealed = rebuilt.seal()
    for suffix in (".index", ".timeindex"):
        ours = read_whole(log.fs, log.path(0, suffix))
        assert ours == read_whole(fs, f"/other/{0:020d}{suffix}")
        assert ours
    assert (group.index_entries, group.time_index_entries) == (sealed.offset_index.count, sealed.time_index.count)
    assert (group.max_timestamp_ms, group.offset_of_max_timestamp) == sealed.max_timestamp


@pytest.mark.parametrize("damage", ["bit", "cut", "bomb", "magic", "back"])
def test_damaged_source_stops_with_file_and_position_and_leaves_nothing(
    log: CleanedLog, fs: MemoryFs, damage: str
) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1")]), stored(1, [Rec(b"a", b"2")])])
    good, bad = stored(2, [Rec(b"b", b"1")]), bytearray(stored(3, [Rec(b"b", b"x" * 5000)], codec=4))
    if damage == "bit":
        bad[-1] ^= 1
    elif damage == "cut":
        del bad[-1]
    elif damage == "magic":
        bad[16] = 1
    elif damage == "back":
        bad = bytearray(stored(1, [Rec(b"b", b"1")]))
    base = log.add_segment([good])
    write_whole(fs.open(log.path(base)), bad, len(good))
    log.sources[-1] = log.sources[-1]._replace(size_bytes=len(good) + len(bad))
    before = fs.files()
    job = log.job(segment_bytes=1, until_offset=4, max_decompressed_bytes=4999 if damage == "bomb" else 6000)
    with pytest.raises(UncleanableLog, match=rf"{log.path(base)}: position {len(good)}(, offset \d+)?: "):
        clean(fs, job, lambda count: None)
    assert fs.files() == before


def test_source_shorter_than_it_should_be_is_an_error(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1")])])
    log.sources[0] = log.sources[0]._replace(size_bytes=500)
    with pytest.raises(UncleanableLog, match="ends at position"):
        log.clean()


def test_caller_may_abort_at_every_piece(log: CleanedLog, fs: MemoryFs) -> None:
    for first in (0, 3):
        log.add_segment([stored(first + n, [Rec(b"k", bytes(900_000))]) for n in range(3)])
    calls: list[int] = []
    clean(fs, log.job(segment_bytes=1), calls.append)
    assert max(calls) <= 1 << 20 and sum(calls) > 10 * 900_000
    for path in leftovers(fs):
        fs.unlink(path)
    before = fs.files()
    for limit in range(len(calls)):
        left = iter(range(limit))

        def on_bytes(count: int, left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            clean(fs, log.job(segment_bytes=1), on_bytes)
        assert fs.files() == before


def test_full_disk_leaves_nothing(log: CleanedLog, fs: MemoryFs) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1")]), stored(1, [Rec(b"a", b"2")])])
    before = fs.files()
    for operation in ("pwrite", "sync"):
        fs.fail(operation, errno.ENOSPC, path_part=".cleaned")
        with pytest.raises(OSError, match="No space"):
            log.clean()
        assert fs.files() == before


def test_cleaned_files_are_on_the_disk_when_the_job_is_done(log: CleanedLog, fs: MemoryFs) -> None:
    log.add_segment([stored(n, [Rec(b"a", b"%d" % n)]) for n in range(50)])
    clean(fs, log.job(index_interval_bytes=0), lambda count: None)
    fs.sync_directory(log.directory)
    fs.sync_directory("/data")
    fs.sync_directory("/")
    written = {path: fs.files()[path] for path in leftovers(fs)}
    survived = fs.crash(CrashMode.POWER).files()
    assert {path: survived[path] for path in written} == written and len(written) == 3


def test_leftovers_of_an_earlier_run_do_not_show(log: CleanedLog, fs: MemoryFs) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1")]), stored(1, [Rec(b"a", b"2")])])
    for suffix in (".log", ".index", ".timeindex"):
        write_whole(fs.open(log.path(0, suffix) + ".cleaned", create=True), b"x" * 1000)
    log.clean()
    assert log.values() == {1: (b"a", b"2")}
    assert len(read_whole(fs, log.path(0, ".index"))) == 0 and len(read_whole(fs, log.path(0, ".timeindex"))) == 12


def test_batch_that_spans_a_hole_is_needed_only_at_the_end(log: CleanedLog) -> None:
    log.add_segment([stored(0, [Rec(b"a", b"1")])])
    log.add_segment([bytes(empty_batch(1, 3, 5))])
    log.clean(segment_bytes=1)
    assert [batch.header.next_offset for batch in log.batches()] == [1, 4], "readers come to the end by it"
    log.add_segment([stored(4, [Rec(b"a", b"2")])])
    log.clean(segment_bytes=1)
    assert log.values() == {4: (b"a", b"2")}
    assert [batch.header.base_offset for batch in log.batches()] == [4]
