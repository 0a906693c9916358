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
from spark_kafkalite.records.layout import MAX_INT64
from spark_kafkalite.wire.hot_offset_commit import (
    NO_RETENTION,
    OffsetCommit,
    pack_offset_commit_response,
    parse_offset_commit,
)

# Topics with their partitions' numbers and error codes.
_Outcomes = list[tuple[str, list[tuple[int, int]]]]


@handles(8, 2, 9, raw=True)
def handle(context: BrokerContext, request: Request, frame: memoryview, position: int) -> bytes | None:
    """Commit offsets; the answer comes when they are committed, or at once when there is nothing to wait for."""
    commit = parse_offset_commit(frame, position, request.api_version)
    outcomes, entries = _checked(context, commit)
    if entries:
        try:
            shard = context.shards.shard_of(commit.group_id)
            _check_group(context, shard, commit)
        except KafkaError as error:
            outcomes = _failed(outcomes, error)
        else:
            slot = request.connection.defer()

            def committed(error: KafkaError | None) -> None:
                told = outcomes if error is None else _failed(outcomes, error)
                slot.complete(pack_offset_commit_response(request.correlation_id, request.api_version, told))

            shard.write(entries, committed)
            return None
    return pack_offset_commit_response(request.correlation_id, request.api_version, outcomes)


def _checked(context: BrokerContext, commit: OffsetCommit) -> tuple[_Outcomes, list[Entry]]:
    """Return each partition's outcome, 0 if nothing speaks against it, and the records of those."""
    now_ms = context.clock.wall_ms()
    expire_ms = NO_TIME
    if commit.retention_time_ms != NO_RETENTION:
        expire_ms = min(now_ms + commit.retention_time_ms, MAX_INT64)
    metadata_limit = context.config["offset.metadata.max.bytes"]
    existing = context.cluster.topics
    group_id = commit.group_id
    entries: list[Entry] = []
    outcomes: _Outcomes = []
    for topic, partitions in commit.topics:
        state = existing.get(topic)
        numbers = state.partitions if state is not None else {}
        codes = []
        for number, offset, leader_epoch, metadata in partitions:
            if number not in numbers:
                codes.append((number, UnknownTopicOrPartition.code))
            elif metadata and len(metadata) > metadata_limit:
                codes.append((number, OffsetMetadataTooLarge.code))
            else:
                codes.append((number, 0))
                stored = StoredOffset(offset, leader_epoch, metadata or "", now_ms, expire_ms)
                entries.append((OffsetKey(group_id, topic, number), stored))
        outcomes.append((topic, codes))
    return outcomes, entries


def _failed(outcomes: _Outcomes, error: KafkaError) -> _Outcomes:
    """Return the outcomes with an error of the group for all that nothing else spoke against."""
    return [(topic, [(number, code or error.code) for number, code in codes]) for topic, codes in outcomes]


def _check_group(context: BrokerContext, shard: GroupShard, commit: OffsetCommit) -> None:
    """Raise what forbids the commit; a member that may commit has been heard of."""
    if commit.generation_id < 0:
        group = shard.group_or_new(commit.group_id)
    elif (known := shard.groups.get(commit.group_id)) is not None:
        group = known
    else:
        raise IllegalGeneration(
            f"there is no group {commit.group_id!r}, so it has no generation {commit.generation_id}"
        )
    group.check_commit(commit.member_id, commit.group_instance_id, commit.generation_id)
    if commit.member_id:
        group.touch(commit.member_id, int(context.clock.monotonic_s() * 1000))
