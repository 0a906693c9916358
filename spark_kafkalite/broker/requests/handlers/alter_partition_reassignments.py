"""AlterPartitionReassignments (key 45), versions 0 and 1: a move is UNSUPPORTED_VERSION, with the reason in its text.

v0  plain
v1  the client sets whether the number of replicas may change

A cancellation (null replicas) is NO_REASSIGNMENT_IN_PROGRESS, because none ever is. A move to the replicas that the
partition has, in their order, is no move: Apache Kafka, too, answers it without an error.
Source: KIP-455, org.apache.kafka.controller.ReplicationControlManager.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import NoReassignmentInProgress, UnknownTopicOrPartition, UnsupportedVersion
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from spark_kafkalite.wire.rights import refused

_NOT_BUILT = "Partitions cannot be moved to other brokers: reassignments are not supported by this broker"


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, is_off=True)
def handle(
    context: BrokerContext, exchange: Exchange, message: AlterPartitionReassignmentsRequest
) -> Work[AlterPartitionReassignmentsResponse]:
    """Answer for each partition."""
    if not exchange.may(Operation.ALTER, ResourceType.CLUSTER):
        refusal = refused(ResourceType.CLUSTER)
        return AlterPartitionReassignmentsResponse(error_code=refusal.code, error_message=str(refusal))
    answered = []
    for topic in message.topics:
        partitions = []
        for asked in topic.partitions:
            code, text = _outcome(context, topic.name, asked)
            partitions.append(
                ReassignablePartitionResponse(
                    partition_index=asked.partition_index, error_code=code, error_message=text
                )
            )
            yield None
        answered.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
        yield None
    return AlterPartitionReassignmentsResponse(responses=answered)


def _outcome(context: BrokerContext, topic: str, asked: ReassignablePartition) -> tuple[int, str | None]:
    """Return code and text for one partition; Kafka's words."""
    if topic not in context.cluster.topics:
        return UnknownTopicOrPartition.code, f"Unable to find a topic named {topic}."
    partition = context.cluster.partition(TopicPartition(topic, asked.partition_index))
    if partition is None:
        return UnknownTopicOrPartition.code, f"Unable to find partition {topic}:{asked.partition_index}."
    if asked.replicas is None:
        return NoReassignmentInProgress.code, None
    if tuple(asked.replicas) == tuple(partition.replicas):
        return 0, None
    return UnsupportedVersion.code, _NOT_BUILT
