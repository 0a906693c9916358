"""Ranges of offsets, against sets of offsets."""

from __future__ import annotations

import itertools
import random

import pytest

from spark_kafkalite.log.damaged_ranges import Ranges, clipped, merged, without
from spark_kafkalite.log.files.small_files import CheckpointError, read_damaged_ranges, write_damaged_ranges
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.seeds import SEED

_END = 60


def drawn(rng: random.Random, count: int) -> list[tuple[int, int]]:
    return [(start, start + rng.randrange(8)) for start in (rng.randrange(_END) for _ in range(count))]


def offsets(ranges: Ranges | list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def test_ranges_are_what_sets_of_offsets_are() -> None:
    rng = random.Random(SEED)
    for _ in range(2000):
        one, other = drawn(rng, rng.randrange(6)), drawn(rng, rng.randrange(6))
        ranges = merged(one)
        assert offsets(ranges) == offsets(one)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
        assert offsets(without(ranges, other)) == offsets(one) - offsets(other)
        start = rng.randrange(_END)
        end = start + rng.randrange(20)
        assert offsets(clipped(ranges, start, end)) == offsets(one) & set(range(start, end))


def test_too_many_ranges_become_fewer_and_lack_nothing() -> None:
    rng = random.Random(SEED)
    for _ in range(500):
        one = drawn(rng, 20)
        few = merged(one, most=3)
        assert len(few) <= 3 and offsets(one) <= offsets(few)
        assert (few[0][0], few[-1][1]) == (merged(one)[0][0], merged(one)[-1][1])
    # The smallest gaps are given up.
    assert merged([(0, 1), (9, 10), (11, 12), (30, 31)], most=3) == ((0, 1), (9, 12), (30, 31))


def test_the_file_keeps_them_over_a_power_loss(fs: MemoryFs) -> None:
    path = "/data/damaged-ranges"
    assert read_damaged_ranges(fs, path) == []
    write_damaged_ranges(fs, path, [(3, 9), (20, 30)])
    assert fs.files()[path].startswith(b"0\n2\n3 9\n20 30\ncrc32c ")
    after = fs.crash(CrashMode.POWER)
    assert read_damaged_ranges(after, path) == [(3, 9), (20, 30)]
    write_damaged_ranges(after, path, [])
    assert not after.exists(path) and not after.crash(CrashMode.POWER).exists(path)


def test_a_damaged_file_is_told_from_a_right_one(fs: MemoryFs) -> None:
    path = "/data/damaged-ranges"
    write_damaged_ranges(fs, path, [(3, 9), (20, 30)])
    whole = fs.files()[path]
    for position in range(len(whole)):
        for wrong in (whole[:position], whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]):
            file = fs.open(path)
            file.truncate(0)
            file.pwrite(wrong, 0)
            with pytest.raises(CheckpointError):
                read_damaged_ranges(fs, path)
