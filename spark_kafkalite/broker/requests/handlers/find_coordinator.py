"""FindCoordinator (key 10), versions 0 to 6: which broker keeps a group's state and offsets. Any broker answers.

The first request makes ``__consumer_offsets``, and its answer waits for that. While there is no coordinator (the topic
cannot be made, or its partition has no leader) the answer is COORDINATOR_NOT_AVAILABLE, and clients ask again.

v0  a group's id
v1  the key's type (0 group, 1 transactional id), error text in the answer
v3  flexible
v4  many keys of one type, each with its own outcome; the fields of a single answer are gone
v5  same as v4
v6  type 2, share groups

There are no transactions and no share groups; their coordinators are refused with errors that end the client.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.internal_topic_host import InternalTopicHost
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.coordinator.internal_topic import TRANSACTIONS, InternalTopic, partition_for
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafkalite.wire.rights import refused

_FIRST_VERSION_WITH_MANY_KEYS = 4
_NO_BROKER = -1


@handles(ApiKey.FIND_COORDINATOR, 0, 6)
async def handle(
    context: BrokerContext, exchange: Exchange, message: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Name the coordinators."""
    many = exchange.api_version >= _FIRST_VERSION_WITH_MANY_KEYS
    keys = message.coordinator_keys if many else [message.key]
    kind = ResourceType.TRANSACTIONAL_ID if message.key_type == TRANSACTIONS else ResourceType.GROUP
    refusals = await context.work(exchange, _refusals(exchange, kind, keys))
    outcome: InternalTopic | KafkaError
    try:
        host = _coordinated(context, message.key_type)
        if len(refusals) < len(keys):
            await host.ensure()
        outcome = host.topic
    except KafkaError as error:
        outcome = error
    found = await context.work(exchange, _all_answered(context, exchange.session, keys, refusals, outcome))
    if many:
        return FindCoordinatorResponse(coordinators=found)
    (only,) = found
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _refusals(exchange: Exchange, kind: ResourceType, keys: list[str]) -> Work[dict[str, KafkaError]]:
    """Return the keys whose coordinators the client may not know."""
    refusals: dict[str, KafkaError] = {}
    if exchange.has_limits:
        for key in keys:
            yield None
            if not exchange.may(Operation.DESCRIBE, kind, key):
                refusals[key] = refused(kind)
    return refusals


def _all_answered(
    context: BrokerContext,
    session: Session,
    keys: list[str],
    refusals: Mapping[str, KafkaError],
    outcome: InternalTopic | KafkaError,
) -> Work[list[Coordinator]]:
    # Keys may be many and long, and each is hashed; one that is named again is not answered again.
    found = {}
    for key in keys:
        yield None
        if key not in found:
            found[key] = _answered(context, session, key, refusals.get(key, outcome))
    return list(found.values())


def _coordinated(context: BrokerContext, key_type: int) -> InternalTopicHost:
    """Return the host of the topic that keys of this type belong to. Raises the error for a type without one."""
    coordinator = context.coordinators.get(key_type)
    if coordinator is not None:
        return coordinator.host
    if key_type == TRANSACTIONS:
        # As InitProducerId has it: of the errors that clients know here, the one that ends a producer at once.
        raise TransactionalIdAuthorizationFailed("transactions are not served by this broker")
    raise InvalidRequest(f"there are no coordinators of key type {key_type}; 0 is that of groups")


def _answered(context: BrokerContext, session: Session, key: str, outcome: InternalTopic | KafkaError) -> Coordinator:
    try:
        if isinstance(outcome, KafkaError):
            raise outcome
        broker = _coordinator(context, outcome, key)
        host, port = _address(context, session, broker)
    except KafkaError as error:
        return Coordinator(
            key=key, node_id=_NO_BROKER, port=_NO_BROKER, error_code=error.code, error_message=str(error)
        )
    return Coordinator(key=key, node_id=broker.broker_id, host=host, port=port)


def _address(context: BrokerContext, session: Session, broker: BrokerInfo) -> tuple[str, int]:
    address = context.address_of(broker, session)
    if address is None:
        raise CoordinatorNotAvailable(
            f"broker {broker.broker_id}, the coordinator, has no listener {session.listener.name}, where this client is"
        )
    return address


def _coordinator(context: BrokerContext, topic: InternalTopic, key: str) -> BrokerInfo:
    """Return the broker that leads the key's partition. Raises CoordinatorNotAvailable (15)."""
    cluster = context.cluster
    known = cluster.topics.get(topic.name)
    if known is not None:
        number = partition_for(key, len(known.partitions))
        state = known.partitions.get(number)
        if state is not None and context.replicas.serves(TopicPartition(topic.name, number), known.topic_id):
            return cluster.brokers[state.leader]
    raise CoordinatorNotAvailable(f"{topic.kind} {key!r} has no coordinator at present")
