"""The tables of states say something of every state, and nothing that cannot be."""

from __future__ import annotations

from spark_kafkalite.coordinator.groups.states import COMMIT, HEARTBEAT, SYNC, TRANSITIONS, GroupState


def test_every_state_is_in_every_table() -> None:
    for table in (TRANSITIONS, HEARTBEAT, SYNC, COMMIT):
        assert set(table) == set(GroupState)


def test_every_state_can_be_reached_and_death_is_final() -> None:
    reached = {GroupState.EMPTY}
    while more := {state for state, before in TRANSITIONS.items() if before & reached} - reached:
        reached |= more
    assert reached == set(GroupState)
    assert not any(GroupState.DEAD in before for before in TRANSITIONS.values())
    assert TRANSITIONS[GroupState.DEAD] == set(GroupState) - {GroupState.DEAD}


def test_every_state_but_death_can_be_left_for_another_life() -> None:
    for state in set(GroupState) - {GroupState.DEAD}:
        assert [target for target, before in TRANSITIONS.items() if state in before and target is not GroupState.DEAD]


def test_the_names_are_those_that_clients_show() -> None:
    names = [state.value for state in GroupState]
    assert names == ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"]
