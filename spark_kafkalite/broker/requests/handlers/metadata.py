"""Metadata (key 3), versions 0 to 12: brokers, topics and leaders. Any broker answers for the whole cluster.

v0   no topics named means all topics
v1   a null list means all topics, an empty one none
v4   the client chooses whether missing topics may be created; before, they always may
v5   offline replicas
v7   leader epochs
v8   authorized operations
v9   flexible
v10  topic ids in the answer
v12  topics may be asked for by id alone

A missing topic is created if client and broker allow it, never for "all topics". Creation takes milliseconds, so the
answer waits for it; when that takes too long the topic is answered with LEADER_NOT_AVAILABLE and the client asks again.

A topic that the client may not describe is left out of "all topics". One that is asked for by name is answered with
TOPIC_AUTHORIZATION_FAILED, whether it exists or not; so is one that does not exist and that the client may not create.
"""

from __future__ import annotations

from collections.abc import Container, Coroutine, Iterable, Sequence
from typing import Any

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.authorized_operations import cluster_operations
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import (
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    ListenerNotFound,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition, topic_name_problem
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, TopicState
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.message import ZERO_UUID
from spark_kafkalite.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_FIRST_VERSION_WITH_CHOICE = 4
_FIRST_VERSION_BY_ID = 12
_FIRST_VERSION_WITH_IDS = 10
_FIRST_VERSION_WITH_LISTENER_ERROR = 6
# Topics of a request that are looked for in one go.
_LOOKED_UP_AT_ONCE = 1000


@handles(ApiKey.METADATA, 0, 12)
def handle(
    context: BrokerContext, exchange: Exchange, message: MetadataRequest
) -> Work[MetadataResponse] | Coroutine[Any, Any, MetadataResponse]:
    """Describe brokers and topics: at once, unless topics may have to be created first."""
    if _may_be_created(context, exchange, message):
        return _when_created(context, exchange, message)
    return _answer(context, exchange, message)


async def _when_created(context: BrokerContext, exchange: Exchange, message: MetadataRequest) -> MetadataResponse:
    forbidden = await _create_missing(context, exchange, message)
    return await context.work(exchange, _answer(context, exchange, message, forbidden))


def _answer(
    context: BrokerContext, exchange: Exchange, message: MetadataRequest, forbidden: Container[str] = ()
) -> Work[MetadataResponse]:
    cluster = context.cluster
    answer = MetadataResponse(cluster_id=cluster.cluster_id or None, controller_id=cluster.controller_id)
    for broker in cluster.brokers.values():
        address = context.address_of(broker, exchange.session)
        if address is None:
            continue
        host, port = address
        answer.brokers.append(MetadataResponseBroker(node_id=broker.broker_id, host=host, port=port, rack=broker.rack))
    if message.topics is None or (exchange.api_version == 0 and not message.topics):
        described = _all_described(context, exchange, cluster)
    else:
        described = _each_answered(context, exchange, cluster, message.topics, forbidden)
    answer.topics = yield from described
    if len(answer.brokers) < len(cluster.brokers):
        reachable = {broker.node_id for broker in answer.brokers}
        yield from _hide_leaders(answer.topics, reachable, exchange.api_version)
    if message.include_topic_authorized_operations:
        yield from _with_operations(exchange, answer.topics)
    if message.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = cluster_operations(exchange, is_asked=True)
    return answer


def _may_be_created(context: BrokerContext, exchange: Exchange, message: MetadataRequest) -> bool:
    """Whether the client allows topics to be created, and names one that does not exist, or more than are looked up
    at once."""
    if exchange.api_version >= _FIRST_VERSION_WITH_CHOICE and not message.allow_auto_topic_creation:
        return False
    named, known = message.topics or (), context.cluster.topics
    return len(named) > _LOOKED_UP_AT_ONCE or any(each.name is not None and each.name not in known for each in named)


async def _create_missing(context: BrokerContext, exchange: Exchange, message: MetadataRequest) -> Container[str]:
    """Create missing topics; return those that the client may see, and not create."""
    names: Iterable[str] = (topic.name for topic in message.topics or () if topic.name is not None)
    forbidden: Container[str] = ()
    if exchange.has_limits:
        if not context.config["auto.create.topics.enable"]:
            return ()
        names, forbidden = await context.work(exchange, _creatable(context, exchange, names))
    await context.topics.create_automatically(
        names, lambda name: log_change(exchange, "topic %s has been created automatically", name)
    )
    return forbidden


def _creatable(
    context: BrokerContext, exchange: Exchange, names: Iterable[str]
) -> Work[tuple[list[str], dict[str, None]]]:
    """Return which of the topics that do not exist the client may create, and which it may not."""
    creatable: list[str] = []
    forbidden: dict[str, None] = {}
    for name in names:
        yield None
        if not exchange.may(Operation.DESCRIBE, ResourceType.TOPIC, name, is_probe=True):
            continue
        if name in context.cluster.topics or topic_name_problem(name) is not None:
            continue
        if exchange.may(Operation.CREATE, ResourceType.CLUSTER, is_probe=True) or exchange.may(
            Operation.CREATE, ResourceType.TOPIC, name
        ):
            creatable.append(name)
        else:
            forbidden[name] = None
    return creatable, forbidden


def _with_operations(exchange: Exchange, topics: Sequence[MetadataResponseTopic]) -> Work[None]:
    for topic in topics:
        yield None
        if topic.name is not None and topic.error_code != TopicAuthorizationFailed.code:
            topic.topic_authorized_operations = exchange.operations_on(ResourceType.TOPIC, topic.name)


def _hide_leaders(topics: Sequence[MetadataResponseTopic], reachable: Container[int], version: int) -> Work[None]:
    """Name no leader that has no listener for this client. Source: MetadataCache.getPartitionMetadata."""
    error = ListenerNotFound if version >= _FIRST_VERSION_WITH_LISTENER_ERROR else LeaderNotAvailable
    for topic in topics:
        for partition in topic.partitions:
            yield None
            if partition.leader_id >= 0 and partition.leader_id not in reachable:
                partition.leader_id, partition.error_code = -1, error.code


def _all_described(
    context: BrokerContext, exchange: Exchange, cluster: ClusterState
) -> Work[list[MetadataResponseTopic]]:
    topics = []
    for name, topic in cluster.topics.items():
        if not exchange.may(Operation.DESCRIBE, ResourceType.TOPIC, name, is_probe=True):
            yield None
            continue
        topics.append((yield from _described(context, cluster, name, topic)))
    return topics


def _each_answered(
    context: BrokerContext,
    exchange: Exchange,
    cluster: ClusterState,
    asked: Sequence[MetadataRequestTopic],
    forbidden: Container[str],
) -> Work[list[MetadataResponseTopic]]:
    """Answer what is asked for, each name and id once: a short request must not make a long answer."""
    mixed = any(topic.name is None for topic in asked) and any(topic.name is not None for topic in asked)
    answers: dict[object, MetadataResponseTopic] = {}
    for topic in asked:
        yield None
        key = topic.topic_id if topic.name is None else topic.name
        if key not in answers:
            answers[key] = yield from _answered(context, exchange, cluster, topic, mixed, forbidden)
    return list(answers.values())


def _answered(
    context: BrokerContext,
    exchange: Exchange,
    cluster: ClusterState,
    asked: MetadataRequestTopic,
    mixed: bool,
    forbidden: Container[str],
) -> Work[MetadataResponseTopic]:
    """Describe one topic that was asked for by name or id."""
    # A null name can only be written from the version on that may ask by id.
    shown = asked.name if exchange.api_version >= _FIRST_VERSION_BY_ID else asked.name or ""
    if mixed or (asked.name is None and exchange.api_version < _FIRST_VERSION_BY_ID):
        return MetadataResponseTopic(error_code=InvalidRequest.code, name=shown, topic_id=asked.topic_id)
    if asked.name is None:
        name = cluster.topic_name(asked.topic_id) if asked.topic_id != ZERO_UUID else None
        if name is None:
            return MetadataResponseTopic(error_code=UnknownTopicId.code, name=None, topic_id=asked.topic_id)
        if not exchange.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return MetadataResponseTopic(error_code=TopicAuthorizationFailed.code, name=None, topic_id=asked.topic_id)
        return (yield from _described(context, cluster, name, cluster.topics[name]))
    # Before anything is looked up: an answer that says whether the topic exists is for those that may describe it.
    if not exchange.may(Operation.DESCRIBE, ResourceType.TOPIC, asked.name):
        return MetadataResponseTopic(error_code=TopicAuthorizationFailed.code, name=asked.name)
    topic = cluster.topics.get(asked.name)
    if topic is not None:
        return (yield from _described(context, cluster, asked.name, topic))
    if asked.name in forbidden:
        return MetadataResponseTopic(error_code=TopicAuthorizationFailed.code, name=asked.name)
    code = InvalidTopic.code if topic_name_problem(asked.name) else UnknownTopicOrPartition.code
    return MetadataResponseTopic(error_code=code, name=asked.name, is_internal=asked.name in INTERNAL_TOPICS)


def _described(
    context: BrokerContext, cluster: ClusterState, name: str, topic: TopicState
) -> Work[MetadataResponseTopic]:
    partitions = []
    me = context.config.broker_id
    for number, state in topic.partitions.items():
        yield None
        served = context.replicas.serves(TopicPartition(name, number), topic.topic_id)
        partitions.append(
            MetadataResponsePartition(
                error_code=0 if served else LeaderNotAvailable.code,
                partition_index=number,
                leader_id=state.leader if served else -1,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=[
                    replica
                    for replica in state.replicas
                    if replica not in cluster.brokers
                    or (replica == me and context.replicas.is_offline(TopicPartition(name, number)))
                ],
            )
        )
    return MetadataResponseTopic(
        name=name, topic_id=topic.topic_id, is_internal=name in INTERNAL_TOPICS, partitions=partitions
    )
