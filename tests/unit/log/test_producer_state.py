from __future__ import annotations

import pytest

from spark_kafkalite.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from spark_kafkalite.log.checkpoint import CheckpointError
from spark_kafkalite.log.fs import read_whole, replace_file
from spark_kafkalite.log.producer_state import ProducerState, load_newest_snapshot, snapshot_path
from spark_kafkalite.records.layout import BatchHeader
from spark_kafkalite.testing.memory_fs import MemoryFs

LAST = 2**31 - 1


def header(
    sequence: int, *, count: int = 1, epoch: int = 0, producer_id: int = 7, timestamp: int = 1000, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(
        0, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count
    )


@pytest.fixture
def state() -> ProducerState:
    """Producer 7 has written sequences 0-9 (offset 100), 10, 11 and 12 (offset 200 to 202)."""
    state = ProducerState()
    state.update(header(0, count=10), 100, 1000)
    for number in range(3):
        state.update(header(10 + number), 200 + number, 1000)
    return state


def test_unknown_producer_may_start_anywhere(state: ProducerState) -> None:
    assert state.check(header(12345, producer_id=8)) is None


def test_next_sequence_is_new(state: ProducerState) -> None:
    assert state.check(header(13, count=5)) is None


@pytest.mark.parametrize(
    ("sequence", "count", "base_offset", "last_offset"), [(0, 10, 100, 109), (10, 1, 200, 200), (12, 1, 202, 202)]
)
def test_batch_in_the_log_is_a_duplicate(
    state: ProducerState, sequence: int, count: int, base_offset: int, last_offset: int
) -> None:
    found = state.check(header(sequence, count=count))
    assert found is not None
    assert (found.base_offset, found.last_offset) == (base_offset, last_offset)


@pytest.mark.parametrize(("sequence", "count"), [(14, 1), (0, 9), (1, 9), (11, 2), (12, 2)])
def test_gap_and_partial_repetition_are_out_of_order(state: ProducerState, sequence: int, count: int) -> None:
    with pytest.raises(OutOfOrderSequenceNumber, match="13 was expected"):
        state.check(header(sequence, count=count))


def test_only_five_batches_are_remembered(state: ProducerState) -> None:
    for number in range(13, 15):
        state.update(header(number), 190 + number, 1000)
    with pytest.raises(OutOfOrderSequenceNumber):
        state.check(header(0, count=10))
    assert state.check(header(10)) is not None


def test_older_epoch_is_fenced(state: ProducerState) -> None:
    state.update(header(0, epoch=3), 300, 1000)
    with pytest.raises(InvalidProducerEpoch, match="epoch 2 is older than 3"):
        state.check(header(1, epoch=2))


def test_new_epoch_starts_at_zero_and_forgets_older_batches(state: ProducerState) -> None:
    with pytest.raises(OutOfOrderSequenceNumber, match="must start at sequence 0"):
        state.check(header(13, epoch=1))
    assert state.check(header(0, epoch=1)) is None
    state.update(header(0, epoch=1), 300, 1000)
    assert state.check(header(1, epoch=1)) is None
    repeated = state.check(header(0, epoch=1))
    assert repeated is not None
    assert repeated.base_offset == 300


def test_sequences_go_on_at_zero_after_the_last() -> None:
    state = ProducerState()
    state.update(header(LAST - 1, count=2), 0, 1000)
    assert state.check(header(0)) is None
    with pytest.raises(OutOfOrderSequenceNumber, match="0 was expected"):
        state.check(header(1))


def test_batch_across_the_last_sequence_is_followed_and_recognised() -> None:
    state = ProducerState()
    state.update(header(LAST - 1, count=5), 0, 1000)
    assert state.check(header(3)) is None
    assert state.check(header(LAST - 1, count=5)) is not None


def test_silent_producers_expire(state: ProducerState) -> None:
    state.update(header(0, producer_id=8), 300, 5000)
    assert state.expire(5000) == 1
    assert list(state.producers) == [8]


def test_producer_with_an_open_transaction_does_not_expire() -> None:
    state = ProducerState()
    state.update(header(0, attributes=0x10), 40, 1000)
    state.update(header(1, attributes=0x10), 41, 1000)
    assert state.first_open_transaction_offset() == 40
    assert state.expire(10**9) == 0
    # The marker ends the transaction; its base sequence is -1.
    state.update(header(-1, attributes=0x30), 42, 1000)
    assert state.first_open_transaction_offset() is None
    assert state.check(header(2, attributes=0x10)) is None


def test_snapshot_keeps_the_last_batch(fs: MemoryFs, state: ProducerState) -> None:
    state.map_end_offset = 203
    path = state.write_snapshot(fs, "/data")
    assert path == "/data/00000000000000000203.snapshot"
    assert state.write_snapshot(fs, "/data") is None
    loaded = load_newest_snapshot(fs, "/data", [203], 500)
    assert loaded.map_end_offset == 203
    assert loaded.check(header(13)) is None
    repeated = loaded.check(header(12))
    assert repeated is not None
    assert repeated.base_offset == 202
    with pytest.raises(OutOfOrderSequenceNumber):
        loaded.check(header(11))


def test_snapshot_of_a_batch_across_the_last_sequence(fs: MemoryFs) -> None:
    state = ProducerState()
    state.update(header(LAST - 1, count=5), 10, 1000)
    state.map_end_offset = 15
    state.write_snapshot(fs, "/data")
    assert load_newest_snapshot(fs, "/data", [15], 15).check(header(LAST - 1, count=5)) is not None


def test_snapshot_is_kafkas_format(fs: MemoryFs) -> None:
    state = ProducerState()
    state.update(header(4, count=3, epoch=1, producer_id=258), 20, 77)
    encoded = state.encode()
    assert encoded[:2] == b"\0\1"
    assert encoded[6:].hex() == (
        "00000001"  # one producer
        "0000000000000102" "0001" "00000006" "0000000000000016" "00000002" "000000000000004d"
        "ffffffff" "ffffffffffffffff"
    )  # fmt: skip
    assert ProducerState().encode().hex() == "0001" + "48674bc7" + "00000000"


def test_newest_sound_snapshot_is_taken_and_useless_ones_removed(fs: MemoryFs, state: ProducerState) -> None:
    for offset in (100, 200, 300):
        state.map_end_offset = offset
        state.write_snapshot(fs, "/data")
    damaged = bytearray(read_whole(fs, snapshot_path("/data", 200)))
    damaged[-1] ^= 1
    replace_file(fs, snapshot_path("/data", 200), bytes(damaged))
    loaded = load_newest_snapshot(fs, "/data", [100, 200, 300], 250)
    assert loaded.map_end_offset == 100
    assert [entry.name for entry in fs.entries("/data")] == ["00000000000000000100.snapshot"]


@pytest.mark.parametrize("cut", [0, 1, 5, 9, 30])
def test_cut_snapshot_is_damaged(state: ProducerState, cut: int) -> None:
    with pytest.raises(CheckpointError):
        ProducerState().load(state.encode()[:cut], 1, "here")


def test_snapshot_of_an_unknown_version_is_refused(state: ProducerState) -> None:
    with pytest.raises(CheckpointError, match="version 2"):
        ProducerState().load(b"\0\2" + state.encode()[2:], 1, "here")
