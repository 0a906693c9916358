"""Which holes of a leader's log are accepted as lost with ``elect --unclean``, and what that loses. Pure.

A hole is a range of offsets that a log had and lacks. It heals where another replica has it and is in sync. Where none
has, or none that is whole, followers wait at it for ever, until an operator accepts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_kafkalite.cli.cluster.replica_logs import ranges_text
from spark_kafkalite.log.damaged_ranges import Ranges, clipped, merged, without


class OtherLog(NamedTuple):
    """What another replica has: all below ``end_offset`` but for what is damaged. ``has_stopped``: it is not copied."""

    end_offset: int
    damaged: Ranges = ()
    has_stopped: bool = False

    def has_of(self, hole: Ranges) -> Ranges:
        """Return the offsets of a hole that it has."""
        return without(clipped(hole, 0, self.end_offset), self.damaged)


class Acceptance(NamedTuple):
    """The ranges of offsets, ends exclusive, to be accepted, and a line for each hole."""

    accepted: Ranges
    told: tuple[str, ...]


def acceptance(broker: int, holes: Iterable[tuple[int, int]], others: Mapping[int, OtherLog | None]) -> Acceptance:
    """Return which holes of a broker's log are to be accepted. ``others`` are the other replicas, None for one that has
    not reported its log.

    A hole is not accepted if a replica has all of it and is whole: that one joins the ISR, and leads.
    """
    accepted, told = [], []
    logs = {each: log for each, log in others.items() if log is not None}
    for start, end in merged(holes):
        hole = ((start, end),)
        name = f"the hole {ranges_text(hole)} of broker {broker}"
        has = {each: log.has_of(hole) for each, log in logs.items()}
        whole = [each for each, log in logs.items() if has[each] == hole and not log.damaged and not log.has_stopped]
        if whole:
            told.append(f"does not accept {name}: broker {whole[0]} has these offsets, and leads once it is in sync")
            continue
        accepted.append((start, end))
        lost = _count(without(hole, [each for ranges in has.values() for each in ranges]))
        text = f"accepts {name}: up to {lost:,} records that no replica that has reported has"
        parts = [
            f"broker {each} has {_count(ranges):,} others, which may be lost, too"
            for each, ranges in has.items()
            if ranges
        ]
        told.append("; ".join([text, *parts]))
    if accepted:
        told += [f"broker {each} has not reported" for each, log in others.items() if log is None]
    return Acceptance(tuple(accepted), tuple(told))


def _count(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)
