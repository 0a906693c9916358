from __future__ import annotations

import random

import pytest

from spark_kafkalite.log.files.fs import read_whole
from spark_kafkalite.log.files.open_files import OpenFiles
from spark_kafkalite.log.segments import sparse_index
from spark_kafkalite.log.segments.offset_index import OffsetIndex
from spark_kafkalite.testing.memory_fs import MemoryFs

PATH = "/data/00000000000000000100.index"


def filled(fs: MemoryFs, entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(OpenFiles(fs), PATH, 100)
    for last_offset, position in entries:
        index.append(last_offset, position)
    return index


def test_empty_index_points_to_the_start(fs: MemoryFs) -> None:
    index = filled(fs, [])
    assert (index.entry_before(100), index.entry_within(500), index.last_entry()) == (None, None, None)


def test_file_is_kafkas_format(fs: MemoryFs) -> None:
    filled(fs, [(109, 5000), (119, 10000)]).write()
    assert read_whole(fs, PATH).hex() == "00000009000013880000001300002710"


@pytest.mark.parametrize("stored", [False, True])
def test_floor_by_offset_and_by_position(fs: MemoryFs, stored: bool) -> None:
    index = filled(fs, [(109, 5000), (119, 10000)])
    if stored:
        index.write()
        index = OffsetIndex(OpenFiles(fs), PATH, 100, 2)
    first, second = (109, 5000), (119, 10000)
    before = [index.entry_before(offset) for offset in (100, 108, 109, 118, 119, 9999)]
    assert before == [None, None, first, first, second, second]
    within = [index.entry_within(position) for position in (0, 4999, 5000, 9999, 10**9)]
    assert within == [None, None, first, first, second]
    assert index.last_entry() == (119, 10000)


def test_look_up_finds_what_a_list_finds_however_entries_are_spread(
    fs: MemoryFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_index, "SPILL_ENTRIES", 300)
    entries = [(100 + number * 3, number * 7000) for number in range(1000)]
    index = filled(fs, entries)
    assert fs.files()[PATH], "a large index spills into its file"
    chance = random.Random(1)
    for _ in range(300):
        offset = chance.randrange(100, 3200)
        assert index.entry_before(offset) == max(entry for entry in entries if entry[0] <= offset)
        position = chance.randrange(8_000_000)
        assert index.entry_within(position) == max(entry for entry in entries if entry[1] <= position)


@pytest.mark.parametrize("written_after", [0, 1, 2, 3])
def test_truncation_drops_entries_at_or_after_a_position(fs: MemoryFs, written_after: int) -> None:
    index = OffsetIndex(OpenFiles(fs), PATH, 100)
    for number, (last_offset, position) in enumerate([(109, 5000), (119, 10000), (129, 15000)]):
        if number == written_after:
            index.write()
        index.append(last_offset, position)
    index.truncate_to(10000)
    assert (index.count, index.last_entry()) == (1, (109, 5000))
    index.append(140, 10000)
    index.write()
    assert read_whole(fs, PATH).hex() == "00000009000013880000002800002710"
    index.truncate_to(0)
    index.write()
    assert read_whole(fs, PATH) == b""


def test_write_replaces_what_an_older_file_had(fs: MemoryFs) -> None:
    fs.open(PATH, create=True).pwrite(b"garbage!garbage!garbage!", 0)
    index = filled(fs, [(109, 5000)])
    index.write()
    assert len(read_whole(fs, PATH)) == 8
