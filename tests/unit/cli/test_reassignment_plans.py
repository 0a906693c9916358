from __future__ import annotations

import random
from collections import Counter

import pytest

from spark_kafkalite.cli.cluster.reassignment_plans import Assignment, NoPlan, Racks, drained, spread, with_factor
from spark_kafkalite.model import TopicPartition
from tests.seeds import SEED

NO_RACKS: Racks = {1: None, 2: None, 3: None, 4: None}


def assigned(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", number): each for number, each in enumerate(replicas)}


def counts(assignment: Assignment, racks: Racks) -> tuple[list[int], list[int]]:
    replicas = Counter(each for brokers in assignment.values() for each in brokers)
    leaders = Counter(brokers[0] for brokers in assignment.values())
    return [replicas[each] for each in racks], [leaders[each] for each in racks]


def test_a_drained_broker_has_nothing_and_its_place_in_the_list_is_kept() -> None:
    before = assigned((1, 2, 3), (2, 3, 1), (2, 3, 4))
    assert drained(before, NO_RACKS, 1) == assigned((4, 2, 3), (2, 3, 4))
    with pytest.raises(NoPlan, match="t-0 has 3 replicas, and no live broker besides 1 is left"):
        drained(before, {1: None, 2: None, 3: None}, 1)


def test_a_replica_goes_to_another_rack_first_and_then_to_the_least_loaded_broker() -> None:
    racks: Racks = {1: "a", 2: "b", 3: "b", 4: "a", 5: "a"}
    before = assigned((1, 2), (4, 3), (5,))
    assert with_factor(before, racks, {"t"}, 3) == assigned((1, 2, 3), (4, 3, 1), (5, 2, 4))
    assert drained(assigned((1, 2)), racks, 2) == assigned((1, 3))


def test_fewer_replicas_keep_the_preferred_leader_and_lose_the_dead_ones() -> None:
    before = {**assigned((9, 1, 2), (1, 2, 3)), TopicPartition("other", 0): (1, 2, 3)}
    assert with_factor(before, NO_RACKS, {"t"}, 2) == assigned((1, 2), (1, 2))
    with pytest.raises(NoPlan, match="5 replicas need as many live brokers; there are 4"):
        with_factor(before, NO_RACKS, {"t"}, 5)


def test_what_is_spread_needs_no_plan() -> None:
    assert spread(assigned((1, 2), (2, 3), (3, 4), (4, 1)), NO_RACKS) == {}


def test_spread_moves_as_few_replicas_as_it_takes() -> None:
    chance = random.Random(SEED)
    for _ in range(200):
        racks: Racks = dict.fromkeys(range(1, chance.randint(2, 6) + 1))
        factor = chance.randint(1, len(racks))
        before = assigned(*(tuple(chance.sample(sorted(racks), factor)) for _ in range(chance.randint(1, 20))))
        after = {**before, **spread(before, racks)}
        replicas, leaders = counts(after, racks)
        assert max(replicas) - min(replicas) <= 1 and max(leaders) - min(leaders) <= 1
        assert all(len(set(each)) == factor for each in after.values())
        moved = sum(len(set(after[key]) - set(before[key])) for key in before)
        held, _ = counts(before, racks)
        share, more = divmod(sum(held), len(racks))
        # Those above their share give, and the fullest ones keep one more.
        fewest = sum(max(0, each - share - (index < more)) for index, each in enumerate(sorted(held, reverse=True)))
        assert moved == fewest


def test_spread_keeps_replicas_on_as_many_racks() -> None:
    chance = random.Random(SEED)
    racks: Racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    for _ in range(100):
        before = assigned(*(tuple(chance.sample(sorted(racks), 2)) for _ in range(chance.randint(1, 20))))
        for key, replicas in spread(before, racks).items():
            assert len({racks[each] for each in replicas}) >= len({racks[each] for each in before[key]})
