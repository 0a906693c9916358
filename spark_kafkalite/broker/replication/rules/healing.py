"""How replicas with damaged logs heal each other: what a follower cuts off to copy it again, what is lost because no
replica has it, and which replica leads next. Pure: values in, values out.

A damaged log lacks ranges of offsets that it has had (``log.known_damage``). It is not whole (R11): its broker must not
count, neither as a member of the ISR nor as an eligible replica, before it cuts anything off. Only the leader adds to
the ISR, so the follower relies on its leader's answer under the present epoch to a request that named the damage. That
answer states that the leader does not count this log, and adds it to nothing while it is damaged.

It cuts back to where one of its missing ranges begins, and so drops records that it has. The leader must have all of
these: it may not be damaged itself anywhere from there on. That it has the missing ranges alone is not enough: leader
lacks 30 to 39, follower 10 to 19; cut back to 10 and copied again, 30 to 39 would be gone everywhere. In the reverse
case the follower cuts back to 30, and has to lead before the other one can have 10 to 19. So a damaged leader hands
over to a replica whose last missing offset is lower (:func:`next_leader`). Once what all lack is accepted
(:func:`had_by_nobody`), the replica that lacks the highest offsets can always copy them from the one that leads next:
what is missing anywhere becomes less from behind, until one replica is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_kafkalite.log.damaged_ranges import Range, Ranges, without


class LeaderSays(NamedTuple):
    """What a leader has answered to a report of a follower's damage: whether it counts on nothing that the follower
    has, the ranges that it lacks itself, and where its log starts."""

    is_uncounted: bool
    ranges: Ranges
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


def healing(own: Iterable[Range], leader: LeaderSays, may_cut: Callable[[int], bool]) -> Healing | None:
    """Return how a log that lacks ``own`` is healed from this leader, at least in part; None while it has to wait.

    ``may_cut``: whether the log can be cut back to an offset where a range begins.
    """
    start = leader.log_start_offset
    missing = [each for each in own if each[1] > start]
    if not missing:
        return ForgetBelow(start)
    if not leader.is_uncounted:
        return None
    complete_from = max(start, end_of(leader.ranges))
    if missing[0][0] < start == complete_from:
        return BeginAnew(start)
    return next((CutBack(first) for first, _ in missing if first >= complete_from and may_cut(first)), None)


class ReplicaReport(NamedTuple):
    """What another replica has, as far as its leader knows: its log's end, its start, and the ranges that it lacks."""

    end_offset: int
    log_start_offset: int
    ranges: Ranges


def had_by_nobody(own: Ranges, replicas: Collection[int], reports: Mapping[int, ReplicaReport]) -> Ranges:
    """Return the parts of the ranges that none of these other replicas has; none while one has not reported under the
    present epoch."""
    if not all(broker in reports for broker in replicas):
        return ()
    for report in (reports[broker] for broker in replicas):
        own = without(own, without([(report.log_start_offset, report.end_offset)], report.ranges))
    return own


def end_of(ranges: Ranges) -> int:
    """Return the offset from which on nothing is missing."""
    return max((end for _, end in ranges), default=0)


def next_leader(
    own: Ranges, log_start_offset: int, log_end_offset: int, reports: Mapping[int, ReplicaReport]
) -> int | None:
    """Return the damaged replica that is to lead next, because its last missing offset is below that of this damaged
    leader; None where there is none.

    It must have all of the leader's log but for its missing ranges. A sound replica is never returned: it joins the ISR
    by itself, and then leads.
    """
    level = {
        broker: end_of(report.ranges)
        for broker, report in reports.items()
        if report.end_offset == log_end_offset and report.log_start_offset <= log_start_offset
    }
    best = min(level, key=lambda broker: (level[broker], broker), default=None)
    return best if best is not None and 0 < level[best] < end_of(own) else None
