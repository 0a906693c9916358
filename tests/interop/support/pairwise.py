"""Choosing few of many combinations, so that any two values that can meet do meet in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import TypeVar

from tests.seeds import SOAK

Row = TypeVar("Row", bound=tuple[Hashable, ...])


def pairwise(rows: Sequence[Row]) -> list[Row]:
    """Return rows in which every pair of values of two columns is that is in any row; in the soak all rows.

    Each time the row is taken that has the most pairs that are not there yet, and the first of several.
    """
    if SOAK:
        return list(rows)
    pairs = {row: frozenset(itertools.combinations(enumerate(row), 2)) for row in rows}
    missing = frozenset().union(*pairs.values())
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs[row] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return chosen
