"""OffsetFetch (key 9), versions 1 to 9: how far groups have read, from memory.

A partition for which nothing is committed has offset -1, which is no error; so has everything of an unknown group. One
that is named twice is answered once: its text may be a thousand times as long as its number in the request.

v1  named partitions of one group; an error of the group is repeated for each partition
v2  null topics mean all partitions that have offsets; an error of the group at the top
v3  throttle time
v5  leader epochs in the answer
v6  flexible
v7  the client may insist on offsets that no open transaction may change; there are none
v8  many groups, each with its own error; a group named twice is refused (INVALID_REQUEST) the second time
v9  members of groups of the newer protocol name themselves; there are none
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.coordinator.groups.records import OffsetValue
from spark_kafkalite.errors import GroupAuthorizationFailed, InvalidRequest, KafkaError, TopicAuthorizationFailed
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_FIRST_VERSION_WITH_GROUP_ERROR = 2
_FIRST_VERSION_WITH_MANY_GROUPS = 8
_NOTHING = OffsetValue(-1)
# Of a topic that the client may not describe, whether anything is committed or not.
_FORBIDDEN = OffsetValue(-1)
# Partitions that are looked up in one slice for certain.
_READ_AT_ONCE = 1000

Topic = TypeVar("Topic")
_Asked = list[OffsetFetchRequestTopic] | list[OffsetFetchRequestTopics] | None
# By topic and the partition's number.
_Found = dict[str, dict[int, OffsetValue]]


def _groups_asked(message: OffsetFetchRequest) -> list[str]:
    return [each.group_id for each in message.groups] or [message.group_id]


@handles(ApiKey.OFFSET_FETCH, 1, 9, groups_of=_groups_asked)
def handle(context: BrokerContext, exchange: Exchange, message: OffsetFetchRequest) -> Work[OffsetFetchResponse]:
    """Look offsets up."""
    if exchange.api_version >= _FIRST_VERSION_WITH_MANY_GROUPS:
        return OffsetFetchResponse(groups=(yield from _groups(context, exchange, message.groups)))
    error_code, found = yield from _look_up(context, exchange, message.group_id, message.topics)
    # Version 1 has no place for it but the partitions'.
    told = error_code if exchange.api_version < _FIRST_VERSION_WITH_GROUP_ERROR else 0
    topics = yield from _topics(found, OffsetFetchResponseTopic, OffsetFetchResponsePartition, told)
    return OffsetFetchResponse(error_code=error_code, topics=topics)


def _groups(
    context: BrokerContext, exchange: Exchange, asked: Iterable[OffsetFetchRequestGroup]
) -> Work[list[OffsetFetchResponseGroup]]:
    answers: dict[str, OffsetFetchResponseGroup] = {}
    repeated = []
    for one in asked:
        yield None
        if one.group_id in answers:
            # A short request must not be able to ask for a large group a million times.
            repeated.append(OffsetFetchResponseGroup(group_id=one.group_id, error_code=InvalidRequest.code))
        else:
            answers[one.group_id] = yield from _group(context, exchange, one.group_id, one.topics)
    return [*answers.values(), *repeated]


def _group(context: BrokerContext, exchange: Exchange, group_id: str, asked: _Asked) -> Work[OffsetFetchResponseGroup]:
    error_code, found = yield from _look_up(context, exchange, group_id, asked)
    topics = yield from _topics(found, OffsetFetchResponseTopics, OffsetFetchResponsePartitions, 0)
    return OffsetFetchResponseGroup(group_id=group_id, error_code=error_code, topics=topics)


def _topics(
    found: _Found, topic_class: Callable[..., Topic], partition_class: Callable[..., object], error_code: int
) -> Work[list[Topic]]:
    """Return what was found in the classes that answers of one group, or of many, have for it."""
    topics = []
    for name, partitions in found.items():
        described = []
        for number, stored in partitions.items():
            yield None
            described.append(
                partition_class(
                    partition_index=number,
                    committed_offset=stored.offset,
                    committed_leader_epoch=stored.leader_epoch,
                    metadata=stored.metadata,
                    error_code=error_code if stored is not _FORBIDDEN else TopicAuthorizationFailed.code,
                )
            )
        topics.append(topic_class(name=name, partitions=described))
    return topics


def _look_up(context: BrokerContext, exchange: Exchange, group_id: str, asked: _Asked) -> Work[tuple[int, _Found]]:
    """Return the group's error and what it has committed; with an error every partition asked for has nothing.

    Topics that the client may not describe are forbidden if they are named, and left out of all. With a group that it
    may not describe no topic is answered, where the answer has a place for the group's error.
    """
    error_code = 0
    committed: Mapping[TopicPartition, OffsetValue] = {}
    try:
        exchange.require(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        committed = context.groups.shards.shard_of(group_id).state.offsets.of(group_id)
    except GroupAuthorizationFailed as error:
        if exchange.api_version >= _FIRST_VERSION_WITH_GROUP_ERROR:
            return error.code, {}
        error_code = error.code
    except KafkaError as error:
        error_code = error.code
    if asked is None or sum(len(topic.partition_indexes) for topic in asked) > _READ_AT_ONCE:
        # As it is now: commits may come between slices.
        committed = dict(committed)
    found: _Found = {}
    if asked is None:
        for (name, number), stored in committed.items():
            yield None
            if exchange.may(Operation.DESCRIBE, ResourceType.TOPIC, name, is_probe=True):
                found.setdefault(name, {})[number] = stored
    else:
        for topic in asked:
            numbers = found.setdefault(topic.name, {})
            is_open = bool(error_code) or exchange.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
            for number in topic.partition_indexes:
                yield None
                stored = committed.get(TopicPartition(topic.name, number), _NOTHING) if is_open else _FORBIDDEN
                numbers[number] = stored
    return error_code, found
