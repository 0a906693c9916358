"""OffsetFetch (key 9), versions 1 to 9: how far groups have read, from memory.

A partition for which nothing is committed has offset -1, which is no error; so has everything of an unknown group. One
that is named twice is answered once: its text may be a thousand times as long as its number in the request.

v1  named partitions of one group; an error of the group is told for each partition
v2  null topics mean all partitions that have offsets; an error of the group at the top
v3  throttle time
v5  leader epochs in the answer
v6  flexible
v7  the client may insist on offsets that no open transaction may change; there are none
v8  many groups, each with its own error; a group named twice is refused (INVALID_REQUEST) the second time
v9  members of groups of the newer protocol name themselves; there are none
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.dispatch import Request, handles
from spark_kafkalite.errors import InvalidRequest, KafkaError
from spark_kafkalite.groups.records import StoredOffset
from spark_kafkalite.model import TopicPartition
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
_NOTHING = StoredOffset(-1)
# A request may name very many groups: the loop is given back after this long.
_SLICE_S = 0.005

_Asked = list[OffsetFetchRequestTopic] | list[OffsetFetchRequestTopics] | None
# Topics with their partitions' numbers and offsets.
_Found = list[tuple[str, list[tuple[int, StoredOffset]]]]


@handles(9, 1, 9)
async def handle(context: BrokerContext, request: Request, message: OffsetFetchRequest) -> OffsetFetchResponse:
    """Look offsets up."""
    if request.api_version >= _FIRST_VERSION_WITH_MANY_GROUPS:
        return OffsetFetchResponse(groups=await _groups(context, message.groups))
    error_code, found = _look_up(context, message.group_id, message.topics)
    # Version 1 has no place for it but the partitions'.
    told = error_code if request.api_version < _FIRST_VERSION_WITH_GROUP_ERROR else 0
    return OffsetFetchResponse(
        error_code=error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=number,
                        committed_offset=stored.offset,
                        committed_leader_epoch=stored.leader_epoch,
                        metadata=stored.metadata,
                        error_code=told,
                    )
                    for number, stored in partitions
                ],
            )
            for name, partitions in found
        ],
    )


async def _groups(context: BrokerContext, asked: Iterable[OffsetFetchRequestGroup]) -> list[OffsetFetchResponseGroup]:
    answers: dict[str, OffsetFetchResponseGroup] = {}
    repeated = []
    until_s = context.loop.time() + _SLICE_S
    for one in asked:
        if context.loop.time() >= until_s:
            await asyncio.sleep(0)
            until_s = context.loop.time() + _SLICE_S
        if one.group_id in answers:
            # A short request must not be able to ask for a large group a million times.
            repeated.append(OffsetFetchResponseGroup(group_id=one.group_id, error_code=InvalidRequest.code))
        else:
            answers[one.group_id] = _group(context, one.group_id, one.topics)
    return [*answers.values(), *repeated]


def _group(context: BrokerContext, group_id: str, asked: _Asked) -> OffsetFetchResponseGroup:
    error_code, found = _look_up(context, group_id, asked)
    return OffsetFetchResponseGroup(
        group_id=group_id,
        error_code=error_code,
        topics=[
            OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=number,
                        committed_offset=stored.offset,
                        committed_leader_epoch=stored.leader_epoch,
                        metadata=stored.metadata,
                    )
                    for number, stored in partitions
                ],
            )
            for name, partitions in found
        ],
    )


def _look_up(context: BrokerContext, group_id: str, asked: _Asked) -> tuple[int, _Found]:
    """Return the group's error and what it has committed; with an error every partition asked for has nothing."""
    error_code = 0
    committed: Mapping[TopicPartition, StoredOffset] = {}
    try:
        committed = context.shards.shard_of(group_id).offsets.of(group_id)
    except KafkaError as error:
        error_code = error.code
    if asked is None:
        return error_code, _by_topic(committed.items())
    wanted: dict[str, dict[int, None]] = {}
    for topic in asked:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return error_code, [
        (name, [(number, committed.get(TopicPartition(name, number), _NOTHING)) for number in numbers])
        for name, numbers in wanted.items()
    ]


def _by_topic(committed: Iterable[tuple[TopicPartition, StoredOffset]]) -> _Found:
    topics: dict[str, list[tuple[int, StoredOffset]]] = {}
    for (topic, number), stored in committed:
        topics.setdefault(topic, []).append((number, stored))
    return list(topics.items())
