"""Damaged logs of three replicas, in many schedules: nothing that a disk has is cut off before another one has it."""

from __future__ import annotations

import random

from spark_kafkalite.broker.replication.rules.healing import (
    BeginAnew,
    CutBack,
    ForgetBelow,
    LeaderSays,
    Range,
    ReplicaReport,
    had_by_nobody,
    healing,
)
from spark_kafkalite.log.damaged_ranges import clipped, merged
from tests.seeds import SEED

_END = 40


def test_what_is_missing_is_copied_from_the_first_missing_offset_on() -> None:
    assert healing([(10, 20), (30, 31)], LeaderSays(True, (), 0)) == CutBack(10)
    assert healing([(10, 20)], LeaderSays(False, (), 0)) is None
    # What the leader lacks below does not matter, what it lacks behind would be gone everywhere.
    assert healing([(10, 20)], LeaderSays(True, ((3, 10),), 0)) == CutBack(10)
    assert healing([(10, 20)], LeaderSays(True, ((30, 31),), 0)) is None
    assert healing([(10, 20)], LeaderSays(True, ((19, 20),), 0)) is None
    # Where the leader's log begins later nobody misses anything.
    assert healing([(10, 20)], LeaderSays(True, (), 20)) == ForgetBelow(20)
    assert healing([(10, 20)], LeaderSays(False, ((25, 30),), 20)) == ForgetBelow(20)
    assert healing([(10, 20)], LeaderSays(True, (), 15)) == BeginAnew(15)
    assert healing([(10, 20), (30, 31)], LeaderSays(True, (), 25)) == CutBack(30)


def lacking(rng: random.Random) -> set[int]:
    lost: set[int] = set()
    for _ in range(rng.choice((0, 0, 1, 2))):
        start = rng.randrange(_END)
        lost |= set(range(start, min(_END, start + rng.randrange(1, 12))))
    return lost


def ranges_of(lost: set[int]) -> tuple[Range, ...]:
    return merged((each, each + 1) for each in lost)


def test_no_schedule_loses_what_a_disk_has() -> None:
    rng = random.Random(SEED)
    waited = healed = 0
    for _ in range(3000):
        logs = [set(range(_END)) - lacking(rng) for _ in range(3)]
        had = set.union(*logs)
        for _ in range(12):
            leader, follower = rng.sample(range(3), 2)
            own, others = set(range(_END)) - logs[follower], set(range(_END)) - logs[leader]
            if not own:
                continue
            is_uncounted = rng.random() < 0.8
            match healing(ranges_of(own), LeaderSays(is_uncounted, ranges_of(others), 0)):
                case CutBack(offset):
                    assert is_uncounted and offset == min(own)
                    kept = {each for each in logs[follower] if each < offset}
                    # It may be the only one besides the leader: all must be there before a copy is made.
                    assert set.union(*(logs[each] for each in range(3) if each != follower), kept) == had
                    logs[follower] = kept | {each for each in logs[leader] if each >= offset}
                    healed += 1
                case None:
                    waited += 1
            assert set.union(*logs) == had
    assert waited > 100 and healed > 100


def test_a_hole_is_accepted_only_when_all_have_said_that_they_lack_it() -> None:
    rng = random.Random(SEED)
    accepted = 0
    for _ in range(4000):
        ends = {broker: rng.choice((0, rng.randrange(_END), _END)) for broker in (2, 3)}
        starts = {broker: rng.choice((0, 0, rng.randrange(_END))) for broker in (2, 3)}
        logs = {broker: set(range(starts[broker], ends[broker])) - lacking(rng) for broker in (2, 3)}
        start = rng.randrange(_END)
        hole = (start, start + rng.randrange(1, 12))
        heard = [broker for broker in (2, 3) if rng.random() < 0.8]
        reports = {}
        for broker in heard:
            lost = set(range(starts[broker], ends[broker])) - logs[broker]
            reports[broker] = ReplicaReport(ends[broker], starts[broker], clipped(ranges_of(lost), 0, _END))
        lack = all(broker in heard and not logs[broker] & set(range(*hole)) for broker in (2, 3))
        assert had_by_nobody(hole, (2, 3), reports) == lack
        accepted += lack
    assert accepted > 50
