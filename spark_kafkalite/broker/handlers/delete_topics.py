"""DeleteTopics (key 20), versions 1 to 6: topics go at once, their files after ``file.delete.delay.ms``.

v1  by name
v4  flexible
v5  error texts in the answer
v6  by name or id
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.dispatch import Request, handles
from spark_kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from spark_kafkalite.wire.message import ZERO_UUID
from spark_kafkalite.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

_FIRST_VERSION_BY_ID = 6
_FIRST_VERSION_WITH_DISABLED = 3


@handles(20, 1, 6)
async def handle(context: BrokerContext, request: Request, message: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics; each has its own outcome."""
    if request.api_version >= _FIRST_VERSION_BY_ID:
        asked = [(topic.name, topic.topic_id) for topic in message.topics]
    else:
        asked = [(name, ZERO_UUID) for name in message.topic_names]
    resolved = [(name, topic_id, *_resolve(context, request, name, topic_id)) for name, topic_id in asked]
    names = [found for _, _, found, _ in resolved if found is not None]
    twice = {name for name in names if names.count(name) > 1}
    outcomes = await context.topics.delete(
        [name for name in names if name not in twice], timeout_s=max(message.timeout_ms, 0) / 1000
    )
    responses = []
    for name, topic_id, found, problem in resolved:
        error = problem
        if found is not None:
            error = InvalidRequest(f"topic {found} is named twice") if found in twice else outcomes[found]
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
