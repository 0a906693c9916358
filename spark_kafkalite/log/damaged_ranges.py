"""Ranges of offsets in order: what a log has had, and has no more. Pure: values in, values out.

A range is (start, end), the end exclusive. Ranges are kept in ascending order, without gaps of no width and without
overlaps. They are at most MOST_RANGES. Beyond that the two nearest to each other become one, which then covers sound
offsets too. This costs a copy of sound records; the other way a reader would miss records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

Range = tuple[int, int]
Ranges = tuple[Range, ...]

MOST_RANGES: Final = 64
NONE: Final[Ranges] = ()


def merged(ranges: Iterable[Range], most: int = MOST_RANGES) -> Ranges:
    """Return what the ranges cover, in order, as at most ``most`` of them. Empty ones are left out."""
    joined: list[Range] = []
    for start, end in sorted(each for each in ranges if each[0] < each[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    while len(joined) > most:
        gaps = [after[0] - before[1] for before, after in itertools.pairwise(joined)]
        at = gaps.index(min(gaps))
        joined[at : at + 2] = [(joined[at][0], joined[at + 1][1])]
    return tuple(joined)


def clipped(ranges: Iterable[Range], start: int, end: int) -> Ranges:
    """Return the parts of the ranges that lie from ``start`` on and below ``end``."""
    parts = ((max(each[0], start), min(each[1], end)) for each in ranges)
    return tuple(each for each in parts if each[0] < each[1])


def without(ranges: Iterable[Range], removed: Iterable[Range]) -> Ranges:
    """Return what the ranges cover and ``removed`` does not."""
    left = list(ranges)
    for start, end in removed:
        left = [part for each in left for part in ((each[0], min(each[1], start)), (max(each[0], end), each[1]))]
        left = [each for each in left if each[0] < each[1]]
    return tuple(left)
