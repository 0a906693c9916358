"""A partition's two nodes, and their news in any order: the replica list by one order, the state by another."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from spark_kafkalite.model import BrokerId, LeaderEpoch
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from tests.seeds import SEED, SOAK

HISTORIES = 50_000 if SOAK else 3000
NOTHING = PartitionState(())


def history(chance: random.Random) -> tuple[list[PartitionState], list[PartitionState]]:
    """Return what the topic node and the state node have held, one after the other, each as half of a state."""
    zxid, created_zxid, version = 1, 1, 0
    lists = [PartitionState((BrokerId(1), BrokerId(2)), replicas_zxid=1)]
    states = [PartitionState((), BrokerId(1), isr=(BrokerId(1),), version=0, modified_zxid=1, created_zxid=1)]
    for _ in range(chance.randint(1, 8)):
        zxid += chance.randint(1, 3)
        if chance.random() < 0.4:
            chosen = tuple(map(BrokerId, chance.sample(range(1, 5), chance.randint(1, 3))))
            lists.append(PartitionState(chosen, replicas_zxid=zxid, adding=chosen[: chance.choice((0, 0, 1))]))
            continue
        if chance.random() < 0.3:
            created_zxid, version = zxid, 0
        else:
            version += 1
        isr = tuple(map(BrokerId, chance.sample(range(1, 5), chance.randint(1, 3))))
        state = PartitionState((), isr[0], LeaderEpoch(zxid), isr, version=version, modified_zxid=zxid)
        removed = tuple(map(BrokerId, chance.sample(range(1, 5), chance.choice((0, 0, 1, 2)))))
        states.append(replace(state, created_zxid=created_zxid, removed=removed))
    return lists, states


def merged(news: Iterable[PartitionState]) -> PartitionState:
    return reduce(PartitionState.merged_with, news, NOTHING)


def halves(state: PartitionState) -> tuple[object, ...]:
    # The list's zxid takes no part in comparisons.
    return state, state.replicas_zxid


def test_the_same_news_in_any_order_and_number_give_the_same_and_neither_half_goes_back() -> None:
    chance = random.Random(SEED)
    for _ in range(HISTORIES):
        lists, states = history(chance)
        # A reader sees any version of the one node with any version of the other.
        read = [chance.choice(states).with_replicas_of(chance.choice(lists)) for _ in range(chance.randint(1, 10))]
        newest_list = max(read, key=lambda each: each.replicas_zxid)
        newest_state = max(read, key=lambda each: each.modified_zxid)
        expected = halves(newest_state.with_replicas_of(newest_list))
        for _ in range(3):
            news = read + chance.choices(read, k=chance.randint(0, 5))
            chance.shuffle(news)
            known = NOTHING
            for each in news:
                before, known = known, known.merged_with(each)
                assert known.order >= before.order
                assert known.replicas_zxid >= before.replicas_zxid
                assert (known is before) == (halves(known) == halves(before))
            assert halves(known) == expected, f"{news}"


def test_where_news_come_together_first_makes_no_difference() -> None:
    chance = random.Random(SEED)
    for _ in range(HISTORIES // 10):
        lists, states = history(chance)
        a, b, c = (chance.choice(states).with_replicas_of(chance.choice(lists)) for _ in range(3))
        assert halves(a.merged_with(b).merged_with(c)) == halves(a.merged_with(b.merged_with(c)))
        assert halves(a.merged_with(b)) == halves(b.merged_with(a))


def test_what_is_newer_as_a_whole_is_taken_as_it_is_and_older_news_change_nothing() -> None:
    old = PartitionState((BrokerId(1),), version=3, created_zxid=5, replicas_zxid=4)
    new = PartitionState((BrokerId(2),), version=4, created_zxid=5, replicas_zxid=9)
    assert old.merged_with(new) is new
    assert new.merged_with(old) is new
    assert new.merged_with(replace(new)) is new


def test_a_node_that_was_made_again_is_newer_though_its_versions_begin_anew() -> None:
    old = PartitionState((BrokerId(1),), version=30, created_zxid=5, replicas_zxid=4)
    again = PartitionState((BrokerId(1),), version=0, created_zxid=50, replicas_zxid=4)
    assert merged([old, again]) is merged([again, old]) is again


def test_a_replica_that_the_state_has_removed_is_none_whatever_an_older_list_says() -> None:
    old_list = PartitionState((BrokerId(1), BrokerId(2), BrokerId(3)), replicas_zxid=4)
    new_list = PartitionState((BrokerId(1), BrokerId(2)), replicas_zxid=9)
    again = PartitionState((BrokerId(1), BrokerId(3)), replicas_zxid=12)
    removes = PartitionState((), version=4, created_zxid=1, removed=(BrokerId(3),))
    takes_back = PartitionState((), version=5, created_zxid=1)
    assert removes.with_replicas_of(old_list).replicas == (1, 2)
    assert removes.with_replicas_of(old_list).all_listed == (1, 2, 3)
    assert removes.with_replicas_of(new_list).replicas == (1, 2)
    # The list that has it again comes before the state, or after it.
    first = merged([removes.with_replicas_of(old_list), removes.with_replicas_of(again)])
    assert first.replicas == (1,)
    assert first.merged_with(takes_back.with_replicas_of(old_list)).replicas == (1, 3)
    # One that was written by hand has nobody else.
    assert removes.with_replicas_of(PartitionState((BrokerId(3),), replicas_zxid=20)).replicas == (3,)
