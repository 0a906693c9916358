"""CreatePartitions (key 37), versions 0 to 3: more partitions for topics that exist, answered when their leaders serve.

v0  plain
v2  flexible
v3  may answer with a throttle error

``count`` is the number of partitions afterwards; an assignment, when there is one, names the replicas of the new ones.

The brokers' own topics keep the number they were made with: groups are spread over partitions by their ids, and would
not find their offsets again.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import log_change
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, InvalidTopic, KafkaError, NotController, RequestTimedOut
from spark_kafkalite.model import INTERNAL_TOPICS
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.controller.controller import Extension
from spark_kafkalite.slices import Work, counted, filled, freed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from spark_kafkalite.wire.rights import refused


@handles(ApiKey.CREATE_PARTITIONS, 0, 3)
async def handle(
    context: BrokerContext, exchange: Exchange, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Extend those of the topics that the client may alter; each has its own outcome."""
    if not exchange.has_limits:
        return await _extend(context, exchange, message)
    # Here, because what is handed on comes from a broker.
    forbidden = await context.work(exchange, _taken_out(exchange, message))
    answer = CreatePartitionsResponse()
    if message.topics or not forbidden:
        answer = await _extend(context, exchange, message)
    refusal = refused(ResourceType.TOPIC)
    code, text = refusal.code, str(refusal)
    refusals = (CreatePartitionsTopicResult(name=name, error_code=code, error_message=text) for name in forbidden)
    await context.work(exchange, filled(answer.results, refusals))
    return answer


def _taken_out(exchange: Exchange, message: CreatePartitionsRequest) -> Work[list[str]]:
    """Take the topics that the client may not alter out of the request, and return their names, each once."""
    message.topics, forbidden = yield from exchange.divided(Operation.ALTER, message.topics)
    return forbidden


async def _extend(
    context: BrokerContext, exchange: Exchange, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Extend topics, here or at the controller."""
    until_s = context.loop.time() + max(message.timeout_ms, 0) / 1000
    try:
        answer: CreatePartitionsResponse | None = await context.topics.controller_link.hand_on(
            message, exchange.api_version, _is_refused, exchange.session
        )
    except KafkaError as error:
        failed: dict[str, KafkaError | None] = {}
        await context.work(exchange, filled(failed, ((topic.name, error) for topic in message.topics)))
        return await context.work(exchange, _answer(list(failed), failed))
    if answer is not None:
        if not message.validate_only:
            await context.work(exchange, _logged(exchange, message, answer))
            await _wait_until_shown(context, message, answer, until_s)
        return answer
    names, wanted, outcomes = await context.work(exchange, _checked(context, message))
    extended = await context.topics.extend(
        wanted, timeout_s=max(message.timeout_ms, 0) / 1000, validate_only=message.validate_only
    )
    await context.work(exchange, filled(outcomes, extended.items()))
    await context.work(exchange, freed(extended))
    await context.work(exchange, freed(wanted))
    answer = await context.work(exchange, _answer(names, outcomes))
    if not message.validate_only:
        await context.work(exchange, _logged(exchange, message, answer))
    return answer


def _logged(exchange: Exchange, message: CreatePartitionsRequest, answer: CreatePartitionsResponse) -> Work[None]:
    counts: dict[str, int] = {}
    yield from filled(counts, ((topic.name, topic.count) for topic in message.topics))
    for topic in answer.results:
        if not topic.error_code:
            log_change(exchange, "topic %s has been extended to %d partitions", topic.name, counts[topic.name])
        yield None


def _is_refused(answer: CreatePartitionsResponse) -> bool:
    return any(topic.error_code == NotController.code for topic in answer.results)


async def _wait_until_shown(
    context: BrokerContext, message: CreatePartitionsRequest, answer: CreatePartitionsResponse, until_s: float
) -> None:
    """Wait until this broker knows of what the controller has added; what it does not know in time has failed so."""
    done = {topic.name for topic in answer.results if not topic.error_code}
    left = [(topic.name, topic.count) for topic in message.topics if topic.name in done]

    def shown(_: ClusterState) -> bool:
        topics = context.cluster.topics
        while left and (left[-1][0] not in topics or len(topics[left[-1][0]].partitions) >= left[-1][1]):
            left.pop()
        return not left

    if await context.topics.controller_link.shows(shown, until_s - context.loop.time()):
        return
    late = {name for name, _ in left}
    for topic in answer.results:
        if topic.name in late:
            topic.error_code = RequestTimedOut.code
            topic.error_message = f"topic {topic.name} has been extended, but this broker was not notified in time"


def _checked(
    context: BrokerContext, message: CreatePartitionsRequest
) -> Work[tuple[Iterable[str], list[Extension], dict[str, KafkaError | None]]]:
    """Return the names, each once; the topics to extend; and what is wrong with the others."""
    counts = yield from counted(topic.name for topic in message.topics)
    outcomes: dict[str, KafkaError | None] = {}
    wanted: list[Extension] = []
    for topic in message.topics:
        yield None
        name = topic.name
        try:
            if counts[name] > 1:
                raise InvalidRequest("Duplicate topic name.")
            context.topics.check_controller()
            if name in INTERNAL_TOPICS:
                raise InvalidTopic(f"{name} is an internal topic; its records would not be found again")
            wanted.append((yield from _extension(context, topic)))
        except KafkaError as error:
            outcomes[name] = error.with_traceback(None)
    return counts, wanted, outcomes


def _answer(names: Iterable[str], outcomes: dict[str, KafkaError | None]) -> Work[CreatePartitionsResponse]:
    """Answer each name once; the outcomes are used up."""
    answer = CreatePartitionsResponse()
    for name in names:
        error = outcomes[name]
        code, text = (0, None) if error is None else (error.code, str(error))
        answer.results.append(CreatePartitionsTopicResult(name=name, error_code=code, error_message=text))
        yield None
    yield from freed(outcomes)
    return answer


def _extension(context: BrokerContext, topic: CreatePartitionsTopic) -> Work[Extension]:
    """Return what a topic is to become."""
    if topic.assignments is None:
        return Extension(topic.name, topic.count)
    context.topics.check_size(len(topic.assignments))
    assignment = []
    for part in topic.assignments:
        assignment.append(part.broker_ids)
        yield None
    return Extension(topic.name, topic.count, assignment)
