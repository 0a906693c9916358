"""Offsets by time, and the ends of logs: ListOffsets at the leader of each partition.

Timestamps are milliseconds; negative ones name places (``model.EARLIEST_TIMESTAMP`` and others).

A leader that was elected just now does not know yet how far its log is committed, and answers OFFSET_NOT_AVAILABLE (78;
LEADER_NOT_AVAILABLE before version 5). That is no news: who knows an end from before gives it as ``last_known``, and
others wait. Source: KIP-207.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import PartitionInfo
from spark_kafkalite.client.network.retry import Backoff, Deadline, is_retriable, needs_refresh
from spark_kafkalite.errors import (
    BrokerUnreachable,
    KafkaliteError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import NO_LEADER_EPOCH, IsolationLevel, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.rights import refusal

# Metadata may lag behind a partition that was just added, for about as long as these attempts take.
_UNKNOWN_ATTEMPTS: Final = 4
_NO_NEWS: Final = frozenset({OffsetNotAvailable.code, LeaderNotAvailable.code})


class OffsetAndTimestamp(NamedTuple):
    """An answer of ListOffsets: ``timestamp`` is the record's, -1 for the ends of the log."""

    offset: int
    timestamp: int
    leader_epoch: int


def offsets_for(
    cluster: ClusterClient,
    timestamps: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    allow_auto_create: bool = False,
    last_known: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the first offset at or after each timestamp; None where there is none.

    ``last_known`` are ends that were seen before: they are returned, without timestamp and epoch, for leaders that do
    not know theirs yet.

    Timestamps are ms, or ``model.LATEST_TIMESTAMP`` and its like. Each partition's leader is asked; moves of
    leaders are followed until the deadline. Raises the last error then, or at once one that does not pass.
    """
    left = dict(timestamps)
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    backoff = Backoff(cluster.config.retry_backoff_ms, cluster.config.retry_backoff_max_ms)
    for topic in {each.topic for each in left}:
        cluster.topic(topic, deadline, allow_auto_create=allow_auto_create)
    while left:
        error = _round(cluster, left, found, isolation, deadline, last_known or {})
        if error is None:
            continue
        pause_s = backoff.next_s()
        # A partition that fresh metadata does not know either is not about to appear.
        unknown = isinstance(error, UnknownTopicOrPartition) and backoff.attempts > _UNKNOWN_ATTEMPTS
        if unknown or not is_retriable(error) or deadline.left_s() <= pause_s:
            raise error
        cluster.pause(pause_s)
        if needs_refresh(error):
            cluster.refresh({each.topic for each in left}, deadline)
    return found


def _round(
    cluster: ClusterClient,
    left: dict[TopicPartition, int],
    found: dict[TopicPartition, OffsetAndTimestamp | None],
    isolation: IsolationLevel,
    deadline: Deadline,
    last_known: Mapping[TopicPartition, int],
) -> KafkaliteError | None:
    """Ask each leader once; move answers from ``left`` to ``found`` and return an error that was met, if any."""
    error: KafkaliteError | None = None
    by_leader: dict[int, dict[str, list[tuple[PartitionInfo, int]]]] = {}
    for topic_partition, timestamp in left.items():
        try:
            info = cluster.leading(topic_partition)
        except KafkaliteError as failure:
            error = failure
        else:
            topics = by_leader.setdefault(info.leader, {})
            topics.setdefault(topic_partition.topic, []).append((info, timestamp))
    for leader, topics in by_leader.items():
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(isolation),
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=info.partition,
                            current_leader_epoch=info.leader_epoch,
                            timestamp=timestamp,
                        )
                        for info, timestamp in partitions
                    ],
                )
                for topic, partitions in topics.items()
            ],
        )
        try:
            answer = cluster.request_to(
                leader, ApiKey.LIST_OFFSETS, request, deadline.earlier_of(cluster.config.request_timeout_ms)
            )
        except BrokerUnreachable as failure:
            error = failure
            continue
        for topic_answer in answer.topics:
            for item in topic_answer.partitions:
                topic_partition = TopicPartition(topic_answer.name, item.partition_index)
                if topic_partition not in left:
                    continue
                if item.error_code in _NO_NEWS and topic_partition in last_known:
                    found[topic_partition] = OffsetAndTimestamp(last_known[topic_partition], -1, NO_LEADER_EPOCH)
                    del left[topic_partition]
                    continue
                if item.error_code:
                    error = refusal(
                        ApiKey.LIST_OFFSETS, item.error_code, f"{topic_partition}: its offsets cannot be looked up now"
                    )
                    continue
                del left[topic_partition]
                found[topic_partition] = (
                    None if item.offset < 0 else OffsetAndTimestamp(item.offset, item.timestamp, item.leader_epoch)
                )
    return error
