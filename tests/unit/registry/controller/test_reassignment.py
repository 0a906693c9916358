"""The rules of reassignments as values: what is written next, and random plans, deaths and cancellations."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spark_kafkalite.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    UnsupportedVersion,
)
from spark_kafkalite.model import BrokerId, ControllerEpoch, Incarnation
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller import reassignment
from spark_kafkalite.registry.controller.election import elect, needs_election, next_epoch
from spark_kafkalite.registry.znodes import REASSIGNS_FROM_INNER_WIRE_VERSION
from tests.lab.partition_states import incarnations_of, live_broker, partition_state
from tests.seeds import SEED, SOAK

EPOCH = ControllerEpoch(7)
# What may happen, the frequent ones several times.
_KINDS = ("plan", "cancel", *["join"] * 4, *["end"] * 3, "die", "return", "leave", "elect")
HISTORIES = 20_000 if SOAK else 1_000


def live(*brokers: int) -> dict[int, BrokerInfo]:
    return {each: live_broker(each) for each in brokers}


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def begun(state: PartitionState, *targets: int, alive: tuple[int, ...] = (1, 2, 3, 4, 5)) -> PartitionState:
    after = reassignment.begun(state, ids(*targets), live(*alive), 2, EPOCH)
    assert after is not None
    return after


def ended(state: PartitionState, *alive: int, min_insync: int = 2) -> PartitionState | None:
    return reassignment.ended(state, live(*alive), min_insync, EPOCH)


def joined(state: PartitionState, *brokers: int) -> PartitionState:
    isr = (*state.isr, *ids(*brokers))
    return replace(state, isr=isr, incarnations=incarnations_of(*isr), version=state.version + 1)


def test_it_adds_first_and_ends_when_all_targets_are_in_sync() -> None:
    moving = begun(partition_state(1, 2, 3), 4, 2, 5)
    assert moving.replicas == (4, 2, 5, 1, 3) and moving.adding == (4, 5) and moving.removing == (1, 3)
    assert moving.node == partition_state(1, 2, 3).node and moving.settled_count == 3
    assert ended(moving, 1, 2, 3, 4, 5) is None
    assert ended(joined(moving, 4), 1, 2, 3, 4, 5) is None
    last = ended(joined(moving, 4, 5), 1, 2, 3, 4, 5)
    assert last is not None and last.replicas == (4, 2, 5) and not last.is_moving
    # Broker 1 led and goes: the first target leads, under another epoch, and who goes is named.
    assert (last.leader, last.leader_epoch, last.isr) == (4, 1, (4, 2, 5))
    assert last.removed == (1, 3) and last.controller_epoch == EPOCH
    assert set(last.incarnations) == {4, 2, 5}


def test_a_leader_that_stays_leads_on_under_another_epoch() -> None:
    moving = joined(begun(partition_state(1, 2, 3), 4, 1, 2), 4)
    last = ended(moving, 1, 2, 3, 4)
    assert last is not None and (last.leader, last.leader_epoch, last.isr) == (1, 1, (1, 2, 4))


def test_more_replicas_end_without_a_change_of_the_state() -> None:
    moving = begun(partition_state(1, replicas=(1,)), 1, 2, 3)
    assert moving.settled_count == 1
    last = ended(joined(moving, 2, 3), 1, 2, 3)
    assert last is not None and not last.is_moving and last.node == joined(moving, 2, 3).node
    # As many live members as a commit takes then.
    assert ended(joined(moving, 2, 3), 1) is None


def test_the_end_waits_for_enough_live_members_with_whole_logs() -> None:
    moving = joined(begun(partition_state(1, 2, 3), 4, 5), 4, 5)
    assert ended(moving, 1, 2, 3, 4) is None
    other = {**live(1, 2, 3, 4), 5: live_broker(5, 51)}
    assert reassignment.ended(moving, other, 2, EPOCH) is None
    proven = {**live(1, 2, 3, 4), 5: live_broker(5, 51, 50)}
    assert reassignment.ended(moving, proven, 2, EPOCH) is not None
    # The dead one goes.
    assert ended(moving, 4, 5) is not None


def test_a_cancellation_needs_the_origin() -> None:
    state = partition_state(1, 2, 3)
    moving = begun(state, 4, 5, 1)
    cancelled = reassignment.cancelled(joined(moving, 4), live(1, 2, 3, 4), 2, EPOCH)
    assert set(cancelled.replicas) == {1, 2, 3} and not cancelled.is_moving
    assert (cancelled.isr, cancelled.removed, cancelled.leader_epoch) == ((1, 2, 3), (4, 5), 1)
    # One that is added leads, and only it is in sync: it would be a partition without a leader.
    led_by_added = replace(moving, leader=BrokerId(4), isr=ids(4), incarnations=incarnations_of(4))
    with pytest.raises(InvalidReplicaAssignment, match="of brokers 1, 2, 3, which would be left, none is live"):
        reassignment.cancelled(led_by_added, live(1, 2, 3, 4), 2, EPOCH)
    with pytest.raises(NoReassignmentInProgress):
        reassignment.cancelled(state, live(1, 2, 3), 2, EPOCH)
    # Where nobody was added nobody leaves.
    fewer = begun(state, 1, 2)
    back = reassignment.cancelled(fewer, live(1), 2, EPOCH)
    assert back.replicas == (1, 2, 3) and back.node == state.node


def test_a_new_plan_replaces_the_one_in_progress() -> None:
    moving = joined(begun(partition_state(1, 2, 3), 4, 5), 4)
    replaced = begun(moving, 5, 1)
    assert replaced.replicas == (5, 1, 2, 3) and replaced.adding == (5,) and replaced.removing == (2, 3)
    # Broker 4 was being added, and is not wanted any more.
    assert replaced.removed == (4,) and replaced.isr == (1, 2, 3) and replaced.leader_epoch == 1
    again = begun(replaced, 4, 1)
    assert again.removed == (5,) and 4 in again.adding
    # The same plan once more is nothing to write; and so is where the partition is.
    assert reassignment.begun(again, ids(4, 1), live(1, 2, 3, 4), 2, EPOCH) is None
    state = partition_state(1, 2, 3)
    assert reassignment.begun(state, ids(1, 2, 3), live(1, 2, 3), 2, EPOCH) is None
    swapped = begun(state, 3, 2, 1)
    assert swapped.replicas == (3, 2, 1) and not swapped.is_moving and swapped.node == state.node


def test_eligible_replicas_that_go_are_not_eligible_any_more() -> None:
    state = partition_state(1, replicas=(1, 2), eligible=incarnations_of(2))
    last = ended(begun(state, 1), 1, 2)
    assert last is not None and last.eligible == {} and last.replicas == (1,)


@pytest.mark.parametrize(
    "targets, text", [((), "is empty"), ((1, 1), "twice"), ((1, 9), "names broker 9, which is not")]
)
def test_targets_that_cannot_be(targets: tuple[int, ...], text: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=text):
        reassignment.check_targets(partition_state(1, 2, 3), targets, live(1, 2))


def test_a_dead_replica_may_stay_and_the_factor_only_where_that_is_allowed() -> None:
    state = partition_state(1, 2, 3)
    assert reassignment.check_targets(state, (3, 1), live(1, 2)) == (3, 1)
    with pytest.raises(InvalidReplicationFactor, match="from 3 to 2"):
        reassignment.check_targets(state, (3, 1), live(1, 2), allows_other_factor=False)


def test_a_broker_of_an_older_version_has_no_reassignment_begin() -> None:
    older = dict(live(1, 2, 3))
    older[2] = replace(older[2], inner_wire_version=REASSIGNS_FROM_INNER_WIRE_VERSION - 1)
    with pytest.raises(UnsupportedVersion, match=r"broker 2 has an older version, .* upgrade all brokers first"):
        reassignment.check_targets(partition_state(1, 3), (3, 1), older)


def test_random_plans_never_leave_too_few_nor_an_isr_that_is_not_of_the_replicas() -> None:
    """Whatever is committed is in a member that stays: a commit takes all members of the ISR."""
    chance = random.Random(SEED)
    ends = 0
    for _ in range(HISTORIES):
        min_insync = chance.choice((1, 2, 2))
        brokers = range(1, 7)
        first = ids(*chance.sample(brokers, chance.randint(1, 3)))
        state = partition_state(*first, replicas=first, leader=first[0])
        alive = dict(live(*brokers))
        for _ in range(chance.randint(1, 20)):
            state, ends = _next(chance, state, alive, min_insync, ends)
            assert set(state.isr) <= set(state.replicas) and set(state.adding) <= set(state.replicas)
            assert set(state.removing) <= set(state.replicas) and not set(state.removed) & set(state.all_listed)
            assert set(state.eligible) <= set(state.replicas)
    assert ends > HISTORIES // 10


def _next(
    chance: random.Random, state: PartitionState, alive: dict[int, BrokerInfo], min_insync: int, ends: int
) -> tuple[PartitionState, int]:
    before = state
    kind = chance.choice(
        ("plan", "cancel", "join", "join", "join", "join", "end", "end", "end", "die", "return", "leave", "elect")
    )
    after: PartitionState | None = None
    try:
        if kind == "plan":
            targets = chance.sample(range(1, 7), chance.randint(1, 3))
            after = reassignment.begun(
                state, reassignment.check_targets(state, targets, alive), alive, min_insync, EPOCH
            )
        elif kind == "cancel":
            after = reassignment.cancelled(state, alive, min_insync, EPOCH)
        elif kind == "end":
            after = reassignment.ended(state, alive, min_insync, EPOCH)
            ends += after is not None
    except (InvalidReplicaAssignment, NoReassignmentInProgress):
        pass
    if after is not None:
        gone = set(before.all_listed) - set(after.all_listed)
        if gone:
            whole = {each for each in after.isr if each in alive and alive[each].has_log_of(after.incarnations[each])}
            assert after.leader in whole and set(after.isr) & set(before.isr) == set(after.isr)
            assert len(whole) >= min(min_insync, after.settled_count)
            assert after.leader_epoch == before.leader_epoch + 1 and gone <= set(after.removed)
        if before.is_moving and not after.is_moving and kind == "end":
            assert set(after.replicas) <= set(before.isr)
        return replace(after, version=state.version + 1), ends
    broker = BrokerId(chance.randint(1, 6))
    if kind == "join" and state.adding:
        broker = chance.choice(state.adding)
    if kind == "die":
        alive.pop(broker, None)
    elif kind == "return" and broker not in alive:
        proven = (broker * 10,) if chance.random() < 0.5 else ()
        alive[broker] = live_broker(broker, chance.randint(100, 10_000), *proven)
    elif kind == "join" and broker in state.replicas and broker not in state.isr and broker in alive:
        isr = (*state.isr, broker)
        state = replace(state, isr=isr, incarnations={**state.incarnations, broker: alive[broker].incarnation})
    elif kind == "leave" and broker in state.isr and broker != state.leader and len(state.isr) > 1:
        isr = tuple(each for each in state.isr if each != broker)
        state = replace(state, isr=isr, incarnations={k: v for k, v in state.incarnations.items() if k != broker})
    elif kind == "elect" and needs_election(state, alive):
        elected = elect(state, alive, min_insync=min_insync)
        state = replace(state, leader_epoch=next_epoch(state, {}), **elected._asdict())
    return state, ends


def test_incarnations_of_members_that_stay_are_kept() -> None:
    other = {**incarnations_of(1, 2, 3), BrokerId(2): Incarnation(21)}
    moving = joined(begun(partition_state(1, 2, 3), 4, 1), 4)
    moving = replace(moving, incarnations={**moving.incarnations, **other})
    last = ended(moving, 1, 2, 3, 4)
    assert last is not None and last.incarnations == {1: 10, 4: 40}
