from __future__ import annotations

import pytest

from spark_kafkalite.log.files.fs import read_whole
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.testing.memory_fs import MemoryFs

PATH = "/data/00000000000000000100.timeindex"


@pytest.fixture
def index(fs: MemoryFs) -> TimeIndex:
    index = TimeIndex(OpenFiles(fs), PATH, 100)
    assert index.maybe_append(1000, 104)
    assert index.maybe_append(2000, 120)
    return index


def test_only_growing_timestamps_are_added(index: TimeIndex) -> None:
    assert not index.maybe_append(2000, 130)
    assert not index.maybe_append(1500, 130)
    assert not index.maybe_append(-1, 130)
    assert index.last_entry() == (2000, 120)


def test_file_is_kafkas_format(fs: MemoryFs, index: TimeIndex) -> None:
    index.write()
    assert read_whole(fs, PATH).hex() == "00000000000003e80000000400000000000007d000000014"


def test_an_entry_is_added_after_the_file_was_cut(fs: MemoryFs, index: TimeIndex) -> None:
    index.write()
    opened = TimeIndex(OpenFiles(fs), PATH, 100, index.count)
    assert opened.last_entry() == (2000, 120)
    fs.open(PATH).truncate(4)
    for each in (index, opened):
        assert not each.maybe_append(2000, 130)
        assert each.maybe_append(3000, 130)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("timestamp", "offset"), [(0, 100), (1000, 100), (1001, 104), (2000, 104), (2001, 120)])
def test_nothing_at_or_after_the_time_lies_before_the_offset(
    fs: MemoryFs, index: TimeIndex, stored: bool, timestamp: int, offset: int
) -> None:
    if stored:
        index.write()
        index = TimeIndex(OpenFiles(fs), PATH, 100, 2)
    entry = index.entry_before(timestamp)
    assert (entry[1] if entry else 100) == offset


def test_truncation_drops_entries_at_or_after_an_offset(index: TimeIndex) -> None:
    index.write()
    index.truncate_to(120)
    assert index.last_entry() == (1000, 104)
    index.truncate_to(100)
    assert index.last_entry() is None
