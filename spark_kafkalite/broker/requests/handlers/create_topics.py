"""CreateTopics (key 19), versions 2 to 7: new topics, answered when their leaders serve.

v2  plain
v5  flexible; the answer shows partitions, replicas and settings
v6  may answer with a throttle error
v7  topic ids in the answer

-1 partitions and -1 replicas mean the broker's defaults (in every version, although clients before v4 do not know it).

The answer waits up to five seconds for leaders that are registered and still make the logs of the first thousand
partitions of each topic. Then it is a success: Apache Kafka does not wait for logs, and clients try again while a
partition is not led yet.

Each topic has its own outcome; only more partitions than ``max.partitions.per.request`` in all refuse every one of
them. ``validate_only`` checks without creating.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    KafkaError,
    NotController,
    RequestTimedOut,
    TopicAuthorizationFailed,
)
from spark_kafkalite.log.config_sources import describe_topic
from spark_kafkalite.log.topic_config import TOPIC_SETTINGS
from spark_kafkalite.registry.controller.controller import TopicSpec
from spark_kafkalite.registry.controller.placement import NO_PARTITIONS, NO_REPLICAS
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Work, counted, filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafkalite.wire.rights import refused

_Outcomes = dict[str, TopicAssignment | KafkaError]

_DEFAULT = -1


@handles(ApiKey.CREATE_TOPICS, 2, 7)
async def handle(context: BrokerContext, exchange: Exchange, message: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create those of the topics that the client may create."""
    if not exchange.has_limits:
        return await _create(context, exchange, message)
    # Here, because what is handed on comes from a broker.
    forbidden = await context.work(exchange, _taken_out(exchange, message))
    answer = CreateTopicsResponse()
    if message.topics or not forbidden:
        answer = await _create(context, exchange, message)
    await context.work(exchange, _configs_hidden(exchange, answer))
    refusal = refused(ResourceType.TOPIC)
    code, text = refusal.code, str(refusal)
    refusals = (CreatableTopicResult(name=name, error_code=code, error_message=text) for name in forbidden)
    await context.work(exchange, filled(answer.topics, refusals))
    return answer


def _taken_out(exchange: Exchange, message: CreateTopicsRequest) -> Work[list[str]]:
    """Take the topics that the client may not create out of the request, and return their names, each once."""
    if exchange.may(Operation.CREATE, ResourceType.CLUSTER, is_probe=True):
        return []
    message.topics, forbidden = yield from exchange.divided(Operation.CREATE, message.topics)
    return forbidden


def _configs_hidden(exchange: Exchange, answer: CreateTopicsResponse) -> Work[None]:
    """Hide size and settings of topics whose settings the client may not describe."""
    for topic in answer.topics:
        yield None
        if topic.error_code or exchange.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name, is_probe=True):
            continue
        topic.topic_config_error_code = TopicAuthorizationFailed.code
        topic.num_partitions = topic.replication_factor = -1
        topic.configs = []


