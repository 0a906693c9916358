"""ListPartitionReassignments (key 46), version 0: the reassignments in progress, of the partitions asked for or of all.

A partition that does not exist, or is not being moved, is left out. The answer is what this broker knows.
Source: KIP-455.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import ClusterAuthorizationFailed
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0)
def handle(
    context: BrokerContext, exchange: Exchange, message: ListPartitionReassignmentsRequest
) -> Work[ListPartitionReassignmentsResponse]:
    """Answer with what is in progress."""
    if not exchange.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return ListPartitionReassignmentsResponse(error_code=ClusterAuthorizationFailed.code)
    cluster = context.cluster
    found: dict[str, set[int]] = {}
    for name, numbers in _wanted(cluster, message.topics):
        yield None
        topic = cluster.topics.get(name)
        if topic is not None and topic.moving:
            # The fewer of the two are looked at: a request may name the same partition very often.
            found.setdefault(name, set()).update(topic.moving.intersection(numbers))
    topics = []
    for name, moving in found.items():
        partitions = []
        for number in sorted(moving):
            yield None
            state = cluster.topics[name].partitions[number]
            partitions.append(
                OngoingPartitionReassignment(
                    partition_index=number,
                    replicas=list(state.all_listed),
                    adding_replicas=list(state.adding),
                    removing_replicas=list(state.removing),
                )
            )
        if partitions:
            topics.append(OngoingTopicReassignment(name=name, partitions=partitions))
    return ListPartitionReassignmentsResponse(topics=topics)


def _wanted(
    cluster: ClusterState, asked: Iterable[ListPartitionReassignmentsTopics] | None
) -> Iterable[tuple[str, Iterable[int]]]:
    if asked is None:
        return ((name, topic.moving) for name, topic in cluster.topics.items())
    return ((each.name, each.partition_indexes) for each in asked)
