"""CreateTopics (key 19), versions 2 to 7: new topics, answered when their leaders serve.

v2  plain
v4  -1 partitions and replicas mean the broker's defaults
v5  flexible; the answer shows partitions, replicas and settings
v6  may answer with a throttle error
v7  topic ids in the answer

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
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_DEFAULT = -1
_FIRST_VERSION_WITH_DEFAULTS = 4


@handles(19, 2, 7)
async def handle(context: BrokerContext, request: Request, message: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics."""
    counts = Counter(topic.name for topic in message.topics)
    outcomes: dict[str, TopicAssignment | KafkaError] = {}
    wanted: dict[str, NewTopic] = {}
    for topic in message.topics:
        if counts[topic.name] > 1:
            outcomes[topic.name] = InvalidRequest(f"the request names topic {topic.name} {counts[topic.name]} times")
            continue
        try:
            context.topics.check_controller()
            wanted[topic.name] = _new_topic(context, request, topic)
        except KafkaError as error:
            outcomes[topic.name] = error
    outcomes |= await context.topics.create(
        list(wanted.values()), timeout_s=max(message.timeout_ms, 0) / 1000, validate_only=message.validate_only
    )
    return CreateTopicsResponse(topics=[_result(context, name, outcomes[name], wanted.get(name)) for name in counts])


def _new_topic(context: BrokerContext, request: Request, topic: CreatableTopic) -> NewTopic:
    """Check what the request says about one topic. Raises the errors that Kafka gives for it."""
    overrides: dict[str, str] = {}
    for setting in topic.configs:
        if setting.value is None:
            raise InvalidConfig(f"topic {topic.name}: the setting {setting.name} has no value")
        if setting.name in overrides:
            raise InvalidConfig(f"topic {topic.name}: the setting {setting.name} is given twice")
        overrides[setting.name] = setting.value
    if topic.assignments:
        if topic.num_partitions != _DEFAULT or topic.replication_factor != _DEFAULT:
            raise InvalidRequest(
                f"topic {topic.name}: with an assignment of replicas, partitions and replication factor must be -1"
            )
        assignment = {part.partition_index: list(part.broker_ids) for part in topic.assignments}
        if len(assignment) != len(topic.assignments):
            raise InvalidReplicaAssignment(f"topic {topic.name}: the assignment names a partition twice")
        return NewTopic(topic.name, assignment=assignment, config=overrides)
    defaults = request.api_version >= _FIRST_VERSION_WITH_DEFAULTS
    partitions, replicas = topic.num_partitions, topic.replication_factor
    if partitions == _DEFAULT and defaults:
        partitions = context.config["num.partitions"]
    if replicas == _DEFAULT and defaults:
        replicas = context.config["default.replication.factor"]
    if partitions <= 0:
        raise InvalidPartitions(f"topic {topic.name}: {partitions} partitions; at least one is needed")
    if replicas <= 0:
        raise InvalidReplicationFactor(f"topic {topic.name}: replication factor {replicas}; at least 1 is needed")
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
