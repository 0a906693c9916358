"""Why a partition has no leader, as a broker tells an administrator."""

from __future__ import annotations

import json

from spark_kafkalite.broker.requests.leaderless import why_leaderless
from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, PartitionState

ONE, TWO = BrokerId(1), BrokerId(2)
UNREAD = "what the replicas' logs have is not known: the registry does not answer this broker"


def test_without_the_registry_no_replica_is_said_not_to_have_reported() -> None:
    # Broker 1 is registered, and cannot prove its log; broker 2 is away.
    live = {1: BrokerInfo(ONE, "h", 1, None, BrokerEpoch(1), incarnation=Incarnation(5))}
    state = PartitionState(
        (ONE, TWO), leader_epoch=LeaderEpoch(3), isr=(ONE, TWO), incarnations={ONE: Incarnation(4), TWO: Incarnation(6)}
    )
    told = json.loads(
        why_leaderless(TopicPartition("t", 0), state, ClusterState(brokers=live), reads=None, recovers=True)
    )
    assert (told["reason"], told["remedy"]) == (UNREAD, "look again when the registry answers")
    assert told["losses"] == {"1": [UNREAD]}
    assert told["replicas"] == [{"broker": 1, "registered": True}, {"broker": 2, "registered": False}]
