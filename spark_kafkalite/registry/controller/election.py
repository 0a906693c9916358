"""Who may lead a partition. Pure: replicas, ISR and live brokers in, leader and ISR out.

======================================================  ==================================  ===========================
in-sync replicas that are live                          leader                              new ISR
======================================================  ==================================  ===========================
some have lived on since the state was written          first of these in replica order     all of these
only some that have restarted since then                the old leader, else the first      the leader alone
none, unclean election allowed, other replicas live     first live replica                  the leader alone
none otherwise                                          none (-1)                           as it was
======================================================  ==================================  ===========================

"Restarted" is seen by comparing zxids: the registration is younger than the state. A restarted broker may have lost the
end of its log, so it counts as in sync only when nobody else is; the others come back into the ISR by fetching. An ISR
without live members is kept: one of exactly these must lead next, or committed records would be lost.
Every election has a new leader epoch, one above the last.
Source: kafka.controller.Election of Apache Kafka 3.9, for the first and third row without restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.znodes import NO_LEADER


class Elected(NamedTuple):
    """The outcome of an election. ``leader`` is -1 when nobody can lead."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]


def needs_election(state: PartitionState, live: Mapping[int, BrokerInfo]) -> bool:
    """Whether the partition has no state yet, or no leader of the present incarnations.

    One whose state cannot be read needs somebody to repair it: an epoch that was in use must not be given again.
    """
    if state.unreadable or state.epochs_are_used_up:
        return False
    leader = live.get(state.leader)
    return not state.has_state or leader is None or not state.is_led_by(leader)


def elect(state: PartitionState, live: Mapping[int, BrokerInfo], *, unclean: bool = False) -> Elected:
    """Return the leader and ISR that the table above gives; for a partition without state, of its live replicas."""
    if not state.has_state:
        starters = tuple(replica for replica in state.replicas if replica in live)
        return Elected(starters[0], starters) if starters else Elected(NO_LEADER, state.replicas)
    in_order = [replica for replica in state.replicas if replica in state.isr and replica in live]
    steady = tuple(replica for replica in in_order if live[replica].epoch < state.modified_zxid)
    if steady:
        return Elected(steady[0], steady)
    if in_order:
        leader = state.leader if state.leader in in_order else in_order[0]
        return Elected(leader, (leader,))
    if unclean:
        for replica in state.replicas:
            if replica in live:
                return Elected(replica, (replica,))
    return Elected(NO_LEADER, state.isr)
