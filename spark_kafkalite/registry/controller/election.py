"""Which replica may lead a partition. Pure: its state and the live brokers in, the next state out.

A replica's log is *whole* when the broker that is registered now has all that the named incarnation of it had written
(``BrokerInfo.has_log_of``, rules R11 and R12). Only a whole log may lead: every other one may lack acknowledged
records, and the leader makes the others cut off what they have beyond it.

============================================  =============================  ==========================================
live replicas                                 leader                         in-sync replicas under the new epoch
============================================  =============================  ==========================================
members of the ISR with whole logs            the first of them (below)      all of these
none, but eligible ones with whole logs       the first in replica order     the leader alone
none, but the only replica there is           that one                       the leader alone
none, but a log that has all (``recovery``)   the best log (``best_log``)    the leader alone
none, unclean election asked for              the best log (``best_log``)    the leader alone
none otherwise                                none (-1)                      as they were
============================================  =============================  ==========================================

Of the ISR, the members that still run as the state names them come before those that were started again, each in
replica order. What a restarted broker has lost of the end of a file, the others have.

Members of the ISR that are dead, or whose logs are not whole, leave it with an election; they come back by fetching. An
ISR without any whole log is kept: one of exactly these must lead next, or acknowledged records would be lost.

*Eligible* are replicas that left the ISR while it was smaller than ``min.insync.replicas`` (rule R16, KIP-966). The
high watermark stands still then, so each of them has all that has been acknowledged to all in-sync replicas. They are
forgotten when the ISR is large enough again, because the high watermark moves on from there.

The only replica of a partition leads whatever became of its log: no other replica has more, and a broker on its own
must go on after a power loss. It must be in the ISR: a replica list that was changed by hand names no log that exists.
With several replicas an empty disk never leads, not even alone in the ISR. A state that names no incarnations (a broker
of an earlier version wrote it) proves nothing about any replica.

An unclean election takes the best log of those that brokers have reported (``best_log``). Brokers that name no
incarnation lead nothing.

A partition that the controller is creating has no state yet: all its live replicas are in sync. Where the state is
missing otherwise, the controller makes one that names no replica (:func:`state_that_names_nobody`). The logs then
decide which replica leads, as after a power loss (``recovery``).

Every election has a new leader epoch, one above the last; after a state that names no replica, one above those of the
logs. Source: kafka.controller.Election of Apache Kafka 3.9; KIP-966 for eligible replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, ControllerEpoch, Incarnation, LeaderEpoch
from spark_kafkalite.registry.accepted_damage import AcceptedDamage
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller.best_log import Logs, best_log
from spark_kafkalite.registry.node_json import NO_FIELDS
from spark_kafkalite.registry.report_nodes import OFFLINE
from spark_kafkalite.registry.znodes import MAX_EPOCH, NO_LEADER, LeaderAndIsr

Incarnations = Mapping[BrokerId, Incarnation]
# How far the leader epoch of a log that nobody knows may be above those of the others.
_SKIPPED_EPOCHS: Final = 1_000


class Elected(NamedTuple):
    """The outcome of an election. ``leader`` is -1 when no replica can lead.

    The ISR is empty then if there is no state yet, and none should be made.
    """

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    incarnations: Incarnations
    eligible: Incarnations

    def as_node(
        self, leader_epoch: int, controller_epoch: ControllerEpoch, unknown: Mapping[str, Any] = NO_FIELDS
    ) -> LeaderAndIsr:
        """Return what the partition's state node is to hold; ``unknown`` are the fields that it has besides."""
        return LeaderAndIsr(
            self.leader,
            LeaderEpoch(leader_epoch),
            self.isr,
            controller_epoch,
            self.incarnations,
            self.eligible,
            unknown,
        )


