"""Every offset of a read is counted once, by what the batches say."""

from __future__ import annotations

import random
import struct

import pytest

from spark_kafkalite.client.consume.fetch_requests import PartitionFetched
from spark_kafkalite.client.consume.fetched import FetchedBatches
from spark_kafkalite.client.consume.passed_offsets import PassedOffsets, records_between
from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.model import IsolationLevel, TopicPartition
from spark_kafkalite.records.columns import batch_payload
from spark_kafkalite.records.kernel import ColumnBuilder, read_header
from spark_kafkalite.records.layout import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT
from tests.lab.batches import make_batch
from tests.seeds import SEED, SOAK

PARTITION = TopicPartition("t", 0)


def varint(number: int) -> bytes:
    coded, found = (number << 1) ^ (number >> 63), b""
    while coded > 0x7F:
        found += bytes([coded & 0x7F | 0x80])
        coded >>= 7
    return found + bytes([coded])


def batch(base: int, span: int, deltas: list[int], producer: int = -1, control: int | None = None) -> bytes:
    """A batch over ``span`` offsets that holds records at these deltas, as compaction leaves one."""
    key = b"" if control is None else struct.pack(">hh", 0, control)
    records = b""
    for delta in deltas:
        body = b"\0" + varint(0) + varint(delta) + varint(len(key)) + key + varint(1) + b"v" + varint(0)
        records += varint(len(body)) + body
    data = make_batch([b"v"])[:HEADER_BYTES] + records
    attributes = (TRANSACTIONAL_BIT if producer >= 0 else 0) | (0 if control is None else CONTROL_BIT)
    struct.pack_into(">qi", data, 0, base, HEADER_BYTES - 12 + len(records))
    struct.pack_into(">hi", data, 21, attributes, span - 1)
    struct.pack_into(">q", data, 43, producer)
    struct.pack_into(">i", data, 57, len(deltas))
    return bytes(data)


def read(data: bytes, first: int, until: int, aborted: list[tuple[int, int]], rows: int) -> tuple[PassedOffsets, int]:
    """Read a log as a reader with columns of so many rows does; returns the counts and how many rows came."""
    passed = PassedOffsets()
    answer = PartitionFetched(0, until, until, 0, aborted, memoryview(data))
    piece = FetchedBatches(
        PARTITION,
        answer,
        first,
        until_offset=until,
        isolation=IsolationLevel.READ_COMMITTED,
        passed=passed,
        check_crcs=False,
    )
    count = 0
    while not piece.is_exhausted:
        builder = ColumnBuilder(False, rows)
        piece.decode_into(builder)
        count += builder.finish().count
    return passed, count


def test_every_kind_of_offset_is_counted() -> None:
    log = (
        batch(0, 10, list(range(10)))
        + batch(10, 10, [0, 3, 9])
        + batch(25, 5, list(range(5)), producer=7)
        + batch(30, 1, [0], producer=7, control=0)
        + batch(31, 4, [], producer=-1)
        + batch(35, 2, [0, 1], producer=7)
        + batch(37, 1, [0], producer=7, control=1)
    )
    passed, rows = read(log, 0, 38, [(7, 25)], 4)
    assert rows == 10 + 3 + 2
    assert passed == PassedOffsets(present=15, control=2, aborted=5, removed=7 + 5 + 4)


def test_a_range_that_cuts_batches_counts_its_own_part() -> None:
    log = batch(0, 10, list(range(10))) + batch(10, 10, [0, 3, 9])
    assert read(log, 4, 14, [], 100) == (PassedOffsets(present=8, removed=2), 8)
    assert read(log, 14, 20, [], 100) == (PassedOffsets(present=1, removed=5), 1)
    assert read(log, 11, 13, [], 100) == (PassedOffsets(removed=2), 0)


def test_the_counts_of_any_log_add_up_to_the_range_and_the_present_ones_come() -> None:
    random_ = random.Random(SEED)
    for _ in range(10_000 if SOAK else 300):
        log, end, aborted, visible = b"", 0, [], set()
        for _ in range(random_.randrange(1, 8)):
            end += random_.choice((0, 0, 3))
            span = random_.randrange(1, 12)
            deltas = sorted(random_.sample(range(span), random_.randrange(span + 1)))
            kind = random_.choice(("plain", "plain", "committed", "aborted"))
            if kind == "plain":
                log += batch(end, span, deltas)
            else:
                log += batch(end, span, deltas, producer=7)
                log += batch(end + span, 1, [0], producer=7, control=int(kind == "committed"))
            if kind == "aborted":
                aborted.append((7, end))
            else:
                visible |= {end + delta for delta in deltas}
            end += span + (kind != "plain")
        first = random_.randrange(end)
        until = random_.randrange(first + 1, end + 1)
        passed, rows = read(log, first, until, aborted, random_.randrange(1, 9))
        assert passed.present == rows == sum(first <= offset < until for offset in visible), f"seed {SEED}"
        assert passed.present + passed.control + passed.aborted + passed.removed == until - first, f"seed {SEED}"


def test_a_batch_that_ends_too_early_is_corrupt() -> None:
    data = batch(0, 10, [1, 5])
    header = read_header(data, 0)
    assert records_between(batch_payload(data, 0, header), header, 0, 5) == 1
    with pytest.raises(CorruptMessage, match="the batch at offset 0 ends before its 2 records do"):
        records_between(batch_payload(data, 0, header)[:-7], header, 0, 5)
