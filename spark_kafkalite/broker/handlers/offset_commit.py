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

import asyncio

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
from spark_kafkalite.records.layout import MAX_INT64
from spark_kafkalite.wire.codec import decode_request, encode_response
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_NO_RETENTION = -1


@handles(8, 2, 9, raw=True)
def handle(context: BrokerContext, request: Request, frame: memoryview, position: int) -> bytes | None:
    """Commit offsets; the answer comes when they are committed, or at once when there is nothing to wait for."""
    message: OffsetCommitRequest = decode_request(request.api_key, request.api_version, frame, position)
    now_ms = context.clock.wall_ms()
    expire_ms = NO_TIME
    if message.retention_time_ms != _NO_RETENTION:
        expire_ms = min(now_ms + message.retention_time_ms, MAX_INT64)
    metadata_limit = context.config["offset.metadata.max.bytes"]
    existing = context.cluster.topics
    group_id = message.group_id
    entries: list[Entry] = []
    accepted: list[OffsetCommitResponsePartition] = []
    results = []
    for topic in message.topics:
        state = existing.get(topic.name)
        numbers = state.partitions if state is not None else {}
        partitions = []
        for asked in topic.partitions:
            number, metadata = asked.partition_index, asked.committed_metadata or ""
            result = OffsetCommitResponsePartition(partition_index=number)
            partitions.append(result)
            if number not in numbers:
                result.error_code = UnknownTopicOrPartition.code
            elif len(metadata) > metadata_limit:
                result.error_code = OffsetMetadataTooLarge.code
            else:
                accepted.append(result)
                stored = StoredOffset(asked.committed_offset, asked.committed_leader_epoch, metadata, now_ms, expire_ms)
                entries.append((OffsetKey(group_id, topic.name, number), stored))
        results.append(OffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    answer = OffsetCommitResponse(topics=results)
    if entries:
        try:
            shard = context.shards.shard_of(message.group_id)
            _check_group(context, shard, message)
        except KafkaError as error:
            _fail(accepted, error)
        else:
            slot = request.connection.defer()

            def committed(done: asyncio.Future[None]) -> None:
                error = done.exception()
                if isinstance(error, KafkaError):
                    _fail(accepted, error)
                slot.complete(encode_response(answer, request.api_version, request.correlation_id))

            shard.append(entries).add_done_callback(committed)
            return None
    return encode_response(answer, request.api_version, request.correlation_id)


def _fail(results: list[OffsetCommitResponsePartition], error: KafkaError) -> None:
    for result in results:
        result.error_code = error.code


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
