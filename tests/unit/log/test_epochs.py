from __future__ import annotations

import pytest

from spark_kafkalite.log.epochs import LeaderEpochs
from spark_kafkalite.log.files.fs import replace_file
from spark_kafkalite.log.files.small_files import read_epochs
from spark_kafkalite.testing.memory_fs import MemoryFs

PATH = "/data/leader-epoch-checkpoint"


@pytest.fixture
def epochs(fs: MemoryFs) -> LeaderEpochs:
    epochs = LeaderEpochs(fs, PATH)
    for epoch, start in ((0, 0), (2, 10), (5, 30)):
        epochs.assign(epoch, start)
    return epochs


def test_assigned_epochs_are_in_the_file(fs: MemoryFs, epochs: LeaderEpochs) -> None:
    assert read_epochs(fs, PATH) == [(0, 0), (2, 10), (5, 30)]
    assert LeaderEpochs.load(fs, PATH).entries == epochs.entries


def test_known_and_older_epochs_change_nothing(epochs: LeaderEpochs) -> None:
    assert not epochs.assign(5, 99)
    assert not epochs.assign(4, 99)
    assert epochs.entries == [(0, 0), (2, 10), (5, 30)]


def test_epoch_without_records_gives_way_to_the_next(epochs: LeaderEpochs) -> None:
    epochs.assign(6, 30)
    assert epochs.entries == [(0, 0), (2, 10), (6, 30)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(-1, (-1, -1)), (0, (0, 10)), (1, (0, 10)), (2, (2, 30)), (4, (2, 30)), (5, (5, 42)), (6, (-1, -1))],
)
def test_end_offset_of_an_epoch(epochs: LeaderEpochs, asked: int, answer: tuple[int, int]) -> None:
    assert epochs.end_offset_for(asked, 42) == answer


def test_epoch_older_than_all_known_ends_where_the_first_starts(fs: MemoryFs) -> None:
    epochs = LeaderEpochs(fs, PATH, [(4, 100)])
    assert epochs.end_offset_for(2, 500) == (2, 100)


def test_without_epochs_nothing_is_known(fs: MemoryFs) -> None:
    epochs = LeaderEpochs(fs, PATH)
    assert epochs.end_offset_for(0, 5) == (-1, -1)
    assert epochs.latest == epochs.epoch_at(0) == -1


def test_epoch_zero_counts(fs: MemoryFs) -> None:
    epochs = LeaderEpochs(fs, PATH)
    epochs.assign(0, 0)
    assert epochs.latest == 0
    assert epochs.end_offset_for(0, 7) == (0, 7)
    assert LeaderEpochs.load(fs, PATH).latest == 0


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 0), (10, 2), (29, 2), (30, 5), (1000, 5)])
def test_epoch_at_an_offset(epochs: LeaderEpochs, offset: int, epoch: int) -> None:
    assert epochs.epoch_at(offset) == epoch


def test_what_spans_lost_offsets_before_the_known_ones_has_the_oldest_epoch(fs: MemoryFs, epochs: LeaderEpochs) -> None:
    later = LeaderEpochs(fs, PATH)
    assert later.epoch_for_lost(0) == -1
    later.assign(3, 20)
    assert [later.epoch_for_lost(offset) for offset in (0, 19, 20)] == [3, 3, 3]
    assert [epochs.epoch_for_lost(offset) for offset in (0, 10, 29, 30)] == [0, 2, 2, 5]


def test_truncation_from_the_end(fs: MemoryFs, epochs: LeaderEpochs) -> None:
    assert not epochs.truncate_from_end(31)
    assert epochs.latest == 5
    assert epochs.truncate_from_end(30)
    epochs.write()
    assert epochs.entries == read_epochs(fs, PATH) == [(0, 0), (2, 10)]
    assert epochs.truncate_from_end(0)
    assert (epochs.entries, epochs.latest) == ([], -1)


def test_truncation_from_the_start_keeps_the_epoch_that_holds_it(fs: MemoryFs, epochs: LeaderEpochs) -> None:
    epochs.truncate_from_start(15)
    epochs.write()
    assert epochs.entries == read_epochs(fs, PATH) == [(2, 15), (5, 30)]
    epochs.truncate_from_start(15)
    epochs.truncate_from_start(3)
    assert epochs.entries == [(2, 15), (5, 30)]


def test_entries_that_go_backwards_in_the_file_are_dropped(fs: MemoryFs) -> None:
    replace_file(fs, PATH, b"0\n4\n0 0\n4 20\n3 30\n5 40\n")
    assert LeaderEpochs.load(fs, PATH).entries == [(0, 0), (4, 20), (5, 40)]
