"""Damaged logs of three replicas, in many schedules: nothing that a disk has is cut off before another one has it."""

from __future__ import annotations

import random

from spark_kafkalite.broker.replication.rules.healing import (
    BeginAnew,
    CutBack,
    ForgetBelow,
    LeaderSays,
    ReplicaReport,
    end_of,
    had_by_nobody,
    healing,
    next_leader,
)
from spark_kafkalite.log.damaged_ranges import Range, clipped, merged, without
from tests.seeds import SEED

_END = 40


def anywhere(offset: int) -> bool:
    return True


def test_what_is_missing_is_copied_from_the_first_missing_offset_on() -> None:
    assert healing([(10, 20), (30, 31)], LeaderSays(True, (), 0), anywhere) == CutBack(10)
    assert healing([(10, 20)], LeaderSays(False, (), 0), anywhere) is None
    # What the leader lacks below does not matter, what it lacks behind would be gone everywhere.
    assert healing([(10, 20)], LeaderSays(True, ((3, 10),), 0), anywhere) == CutBack(10)
    assert healing([(10, 20)], LeaderSays(True, ((30, 31),), 0), anywhere) is None
    assert healing([(10, 20)], LeaderSays(True, ((19, 20),), 0), anywhere) is None
    # Then a part is healed, if the log can be cut there.
    assert healing([(10, 20), (30, 31), (40, 41)], LeaderSays(True, ((20, 30),), 0), anywhere) == CutBack(30)
    assert healing([(10, 20), (30, 31), (40, 41)], LeaderSays(True, ((20, 30),), 0), {40}.__contains__) == CutBack(40)
    # Where the leader's log begins later nobody misses anything.
    assert healing([(10, 20)], LeaderSays(True, (), 20), anywhere) == ForgetBelow(20)
    assert healing([(10, 20)], LeaderSays(False, ((25, 30),), 20), anywhere) == ForgetBelow(20)
    assert healing([(10, 20)], LeaderSays(True, (), 15), anywhere) == BeginAnew(15)
    assert healing([(10, 20)], LeaderSays(True, ((16, 17),), 15), anywhere) is None
    assert healing([(10, 20), (30, 31)], LeaderSays(True, (), 25), anywhere) == CutBack(30)


def test_a_replica_that_lacks_less_at_the_end_leads_next() -> None:
    whole, early, late = ReplicaReport(40, 0, ()), ReplicaReport(40, 0, ((3, 9),)), ReplicaReport(40, 0, ((30, 31),))
    own = ((3, 5), (20, 30))
    assert next_leader(own, 0, 40, {2: late, 3: early}) == 3
    assert next_leader(own, 0, 40, {2: late}) is None
    # It joins the ISR by itself.
    assert next_leader(own, 0, 40, {2: whole, 3: early}) is None
    # It has to have all that this log has but for its damage.
    assert next_leader(own, 0, 41, {3: early}) is None
    assert next_leader(own, 0, 40, {3: early._replace(log_start_offset=1)}) is None


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
            match healing(ranges_of(own), LeaderSays(is_uncounted, ranges_of(others), 0), lambda _: rng.random() < 0.8):
                case CutBack(offset):
                    assert is_uncounted and offset in own
                    kept = {each for each in logs[follower] if each < offset}
                    # It may be the only one besides the leader: all must be there before a copy is made.
                    assert set.union(*(logs[each] for each in range(3) if each != follower), kept) == had
                    logs[follower] = kept | {each for each in logs[leader] if each >= offset}
                    healed += 1
                case None:
                    waited += 1
            assert set.union(*logs) == had
    assert waited > 100 and healed > 100


def test_all_replicas_are_whole_in_the_end_whatever_each_of_them_lacks() -> None:
    """Nothing is accepted as lost that a disk has, and the leadership does not go round."""
    rng = random.Random(SEED)
    handed_over = accepted = 0
    for _ in range(3000):
        count = rng.choice((2, 2, 3))
        logs = [set(range(_END)) - lacking(rng) for _ in range(count)]
        had, damage = set.union(*logs), [ranges_of(set(range(_END)) - log) for log in logs]
        leader, left = rng.randrange(count), 100
        while any(damage):
            left -= 1
            assert left, (damage, leader)
            followers = [each for each in range(count) if each != leader]
            reports = {each: ReplicaReport(_END, 0, damage[each]) for each in followers}
            found = had_by_nobody(damage[leader], followers, reports)
            accepted += len(found)
            assert not had & {offset for each in found for offset in range(*each)}
            damage[leader] = without(damage[leader], found)
            whole = [each for each in followers if not damage[each]]
            to = whole[0] if damage[leader] and whole else next_leader(damage[leader], 0, _END, reports)
            if to is not None:
                assert end_of(damage[to]) < end_of(damage[leader])
                handed_over += to not in whole
                leader = to
                continue
            for each in followers:
                match healing(damage[each], LeaderSays(True, damage[leader], 0), anywhere):
                    case CutBack(offset):
                        copied = {at for at in logs[leader] if at >= offset}
                        logs[each] = {at for at in logs[each] if at < offset} | copied
                        damage[each] = clipped(damage[each], 0, offset)
            assert set.union(*logs) == had
        assert all(log == had for log in logs)
    assert handed_over > 100 and accepted > 100


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
        lost = set(range(*hole)).difference(*logs.values()) if len(heard) == 2 else set()
        assert merged(had_by_nobody((hole,), (2, 3), reports)) == ranges_of(lost)
        accepted += bool(lost)
    assert accepted > 50
