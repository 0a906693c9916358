from collections import Counter

import pytest

from spark_kafkalite.errors import InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor
from spark_kafkalite.registry.controller.placement import check_assignment, place, start_after
from spark_kafkalite.slices import run_whole


def test_leaders_go_round_and_replicas_differ() -> None:
    assignment = place(12, 3, dict.fromkeys(range(1, 5)), start=2)
    assert [replicas[0] for replicas in assignment.values()] == [3, 4, 1, 2] * 3
    assert all(len(set(replicas)) == 3 for replicas in assignment.values())
    assert set(Counter(broker for replicas in assignment.values() for broker in replicas).values()) == {9}


def test_a_lost_brokers_next_replicas_are_spread() -> None:
    assignment = place(16, 2, dict.fromkeys(range(1, 5)))
    followers = {replicas[1] for replicas in assignment.values() if replicas[0] == 1}
    assert followers == {2, 3, 4}


def test_replicas_lie_in_different_racks_while_there_are_enough() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    for replicas in place(24, 3, racks).values():
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}
    for replicas in place(24, 4, racks).values():
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}
        assert len(set(replicas)) == 4


def test_an_extension_goes_on_where_the_topic_ended() -> None:
    racks = dict.fromkeys(range(1, 4))
    whole = place(5, 1, racks, start=1)
    rest = place(2, 1, racks, start=start_after(whole[0], racks), first_partition=3)
    assert {**{n: whole[n] for n in range(3)}, **rest} == whole


@pytest.mark.parametrize(
    ("count", "factor", "error"),
    [
        (0, 1, InvalidPartitions),
        (10**9, 1, InvalidPartitions),
        (1, 0, InvalidReplicationFactor),
        (1, 4, InvalidReplicationFactor),
    ],
)
def test_bad_counts(count: int, factor: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        place(count, factor, dict.fromkeys(range(3)))


@pytest.mark.parametrize(
    "assignment", [{}, {1: [1]}, {0: [1], 2: [1]}, {0: []}, {0: [1], 1: [1, 2]}, {0: [1, 1]}, {0: [9]}]
)
def test_bad_assignments(assignment: dict[int, list[int]]) -> None:
    with pytest.raises(InvalidReplicaAssignment):
        run_whole(check_assignment(assignment, {1, 2}))


def test_a_good_assignment_is_kept() -> None:
    assert run_whole(check_assignment({1: [2, 1], 0: [1, 2]}, {1, 2})) == {0: (1, 2), 1: (2, 1)}
