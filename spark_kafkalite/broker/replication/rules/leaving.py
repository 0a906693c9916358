"""When a broker leaves a partition's ISR by itself: because it stops, or because its disk has failed. Pure.

Whoever leads gives the partition back with the same write: nobody leads then, under the same epoch, and the controller
elects. Nobody leaves who would leave nobody behind: the last live member has what is committed, and must lead next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.znodes import NO_LEADER


def state_without(
    state: PartitionState,
    me: BrokerId,
    live: Mapping[int, BrokerInfo],
    eligible_below: int,
    *,
    keeps_log: bool,
) -> PartitionState | None:
    """Return the state after this broker has left; None when there is nothing to leave, or nobody to leave it to.

    ``keeps_log``: its log will be as it is when it comes back, so that it stays eligible while the ISR is smaller than
    ``eligible_below`` (rule R16; 0 where nobody is eligible).
    """
    named = {**state.incarnations}
    is_member = me in state.isr
    if not is_member and (keeps_log or me not in state.eligible):
        return None
    others = tuple(broker for broker in state.isr if broker != me)
    if is_member and not any(
        broker in live and live[broker].has_log_of(named.get(broker, UNKNOWN_INCARNATION)) for broker in others
    ):
        return None
    mine = named.pop(me, UNKNOWN_INCARNATION)
    eligible = {broker: which for broker, which in state.eligible.items() if broker != me}
    if keeps_log and mine != UNKNOWN_INCARNATION and len(others) < eligible_below:
        eligible[me] = mine
    leader = NO_LEADER if state.leader == me else state.leader
    return replace(state, leader=leader, isr=others, incarnations=named, eligible=eligible)
