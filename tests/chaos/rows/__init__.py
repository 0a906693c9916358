"""The rows of the matrix of faults: each does something to a live cluster, heals it, and says what is asked for.

Every run of the tests plays ``ROWS``, the soak ``MORE_ROWS`` as well; a row's label is its number in the matrix, with a
letter where it is played in parts. Rows of one kind of fault share a module.
"""

from __future__ import annotations

from typing import Final

from tests.chaos.rows import disks, losses, moves, network, processes, registry, topics
from tests.chaos.rows.losses import bounce_a_follower_that_lost_its_tail
from tests.chaos.rows.moves import MIXED as MIXED_MOVES
from tests.chaos.rows.stage import Row, Stage

__all__ = ["MIXED_MOVES", "MORE_ROWS", "ROWS", "Row", "Stage", "bounce_a_follower_that_lost_its_tail"]


def _by_number(row: Row) -> tuple[int, str]:
    number = row.label.rstrip("abc")
    return int(number), row.label


_KINDS: Final = (processes, network, registry, disks, losses, topics, moves)
ROWS: Final = tuple(sorted((row for kind in _KINDS for row in getattr(kind, "ROWS", ())), key=_by_number))
MORE_ROWS: Final = tuple(sorted((row for kind in _KINDS for row in kind.MORE_ROWS), key=_by_number))
