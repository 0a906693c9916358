"""What follows where a follower's part of a log is not its leader's: random logs, damaged on either side."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import pytest

from spark_kafkalite.broker.replication.rules.compare_rounds import CompareRounds
from spark_kafkalite.broker.replication.rules.comparing import UNREADABLE, Outcome, Range, Side, Verdict, verdict
from tests.seeds import SEED

SCHEDULES = 5_000
WEEK_MS = 604_800_000


class Batch(NamedTuple):
    start: int
    end: int
    content: int
    is_damaged: bool = False
    is_filler: bool = False


Log = list[Batch]


def side_of(log: Log, start: int, end: int) -> Side:
    """Return what one replica says, the way that a look at its batches finds it."""
    missing, expected = [], start
    for batch in log:
        if batch.start > expected:
            missing.append((expected, batch.start))
        if batch.is_filler:
            missing.append((batch.start, batch.end))
        expected = batch.end
    if expected < end:
        missing.append((expected, end))
    damaged = tuple((batch.start, batch.end) for batch in log if batch.is_damaged)
    return Side(len(log), hash(tuple(log)), damaged, tuple(missing))


def offsets(ranges: tuple[Range, ...]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def sound(log: Log) -> set[int]:
    return {offset for each in log if not (each.is_damaged or each.is_filler) for offset in range(each.start, each.end)}


def random_log(dice: random.Random) -> tuple[Log, int]:
    log, start = [], 0
    for _ in range(dice.randint(1, 8)):
        end = start + dice.randint(1, 5)
        log.append(Batch(start, end, dice.getrandbits(30)))
        start = end
    return log, start


def with_faults(dice: random.Random, log: Log) -> Log:
    faulty: Log = []
    for batch in log:
        match dice.choice(["sound"] * 4 + ["flipped", "filler", "gap"]):
            case "flipped":
                faulty.append(batch._replace(content=dice.getrandbits(30), is_damaged=True))
            case "filler":
                faulty.append(batch._replace(content=0, is_filler=True))
            case "gap":
                pass
            case _:
                faulty.append(batch)
    return faulty


def test_a_side_is_damaged_where_it_has_nothing_sound_and_the_other_has_something() -> None:
    dice = random.Random(SEED)
    met: set[Outcome] = set()
    for _ in range(SCHEDULES):
        log, end = random_log(dice)
        mine, others = with_faults(dice, log), with_faults(dice, log)
        my_side, other_side = side_of(mine, 0, end), side_of(others, 0, end)
        found = verdict(my_side, other_side, is_compacted=False)
        met.add(found.outcome)
        if mine == others:
            assert found == Verdict(Outcome.SAME)
            continue
        # What is said to be damaged is not sound, and what only the other side has is said to be damaged.
        for ranges, log_of_side, log_of_other in ((found.mine, mine, others), (found.others, others, mine)):
            assert not offsets(ranges) & sound(log_of_side)
            assert sound(log_of_other) - sound(log_of_side) <= offsets(ranges)
            assert all(one[1] < two[0] for one, two in itertools.pairwise(ranges))
        # Either side comes to the same verdict.
        assert verdict(other_side, my_side, is_compacted=False) == Verdict(found.outcome, found.others, found.mine)
        assert bool(found.mine or found.others) == (found.outcome is Outcome.DAMAGED)
    assert {Outcome.SAME, Outcome.DAMAGED} <= met


def test_where_both_have_sound_batches_the_follower_copies_again() -> None:
    dice = random.Random(SEED)
    for _ in range(SCHEDULES):
        log, end = random_log(dice)
        other = list(log)
        at = dice.randrange(len(log))
        other[at] = other[at]._replace(content=other[at].content + 1)
        found = verdict(side_of(log, 0, end), side_of(other, 0, end), is_compacted=False)
        assert found == Verdict(Outcome.COPY_AGAIN)


def test_what_both_lack_is_nobodys_damage() -> None:
    mine = Side(2, 7, missing=((0, 10),))
    assert verdict(mine, Side(2, 8, missing=((0, 10),)), is_compacted=False) == Verdict(Outcome.COPY_AGAIN)
    assert verdict(mine, Side(2, 8, missing=((0, 4),)), is_compacted=False) == Verdict(Outcome.DAMAGED, ((4, 10),))


@pytest.mark.parametrize("where", ["topic", "mine", "others"])
def test_where_compaction_has_been_only_a_crc_counts(where: str) -> None:
    mine = Side(2, 7, missing=((0, 10),), is_compacted=where == "mine")
    other = Side(2, 8, is_compacted=where == "others")
    assert verdict(mine, other, is_compacted=where == "topic") == Verdict(Outcome.LEFT_OUT)
    broken = other._replace(damaged=((3, 4),))
    assert verdict(mine, broken, is_compacted=where == "topic") == Verdict(Outcome.DAMAGED, (), ((3, 4),))


def test_sums_of_what_cannot_be_read_are_not_equal() -> None:
    unreadable = Side(UNREADABLE, damaged=((0, 5),))
    assert verdict(unreadable, unreadable, is_compacted=False) == Verdict(Outcome.DAMAGED, ((0, 5),), ((0, 5),))


def test_a_round_begins_an_interval_after_the_last_or_at_once() -> None:
    rounds = CompareRounds(1 << 20, WEEK_MS)
    now_ms = 10 * WEEK_MS
    assert rounds.wait_s(now_ms, now_ms - WEEK_MS + 5_000) == 5.0
    assert rounds.wait_s(now_ms, now_ms - 3 * WEEK_MS) == 0.0
    assert rounds.wait_s(now_ms, 0) == 0.0
    assert rounds.wait_s(now_ms, now_ms - 1, stopped_in_order=False) == 0.0
    # The clock was ahead when the last one ended.
    assert rounds.wait_s(now_ms, now_ms + 5 * WEEK_MS) == WEEK_MS / 1000


def test_what_is_compared_takes_the_time_that_is_allowed() -> None:
    rounds = CompareRounds(1 << 20, WEEK_MS)
    assert rounds.pause_s(1 << 20, 1) == 1.0
    # A thousand empty partitions are no thousand requests at once.
    assert rounds.pause_s(0, 16) == 1.0
    assert rounds.bytes_at_once(1 << 30) == 1 << 20 and rounds.bytes_at_once(1000) == 1000
    assert rounds.are_wanted and not CompareRounds(0, WEEK_MS).are_wanted