async def _create(context: BrokerContext, exchange: Exchange, message: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics, here or at the controller."""
    until_s = context.loop.time() + max(message.timeout_ms, 0) / 1000
    try:
        answer: CreateTopicsResponse | None = await context.topics.controller_link.hand_on(
            message, exchange.api_version, _is_refused, exchange.session
        )
    except KafkaError as error:
        return await context.work(exchange, _all_failed(message, error))
    if answer is not None:
        if not message.validate_only:
            await context.work(exchange, _logged(exchange, answer))
            await context.work(exchange, _late(answer, await _not_shown(context, answer, until_s)))
        return answer
    names, wanted, outcomes = await context.work(exchange, _checked(context, message))
    outcomes |= await context.topics.create(
        list(wanted.values()), timeout_s=max(message.timeout_ms, 0) / 1000, validate_only=message.validate_only
    )
    answer = await context.work(exchange, _answer(context, names, wanted, outcomes))
    if not message.validate_only:
        await context.work(exchange, _logged(exchange, answer))
    return answer


def _logged(exchange: Exchange, answer: CreateTopicsResponse) -> Work[None]:
    for topic in answer.topics:
        if not topic.error_code:
            log_change(exchange, "topic %s has been created%s", topic.name, _size(topic))
        yield None


def _size(topic: CreatableTopicResult) -> str:
    if topic.num_partitions < 0:
        return ""  # an answer before version 5 does not have it
    return f" with {topic.num_partitions} partitions and {topic.replication_factor} replicas of each"


def _is_refused(answer: CreateTopicsResponse) -> bool:
    return any(topic.error_code == NotController.code for topic in answer.topics)


def _all_failed(message: CreateTopicsRequest, error: KafkaError) -> Work[CreateTopicsResponse]:
    answer = CreateTopicsResponse()
    for name in dict.fromkeys(topic.name for topic in message.topics):
        answer.topics.append(CreatableTopicResult(name=name, error_code=error.code, error_message=str(error)))
        yield None
    return answer


async def _not_shown(context: BrokerContext, answer: CreateTopicsResponse, until_s: float) -> set[str]:
    """Wait until this broker knows what the controller has created; return what it does not know in time."""
    created = [topic.name for topic in answer.topics if not topic.error_code]
    return await context.topics.wait_for_creation(created, until_s)


def _late(answer: CreateTopicsResponse, names: set[str]) -> Work[None]:
    for topic in answer.topics:
        if topic.name in names:
            late = RequestTimedOut(f"topic {topic.name} has been created, but this broker was not notified in time")
            topic.error_code, topic.error_message = late.code, str(late)
        yield None


def _checked(
    context: BrokerContext, message: CreateTopicsRequest
) -> Work[tuple[Iterable[str], dict[str, TopicSpec], _Outcomes]]:
    """Return the names, each once; the topics to create; and what is wrong with the others."""
    counts = yield from counted(topic.name for topic in message.topics)
    total = 0
    outcomes: _Outcomes = {}
    asked: list[CreatableTopic] = []
    for topic in message.topics:
        yield None
        if counts[topic.name] > 1:
            outcomes[topic.name] = InvalidRequest("Duplicate topic name.")
        else:
            asked.append(topic)
            total += _partitions_asked(context, topic)
    wanted: dict[str, TopicSpec] = {}
    try:
        context.topics.check_controller()
        # First: an assignment may be of millions of partitions.
        context.topics.check_size(total)
    except KafkaError as error:
        yield from filled(outcomes, ((topic.name, error) for topic in asked))
        asked = []
    for topic in asked:
        yield None
        try:
            wanted[topic.name] = _new_topic(context, topic)
        except KafkaError as error:
            outcomes[topic.name] = error.with_traceback(None)
    return counts, wanted, outcomes


def _answer(
    context: BrokerContext, names: Iterable[str], wanted: Mapping[str, TopicSpec], outcomes: _Outcomes
) -> Work[CreateTopicsResponse]:
    described = _Described(context)
    answer = CreateTopicsResponse()
    for name in names:
        answer.topics.append(_result(described, name, outcomes[name], wanted.get(name)))
        yield None
    return answer


def _partitions_asked(context: BrokerContext, topic: CreatableTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == _DEFAULT:
        return int(context.config["num.partitions"])
    return max(topic.num_partitions, 0)


def _new_topic(context: BrokerContext, topic: CreatableTopic) -> TopicSpec:
    """Check one topic of the request. Raises the errors that Kafka gives for it, in its words."""
    overrides: dict[str, str] = {}
    without_value = [setting.name for setting in topic.configs if setting.value is None]
    if without_value:
        raise InvalidConfig(f"Null value not supported for topic configs: {','.join(without_value)}")
    for setting in topic.configs:
        if setting.name not in TOPIC_SETTINGS:
            # Before the others are looked at: a request has room for millions.
            raise InvalidConfig(f"Unknown topic config name: {setting.name}{TOPIC_SETTINGS.hint(setting.name)}")
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
            assignment[part.partition_index] = part.broker_ids
        return TopicSpec(topic.name, assignment=assignment, config=overrides)
    partitions, replicas = topic.num_partitions, topic.replication_factor
    if partitions == _DEFAULT:
        partitions = context.config["num.partitions"]
    if replicas == _DEFAULT:
        replicas = context.config["default.replication.factor"]
    if replicas <= 0:
        raise InvalidReplicationFactor(f"{NO_REPLICAS} Topic {topic.name}: it is {replicas}.")
    if partitions <= 0:
        raise InvalidPartitions(f"{NO_PARTITIONS} Topic {topic.name}: it is {partitions}.")
    return TopicSpec(topic.name, partitions, replicas, config=overrides)


class _Described:
    """The settings of topics as the answer shows them, made once for all topics in a row that have the same."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._overrides: Mapping[str, str] | None = None
        self._shown: list[CreatableTopicConfigs] = []

    def of(self, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        if overrides != self._overrides:
            self._overrides = overrides
            self._shown = [
                CreatableTopicConfigs(name=one.setting.name, value=one.value, config_source=one.source)
                for one in describe_topic(overrides, self._config.layers, self._config.topic_defaults)
            ]
        return self._shown


def _result(
    described: _Described, name: str, outcome: TopicAssignment | KafkaError, topic: TopicSpec | None
) -> CreatableTopicResult:
    if isinstance(outcome, KafkaError):
        return CreatableTopicResult(name=name, error_code=outcome.code, error_message=str(outcome))
    return CreatableTopicResult(
        name=name,
        topic_id=outcome.topic_id,
        num_partitions=len(outcome.partitions),
        replication_factor=len(next(iter(outcome.partitions.values()), ())),
        configs=described.of({} if topic is None else topic.config),
    )
