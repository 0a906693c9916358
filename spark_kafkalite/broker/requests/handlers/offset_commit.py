"""OffsetCommit (key 8), versions 2 to 9: stores how far a group has read; answered when that is committed.

A member names itself and its generation, and may commit for any partition. A client without a group names neither
(generation -1, empty member id) and may commit while the group has no members.

v2  a retention time for these offsets, instead of the broker's (to v4; -1 for none)
v3  throttle time
v5  no retention time any more
v6  the leader epoch of the last record read
v7  group instance id: a static member that was replaced is fenced
v8  flexible
v9  same as v8 for groups of this kind

Each partition has its own outcome; an error of the group is repeated for each of them. A topic or partition that does
not exist, and a text that is too long, spoil nothing but their own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import SMALL_REQUEST_BYTES, handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.coordinator.groups.groups_state import GroupShard
from spark_kafkalite.coordinator.groups.records import NO_TIME, OffsetKey, OffsetValue
from spark_kafkalite.coordinator.internal_topic import GROUPS
from spark_kafkalite.errors import (
    GroupAuthorizationFailed,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    KafkaError,
    OffsetMetadataTooLarge,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import CONSUMER_OFFSETS_TOPIC
from spark_kafkalite.net.outbox import Response, as_response
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.records.layout import MAX_INT64
from spark_kafkalite.slices import Work, run_whole
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.packed import dismantle_topics
from spark_kafkalite.wire.packed.offset_commit import (
    NO_RETENTION,
    OffsetCommit,
    pack_offset_commit_response,
    pack_offset_commit_response_in_slices,
    parse_offset_commit,
    parse_offset_commit_in_slices,
)

_quiet = QuietLog(logging.getLogger(__name__))
_new_tuple = tuple.__new__

# Partitions that are looked at between two yields, less one; a mask.
_AT_ONCE = 127
# A record has seven bytes of lengths and differences, a key of eight and its texts, and a value of 24 and its text.
_LEAST_RECORD_BYTES = 39
# Fewer are encoded sooner than looked at; the write says when they are too large.
_CHECKED_FROM = 100
# Topics with their partitions' numbers and error codes.
_Outcomes = list[tuple[str, list[tuple[int, int]]]]


@handles(ApiKey.OFFSET_COMMIT, 2, 9, raw=True)
def handle(
    context: BrokerContext, exchange: Exchange, frame: memoryview, position: int
) -> bytes | Work[Response | None] | None:
    """Commit offsets; the answer comes when they are committed, or at once when there is nothing to wait for."""
    if len(frame) > SMALL_REQUEST_BYTES:
        return _in_slices(context, exchange, exchange.keep(frame), position)
    commit = parse_offset_commit(frame, position, exchange.api_version)
    outcomes = _written(context, exchange, commit, *run_whole(_checked(context, exchange, commit)))
    if outcomes is None:
        return None
    return pack_offset_commit_response(
        exchange.correlation_id, exchange.api_version, outcomes, exchange.throttle_time_ms()
    )


def _in_slices(context: BrokerContext, exchange: Exchange, frame: memoryview, position: int) -> Work[Response | None]:
    commit = yield from parse_offset_commit_in_slices(frame, position, exchange.api_version)
    checked = yield from _checked(context, exchange, commit)
    outcomes = _written(context, exchange, commit, *checked)
    yield from dismantle_topics(commit.topics)
    return None if outcomes is None else (yield from _packed(exchange, outcomes))


def _answered(exchange: Exchange, response: Response | None, error: BaseException | None) -> None:
    if response is None:
        _quiet.log(logging.ERROR, "bug", "answering a commit of offsets failed", exc_info=error or True)
        exchange.close("a handler failed")
    else:
        exchange.answer(response)


def _packed(exchange: Exchange, outcomes: _Outcomes) -> Work[Response]:
    """Return the answer; the outcomes are used up."""
    body = yield from pack_offset_commit_response_in_slices(
        exchange.correlation_id, exchange.api_version, outcomes, exchange.throttle_time_ms()
    )
    yield from dismantle_topics(outcomes)
    return as_response(body)


def _written(
    context: BrokerContext,
    exchange: Exchange,
    commit: OffsetCommit,
    outcomes: _Outcomes,
    entries: dict[OffsetKey, OffsetValue],
) -> _Outcomes | None:
    """Have the offsets written, and return None; or return the outcomes when there is nothing to wait for."""
    if not entries:
        return outcomes
    try:
        shard = context.groups.shards.shard_of(commit.group_id)
        _check_group(context, shard, commit)
        if len(entries) >= _CHECKED_FROM:
            _check_size(context, entries)
    except KafkaError as error:
        return _failed(outcomes, context.coordinators[GROUPS].coordination.said(error))
    exchange.defer()

    def committed(error: KafkaError | None) -> None:
        told = outcomes if error is None else _failed(outcomes, error)
        if exchange.request_bytes > SMALL_REQUEST_BYTES:
            context.slices.start(_packed(exchange, told), partial(_answered, exchange))
            return
        exchange.answer(
            pack_offset_commit_response(
                exchange.correlation_id, exchange.api_version, told, exchange.throttle_time_ms()
            )
        )

    shard.write(list(entries.items()), committed)
    return None


def _checked(
    context: BrokerContext, exchange: Exchange, commit: OffsetCommit
) -> Work[tuple[_Outcomes, dict[OffsetKey, OffsetValue]]]:
    """Return each partition's outcome, 0 if nothing speaks against it, and the offsets of those.

    Of a partition that is named again the last offset counts. A client that may not use the group receives that for
    each partition, and the others nothing about topics that it may not read.
    """
    now_ms = context.clock.wall_ms()
    expire_ms = NO_TIME
    if commit.retention_time_ms != NO_RETENTION:
        expire_ms = min(now_ms + commit.retention_time_ms, MAX_INT64)
    metadata_limit = context.config["offset.metadata.max.bytes"]
    existing = context.cluster.topics
    group_id = commit.group_id
    is_limited = exchange.session.rights is not None
    may_read_group = not is_limited or exchange.may(Operation.READ, ResourceType.GROUP, group_id)
    entries: dict[OffsetKey, OffsetValue] = {}
    outcomes: _Outcomes = []
    for topic, partitions in commit.topics:
        refusal = 0
        if not may_read_group:
            refusal = GroupAuthorizationFailed.code
        elif is_limited and not exchange.may(Operation.READ, ResourceType.TOPIC, topic):
            refusal = TopicAuthorizationFailed.code
        state = existing.get(topic)
        numbers = state.partitions if state is not None else {}
        codes: list[tuple[int, int]] = []
        outcomes.append((topic, codes))
        yield None
        is_long = len(partitions) > _AT_ONCE
        for number, offset, leader_epoch, metadata in partitions:
            if is_long and len(codes) & _AT_ONCE == _AT_ONCE:
                yield None
            if refusal:
                codes.append((number, refusal))
            elif number not in numbers:
                codes.append((number, UnknownTopicOrPartition.code))
            elif metadata and len(metadata) > metadata_limit:
                codes.append((number, OffsetMetadataTooLarge.code))
            else:
                codes.append((number, 0))
                # As OffsetKey(...) and OffsetValue(...), in a third of the time.
                key = _new_tuple(OffsetKey, (group_id, topic, number))
                entries[key] = _new_tuple(OffsetValue, (offset, leader_epoch, metadata or "", now_ms, expire_ms))
    return outcomes, entries


def _check_size(context: BrokerContext, entries: Collection[OffsetKey]) -> None:
    """Raise what the write would end with, when it is clear before much is encoded."""
    least_bytes = len(entries) * _LEAST_RECORD_BYTES
    limit_bytes = context.topic_settings.config_of(CONSUMER_OFFSETS_TOPIC).max_message_bytes
    if least_bytes > limit_bytes:
        raise InvalidCommitOffsetSize(
            f"{len(entries)} offsets take at least {least_bytes} bytes, and are committed all or none; at most "
            f"{limit_bytes} bytes are possible (max.message.bytes of {CONSUMER_OFFSETS_TOPIC})"
        )


def _failed(outcomes: _Outcomes, error: KafkaError) -> _Outcomes:
    """Return the outcomes with an error of the group for all that nothing else spoke against."""
    return [(topic, [(number, code or error.code) for number, code in codes]) for topic, codes in outcomes]


def _check_group(context: BrokerContext, shard: GroupShard, commit: OffsetCommit) -> None:
    """Raise what forbids the commit; a commit counts as a sign of life of its member."""
    if commit.generation_id < 0:
        group = shard.state.group_or_new(commit.group_id)
    elif (known := shard.state.groups.get(commit.group_id)) is not None:
        group = known
    else:
        raise IllegalGeneration(
            f"there is no group {commit.group_id!r}, so it has no generation {commit.generation_id}"
        )
    group.check_commit(commit.member_id, commit.group_instance_id, commit.generation_id)
    if commit.member_id:
        group.touch(commit.member_id, int(context.clock.monotonic_s() * 1000))
