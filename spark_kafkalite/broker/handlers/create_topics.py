"""CreateTopics (key 19), versions 2 to 7: new topics, answered when their leaders serve.

v2  plain
v5  flexible; the answer shows partitions, replicas and settings
v6  may answer with a throttle error
v7  topic ids in the answer

-1 partitions and -1 replicas mean the broker's defaults (in every version, although clients before v4 do not know it).

Each topic has its own outcome. ``validate_only`` checks without creating.
"""

from __future__ import annotations

from collections import Counter

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.dispatch import Request, handles
from spark_kafkalite.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaError,
)
from spark_kafkalite.log.config_sources import describe_topic
from spark_kafkalite.registry.controller import NewTopic
from spark_kafkalite.registry.placement import NO_PARTITIONS, NO_REPLICAS
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_DEFAULT = -1


@handles(19, 2, 7)
async def handle(context: BrokerContext, request: Request, message: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics."""
    counts = Counter(topic.name for topic in message.topics)
    outcomes: dict[str, TopicAssignment | KafkaError] = {}
    wanted: dict[str, NewTopic] = {}
    for topic in message.topics:
        if counts[topic.name] > 1:
            outcomes[topic.name] = InvalidRequest("Duplicate topic name.")
            continue
        try:
            context.topics.check_controller()
            wanted[topic.name] = _new_topic(context, topic)
        except KafkaError as error:
            outcomes[topic.name] = error
    outcomes |= await context.topics.create(
        list(wanted.values()), timeout_s=max(message.timeout_ms, 0) / 1000, validate_only=message.validate_only
    )
    return CreateTopicsResponse(topics=[_result(context, name, outcomes[name], wanted.get(name)) for name in counts])


def _new_topic(context: BrokerContext, topic: CreatableTopic) -> NewTopic:
    """Check what the request says about one topic. Raises the errors that Kafka gives for it, in its words."""
    overrides: dict[str, str] = {}
    without_value = [setting.name for setting in topic.configs if setting.value is None]
    if without_value:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(without_value)}")
    for setting in topic.configs:
        if setting.name in overrides:
            raise InvalidConfig(f"topic {topic.name}: the setting {setting.name} is given twice")
        overrides[setting.name] = setting.value or ""
    if topic.assignments:
        for what, count in (("replication factor", topic.replication_factor), ("numPartitions", topic.num_partitions)):
            if count != _DEFAULT:
                raise InvalidRequest(f"A manual partition assignment was specified, but {what} was not set to -1.")
        assignment: dict[int, list[int]] = {}
        for part in topic.assignments:
            if part.partition_index in assignment:
                raise InvalidReplicaAssignment(
                    f"Found multiple manual partition assignments for partition {part.partition_index}"
                )
            assignment[part.partition_index] = list(part.broker_ids)
        return NewTopic(topic.name, assignment=assignment, config=overrides)
    partitions, replicas = topic.num_partitions, topic.replication_factor
    if partitions == _DEFAULT:
        partitions = context.config["num.partitions"]
    if replicas == _DEFAULT:
        replicas = context.config["default.replication.factor"]
    if replicas <= 0:
        raise InvalidReplicationFactor(f"{NO_REPLICAS} Topic {topic.name}: it is {replicas}.")
    if partitions <= 0:
        raise InvalidPartitions(f"{NO_PARTITIONS} Topic {topic.name}: it is {partitions}.")
    return NewTopic(topic.name, partitions, replicas, config=overrides)


def _result(
    context: BrokerContext, name: str, outcome: TopicAssignment | KafkaError, topic: NewTopic | None
) -> CreatableTopicResult:
    if isinstance(outcome, KafkaError):
        return CreatableTopicResult(name=name, error_code=outcome.code, error_message=str(outcome))
    overrides = {} if topic is None else topic.config
    described = describe_topic(overrides, context.config.layers, context.config.topic_defaults)
    replicas = next(iter(outcome.partitions.values()), ())
    return CreatableTopicResult(
        name=name,
        topic_id=outcome.topic_id,
        num_partitions=len(outcome.partitions),
        replication_factor=len(replicas),
        configs=[
            CreatableTopicConfigs(name=one.setting.name, value=one.value, config_source=one.source) for one in described
        ],
    )
