"""When a broker leaves a partition's ISR by itself: it stops, its disk has failed or is full, or its log is gone. Pure.

A leader resigns with the same write: the partition then has no leader under the same epoch, and the controller elects
one. A replica does not leave the ISR if no other live member would remain: the last live member has what is committed,
and must lead next. A replica whose log is gone has nothing, so it leaves even if no other member lives. A replica
without room for more records has all committed records. It leaves only where the remaining members are enough to go on.
A leader with a damaged log resigns in favour of a member whose log is sound. A follower with a damaged log is removed
by its leader (``in_sync``). A leader whose log lacks committed records resigns in favour of the members, or, as the
only member, in favour of the eligible replica that has these records (R19), or of a former member (R24).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, Incarnation
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
    """Return the state after this broker has left; None when there is nothing to leave, or no member would remain.

    ``keeps_log``: its log will be as it is when it comes back, so that it stays eligible while the ISR is smaller than
    ``eligible_below`` (rule R16; 0 where no replica stays eligible).
    """
    named = {**state.incarnations}
    is_member = me in state.isr
    if not is_member and (keeps_log or me not in state.eligible):
        return None
    others = tuple(broker for broker in state.isr if broker != me and broker in state.replicas)
    if is_member and not _live_others(state, me, live):
        return None
    mine = named.pop(me, UNKNOWN_INCARNATION)
    named = {broker: which for broker, which in named.items() if broker in others}
    eligible = {broker: which for broker, which in state.eligible.items() if broker != me}
    if keeps_log and mine != UNKNOWN_INCARNATION and len(others) < eligible_below:
        eligible[me] = mine
    leader = NO_LEADER if state.leader == me else state.leader
    return replace(state, leader=leader, isr=others, incarnations=named, eligible=eligible)


def state_without_full(
    state: PartitionState, me: BrokerId, live: Mapping[int, BrokerInfo], required: int, eligible_below: int
) -> PartitionState | None:
    """Return the state after this broker, which has no room for more records, has left; None where fewer than
    ``required`` live members would be left: nothing could be committed then, either."""
    if me not in state.isr or _live_others(state, me, live) < required:
        return None
    return state_without(state, me, live, eligible_below, keeps_log=True)


def state_without_damaged(
    state: PartitionState,
    me: BrokerId,
    live: Mapping[int, BrokerInfo],
    damaged: Collection[int],
    successor: BrokerId | None = None,
) -> PartitionState | None:
    """Return the state after this broker, whose log is damaged, has left the ISR to members with sound logs.

    Where no such member lives, the last member leaves it to ``successor``, a damaged replica that is to lead next
    (``healing.next_leader``). None where there is none either: this broker goes on as leader, and serves what can be
    read. ``damaged``: other brokers that have reported damaged logs.
    """
    whole = {broker: info for broker, info in live.items() if broker not in damaged}
    after = state_without(state, me, whole, 0, keeps_log=False)
    return _left_to(successor, state, me, live) if after is None else after


def state_without_lacking(
    state: PartitionState, me: BrokerId, live: Mapping[int, BrokerInfo], claimant: BrokerId | None
) -> PartitionState | None:
    """Return the state after this broker, whose log lacks committed records, has left the ISR to its other members.

    Where it is the only member, it leaves the partition to ``claimant``, an eligible replica that has these records
    (None: no such replica is known). The other eligible replicas stay eligible. None where no replica can take over:
    this broker leads on.
    """
    after = state_without(state, me, live, 0, keeps_log=False)
    if after is not None:
        return after
    info = None if claimant is None else live.get(claimant)
    has_log = info is not None and claimant in state.replicas and state.is_eligible(info)
    return _left_to(claimant, state, me, live) if has_log else None


def state_left_to_former(
    state: PartitionState, me: BrokerId, live: Mapping[int, BrokerInfo], claimant: BrokerId, unheard: Collection[int]
) -> PartitionState | None:
    """Return the state after this broker, whose log lacks committed records, has left the partition to ``claimant``, a
    replica that the state does not name and that has them (rule R24).

    ``claimant`` has all that this broker had when its leader epoch began, and so all that the members and eligible
    replicas have whose logs fit. None where one of those is ``unheard``: that one may have more. None as well where
    another broker leads by now.
    """
    info = live.get(claimant)
    if info is None or unheard or state.leader != me or claimant not in state.replicas:
        return None
    return _with_only(info, state, {})


def _left_to(
    successor: BrokerId | None, state: PartitionState, me: BrokerId, live: Mapping[int, BrokerInfo]
) -> PartitionState | None:
    """Return the state in which ``successor`` is the only member in the place of this broker; None where it is not
    live, or other brokers are members."""
    if successor is None or successor not in live or state.isr != (me,):
        return None
    eligible = {broker: which for broker, which in state.eligible.items() if broker not in (me, successor)}
    return _with_only(live[successor], state, eligible)


def _with_only(member: BrokerInfo, state: PartitionState, eligible: Mapping[BrokerId, Incarnation]) -> PartitionState:
    """Return the state whose only member is a broker that is to be elected next."""
    broker = member.broker_id
    incarnations = {broker: member.incarnation}
    return replace(state, leader=NO_LEADER, isr=(broker,), incarnations=incarnations, eligible=eligible)


def _live_others(state: PartitionState, me: BrokerId, live: Mapping[int, BrokerInfo]) -> int:
    """Return how many other members of the ISR live and have the log that the state means."""
    named = state.incarnations
    return sum(
        broker in live and live[broker].has_log_of(named.get(broker, UNKNOWN_INCARNATION))
        for broker in state.isr
        if broker != me and broker in state.replicas
    )


def others_with_log(state: PartitionState, me: BrokerId) -> tuple[BrokerId, ...]:
    """Return the members of the ISR, and the eligible replicas, besides this broker, if it is one of them; else none.

    Each of them had what is committed when the state was written, so an empty log has no place among them.
    """
    named = dict.fromkeys((*state.isr, *state.eligible))
    return tuple(broker for broker in named if broker != me) if me in named else ()


def state_without_proof(state: PartitionState, me: BrokerId) -> PartitionState | None:
    """Return the state after this broker has taken back that its log is whole (R11); None where the state does not mean
    its log.

    It leaves the partition to the others that had it, whether they live or not. Where it was the last member it stays
    one, without its incarnation: then no log is known to be whole, and the best one may be elected.
    """
    if others_with_log(state, me):
        return state_without_lost(state, me)
    if me not in state.incarnations and me not in state.eligible and state.leader != me:
        return None
    return replace(
        state,
        leader=NO_LEADER if state.leader == me else state.leader,
        incarnations={broker: which for broker, which in state.incarnations.items() if broker != me},
        eligible={broker: which for broker, which in state.eligible.items() if broker != me},
    )


def state_without_lost(state: PartitionState, me: BrokerId) -> PartitionState | None:
    """Return the state after this broker has left because it has no log any more; None where no other had one."""
    if not others_with_log(state, me):
        return None
    return replace(
        state,
        leader=NO_LEADER if state.leader == me else state.leader,
        isr=tuple(broker for broker in state.isr if broker != me),
        incarnations={broker: which for broker, which in state.incarnations.items() if broker != me},
        eligible={broker: which for broker, which in state.eligible.items() if broker != me},
    )
