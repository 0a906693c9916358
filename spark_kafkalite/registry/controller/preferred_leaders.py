"""Which partitions' leaders go back to the preferred replicas by themselves. Pure.

The preferred replica of a partition is the first one. A broker whose replicas are preferred, and which does not lead
more than ``percentage`` of these partitions, is out of balance. Then each of its partitions that it may lead is elected
again (``election.elect_preferred``): the broker is live, in sync, and its log is whole. A broker that stops leaves the
ISRs before it ends, so it gets nothing back. Partitions that are being reassigned are left alone.
Source: kafka.controller.KafkaController.checkAndTriggerAutoLeaderRebalance of Apache Kafka 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.controller.election import elect_preferred, needs_election
from spark_kafkalite.slices import Work


@dataclass(frozen=True, slots=True)
class LeaderBalance:
    """When the controller looks for brokers that are out of balance: every ``interval_s``. ``percentage`` is the share
    of its preferred partitions, in percent, that a broker may leave to others."""

    interval_s: float
    percentage: int


@dataclass(slots=True)
class _Preferred:
    """The partitions that prefer one broker: how many, and those that it does not lead and could."""

    count: int = 0
    led_by_others: int = 0
    electable: list[TopicPartition] = field(default_factory=list)


def out_of_balance(cluster: ClusterState, percentage: int) -> Work[dict[BrokerId, list[TopicPartition]]]:
    """Return the partitions that are to be led by their preferred replica again, by this broker."""
    found: dict[BrokerId, _Preferred] = {}
    for name, topic in cluster.topics.items():
        for number, partition in topic.partitions.items():
            yield None
            if not partition.has_state or partition.unreadable or partition.is_moving:
                continue
            first = partition.replicas[0]
            of_broker = found.setdefault(first, _Preferred())
            of_broker.count += 1
            if partition.leader == first:
                continue
            of_broker.led_by_others += 1
            # The others get a leader anyway, or have none that may lead.
            if not needs_election(partition, cluster.brokers) and elect_preferred(partition, cluster.brokers):
                of_broker.electable.append(TopicPartition(name, number))
    return {
        broker: each.electable
        for broker, each in sorted(found.items())
        if each.electable and each.led_by_others * 100 > percentage * each.count
    }
