"""CreatePartitions (key 37), versions 0 to 3: more partitions for topics that exist, answered when their leaders serve.

v0  plain
v2  flexible
v3  may answer with a throttle error

``count`` is the number of partitions afterwards; an assignment, when there is one, names the replicas of the new ones.

The brokers' own topics keep the number they were made with: groups are spread over partitions by their ids, and would
not find their offsets again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, InvalidTopic, KafkaError
from spark_kafkalite.model import INTERNAL_TOPICS
from spark_kafkalite.registry.controller.controller import Extension
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


@handles(ApiKey.CREATE_PARTITIONS, 0, 3)
async def handle(
    context: BrokerContext, exchange: Exchange, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Extend topics; each has its own outcome."""
    names, wanted, outcomes = await context.work(exchange, _checked(context, message))
    outcomes |= await context.topics.extend(
        wanted, timeout_s=max(message.timeout_ms, 0) / 1000, validate_only=message.validate_only
    )
    return await context.work(exchange, _answer(names, outcomes))


def _checked(
    context: BrokerContext, message: CreatePartitionsRequest
) -> Work[tuple[Iterable[str], list[Extension], dict[str, KafkaError | None]]]:
    """Return the names, each once; the topics to extend; and what is wrong with the others."""
    counts: dict[str, int] = {}
    for topic in message.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
        yield None
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


def _answer(names: Iterable[str], outcomes: Mapping[str, KafkaError | None]) -> Work[CreatePartitionsResponse]:
    answer = CreatePartitionsResponse()
    for name in names:
        error = outcomes[name]
        code, text = (0, None) if error is None else (error.code, str(error))
        answer.results.append(CreatePartitionsTopicResult(name=name, error_code=code, error_message=text))
        yield None
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
