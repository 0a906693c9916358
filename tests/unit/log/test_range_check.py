"""Sums of ranges of real logs with segments of other sizes, and what is found wrong with damaged ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.range_check import MOST_FAULTS, RangeFaults, faults_of, next_range, snapshot, sum_of
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records import kernel
from spark_kafkalite.records.assemble import empty_batch
from spark_kafkalite.records.layout import CRC_POSITION, CRC_START
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import make_stored_batch
from tests.seeds import SEED

TP = TopicPartition("t", 0)


def log_of(batches: Sequence[bytes | bytearray], segment_bytes: int = 1 << 20, **settings: object) -> PartitionLog:
    fs = MemoryFs()
    fs.make_directories("/logs")
    config = TopicConfig.from_properties({"segment.bytes": segment_bytes, "index.interval.bytes": 300, **settings})
    log = PartitionLog.create(LogHost.alone(OpenFiles(fs), "/logs", ManualClock()), "/logs/t-0", TP, b"i" * 16, config)
    for batch in batches:
        copy_at_once(log, memoryview(batch), 9)
    return log


def random_batches(dice: random.Random, count: int) -> list[bytearray]:
    batches, offset = [], 0
    for _ in range(count):
        records = dice.randint(1, 4)
        batches.append(make_stored_batch(offset, 3, [dice.randbytes(dice.randint(1, 80)) for _ in range(records)]))
        offset += records
    return batches


def ranges_of(log: PartitionLog, until: int, max_bytes: int) -> list[tuple[int, int]]:
    found, start = [], int(log.log_start_offset)
    while start < until:
        end = next_range(snapshot(log, start, until), start, until, max_bytes)
        if end <= start:
            break
        found.append((start, end))
        start = end
    return found


def test_replicas_with_other_segments_have_the_same_sums() -> None:
    dice = random.Random(SEED)
    for _ in range(30):
        batches = random_batches(dice, dice.randint(1, 60))
        leader = log_of(batches, dice.choice([400, 1500, 1 << 20]))
        follower = log_of(batches, dice.choice([400, 1500, 1 << 20]))
        ends = [kernel.read_header(batch).next_offset for batch in batches]
        until = dice.choice(ends)
        max_bytes = dice.choice([1, 500, 2000, 1 << 20])
        ranges = ranges_of(leader, until, max_bytes)
        # All that is committed, in whole batches.
        assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
        assert ranges[-1][1] == until and {end for _, end in ranges} <= set(ends)
        sizes = 0
        for start, end in ranges:
            sums = sum_of(snapshot(leader, start, end), start, end)
            assert sums == sum_of(snapshot(follower, start, end), start, end)
            assert sums.size_bytes <= max(max_bytes, max(map(len, batches)))
            assert faults_of(snapshot(follower, start, end), start, end) == RangeFaults(epochs=(3, 3))
            sizes += sums.size_bytes
        assert sizes == sum(len(batch) for batch, end in zip(batches, ends, strict=True) if end <= until)


def test_a_flipped_bit_is_another_sum_and_damage_of_its_batch() -> None:
    dice = random.Random(SEED)
    for _ in range(50):
        batches = random_batches(dice, 20)
        log = log_of(batches, dice.choice([400, 1 << 20]))
        number = dice.randrange(20)
        header = kernel.read_header(batches[number])
        segment = log.segments.floor(header.base_offset)
        found = segment.find(header.base_offset)
        assert found is not None
        until = int(log.log_end_offset)
        before = sum_of(snapshot(log, 0, until), 0, until)
        at = found.position + dice.randrange(CRC_START, header.size_bytes)
        (byte,) = segment.file.pread(1, at)
        segment.file.pwrite(bytes([byte ^ 1 << dice.randrange(8)]), at)
        whole = snapshot(log, 0, until)
        try:
            assert sum_of(whole, 0, until) != before
        except CorruptMessage:
            # It was in the header's offsets.
            pass
        faults = faults_of(whole, 0, until)
        assert any(start <= header.base_offset < end for start, end in (*faults.damaged, *faults.missing))
        assert all(end > header.base_offset for _, end in faults.damaged)


def test_sound_batches_with_another_content_are_another_sum_and_no_fault() -> None:
    batches = [make_stored_batch(number, 3, [b"x" * 50]) for number in range(10)]
    other = [*batches[:4], make_stored_batch(4, 3, [b"y" * 50]), *batches[5:]]
    mine, others = snapshot(log_of(batches), 0, 10), snapshot(log_of(other), 0, 10)
    assert sum_of(mine, 0, 10) != sum_of(others, 0, 10)
    assert sum_of(mine, 0, 10).size_bytes == sum_of(others, 0, 10).size_bytes
    assert faults_of(mine, 0, 10) == faults_of(others, 0, 10) == RangeFaults(epochs=(3, 3))


def test_the_epoch_counts_which_no_crc_covers() -> None:
    mine = log_of([make_stored_batch(0, 3, 2)])
    other = log_of([make_stored_batch(0, 4, 2)])
    assert sum_of(snapshot(mine, 0, 2), 0, 2) != sum_of(snapshot(other, 0, 2), 0, 2)
    assert faults_of(snapshot(other, 0, 2), 0, 2) == RangeFaults(epochs=(4, 4))


def test_fillers_and_gaps_are_missing() -> None:
    batches = [make_stored_batch(0, 3, 2), empty_batch(2, 6, 3), make_stored_batch(7, 3, 2)]
    log = log_of(batches)
    assert faults_of(snapshot(log, 0, 9), 0, 9).missing == ((2, 7),)
    # A filler that reaches beyond the range.
    assert faults_of(snapshot(log, 0, 4), 0, 4).missing == ((2, 4),)
    assert faults_of(snapshot(log, 4, 9), 4, 9).missing == ((4, 7),)
    # Nothing lies behind the log's end.
    assert faults_of(snapshot(log, 7, 12), 7, 12).missing == ((9, 12),)


def test_a_missing_segment_is_damage_up_to_the_next_one() -> None:
    batches = [make_stored_batch(number, 3, [b"x" * 200]) for number in range(9)]
    log = log_of(batches, 1000)
    second = list(log.segments)[1]
    last = list(log.segments)[2]
    log.host.files.forget(second.log_path)
    log.host.files.fs.unlink(second.log_path)
    faults = faults_of(snapshot(log, 0, 9), 0, 9)
    assert faults.damaged == ((second.base_offset, last.base_offset),)
    with pytest.raises(OSError):
        sum_of(snapshot(log, 0, 9), 0, 9)


def test_compaction_is_seen() -> None:
    batch = make_stored_batch(0, 3, 4)
    thinned = bytearray(batch)
    # Three of four records are left: the header says so.
    thinned[57:61] = (3).to_bytes(4, "big")
    from crc32c import crc32c

    thinned[CRC_POSITION : CRC_POSITION + 4] = crc32c(bytes(thinned[CRC_START:])).to_bytes(4, "big")
    log = log_of([thinned])
    assert faults_of(snapshot(log, 0, 4), 0, 4).is_compacted
    assert not faults_of(snapshot(log_of([batch]), 0, 4), 0, 4).is_compacted


def test_many_faults_are_told_as_few() -> None:
    count = 3 * MOST_FAULTS
    batches = [
        make_stored_batch(number, 3, 1) if number % 2 else empty_batch(number, number, 3) for number in range(count)
    ]
    missing = faults_of(snapshot(log_of(batches), 0, count), 0, count).missing
    assert len(missing) == MOST_FAULTS
    assert missing[0] == (0, 1) and missing[-1][1] == count - 1
