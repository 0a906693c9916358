"""What a log's producers know of a transaction's end, however the log came to its markers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crc32c import crc32c

from spark_kafkalite.errors import InvalidProducerEpoch, TransactionCoordinatorFenced
from spark_kafkalite.log.copying import copy_at_once
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.producer_state import ProducerStateManager
from spark_kafkalite.log.truncation import truncate_to
from spark_kafkalite.records import kernel
from spark_kafkalite.records.control import Marker, build_marker
from spark_kafkalite.records.layout import TRANSACTIONAL_BIT
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import header_of

LogOpener = Callable[..., PartitionLog]


def records_of(producer_id: int, epoch: int, sequence: int) -> bytearray:
    builder = kernel.OpenBatch(1 << 20)
    builder.append(1000, b"k", b"v" * 50, None)
    return bytearray(
        builder.build(
            0, None, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
    )


def append(log: PartitionLog, batch: bytearray, *, is_own: bool = False) -> int:
    return log.append_as_leader(batch, header_of(batch), 0, is_own=is_own).base_offset


def end(log: PartitionLog, producer_id: int, epoch: int, marker: Marker) -> int:
    return append(log, build_marker(producer_id, epoch, marker, 2000), is_own=True)


def known(log: PartitionLog) -> dict[int, tuple[int, int, int]]:
    """Return producer epoch, coordinator epoch and first offset of the open transaction by producer id."""
    return {
        producer_id: (entry.producer_epoch, entry.coordinator_epoch, entry.transaction_first_offset)
        for producer_id, entry in log.producers.state.producers.items()
    }


def filled(log: PartitionLog) -> PartitionLog:
    """Producer 7 has committed (offsets 0 and 1), 8 has aborted with a new epoch (2 and 3), 9 is at it (4)."""
    append(log, records_of(7, 0, 0))
    end(log, 7, 0, Marker(commits=True, coordinator_epoch=3))
    append(log, records_of(8, 0, 0))
    end(log, 8, 1, Marker(commits=False, coordinator_epoch=5))
    append(log, records_of(9, 0, 0))
    return log


KNOWN = {7: (0, 3, -1), 8: (1, 5, -1), 9: (0, -1, 4)}


def test_a_leader_knows_the_coordinators_epoch(open_log: LogOpener) -> None:
    log = filled(open_log())
    assert known(log) == KNOWN
    assert log.producers.state.first_open_transaction_offset() == 4


@pytest.mark.parametrize("segment_bytes", [130, 1 << 20])
def test_a_follower_learns_it_from_its_leader(open_log: LogOpener, segment_bytes: int) -> None:
    log = filled(open_log(segment_bytes=segment_bytes))
    fs = MemoryFs()
    fs.make_directories("/data")
    copy = open_log(on=fs)
    offset = 0
    while (piece := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        run = piece.read()
        copy_at_once(copy, bytearray(run))
        offset = kernel.scan_headers(run)[-1].next_offset
    assert known(copy) == KNOWN


@pytest.mark.parametrize("segment_bytes", [130, 1 << 20])
def test_a_recovery_finds_it_in_the_log(open_log: LogOpener, segment_bytes: int) -> None:
    filled(open_log(segment_bytes=segment_bytes))
    assert known(open_log(clean=False, segment_bytes=segment_bytes)) == KNOWN


def test_a_recovery_with_a_small_window_finds_it(open_log: LogOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker below the recovery point may lie beyond what has been read."""
    log = filled(open_log())
    log.flush()
    for read_bytes in range(61, 90):
        monkeypatch.setattr("spark_kafkalite.log.loading.scan.READ_BYTES", read_bytes)
        assert known(open_log(clean=False, recovery_point=5)) == KNOWN


def test_a_replay_finds_it_where_snapshots_are_missing(open_log: LogOpener, fs: MemoryFs) -> None:
    log = filled(open_log(segment_bytes=130))
    log.flush()
    for entry in fs.entries("/data/t-0"):
        if entry.name.endswith(".snapshot"):
            fs.unlink(f"/data/t-0/{entry.name}")
    assert known(open_log(clean=False, segment_bytes=130)) == KNOWN


def test_a_truncation_knows_what_stays_and_reopens_what_goes(open_log: LogOpener) -> None:
    log = filled(open_log())
    truncate_to(log, 4)
    assert known(log) == {7: KNOWN[7], 8: KNOWN[8]}
    truncate_to(log, 3)
    assert known(log) == {7: KNOWN[7], 8: (0, -1, 2)}
    assert log.producers.state.first_open_transaction_offset() == 2


def test_a_marker_that_cannot_be_read_ends_the_transaction(open_log: LogOpener) -> None:
    """A follower takes its leader's log as it is."""
    log = open_log()
    copy_at_once(log, records_of(7, 0, 0))
    marker = build_marker(7, 0, Marker(commits=True, coordinator_epoch=3), 1)
    # The length of its value becomes -1, which is null.
    marker[70] = 1
    marker[17:21] = crc32c(bytes(marker[21:])).to_bytes(4, "big")
    kernel.stamp(marker, 0, 1, 0)
    copy_at_once(log, marker)
    assert known(log) == {7: (0, -1, -1)}


def test_a_replaced_coordinator_and_an_old_epoch_are_refused(open_log: LogOpener) -> None:
    log = filled(open_log())
    with pytest.raises(TransactionCoordinatorFenced, match="producer 8: a marker of coordinator epoch 4, and one of 5"):
        end(log, 8, 1, Marker(commits=True, coordinator_epoch=4))
    with pytest.raises(InvalidProducerEpoch, match="producer 8: epoch 0 is older than 1"):
        end(log, 8, 0, Marker(commits=True, coordinator_epoch=6))
    with pytest.raises(InvalidProducerEpoch):
        append(log, records_of(8, 0, 0), is_own=True)
    assert log.log_end_offset == 5
    assert known(log) == KNOWN
    assert end(log, 8, 1, Marker(commits=True, coordinator_epoch=5)) == 5, "a marker that is repeated is written again"


def test_own_batches_repeat_their_sequence(open_log: LogOpener) -> None:
    """A coordinator has no sequences of its producers, and writes 0 into each batch, as Apache Kafka does."""
    log = open_log()
    assert [append(log, records_of(7, 0, 0), is_own=True) for _ in range(3)] == [0, 1, 2]
    assert known(log) == {7: (0, -1, 0)}


def test_a_packed_entry_keeps_the_coordinators_epoch() -> None:
    """Idle producers are packed, and looked at where they lie."""
    state = ProducerStateManager()
    marker = build_marker(7, 4, Marker(commits=True, coordinator_epoch=9), 1)
    state.update(header_of(marker), 0, 1000, Marker(commits=True, coordinator_epoch=9))
    for producer_id in range(1000, 2500):
        batch = records_of(producer_id, 0, 0)
        state.update(header_of(batch), producer_id, 1000)
    assert state.producers[7].coordinator_epoch == 9
    with pytest.raises(TransactionCoordinatorFenced):
        state.check_own(header_of(marker), Marker(commits=True, coordinator_epoch=8))
    with pytest.raises(InvalidProducerEpoch):
        state.check_own(header_of(marker)._replace(producer_epoch=3), Marker(commits=True, coordinator_epoch=9))
    assert header_of(marker).attributes & TRANSACTIONAL_BIT
