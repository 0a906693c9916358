"""The largest leader epoch and producer id in a log's files."""

from __future__ import annotations

import pytest

from spark_kafkalite.log.files.fs import replace_file
from spark_kafkalite.log.files.small_files import LEADER_EPOCH_FILE, write_epochs
from spark_kafkalite.log.loading.highest_ids import MAX_LEADER_EPOCH, MAX_PRODUCER_ID, highest_ids
from spark_kafkalite.log.producer_snapshot import encode, snapshot_path
from spark_kafkalite.log.producer_state import ProducerEntry, ProducerStateManager
from spark_kafkalite.records import kernel
from spark_kafkalite.testing.memory_fs import MemoryFs
from tests.lab.batches import make_batch

LOG = "/t-0"
FIRST = f"{LOG}/{0:020d}.log"


@pytest.fixture
def fs() -> MemoryFs:
    fs = MemoryFs()
    fs.make_directories(LOG)
    return fs


def batch(offset: int, epoch: int, producer_id: int = -1, value: bytes = b"v") -> bytearray:
    made = make_batch([value], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    kernel.stamp(made, 0, offset, epoch)
    return made


def test_an_empty_log_names_nothing(fs: MemoryFs) -> None:
    found = highest_ids(fs, LOG)
    assert (found.leader_epoch, found.producer_id, found.problems) == (-1, -1, [])


def test_every_segment_the_epochs_and_the_snapshots_count(fs: MemoryFs) -> None:
    replace_file(fs, FIRST, batch(0, 2, 70) + batch(1, 3, 12))
    # Larger than what is read at once.
    replace_file(fs, f"{LOG}/{2:020d}.log", batch(2, 3, 71, bytes(3 << 20)) + batch(3, 4, 5))
    found = highest_ids(fs, LOG)
    assert (found.leader_epoch, found.producer_id, found.problems) == (4, 71, [])
    write_epochs(fs, f"{LOG}/{LEADER_EPOCH_FILE}", [(2, 0), (9, 4)])
    state = ProducerStateManager()
    state._held[12_345] = ProducerEntry(0)
    replace_file(fs, snapshot_path(LOG, 4), encode(state))
    found = highest_ids(fs, LOG)
    assert (found.leader_epoch, found.producer_id, found.problems) == (9, 12_345, [])


def test_a_torn_tail_and_a_damaged_batch_say_nothing(fs: MemoryFs) -> None:
    damaged = batch(1, 7, 99)
    damaged[-1] ^= 1
    replace_file(fs, FIRST, batch(0, 1, 1) + damaged + batch(2, 2, 3) + batch(3, 8, 100)[:-1])
    found = highest_ids(fs, LOG)
    assert (found.leader_epoch, found.producer_id) == (2, 3)
    left_out, torn = found.problems
    assert f"position {len(batch(0, 1, 1))} is left out" in left_out
    assert "there are no whole batches" in torn
    replace_file(fs, FIRST, batch(0, 1, 1) + bytes(4096))
    assert highest_ids(fs, LOG).leader_epoch == 1


def test_numbers_that_no_broker_has_given_are_left_out(fs: MemoryFs) -> None:
    replace_file(fs, FIRST, batch(0, 1, 1) + batch(1, MAX_LEADER_EPOCH + 1, MAX_PRODUCER_ID + 1))
    write_epochs(fs, f"{LOG}/{LEADER_EPOCH_FILE}", [(2**40, 0)])
    replace_file(fs, snapshot_path(LOG, 2), b"junk")
    found = highest_ids(fs, LOG)
    assert (found.leader_epoch, found.producer_id) == (1, 1)
    assert len(found.problems) == 4
