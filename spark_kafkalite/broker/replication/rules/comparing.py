"""What it means that a range of a follower's log differs from its leader's. Pure: values in, values out.

Replicas have the same batches in the same bytes, so their checksums are equal. Where they are not, each side has
checked its batches:

- A batch that cannot be read, or fails its CRC, is damage of the side that has it.
- So are offsets that no batch has, or a batch without records (``log.loading.holes`` spans lost records with one),
  where the other side has something. Where both lack the same, neither is damaged by it: no replica has it.
- Otherwise both sides have sound batches, and other ones. Consumers have read the leader's: the follower copies again.

Compaction takes records away on each replica at its own time, and leaves other bytes. Where it has been at work, only a
CRC proves anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

Range = tuple[int, int]

UNREADABLE: Final = -1


class Side(NamedTuple):
    """One replica's part: its bytes and their checksum, and what was found to be wrong with its batches.

    ``size_bytes`` is UNREADABLE where the bytes cannot be read, or are not known.
    """

    size_bytes: int
    checksum: int = 0
    damaged: tuple[Range, ...] = ()
    missing: tuple[Range, ...] = ()
    is_compacted: bool = False


class Outcome(Enum):
    """What follows."""

    SAME = "same"
    LEFT_OUT = "left out"
    DAMAGED = "damaged"
    COPY_AGAIN = "copy again"


class Verdict(NamedTuple):
    """What follows, and the offsets at which either side is damaged."""

    outcome: Outcome
    mine: tuple[Range, ...] = ()
    others: tuple[Range, ...] = ()


def verdict(mine: Side, other: Side, *, is_compacted: bool) -> Verdict:
    """Compare one side's part of a range with the other's; ``is_compacted``: the topic is, at present."""
    if mine.size_bytes >= 0 and (mine.size_bytes, mine.checksum) == (other.size_bytes, other.checksum):
        return Verdict(Outcome.SAME)
    if is_compacted or mine.is_compacted or other.is_compacted:
        if mine.damaged or other.damaged:
            return Verdict(Outcome.DAMAGED, mine.damaged, other.damaged)
        return Verdict(Outcome.LEFT_OUT)
    my_damage = _joined([*mine.damaged, *_without(mine.missing, other.missing)])
    others_damage = _joined([*other.damaged, *_without(other.missing, mine.missing)])
    if my_damage or others_damage:
        return Verdict(Outcome.DAMAGED, my_damage, others_damage)
    return Verdict(Outcome.COPY_AGAIN)


def _without(ranges: Iterable[Range], removed: Iterable[Range]) -> list[Range]:
    """Return what the ranges cover and ``removed`` does not."""
    left = list(ranges)
    for start, end in removed:
        parts = [part for each in left for part in ((each[0], min(each[1], start)), (max(each[0], end), each[1]))]
        left = [part for part in parts if part[0] < part[1]]
    return left


def _joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return tuple(joined)
