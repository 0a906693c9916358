"""OffsetDelete (key 47), version 0: deletes committed offsets of a group; answered when the tombstones are committed.

A group without members gives up any offset. Of a group of consumers those stay whose topic a member reads
(GROUP_SUBSCRIBED_TO_TOPIC); members of any other kind forbid all of it (NON_EMPTY_GROUP). What was never committed is
deleted without an error. A group that does not exist is GROUP_ID_NOT_FOUND, an empty id INVALID_GROUP_ID.
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import MOST_NAMED, log_change, some_of
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.records import OffsetKey, RecordEntry
from spark_kafkalite.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    KafkaError,
    NonEmptyGroup,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(ApiKey.OFFSET_DELETE, 0, 0, groups_of=lambda message: [message.group_id])
async def handle(context: BrokerContext, exchange: Exchange, message: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete offsets."""
    try:
        exchange.require(Operation.DELETE, ResourceType.GROUP, message.group_id)
        if not message.group_id:
            raise InvalidGroupId("the empty group id has no offsets")
        shard = context.groups.shards.shard_of(message.group_id)
        group = shard.state.groups.get(message.group_id)
        if group is None or group.is_dead:
            raise GroupIdNotFound(f"there is no group {message.group_id!r}")
        in_use = _topics_in_use(group)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    known = set(shard.state.offsets.keys(message.group_id))
    topics, entries, deleted = await context.work(exchange, _checked(context, exchange, message, known, in_use))
    if entries:
        try:
            await shard.append(entries)
        except KafkaError as error:
            for result in deleted:
                result.error_code = error.code
        else:
            named = [f"{key.topic}-{key.partition}" for key, _ in entries[:MOST_NAMED] if isinstance(key, OffsetKey)]
            log_change(
                exchange,
                "%d committed offsets of group %s have been deleted: %s",
                len(entries),
                message.group_id,
                some_of(named, len(entries)),
            )
    return OffsetDeleteResponse(topics=topics)


def _checked(
    context: BrokerContext,
    exchange: Exchange,
    message: OffsetDeleteRequest,
    known: set[OffsetKey],
    in_use: frozenset[str],
) -> Work[tuple[list[OffsetDeleteResponseTopic], list[RecordEntry], list[OffsetDeleteResponsePartition]]]:
    """Return each partition's outcome, the tombstones, and the outcomes of these."""
    entries: list[RecordEntry] = []
    deleted: list[OffsetDeleteResponsePartition] = []
    topics = []
    for topic in message.topics:
        partitions = []
        may_read = exchange.may(Operation.READ, ResourceType.TOPIC, topic.name)
        for asked in topic.partitions:
            yield None
            result = OffsetDeleteResponsePartition(partition_index=asked.partition_index)
            partitions.append(result)
            key = OffsetKey(message.group_id, topic.name, asked.partition_index)
            if not may_read:
                result.error_code = TopicAuthorizationFailed.code
            elif context.cluster.partition(TopicPartition(key.topic, key.partition)) is None:
                result.error_code = UnknownTopicOrPartition.code
            elif topic.name in in_use:
                result.error_code = GroupSubscribedToTopic.code
            elif key in known:
                # What is named again is deleted already.
                known.remove(key)
                entries.append((key, None))
                deleted.append(result)
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return topics, entries, deleted


def _topics_in_use(group: Group) -> frozenset[str]:
    """Return the topics whose offsets must stay. Raises NonEmptyGroup (68) when they are not known."""
    if group.is_empty:
        return frozenset()
    topics = group.subscribed_topics()
    if topics is None:
        raise NonEmptyGroup(f"group {group.group_id} has members; stop them first")
    return topics
