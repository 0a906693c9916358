"""Which holes of a log ``elect --unclean`` accepts, and what it says that is lost."""

from __future__ import annotations

import random

from spark_kafkalite.cli.cluster.losses import OtherLog, acceptance
from spark_kafkalite.log.damaged_ranges import merged


def test_a_hole_that_nobody_has_is_accepted_and_who_has_not_reported_is_named() -> None:
    accepted, told = acceptance(1, [(500, 1000)], {2: OtherLog(500), 3: None})
    assert accepted == ((500, 1000),)
    assert told == (
        "accepts the hole 500-999 of broker 1: up to 500 records that no replica that has reported has",
        "broker 3 has not reported",
    )


def test_a_hole_that_a_whole_replica_has_is_left_to_it() -> None:
    accepted, told = acceptance(1, [(500, 1000)], {2: OtherLog(1200), 3: None})
    assert accepted == ()
    assert told == (
        "does not accept the hole 500-999 of broker 1: broker 2 has these offsets, and leads once it is in sync",
    )
    # One that lacks something else, or that is not copied, never is in sync.
    for log in (OtherLog(1200, ((0, 10),)), OtherLog(1200, has_stopped=True)):
        accepted, told = acceptance(1, [(500, 1000)], {2: log})
        assert accepted == ((500, 1000),)
        assert told == (
            "accepts the hole 500-999 of broker 1: up to 0 records that no replica that has reported has; "
            "broker 2 has 500 others, which may be lost, too",
        )


def test_without_a_leader_a_hole_of_which_a_damaged_replica_has_a_part_is_left_to_the_healing() -> None:
    others = {2: OtherLog(1200, ((500, 800),)), 3: OtherLog(1200, ((500, 1000),))}
    accepted, told = acceptance(1, [(100, 200), (500, 1000)], {3: OtherLog(50), 2: None}, is_led=False)
    assert accepted == ((100, 200), (500, 1000))
    accepted, told = acceptance(1, [(500, 1000)], others, is_led=False)
    assert (accepted, told) == (
        (),
        (
            "does not accept the hole 500-999 of broker 1 yet: it may heal from broker 2 once the partition has a "
            "leader",
        ),
    )
    assert acceptance(1, [(500, 1000)], others).accepted == ((500, 1000),)


def test_what_is_accepted_and_counted_by_chance_is_what_each_offset_says() -> None:
    chance = random.Random(7)
    for _ in range(2000):

        def ranges() -> tuple[tuple[int, int], ...]:
            starts = [chance.randrange(60) for _ in range(chance.randrange(4))]
            return merged((start, start + chance.randrange(12)) for start in starts)

        others = {
            broker: chance.choice((None, OtherLog(chance.randrange(80), ranges(), chance.random() < 0.2)))
            for broker in (2, 3)
        }
        holes = ranges()
        accepted, told = acceptance(1, holes, others)
        known = [log for log in others.values() if log is not None]

        def has(log: OtherLog, offset: int) -> bool:
            return offset < log.end_offset and not any(start <= offset < end for start, end in log.damaged)

        for start, end in holes:
            offsets = range(start, end)
            sound = [log for log in known if not log.damaged and not log.has_stopped]
            heals = any(all(has(log, offset) for offset in offsets) for log in sound)
            assert ((start, end) in accepted) != heals
            if not heals:
                lost = sum(not any(has(log, offset) for log in known) for offset in offsets)
                (line,) = [each for each in told if each.startswith(f"accepts the hole {start}-{end - 1} of")]
                assert f": up to {lost} records that no replica" in line
        assert set(accepted) <= set(holes)
