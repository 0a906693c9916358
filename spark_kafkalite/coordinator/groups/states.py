"""The states of a group: what each means, which may follow which, and what a member's requests are answered in each.
Tables only.

===================  ===================================================================================================
state                what it means, and what ends it
===================  ===================================================================================================
Empty                no members; it may have committed offsets. A member joins.
PreparingRebalance   members rejoin; each waits for its answer. All have joined, or the rebalance timeout is over.
CompletingRebalance  all know the generation, and wait for the leader's assignment. It is committed; or a member
                     joins, leaves, or does not sync within the rebalance timeout.
Stable               all have their assignments. A member joins or leaves, or its session expires; the leader joins.
Dead                 deleted, or moved to another broker. Nothing.
===================  ===================================================================================================

Source: GroupState and GroupCoordinator of Apache Kafka 3.9.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from spark_kafkalite.errors import CoordinatorNotAvailable, KafkaError, RebalanceInProgress, UnknownMemberId


class GroupState(Enum):
    """The states, under the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

# From which states a state may be entered. What a load finds with members begins in Stable.
TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    _EMPTY: frozenset({_PREPARING}),
    _PREPARING: frozenset({_EMPTY, _COMPLETING, _STABLE}),
    _COMPLETING: frozenset({_PREPARING}),
    _STABLE: frozenset({_COMPLETING}),
    _DEAD: frozenset({_EMPTY, _PREPARING, _COMPLETING, _STABLE}),
}

# What a member of the present generation is told, by state; None is no error.
Outcomes = dict[GroupState, type[KafkaError] | None]

HEARTBEAT: Final[Outcomes] = {
    _EMPTY: UnknownMemberId,
    _PREPARING: RebalanceInProgress,
    _COMPLETING: None,
    _STABLE: None,
    _DEAD: CoordinatorNotAvailable,
}
SYNC: Final[Outcomes] = dict(HEARTBEAT)
COMMIT: Final[Outcomes] = {
    _EMPTY: None,
    # Members commit before they rejoin.
    _PREPARING: None,
    # Its partitions may be another member's by now, and this one has not heard of it yet.
    _COMPLETING: RebalanceInProgress,
    _STABLE: None,
    _DEAD: CoordinatorNotAvailable,
}
