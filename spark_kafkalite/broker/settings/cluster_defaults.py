"""Defaults of a broker whose registry is elsewhere, and what stands against the guarantee of a cluster.

The guarantee: a record that was acknowledged with acks=all is not lost with a broker. It takes three replicas, two of
which have each record that is acknowledged, and no leader without them. A broker by itself keeps Apache Kafka's
defaults, and so does a cluster that never had three brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from spark_kafkalite.registry.cluster.cluster_state import ClusterState

# Replicas of a topic, and how many of them must be in sync.
REPLICAS: Final = 3
MIN_IN_SYNC: Final = 2

# Groups wait until there are enough brokers for what they commit.
_ALWAYS: Final = {"offsets.topic.replication.factor": REPLICAS}
_OF_THREE: Final = {"default.replication.factor": REPLICAS, "min.insync.replicas": MIN_IN_SYNC}


def cluster_defaults(*, is_clustered: bool, has_three: bool) -> dict[str, Any]:
    """Return the defaults that differ from the declared ones."""
    return {**_ALWAYS, **(_OF_THREE if has_three else {})} if is_clustered else {}


def has_three_brokers(cluster: ClusterState, new_topics: Iterable[str]) -> bool:
    """Whether a cluster has three brokers, or had them when it made one of these topics."""
    if len(cluster.brokers) >= REPLICAS:
        return True
    made = (cluster.topics[name].partitions.values() for name in new_topics if name in cluster.topics)
    return any(len(partition.replicas) >= REPLICAS for partitions in made for partition in partitions)


def known_brokers(cluster: ClusterState) -> int:
    """Return how many brokers live or have replicas. One of three that is unavailable weakens nothing: what is
    acknowledged meanwhile is in the logs of the two others, or it is refused."""
    known: set[int] = set(cluster.brokers)
    for topic in cluster.topics.values():
        for partition in topic.partitions.values():
            known.update(partition.replicas)
    return len(known)


def weaknesses(values: Mapping[str, Any], broker_count: int) -> list[str]:
    """Return what of a cluster's size and of these settings lets acknowledged records be lost with a broker.

    ``broker_count`` are those that are known, whether they live or not.
    """
    found = []
    if broker_count < REPLICAS:
        # Which explains the defaults, too.
        found.append(f"the cluster has {broker_count} broker{'s' * (broker_count != 1)}, and {REPLICAS} are needed")
    for name, least in _OF_THREE.items():
        if values[name] < least and (broker_count >= REPLICAS or values[name] != 1):
            found.append(f"{name}={values[name]} is less than {least}")
    if values["unclean.leader.election.enable"]:
        found.append("unclean.leader.election.enable=true lets a replica lead that lacks records")
    if not values.get("high.watermark.requires.min.insync", True):
        found.append("high.watermark.requires.min.insync=false commits what too few replicas have")
    return found
