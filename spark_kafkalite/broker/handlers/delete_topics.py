"""DeleteTopics (key 20), versions 1 to 6: topics go at once, their files after ``file.delete.delay.ms``.

v1  by name
v4  flexible
v5  error texts in the answer
v6  by name or id

What is named twice is not deleted, and answered once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.dispatch import Request, handles
from spark_kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.message import ZERO_UUID
from spark_kafkalite.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

# As asked for, by name or id; the topic that it means, None when there is none, and then what is wrong.
_Resolved = tuple[str | None, bytes, str | None, KafkaError | None]

_FIRST_VERSION_BY_ID = 6
_FIRST_VERSION_WITH_DISABLED = 3


@handles(20, 1, 6)
async def handle(context: BrokerContext, request: Request, message: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics; each has its own outcome."""
    resolved, counts = await context.slices.run(_resolve_all(context, request, message))
    once = [name for name, count in counts.items() if count == 1]
    outcomes = await context.topics.delete(once, timeout_s=max(message.timeout_ms, 0) / 1000)
    return await context.slices.run(_answer(resolved, counts, outcomes))


def _resolve_all(
    context: BrokerContext, request: Request, message: DeleteTopicsRequest
) -> Work[tuple[list[_Resolved], dict[str, int]]]:
    """Return what was asked for with the topics that it means, and how often each of these is named."""
    if request.api_version >= _FIRST_VERSION_BY_ID:
        asked = [(topic.name, topic.topic_id) for topic in message.topics]
    else:
        asked = [(name, ZERO_UUID) for name in message.topic_names]
    resolved: list[_Resolved] = []
    counts: dict[str, int] = {}
    for name, topic_id in asked:
        found, problem = _resolve(context, request, name, topic_id)
        resolved.append((name, topic_id, found, problem))
        if found is not None:
            counts[found] = counts.get(found, 0) + 1
        yield None
    return resolved, counts


def _answer(
    resolved: Sequence[_Resolved], counts: Mapping[str, int], outcomes: Mapping[str, KafkaError | None]
) -> Work[DeleteTopicsResponse]:
    responses = []
    answered: set[tuple[str | None, bytes]] = set()
    for name, topic_id, found, problem in resolved:
        yield None
        if (name, topic_id) in answered:
            continue
        answered.add((name, topic_id))
        error = problem
        if found is not None:
            error = InvalidRequest(f"topic {found} is named twice") if counts[found] > 1 else outcomes[found]
        responses.append(
            DeletableTopicResult(
                name=found if found is not None else name,
                topic_id=topic_id,
                error_code=0 if error is None else error.code,
                error_message=None if error is None else str(error),
            )
        )
    return DeleteTopicsResponse(responses=responses)


def _resolve(
    context: BrokerContext, request: Request, name: str | None, topic_id: bytes
) -> tuple[str | None, KafkaError | None]:
    """Return the name of the topic to delete, or what is wrong with asking for it."""
    if not context.config["delete.topic.enable"]:
        text = "delete.topic.enable is false on this broker"
        if request.api_version < _FIRST_VERSION_WITH_DISABLED:
            return None, InvalidRequest(text)
        return None, TopicDeletionDisabled(text)
    try:
        context.topics.check_controller()
    except KafkaError as error:
        return None, error
    if name is not None and topic_id != ZERO_UUID:
        return None, InvalidRequest(f"topic {name} is named by id as well; name it one way")
    if name is None:
        found = context.cluster.topic_name(topic_id)
        return (found, None) if found is not None else (None, UnknownTopicId("no topic has this id"))
    # A topic whose registry node cannot be read can be deleted still: that is the way out.
    if name not in context.cluster.topics and name not in context.cluster.unreadable_topics:
        return None, UnknownTopicOrPartition(f"topic {name} does not exist")
    return name, None
