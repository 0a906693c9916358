"""When a follower whose log is damaged cuts it back to be copied again. Pure: values in, values out.

A damaged log lacks ranges of offsets that it has had (``log.known_damage``). It is not whole (R11): its broker must not
count, neither as a member of the ISR nor as an eligible replica, before it cuts anything off. Only the leader adds to
the ISR, so the follower relies on its leader's answer under the present epoch to a request that named the damage. That
answer states that the leader does not count this log, and adds it to nothing while it is damaged.

It cuts back to its first missing offset, and so drops records that it has. The leader must have all of these: it may
not be damaged itself anywhere from there on. That it has the missing ranges alone is not enough: leader lacks 30 to 39,
follower 10 to 19; cut back to 10 and copied again, 30 to 39 would be gone everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Range = tuple[int, int]


class LeaderSays(NamedTuple):
    """What a leader has answered to a report of a follower's damage: whether it counts on nothing that the follower
    has, the ranges that it lacks itself, and where its log starts."""

    is_uncounted: bool
    ranges: tuple[Range, ...]
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class CutBack:
    """Cut the log back to ``offset``; the leader has what follows."""

    offset: int


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Drop everything and go on at ``offset``, where the leader's log begins."""

    offset: int


@dataclass(frozen=True, slots=True)
class ForgetBelow:
    """Miss nothing below ``offset`` any more: the leader's log begins there."""

    offset: int


Healing = CutBack | BeginAnew | ForgetBelow


def healing(own: Iterable[Range], leader: LeaderSays) -> Healing | None:
    """Return how a log that lacks ``own`` is healed from this leader; None while it has to wait."""
    start = leader.log_start_offset
    missing = [each for each in own if each[1] > start]
    if not missing:
        return ForgetBelow(start)
    first = max(missing[0][0], start)
    if not leader.is_uncounted or any(each[1] > first for each in leader.ranges):
        return None
    return BeginAnew(start) if missing[0][0] < start else CutBack(first)


class ReplicaReport(NamedTuple):
    """What another replica has, as far as its leader knows: its log's end, its start, and the ranges that it lacks."""

    end_offset: int
    log_start_offset: int
    ranges: tuple[Range, ...]


def had_by_nobody(own: Range, replicas: Collection[int], reports: Mapping[int, ReplicaReport]) -> bool:
    """Return whether all of these other replicas have reported under the present epoch, and none has any of a range."""
    return all(broker in reports and _lacks(reports[broker], own) for broker in replicas)


def _lacks(report: ReplicaReport, own: Range) -> bool:
    start, end = max(own[0], report.log_start_offset), min(own[1], report.end_offset)
    for each in report.ranges:
        if each[0] <= start < each[1]:
            start = each[1]
    return start >= end
