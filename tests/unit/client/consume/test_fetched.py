"""Fetched batches become columns: positions, limits, hidden batches, and memory that comes back."""

from __future__ import annotations

import pytest

from spark_kafkalite.client.consume.fetch_requests import PartitionFetched
from spark_kafkalite.client.consume.fetched import AnswerMemory, BufferPool, FetchedBatches, columns_from
from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.model import IsolationLevel, TopicPartition
from spark_kafkalite.records.kernel import ColumnBuilder, Columns, scan_headers, stamp
from tests.lab.batches import make_batch
from tests.paths import GOLDEN

PARTITION = TopicPartition("t", 0)


def log(*spans: tuple[int, int], codec: str = "none") -> bytes:
    """Batches of records whose values are their offsets; spans may leave gaps, as compaction does."""
    data = b""
    for first, until in spans:
        batch = make_batch([b"%d" % offset for offset in range(first, until)], codec=codec)
        stamp(batch, 0, first, 0)
        data += batch
    return data


def fetched(data: bytes, first_offset: int = 0, **options: object) -> FetchedBatches:
    answer = PartitionFetched(0, 100, 100, 0, None, memoryview(data) if data else None)
    return FetchedBatches(PARTITION, answer, first_offset, **options)  # type: ignore[arg-type]


def offsets(columns: Columns) -> list[int]:
    assert [columns.value_at(row) for row in range(columns.count)] == [
        b"%d" % columns.offset_at(row) for row in range(columns.count)
    ]
    return [columns.offset_at(row) for row in range(columns.count)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_reading_starts_and_ends_inside_batches(codec: str) -> None:
    piece = fetched(log((0, 10), (10, 20), codec=codec), 4, until_offset=13)
    builder = ColumnBuilder(False)
    piece.decode_into(builder)
    assert offsets(builder.finish()) == list(range(4, 13))
    assert piece.is_exhausted and piece.next_offset == piece.end_offset == 13


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_decoding_stops_when_the_columns_are_full_and_goes_on_there(codec: str) -> None:
    piece = fetched(log((0, 10), (10, 20), codec=codec))
    seen = []
    while not piece.is_exhausted:
        builder = ColumnBuilder(False, 3)
        piece.decode_into(builder)
        seen.append(offsets(builder.finish()))
        assert piece.next_offset == seen[-1][-1] + 1 if seen[-1] else piece.is_exhausted
    assert [number for part in seen for number in part] == list(range(20))
    assert max(map(len, seen)) == 3


def test_the_position_moves_by_the_ends_of_batches() -> None:
    # The batch from 5 on lost its last records to compaction; from 12 on there is nothing before 20.
    data = log((5, 8), (20, 22))
    piece = fetched(data, 3)
    builder = ColumnBuilder(False)
    piece.decode_into(builder)
    assert offsets(builder.finish()) == [5, 6, 7, 20, 21]
    assert piece.end_offset == 22
    assert piece.first_base_offset == 5


def test_the_leader_epoch_before_an_offset_is_that_of_the_batch_before_it() -> None:
    data = bytearray()
    for first, epoch in ((0, 3), (10, 3), (20, 5)):
        batch = make_batch([b"x"] * 10)
        stamp(batch, 0, first, epoch)
        data += batch
    piece = fetched(bytes(data), 4)
    piece.decode_into(ColumnBuilder(False))
    assert piece.is_exhausted
    epochs = {offset: piece.leader_epoch_before(offset) for offset in (0, 1, 10, 11, 20, 21, 30, 99)}
    assert epochs == {0: None, 1: 3, 10: 3, 11: 3, 20: 3, 21: 5, 30: 5, 99: 5}
    assert fetched(b"").leader_epoch_before(5) is None


def test_a_range_that_ends_in_a_gap_is_finished() -> None:
    piece = fetched(log((0, 3), (10, 12)), until_offset=6)
    builder = ColumnBuilder(False)
    piece.decode_into(builder)
    assert offsets(builder.finish()) == [0, 1, 2]
    assert piece.next_offset == 6


def test_a_cut_last_batch_is_left_for_the_next_fetch() -> None:
    piece = fetched(log((0, 3), (3, 6))[:-5])
    assert piece.end_offset == 3


def test_bytes_that_bring_nobody_further_are_an_error() -> None:
    with pytest.raises(
        CorruptMessage, match=r"t-0: the batch at offset 0 cannot be read: the \d+ bytes .* no whole batch"
    ):
        fetched(log((0, 3))[:-1])
    with pytest.raises(CorruptMessage, match=r"t-0: the batch at offset 7 cannot be read: .* end at offset 7;"):
        fetched(log((0, 3), (4, 7)), 7)


def test_a_wrong_crc_names_partition_and_offset() -> None:
    data = bytearray(log((0, 3), (3, 6)))
    data[-1] ^= 1
    piece = fetched(bytes(data))
    builder = ColumnBuilder(False)
    with pytest.raises(CorruptMessage, match=r"t-0: the batch at offset 3 cannot be read: .*CRC.* seek to offset 6 "):
        piece.decode_into(builder)
    # What came before is there, and the cursor stands before the bad batch.
    assert offsets(builder.finish()) == [0, 1, 2]
    assert piece.next_offset == 3


def test_crcs_are_checked_only_when_asked() -> None:
    data = bytearray(log((0, 3)))
    data[17] ^= 1
    builder = ColumnBuilder(False)
    fetched(bytes(data), check_crcs=False).decode_into(builder)
    assert builder.count == 3


def test_garbage_is_an_error_of_the_partition() -> None:
    data = bytearray(log((0, 3)))
    data[16] = 9
    with pytest.raises(CorruptMessage, match=r"t-0: the batch at offset 0 cannot be read: .*magic 9.* seek behind it"):
        fetched(bytes(data))


def test_batches_before_one_that_is_no_batch_are_read_and_it_is_fetched_again() -> None:
    data = bytearray(log((0, 3), (3, 6), (6, 9)))
    third = data.index(log((6, 9)))
    data[third + 16] = 9
    piece = fetched(bytes(data))
    builder = ColumnBuilder(False)
    piece.decode_into(builder)
    assert offsets(builder.finish()) == list(range(6))
    assert piece.end_offset == piece.next_offset == 6
    with pytest.raises(CorruptMessage, match="t-0: the batch at offset 6 cannot be read"):
        fetched(bytes(data[third:]), 6)


@pytest.mark.parametrize("changed", [(26, 1), (23, 0x80)], ids=["later", "before its first"])
def test_what_a_damaged_batch_says_of_its_end_is_not_believed(changed: tuple[int, int]) -> None:
    data = bytearray(log((0, 3), (3, 6)))
    # The last offset delta.
    data[changed[0]] ^= changed[1]
    with pytest.raises(CorruptMessage, match="seek to offset 3 "):
        fetched(bytes(data)).decode_into(ColumnBuilder(False))


@pytest.mark.parametrize(
    "changed", [1 << 63, 1 << 40, 1 << 8, 1 << 3, 1], ids=lambda bit: f"bit {bit.bit_length() - 1}"
)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_base_offset_that_has_changed_loses_no_record(number: int, changed: int) -> None:
    """No CRC covers it. What is read is right, and reading stops at the batch, or goes on in the next answer there."""
    data = bytearray(log((16, 20), (20, 24), (24, 28)))
    position = number * (len(data) // 3)
    data[position : position + 8] = (int.from_bytes(data[position : position + 8], "big") ^ changed).to_bytes(8, "big")
    builder = ColumnBuilder(False)
    try:
        piece = fetched(bytes(data), 16)
        piece.decode_into(builder)
    except CorruptMessage as error:
        assert number < 2 or changed == 1 << 3, error
    else:
        assert number == 2
        # The offsets of an answer's last batch are compared with the high watermark alone.
        assert piece.end_offset == 24 or changed <= 1 << 8
    read = builder.finish()
    assert [read.offset_at(row) for row in range(read.count)][: 4 * number] == list(range(16, 16 + 4 * number))
    assert number == 2 or read.count == 4 * number


def test_no_batch_begins_before_one_that_was_read_has_ended() -> None:
    data = log((14, 20), (20, 24))
    builder = ColumnBuilder(False)
    # A consumer may begin inside of a batch, but not behind a batch that it has read.
    fetched(data, 16).decode_into(builder)
    assert offsets(builder.finish()) == list(range(16, 24))
    with pytest.raises(CorruptMessage, match="offsets 14 to 19, and 16 or more are expected"):
        fetched(data, 16, least_offset=16).decode_into(builder)


def test_small_batches_are_joined_and_large_ones_cut() -> None:
    pieces = [fetched(log((first, first + 4))) for first in range(0, 40, 4)]
    joined = list(columns_from(pieces, max_rows=16))
    assert [columns.count for columns in joined] == [16, 16, 8]
    assert [number for columns in joined for number in offsets(columns)] == list(range(40))
    assert list(columns_from([fetched(b"")])) == []


def test_columns_are_bounded_in_bytes() -> None:
    sizes = [columns.count for columns in columns_from([fetched(log((0, 100)))], max_bytes=300)]
    assert sum(sizes) == 100 and max(sizes) < 15


def test_memory_goes_back_when_the_last_piece_is_used_up() -> None:
    pool = BufferPool()
    buffer = bytearray(1_000)
    memory = AnswerMemory(pool, buffer)
    pieces = [fetched(log((0, 2)), memory=memory), fetched(log((0, 2)), memory=memory), fetched(b"", memory=memory)]
    builder = ColumnBuilder(False)
    pieces[0].decode_into(builder)
    assert pool.take() is None
    pieces[1].release()
    assert pool.take() is buffer
    assert pool.take() is None


def test_the_pool_keeps_few_and_the_largest() -> None:
    pool = BufferPool()
    for size in (10, 60, 30, 20, 50, 40):
        pool.give(bytearray(size))
    pool.give(bytearray(64 << 20))
    sizes = []
    while (buffer := pool.take()) is not None:
        sizes.append(len(buffer))
    assert sizes == [60, 50, 40, 30]


def test_isolation_decides_about_aborted_batches() -> None:
    batch = make_batch([b"0"], producer_id=9, producer_epoch=0, base_sequence=0)
    batch[22] |= 0x10
    answer = PartitionFetched(0, 1, 1, 0, [(9, 0)], memoryview(batch))
    for isolation, count in ((IsolationLevel.READ_COMMITTED, 0), (IsolationLevel.READ_UNCOMMITTED, 1)):
        piece = FetchedBatches(PARTITION, answer, 0, isolation=isolation, check_crcs=False)
        builder = ColumnBuilder(False)
        piece.decode_into(builder)
        assert (builder.count, piece.next_offset) == (count, 1)


def test_positions_move_over_batches_that_compaction_left_without_records() -> None:
    data = (GOLDEN / "records" / "cleaned.log").read_bytes()
    headers = scan_headers(data)
    assert headers[5].record_count == 0
    until_empty = sum(header.size_bytes for header in headers[:6])
    piece = fetched(data[:until_empty], until_offset=100)
    builder = ColumnBuilder(True)
    piece.decode_into(builder)
    assert builder.count == 10 and piece.is_exhausted and piece.next_offset == 21
    alone = fetched(data[until_empty - headers[5].size_bytes : until_empty], 19, until_offset=100)
    alone.decode_into(builder)
    assert builder.count == 10 and alone.next_offset == 21
