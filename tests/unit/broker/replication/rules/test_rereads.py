"""Batches that consumers ask for again and again are checked, and not more often than they may be."""

from __future__ import annotations

import itertools
import random

from spark_kafkalite.broker.replication.rules import rereads
from spark_kafkalite.broker.replication.rules.rereads import (
    CHECKS_APART_S,
    GIVEN_BEFORE_CHECK,
    OFFSET_APART_S,
    PARTITION_APART_S,
    Rereads,
)
from spark_kafkalite.model import TopicPartition
from tests.seeds import SEED

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def checks(found: Rereads, where: TopicPartition, offset: int, *at_s: float) -> list[float]:
    """Return when an offset is checked, of these times at which it is given."""
    return [now_s for now_s in at_s if found.is_due(where, offset, now_s)]


def test_the_third_time_is_one_too_many() -> None:
    found = Rereads()
    assert checks(found, T0, 7, 0.0, 0.1, 0.2, 0.3, 0.4) == [0.2]
    # Each offset is counted by itself.
    others = Rereads()
    assert not any(others.is_due(T0, offset, 0.0) for _ in range(GIVEN_BEFORE_CHECK - 1) for offset in range(100))


def test_an_offset_is_checked_again_after_twice_the_time() -> None:
    found = Rereads()
    times = checks(found, T0, 7, *(number / 4 for number in range(4 * 7200)))
    apart = [after - before for before, after in itertools.pairwise(times)]
    # It counts to three each time.
    pauses = [10.5, 20.5, 40.5, 80.5, 160.5, 320.5, 640.5, 1280.5, 1800.5, 1800.5]
    assert apart == pauses[: len(apart)] and len(apart) >= 9
    assert OFFSET_APART_S == 1800.0


def test_checks_of_a_partition_and_of_a_broker_are_apart() -> None:
    found = Rereads()
    assert checks(found, T0, 7, 0.0, 0.0, 0.0) == [0.0]
    assert checks(found, T1, 7, 0.1, 0.2, 0.3) == []
    # What was counted by then is checked when that is possible.
    assert checks(found, T1, 7, CHECKS_APART_S) == [CHECKS_APART_S]
    assert checks(found, T0, 8, 2.0, 3.0, 4.0, PARTITION_APART_S) == [PARTITION_APART_S]


def test_whatever_clients_do_checks_and_memory_are_bounded() -> None:
    chance, found, now_s, times = random.Random(SEED), Rereads(), 0.0, []
    partitions = [TopicPartition("t", number) for number in range(50)]
    for _ in range(200_000):
        now_s += chance.choice((0.0, 0.001, 0.2))
        where, offset = chance.choice(partitions), chance.choice((0, 0, 1, chance.randrange(1 << 40)))
        if found.is_due(where, offset, now_s):
            times.append((where, now_s))
    assert len(found._counts) <= rereads._MOST_COUNTED
    assert len(found._checked) <= 2 * OFFSET_APART_S / CHECKS_APART_S + 1
    assert len(times) > 100, f"seed {SEED}"
    assert all(after[1] - before[1] >= CHECKS_APART_S for before, after in itertools.pairwise(times))
    for where in partitions:
        own = [at_s for each, at_s in times if each == where]
        assert all(after - before >= PARTITION_APART_S for before, after in itertools.pairwise(own))
