"""Sets of offsets against Python's own sets."""

import random

import pyarrow as pa
import pytest

from spark_kafkalite.jobs.copying.offset_set import OffsetSet
from tests.seeds import SEED


def offsets(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int64())


def stretches(found: OffsetSet) -> list[tuple[int, int]]:
    return list(zip(found.starts.to_pylist(), found.ends.to_pylist(), strict=True))


def test_offsets_become_stretches() -> None:
    found = OffsetSet.of(offsets(7, 3, 4, 4, 5, 9))
    assert (stretches(found), found.count) == ([(3, 6), (7, 8), (9, 10)], 5)
    assert [found.first_missing(offset) for offset in (2, 3, 5, 6, 7, 9, 10)] == [2, 6, 6, 6, 8, 10, 10]


def test_what_touches_or_overlaps_is_one_stretch() -> None:
    sets = [
        OffsetSet.of(offsets(*range(first, until))) for first, until in ((10, 20), (0, 5), (12, 15), (5, 8), (20, 21))
    ]
    assert stretches(OffsetSet.union(sets)) == [(0, 8), (10, 21)]


def test_an_empty_set_lacks_everything() -> None:
    for empty in (OffsetSet(), OffsetSet.of(offsets()), OffsetSet.union([]), OffsetSet.union([OffsetSet()])):
        assert (empty.count, empty.first_missing(3), empty.missing_rows(offsets(1, 2))) == (0, 3, None)


def test_rows_that_are_all_missing_need_no_mask() -> None:
    found = OffsetSet.of(offsets(1, 2, 9))
    assert found.missing_rows(offsets(3, 5, 8)) is None
    assert found.missing_rows(offsets()) is None


@pytest.mark.parametrize("turn", range(20))
def test_any_set_is_what_python_says(turn: int) -> None:
    chance = random.Random(SEED + turn)
    parts = [{chance.randrange(200) for _ in range(chance.randrange(80))} for _ in range(3)]
    found = OffsetSet.union(OffsetSet.of(offsets(*part)) for part in parts)
    expected = set().union(*parts)
    assert found.count == len(expected)
    rows = sorted(chance.sample(range(220), chance.randrange(1, 100)))
    mask = found.missing_rows(offsets(*rows))
    kept = rows if mask is None else offsets(*rows).filter(mask).to_pylist()
    assert kept == [row for row in rows if row not in expected]
    for offset in range(205):
        missing = offset
        while missing in expected:
            missing += 1
        assert found.first_missing(offset) == missing
