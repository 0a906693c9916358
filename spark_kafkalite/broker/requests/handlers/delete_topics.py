"""DeleteTopics (key 20), versions 1 to 6: deletes topics; their files follow after ``file.delete.delay.ms``.

v1  by name
v4  flexible
v5  error texts in the answer
v6  by name or id

A topic that is named twice is not deleted, and answered once. Errors begin with Kafka's words.
Source: org.apache.kafka.controller, and kafka.server.ControllerApis.deleteTopics, of Apache Kafka 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    NotController,
    RequestTimedOut,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.slices import Work, counted, freed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.message import ZERO_UUID
from spark_kafkalite.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from spark_kafkalite.wire.rights import refused

# What was asked for, by name or id, each once: the topic that it means, None when there is none, and what is wrong.
_Resolved = dict[tuple[str | None, bytes], tuple[str | None, KafkaError | None]]

_UNKNOWN_ID = "This server does not host this topic ID."
_DUPLICATE_NAME = "Duplicate topic name."
_FIRST_VERSION_BY_ID = 6
_FIRST_VERSION_WITH_DISABLED = 3


@handles(ApiKey.DELETE_TOPICS, 1, 6)
async def handle(context: BrokerContext, exchange: Exchange, message: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete those of the topics that the client may delete; each has its own outcome."""
    if not exchange.has_limits:
        return await _delete(context, exchange, message)
    # Here, because what is handed on comes from a broker.
    forbidden = await context.work(exchange, _taken_out(context, exchange, message))
    answer = DeleteTopicsResponse()
    if message.topics or message.topic_names or not forbidden:
        answer = await _delete(context, exchange, message)
    answer.responses += forbidden
    return answer


def _taken_out(
    context: BrokerContext, exchange: Exchange, message: DeleteTopicsRequest
) -> Work[list[DeletableTopicResult]]:
    """Take the topics that the client may not delete out of the request, and return their answers, each once.

    An id that this broker does not know is refused as unknown: the controller would not ask for the rights on its name.
    """
    refused_names: dict[tuple[str | None, bytes], DeletableTopicResult] = {}
    allowed_names, allowed_topics = [], []
    for name in message.topic_names:
        yield None
        if _may_delete(exchange, name):
            allowed_names.append(name)
        else:
            refused_names[name, ZERO_UUID] = _result(name, ZERO_UUID, refused(ResourceType.TOPIC))
    for topic in message.topics:
        yield None
        if (topic.name is None) == (topic.topic_id == ZERO_UUID):
            # Malformed, which is answered as such.
            allowed_topics.append(topic)
            continue
        meant = context.cluster.topic_name(topic.topic_id) if topic.name is None else topic.name
        if meant is None:
            problem: KafkaError = UnknownTopicId(_UNKNOWN_ID)
            refused_names[None, topic.topic_id] = _result(None, topic.topic_id, problem)
        elif _may_delete(exchange, meant):
            allowed_topics.append(topic)
        else:
            # The name of an id only for a client that may describe the topic.
            is_shown = topic.name is not None or exchange.may(
                Operation.DESCRIBE, ResourceType.TOPIC, meant, is_probe=True
            )
            refused_names[topic.name, topic.topic_id] = _result(
                meant if is_shown else None, topic.topic_id, refused(ResourceType.TOPIC)
            )
    message.topic_names, message.topics = allowed_names, allowed_topics
    return list(refused_names.values())


def _may_delete(exchange: Exchange, name: str) -> bool:
    """Source: kafka.server.ControllerApis.deleteTopics, which asks for both."""
    return exchange.may(Operation.DESCRIBE, ResourceType.TOPIC, name, is_probe=True) and exchange.may(
        Operation.DELETE, ResourceType.TOPIC, name
    )


def _result(name: str | None, topic_id: bytes, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code, error_message=str(error))


