"""OffsetCommit (key 8), versions 2 to 9: keep how far a group has read; answered when that is committed to the log.

A member names itself and its generation, and may commit for any partition. A client without a group names neither
(generation -1, empty member id) and may commit while the group has no members.

v2  a retention time for these offsets, instead of the broker's (to v4; -1 for none)
v3  throttle time
v5  no retention time any more
v6  the leader epoch of the last record read
v7  group instance id: a static member that was replaced is fenced
v8  flexible
v9  same as v8 for groups of this kind

Each partition has its own outcome; what concerns the group is told for each of them. A topic or partition that does not
exist, and a text that is too long, spoil nothing but their own.
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.dispatch import Request, handles
from spark_kafkalite.errors import (
    IllegalGeneration,
    KafkaError,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
)
from spark_kafkalite.groups.records import NO_TIME, OffsetKey, StoredOffset
from spark_kafkalite.groups.shard import GroupShard
from spark_kafkalite.groups.writer import Entry
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.records.layout import MAX_INT64
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_NO_RETENTION = -1


@handles(8, 2, 9)
async def handle(context: BrokerContext, request: Request, message: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit offsets."""
    now_ms = context.clock.wall_ms()
    expire_ms = NO_TIME
    if message.retention_time_ms != _NO_RETENTION:
        expire_ms = min(now_ms + message.retention_time_ms, MAX_INT64)
    entries: list[Entry] = []
    results = []
    accepted: list[OffsetCommitResponsePartition] = []
    for topic in message.topics:
        partitions = []
        for asked in topic.partitions:
            result = OffsetCommitResponsePartition(partition_index=asked.partition_index)
            partitions.append(result)
            try:
                _check(context, topic.name, asked)
            except KafkaError as error:
                result.error_code = error.code
                continue
            accepted.append(result)
            key = OffsetKey(message.group_id, topic.name, asked.partition_index)
            value = StoredOffset(
                asked.committed_offset,
                asked.committed_leader_epoch,
                asked.committed_metadata or "",
                now_ms,
                expire_ms,
            )
            entries.append((key, value))
        results.append(OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    if entries:
        try:
            shard = context.shards.shard_of(message.group_id)
            _check_group(context, shard, message)
            await shard.append(entries)
        except KafkaError as error:
            for result in accepted:
                result.error_code = error.code
    return OffsetCommitResponse(topics=results)


def _check(context: BrokerContext, topic: str, asked: OffsetCommitRequestPartition) -> None:
    key = TopicPartition(topic, asked.partition_index)
    if context.cluster.partition(key) is None:
        raise UnknownTopicOrPartition(f"{key} does not exist")
    limit = context.config["offset.metadata.max.bytes"]
    if asked.committed_metadata is not None and len(asked.committed_metadata) > limit:
        raise OffsetMetadataTooLarge(
            f"{key}: {len(asked.committed_metadata)} characters of metadata are more than offset.metadata.max.bytes="
            f"{limit}"
        )


def _check_group(context: BrokerContext, shard: GroupShard, message: OffsetCommitRequest) -> None:
    """Raise what forbids the commit; a member that may commit has been heard of."""
    generation = message.generation_id_or_member_epoch
    if generation < 0:
        group = shard.group_or_new(message.group_id)
    elif (known := shard.groups.get(message.group_id)) is not None:
        group = known
    else:
        raise IllegalGeneration(f"there is no group {message.group_id!r}, so it has no generation {generation}")
    group.check_commit(message.member_id, message.group_instance_id, generation)
    group.touch(message.member_id, int(context.clock.monotonic_s() * 1000))
