from __future__ import annotations

import pytest

from spark_kafkalite.errors import OutOfOrderSequenceNumber, UnknownProducerId
from spark_kafkalite.log.files.checkpoint import CheckpointError
from spark_kafkalite.log.files.fs import read_whole, replace_file
from spark_kafkalite.log.producer_snapshot import encode, load, load_newest_snapshot, snapshot_path, write_snapshot
from spark_kafkalite.log.producer_state import ProducerIdLimits, ProducerStateManager
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
def state() -> ProducerStateManager:
    """Producer 7 has written sequences 0-9 (offset 100), 10, 11 and 12 (offset 200 to 202)."""
    state = ProducerStateManager()
    state.update(header(0, count=10), 100, 1000)
    for number in range(3):
        state.update(header(10 + number), 200 + number, 1000)
    return state


def test_snapshot_keeps_the_last_batch(fs: MemoryFs, state: ProducerStateManager) -> None:
    state.map_end_offset = 203
    path = write_snapshot(state, fs, "/data")
    assert path == "/data/00000000000000000203.snapshot"
    assert write_snapshot(state, fs, "/data") is None
    loaded = load_newest_snapshot(fs, "/data", [203], 500)
    assert loaded.map_end_offset == 203
    assert loaded.check(header(13)) is None
    repeated = loaded.check(header(12))
    assert repeated is not None
    assert repeated.base_offset == 202
    with pytest.raises(OutOfOrderSequenceNumber):
        loaded.check(header(11))


def test_snapshot_of_a_batch_across_the_last_sequence(fs: MemoryFs) -> None:
    state = ProducerStateManager()
    state.update(header(LAST - 1, count=5), 10, 1000)
    state.map_end_offset = 15
    write_snapshot(state, fs, "/data")
    assert load_newest_snapshot(fs, "/data", [15], 15).check(header(LAST - 1, count=5)) is not None


def test_snapshot_is_kafkas_format(fs: MemoryFs) -> None:
    state = ProducerStateManager()
    state.update(header(4, count=3, epoch=1, producer_id=258), 20, 77)
    encoded = encode(state)
    assert encoded[:2] == b"\0\1"
    assert encoded[6:].hex() == (
        "00000001"  # one producer
        "0000000000000102" "0001" "00000006" "0000000000000016" "00000002" "000000000000004d"
        "ffffffff" "ffffffffffffffff"
    )  # fmt: skip
    assert encode(ProducerStateManager()).hex() == "0001" + "48674bc7" + "00000000"


def test_newest_sound_snapshot_is_taken_and_useless_ones_removed(fs: MemoryFs, state: ProducerStateManager) -> None:
    for offset in (100, 200, 300):
        state.map_end_offset = offset
        write_snapshot(state, fs, "/data")
    damaged = bytearray(read_whole(fs, snapshot_path("/data", 200)))
    damaged[-1] ^= 1
    replace_file(fs, snapshot_path("/data", 200), bytes(damaged))
    loaded = load_newest_snapshot(fs, "/data", [100, 200, 300], 250)
    assert loaded.map_end_offset == 100
    assert [entry.name for entry in fs.entries("/data")] == ["00000000000000000100.snapshot"]


@pytest.mark.parametrize("cut", [0, 1, 5, 9, 30])
def test_cut_snapshot_is_damaged(state: ProducerStateManager, cut: int) -> None:
    with pytest.raises(CheckpointError):
        load(ProducerStateManager(), encode(state)[:cut], 1, "here")


def test_snapshot_of_an_unknown_version_is_refused(state: ProducerStateManager) -> None:
    with pytest.raises(CheckpointError, match="version 2"):
        load(ProducerStateManager(), b"\0\2" + encode(state)[2:], 1, "here")


def test_snapshot_says_that_producers_were_forgotten(fs: MemoryFs) -> None:
    """Kafka's format has no room for it, so it is an entry of an id that nobody has."""
    state = ProducerStateManager(ProducerIdLimits(10))
    for number in range(15):
        state.update(header(0, producer_id=number), number, 1000 + number)
    state.map_end_offset = 15
    write_snapshot(state, fs, "/data")
    limits = ProducerIdLimits(10)
    loaded = load_newest_snapshot(fs, "/data", [15], 15, limits)
    assert loaded.forgotten_seen_ms == state.forgotten_seen_ms == 1004
    assert list(loaded.producers) == list(state.producers) == list(range(5, 15))
    with pytest.raises(UnknownProducerId):
        loaded.check(header(3, producer_id=0))
    assert loaded.check(header(1, producer_id=5)) is None


def test_snapshot_of_more_producers_than_are_kept(fs: MemoryFs) -> None:
    """As an older broker left it: the longest idle are forgotten at once, and known to be."""
    state = ProducerStateManager()
    for number in range(3000):
        state.update(header(0, producer_id=number, attributes=0x10 * (number == 7)), number, 9000 - number)
    state.map_end_offset = 3000
    write_snapshot(state, fs, "/data")
    loaded = load_newest_snapshot(fs, "/data", [3000], 3000, ProducerIdLimits(100))
    assert set(loaded.producers) == {*range(100)}
    assert loaded.first_open_transaction_offset() == 7
    assert loaded.forgotten == 2900
    with pytest.raises(UnknownProducerId):
        loaded.check(header(3, producer_id=2999))