async def _delete(context: BrokerContext, exchange: Exchange, message: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics, here or at the controller."""
    until_s = context.loop.time() + max(message.timeout_ms, 0) / 1000
    # Before: afterwards this broker may know no more what an id has meant.
    ids = await context.work(exchange, _ids_asked(context, message))
    try:
        answer: DeleteTopicsResponse | None = await context.topics.controller_link.hand_on(
            message, exchange.api_version, _is_refused, exchange.session
        )
    except KafkaError as error:
        return await context.work(exchange, _all_failed(exchange, message, error))
    if answer is not None:
        await context.work(exchange, _logged(exchange, answer))
        await _wait_until_gone(context, answer, ids, until_s)
        return answer
    resolved, counts = await context.work(exchange, _resolve_all(context, exchange, message))
    once = [name for name, count in counts.items() if count == 1]
    outcomes = await context.topics.delete(once, timeout_s=max(message.timeout_ms, 0) / 1000)
    answer = await context.work(exchange, _answer(resolved, counts, outcomes))
    await context.work(exchange, _logged(exchange, answer))
    return answer


def _logged(exchange: Exchange, answer: DeleteTopicsResponse) -> Work[None]:
    for topic in answer.responses:
        if not topic.error_code:
            log_change(exchange, "topic %s has been deleted", topic.name)
        yield None


def _is_refused(answer: DeleteTopicsResponse) -> bool:
    return any(topic.error_code == NotController.code for topic in answer.responses)


def _ids_asked(context: BrokerContext, message: DeleteTopicsRequest) -> Work[dict[str, bytes]]:
    """Return the ids of the topics that are named, as far as they are known here."""
    topics = context.cluster.topics
    ids: dict[str, bytes] = {}
    for name in chain(message.topic_names, (topic.name for topic in message.topics)):
        yield None
        if name is not None and name in topics:
            ids[name] = topics[name].topic_id
    return ids


def _all_failed(exchange: Exchange, message: DeleteTopicsRequest, error: KafkaError) -> Work[DeleteTopicsResponse]:
    answer = DeleteTopicsResponse()
    for name, topic_id in (yield from counted(_asked(exchange, message))):
        yield None
        answer.responses.append(_result(name, topic_id, error))
    return answer


def _asked(exchange: Exchange, message: DeleteTopicsRequest) -> Iterator[tuple[str | None, bytes]]:
    """Give what is to be deleted: names, or from some version on ids, too."""
    if exchange.api_version >= _FIRST_VERSION_BY_ID:
        return ((topic.name, topic.topic_id) for topic in message.topics)
    return ((name, ZERO_UUID) for name in message.topic_names)


async def _wait_until_gone(
    context: BrokerContext, answer: DeleteTopicsResponse, ids: Mapping[str, bytes], until_s: float
) -> None:
    """Wait until this broker knows that what the controller has deleted is gone."""
    left = [
        (topic.name, ids.get(topic.name, topic.topic_id))
        for topic in answer.responses
        if not topic.error_code and topic.name is not None
    ]

    def gone(_: ClusterState) -> bool:
        topics = context.cluster.topics
        while left:
            name, topic_id = left[-1]
            if name in topics and topics[name].topic_id == topic_id:
                return False
            left.pop()
        return True

    if await context.topics.controller_link.shows(gone, until_s - context.loop.time()):
        return
    late = {name for name, _ in left}
    for topic in answer.responses:
        if topic.name in late:
            topic.error_code = RequestTimedOut.code
            topic.error_message = f"topic {topic.name} has been deleted, but this broker was not notified in time"


def _resolve_all(
    context: BrokerContext, exchange: Exchange, message: DeleteTopicsRequest
) -> Work[tuple[_Resolved, dict[str, int]]]:
    """Return what was asked for with the topics that it means, and how often each of these is named."""
    times = yield from counted(_asked(exchange, message))
    resolved: _Resolved = {}
    # A topic may be named both by name and by id.
    counts: dict[str, int] = {}
    for (name, topic_id), count in times.items():
        found, problem = resolved[name, topic_id] = _resolve(context, exchange, name, topic_id, count=count)
        if found is not None and problem is None:
            counts[found] = counts.get(found, 0) + 1
        yield None
    yield from freed(times)
    return resolved, counts


def _answer(
    resolved: _Resolved, counts: Mapping[str, int], outcomes: Mapping[str, KafkaError | None]
) -> Work[DeleteTopicsResponse]:
    """Answer what was asked for; what it means is used up."""
    responses = []
    for (name, topic_id), (found, problem) in resolved.items():
        yield None
        error = problem
        if found is not None and problem is None:
            error = InvalidRequest(_DUPLICATE_NAME) if counts[found] > 1 else outcomes[found]
        responses.append(
            DeletableTopicResult(
                name=found if found is not None else name,
                topic_id=topic_id,
                error_code=0 if error is None else error.code,
                error_message=None if error is None else str(error),
            )
        )
    yield from freed(resolved)
    return DeleteTopicsResponse(responses=responses)


def _resolve(
    context: BrokerContext, exchange: Exchange, name: str | None, topic_id: bytes, *, count: int
) -> tuple[str | None, KafkaError | None]:
    """Return the name of the topic to delete, or what is wrong with asking for it ``count`` times."""
    if not context.config["delete.topic.enable"]:
        text = "Topic deletion is disabled. delete.topic.enable is false on this broker."
        if exchange.api_version < _FIRST_VERSION_WITH_DISABLED:
            return None, InvalidRequest(text)
        return None, TopicDeletionDisabled(text)
    try:
        context.topics.check_controller()
    except KafkaError as error:
        return None, error
    if name is not None and topic_id != ZERO_UUID:
        return None, InvalidRequest("You may not specify both topic name and topic id.")
    if name is None and topic_id == ZERO_UUID:
        return None, InvalidRequest("Neither topic name nor id were specified.")
    if count > 1:
        return None, InvalidRequest("Duplicate topic id." if name is None else _DUPLICATE_NAME)
    if name is None:
        found = context.cluster.topic_name(topic_id)
        if found is None:
            return None, UnknownTopicId(_UNKNOWN_ID)
        return found, None
    # A topic whose registry node cannot be read can be deleted still: that is the way out.
    if name not in context.cluster.topics and name not in context.cluster.unreadable_topics:
        text = f"This server does not host this topic-partition. The topic '{name}' does not exist."
        return None, UnknownTopicOrPartition(text)
    return name, None
