"""AlterPartitionReassignments (key 45), versions 0 and 1: partitions move to other brokers.

v0  plain
v1  the client sets whether the number of replicas may change

A partition's new replicas begin a reassignment, or replace the one in progress; null cancels it. Each partition has its
own outcome; it is answered when the registry has it, long before the partition has moved. A move to the replicas that
the partition has, in their order, is no move. The controller decides (``registry.controller.reassignment``); any other
broker hands the request on to it.
Source: KIP-455, org.apache.kafka.controller.ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import MOST_NAMED, log_change, some_of
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidReplicaAssignment, KafkaError, NotController
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.controller.controller import AskedMove
from spark_kafkalite.slices import Work, filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

# More replicas of one partition are refused before anything is looked up.
_MOST_REPLICAS = 1_000


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1)
async def handle(
    context: BrokerContext, exchange: Exchange, message: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Change reassignments, here or at the controller."""
    allows = message.allow_replication_factor_change
    try:
        exchange.require(Operation.ALTER, ResourceType.CLUSTER)
        answer: AlterPartitionReassignmentsResponse | None = await context.topics.controller_link.hand_on(
            message, exchange.api_version, _is_refused, exchange.session
        )
        if answer is not None:
            await context.work(exchange, _logged(exchange, _accepted_by_controller(answer)))
            return answer
        asked, outcomes = await context.work(exchange, _asked(message))
        outcomes |= await context.topics.reassign(
            asked, timeout_s=max(message.timeout_ms, 0) / 1000, allows_other_factor=allows
        )
    except KafkaError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.code, error_message=str(error), allow_replication_factor_change=allows
        )
    accepted = (key for key, error in outcomes.items() if error is None)
    await context.work(exchange, _logged(exchange, accepted))
    made = await context.work(exchange, _answer(message, outcomes))
    made.allow_replication_factor_change = allows
    return made


def _is_refused(answer: AlterPartitionReassignmentsResponse) -> bool:
    return answer.error_code == NotController.code or any(
        part.error_code == NotController.code for topic in answer.responses for part in topic.partitions
    )


def _asked(
    message: AlterPartitionReassignmentsRequest,
) -> Work[tuple[list[AskedMove], dict[TopicPartition, KafkaError | None]]]:
    """Return what is to be done, and what is wrong with the rest."""
    asked: dict[TopicPartition, AskedMove] = {}
    wrong: dict[TopicPartition, KafkaError | None] = {}
    for topic in message.topics:
        for part in topic.partitions:
            yield None
            key = TopicPartition(topic.name, part.partition_index)
            if key in asked:
                wrong[key] = InvalidReplicaAssignment("the request names the partition twice")
            elif part.replicas is not None and len(part.replicas) > _MOST_REPLICAS:
                wrong[key] = InvalidReplicaAssignment(f"{len(part.replicas)} replicas; {_MOST_REPLICAS} are the most")
            else:
                asked[key] = AskedMove(key, None if part.replicas is None else tuple(part.replicas))
    listed: list[AskedMove] = yield from filled([], (each for key, each in asked.items() if key not in wrong))
    return listed, wrong


def _answer(
    message: AlterPartitionReassignmentsRequest, outcomes: dict[TopicPartition, KafkaError | None]
) -> Work[AlterPartitionReassignmentsResponse]:
    answered = []
    for topic in message.topics:
        partitions = []
        for part in topic.partitions:
            error = outcomes.get(TopicPartition(topic.name, part.partition_index))
            partitions.append(
                ReassignablePartitionResponse(
                    partition_index=part.partition_index,
                    error_code=0 if error is None else error.code,
                    error_message=None if error is None else str(error),
                )
            )
            yield None
        answered.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return AlterPartitionReassignmentsResponse(responses=answered)


def _accepted_by_controller(answer: AlterPartitionReassignmentsResponse) -> Iterator[TopicPartition]:
    for topic in answer.responses:
        for part in topic.partitions:
            if not part.error_code:
                yield TopicPartition(topic.name, part.partition_index)


def _logged(exchange: Exchange, accepted: Iterator[TopicPartition]) -> Work[None]:
    """Write of which partitions the replicas were asked to be others, or a reassignment to end."""
    named: list[TopicPartition] = []
    count = 0
    for key in accepted:
        yield None
        count += 1
        if count <= MOST_NAMED:
            named.append(key)
    if count:
        log_change(exchange, "reassignments of %d partitions have been changed: %s", count, some_of(named, count))