def needs_election(state: PartitionState, live: Mapping[int, BrokerInfo]) -> bool:
    """Whether the partition has no state yet, or no leader that may act on its state.

    A partition whose state cannot be read needs an operator to repair it: a used epoch must not be given again.
    """
    if state.unreadable or state.epochs_are_used_up:
        return False
    leader = live.get(state.leader)
    return not state.has_state or leader is None or not state.is_led_by(leader)


def elect(
    state: PartitionState,
    live: Mapping[int, BrokerInfo],
    *,
    min_insync: int = 1,
    unclean: bool = False,
    logs: Logs | None = None,
) -> Elected:
    """Return what the table above gives; for a partition without a state, its live replicas are in sync.

    ``min_insync``: with how many in-sync replicas the topic's high watermark moves. ``logs``: the reports that count,
    for an unclean election.
    """
    if not state.has_state:
        starters = [replica for replica in state.replicas if _incarnation(replica, live) != UNKNOWN_INCARNATION]
        return _led_by(starters, live) if starters else _by_nobody(state)
    whole = _in_sync_and_whole(state, live)
    if not whole:
        whole = [each for each in state.replicas if _is_whole(each, state.eligible, live)][:1]
    if whole:
        return _led_by(whole, live, _still_eligible(state, live, whole, min_insync))
    if state.replicas == state.isr and len(state.isr) == 1:
        unclean = True
    if unclean:
        last_resort = best_log(state, live, logs or {})
        if last_resort is not None:
            return _led_by([last_resort], live)
    return _by_nobody(state)


def elect_preferred(state: PartitionState, live: Mapping[int, BrokerInfo], *, min_insync: int = 1) -> Elected | None:
    """Return the election of the first replica, None when it must not lead (not live, not in sync, log not whole)."""
    whole = _in_sync_and_whole(state, live)
    if not whole or whole[0] != state.replicas[0]:
        return None
    return _led_by(whole, live, _still_eligible(state, live, whole, min_insync))


def elect_this(state: PartitionState, live: Mapping[int, BrokerInfo], broker: BrokerId) -> Elected | None:
    """Return the election of one replica, whatever its log has; None when it is no replica, or cannot lead now."""
    if broker not in state.replicas or _incarnation(broker, live) == UNKNOWN_INCARNATION:
        return None
    return _led_by([broker], live)


def state_that_names_nobody(state: PartitionState, controller_epoch: ControllerEpoch) -> PartitionState:
    """Return the state to be made where there is none, with what is known of the deleted one.

    The ISR is not taken from that: it may have changed between the last read and the deletion.
    """
    former = state.former
    return replace(
        state,
        leader_epoch=LeaderEpoch(0) if former is None else former.leader_epoch,
        controller_epoch=controller_epoch,
        former=None,
        unknown=NO_FIELDS if former is None else former.unknown,
        accepted_damage=None if former is None else former.accepted_damage,
        removed=() if former is None else former.removed,
        unclean_epoch=-1 if former is None else former.unclean_epoch,
    )


def next_epoch(state: PartitionState, logs: Logs) -> LeaderEpoch:
    """Return the leader epoch of the election that follows a state: ``logs`` are the reports that count.

    A state that names no replica may be older than the logs. One epoch is one leader's, so the next one is above that
    of every log, and far above them where that of a replica is not known.
    """
    last = int(state.leader_epoch)
    if state.names_nobody:
        last = max([last, *(max(report.leader_epoch, report.last_epoch) for report in logs.values())])
        if any(each not in logs or logs[each].gone == OFFLINE for each in state.replicas):
            last += _SKIPPED_EPOCHS
    return LeaderEpoch(min(last + 1, MAX_EPOCH))


def kept_acceptance(state: PartitionState, leader: BrokerId, live: Mapping[int, BrokerInfo]) -> AcceptedDamage | None:
    """Return what stays accepted of the state's damage when ``leader`` (-1: none) is elected: nothing, unless it has
    the log that was meant."""
    accepted = state.accepted_damage
    if accepted is None or leader == NO_LEADER or live[leader].has_log_of(accepted.incarnation):
        return accepted
    return None


