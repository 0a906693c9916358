"""CreatePartitions (key 37), versions 0 to 3: more partitions for topics that exist, answered when their leaders serve.

v0  plain
v2  flexible
v3  may answer with a throttle error

``count`` is the number of partitions afterwards; an assignment, when there is one, names the replicas of the new ones.

The brokers' own topics keep the number they were made with: groups are spread over partitions by their ids, and would
not find their offsets again.
"""

from __future__ import annotations

from collections import Counter

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.dispatch import Request, handles
from spark_kafkalite.errors import InvalidRequest, InvalidTopic, KafkaError
from spark_kafkalite.model import INTERNAL_TOPICS
from spark_kafkalite.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


@handles(37, 0, 3)
async def handle(
    context: BrokerContext, request: Request, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Extend topics, one after the other; each has its own outcome."""
    counts = Counter(topic.name for topic in message.topics)
    results = []
    for name, topic in {topic.name: topic for topic in message.topics}.items():
        try:
            if counts[name] > 1:
                raise InvalidRequest("Duplicate topic name.")
            await _extend(context, message, topic)
            results.append(CreatePartitionsTopicResult(name=name))
        except KafkaError as error:
            results.append(CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=str(error)))
    return CreatePartitionsResponse(results=results)


async def _extend(context: BrokerContext, message: CreatePartitionsRequest, topic: CreatePartitionsTopic) -> None:
    context.topics.check_controller()
    if topic.name in INTERNAL_TOPICS:
        raise InvalidTopic(f"{topic.name} is the brokers' own; what is in it would not be found again")
    assignment = None
    if topic.assignments is not None:
        assignment = [list(part.broker_ids) for part in topic.assignments]
    await context.topics.add_partitions(
        topic.name,
        topic.count,
        assignment,
        timeout_s=max(message.timeout_ms, 0) / 1000,
        validate_only=message.validate_only,
    )