def may_lose(state: PartitionState, leader: BrokerId, live: Mapping[int, BrokerInfo]) -> bool:
    """Return whether the election of ``leader`` (-1: none) may give up committed records that another replica has: no
    log that the state names is known to be whole, and it is not the only one."""
    if leader == NO_LEADER or not state.has_state or len(state.replicas) == 1:
        return False
    return not (state.is_member(live[leader]) or state.is_eligible(live[leader]))


def why_leaderless(state: PartitionState, live: Mapping[int, BrokerInfo]) -> str:
    """Return what keeps the replicas that may lead from it."""
    reasons = []
    for replica in state.replicas:
        if replica not in state.isr and replica not in state.eligible:
            continue
        broker = live.get(replica)
        if broker is None:
            reasons.append(f"broker {replica} is not registered")
        elif broker.incarnation == UNKNOWN_INCARNATION:
            reasons.append(f"broker {replica} has registered without an incarnation")
        else:
            reasons.append(f"broker {replica} has not proven that its log is whole")
    return ", ".join(reasons) or "none of its replicas was in sync"


def kept_eligible(
    before: Incarnations, left: Incarnations, isr: Collection[BrokerId], replicas: Collection[BrokerId], min_insync: int
) -> dict[BrokerId, Incarnation]:
    """Return the eligible replicas after a change of the ISR to ``isr`` (rule R16).

    ``before`` were eligible until now, and ``left`` leave the ISR with the change, each with its incarnation. A leader
    whose state names eligible replicas must not move the high watermark before a state without them is confirmed.
    """
    if len(isr) >= min(min_insync, len(replicas)):
        return {}
    return {
        replica: incarnation
        for replica, incarnation in {**before, **left}.items()
        if replica in replicas and replica not in isr and incarnation != UNKNOWN_INCARNATION
    }


def _led_by(in_sync: list[BrokerId], live: Mapping[int, BrokerInfo], eligible: Incarnations | None = None) -> Elected:
    return Elected(in_sync[0], tuple(in_sync), {each: live[each].incarnation for each in in_sync}, eligible or {})


def _by_nobody(state: PartitionState) -> Elected:
    return Elected(NO_LEADER, state.isr, state.incarnations, state.eligible)


def _in_sync_and_whole(state: PartitionState, live: Mapping[int, BrokerInfo]) -> list[BrokerId]:
    """Return the members of the ISR whose logs are whole, in replica order; those that were started again come last."""
    whole = [each for each in state.replicas if each in state.isr and _is_whole(each, state.incarnations, live)]
    return sorted(whole, key=lambda each: live[each].incarnation != state.incarnations[each])


def _is_whole(replica: BrokerId, named: Incarnations, live: Mapping[int, BrokerInfo]) -> bool:
    broker = live.get(replica)
    return broker is not None and broker.has_log_of(named.get(replica, UNKNOWN_INCARNATION))


def _incarnation(replica: BrokerId, live: Mapping[int, BrokerInfo]) -> Incarnation:
    broker = live.get(replica)
    return UNKNOWN_INCARNATION if broker is None else broker.incarnation


def _still_eligible(
    state: PartitionState, live: Mapping[int, BrokerInfo], isr: list[BrokerId], min_insync: int
) -> dict[BrokerId, Incarnation]:
    left = {each: state.incarnations.get(each, UNKNOWN_INCARNATION) for each in state.isr if each not in isr}
    # Of a partition that is being moved, the replicas that come do not count yet (rule V7).
    kept = kept_eligible(state.eligible, left, isr, state.replicas, min(min_insync, state.settled_count))
    found = {}
    for replica, incarnation in kept.items():
        broker = live.get(replica)
        if broker is None:
            found[replica] = incarnation
        elif broker.has_log_of(incarnation):
            # By its present name: proofs reach back only so far.
            found[replica] = broker.incarnation
        # Who is here without that log will never have it again.
    return found
