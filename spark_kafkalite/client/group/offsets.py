"""Committed offsets of a group: storing them at its coordinator, and asking for them.

A commit is one request and one record batch: all its partitions or, when the coordinator refuses some, the others. It
is answered when it is replicated. Members commit with their identity (:class:`GroupMember`), and are refused once the
group has moved on. A client that is no member may commit only while the group has none (a simple consumer, an
administrator).

An offset is the next one to read. Asking leaves out partitions that the group never committed. Offsets that an open
transaction may still change are waited for (KIP-447).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.network.retry import Backoff, Deadline
from spark_kafkalite.errors import (
    ConfigError,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import CommittedOffset, TopicPartition
from spark_kafkalite.printable import first_of
from spark_kafkalite.records.layout import MAX_INT64
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from spark_kafkalite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from spark_kafkalite.wire.rights import refusal

# FENCED_INSTANCE_ID and UNSTABLE_OFFSET_COMMIT.
_FENCED: Final = 82
_UNSTABLE: Final = 88

# The coordinator may hear of a topic that was just made after its reader has, within about these attempts.
_UNKNOWN_ATTEMPTS: Final = 4

_MOVED_ON: Final = frozenset({IllegalGeneration.code, UnknownMemberId.code})


class GroupMember(NamedTuple):
    """The identity of a member that commits. The default is no member, outside of any generation."""

    member_id: str = ""
    generation_id: int = -1
    group_instance_id: str | None = None

    def __str__(self) -> str:
        static = f" (group.instance.id {self.group_instance_id!r})" if self.group_instance_id else ""
        return f"member {self.member_id!r}{static} of generation {self.generation_id}"


NO_MEMBER: Final = GroupMember()


def as_committed(
    offsets: Mapping[TopicPartition, CommittedOffset | int],
) -> dict[TopicPartition, CommittedOffset]:
    """Return offsets as users give them in one form. Raises ConfigError."""
    if not isinstance(offsets, Mapping):
        raise ConfigError(f"offsets to commit: {offsets!r} is not a mapping from partitions to offsets")
    committed = {}
    for each, offset in offsets.items():
        if isinstance(each, str) or len(each) != 2:
            raise ConfigError(f"offsets to commit: {each!r} is not a partition; give TopicPartition(topic, number)")
        topic_partition = TopicPartition(*each)
        if isinstance(offset, CommittedOffset):
            committed[topic_partition] = offset
            continue
        try:
            # NumPy's integers too.
            committed[topic_partition] = CommittedOffset(operator.index(offset))
        except TypeError:
            raise ConfigError(f"offsets to commit: {offset!r} is not an offset, for {topic_partition}") from None
    return committed


def commit_offsets(
    coordinator: CoordinatorLink,
    offsets: Mapping[TopicPartition, CommittedOffset],
    member: GroupMember | None = None,
    *,
    deadline: Deadline,
) -> None:
    """Store offsets and return once they are replicated; an empty mapping does nothing.

    Raises IllegalGeneration (22), UnknownMemberId (25), RebalanceInProgress (27) or FencedInstanceId (82) when the
    member may not commit, another KafkaError for partitions that are refused (the others are stored), and at the
    deadline the last reason why it could not be done.
    """
    if not offsets:
        return
    for topic_partition, committed in offsets.items():
        if not 0 <= committed.offset <= MAX_INT64:
            raise ConfigError(
                f"{topic_partition}: offset {committed.offset} cannot be committed: it must be at least 0, and fit "
                "into 64 bits"
            )
    who = member or NO_MEMBER
    request = commit_request(coordinator.group_id, offsets, who)
    config = coordinator.cluster.config
    backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
    while (error := commit_error(coordinator, who, coordinator.call(request, deadline))) is not None:
        pause_s = backoff.next_s()
        unknown = isinstance(error, UnknownTopicOrPartition) and backoff.attempts <= _UNKNOWN_ATTEMPTS
        if not unknown or deadline.left_s() <= pause_s:
            raise error
        coordinator.cluster.pause(pause_s)


def commit_request(
    group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], member: GroupMember
) -> OffsetCommitRequest:
    """Return the request that stores offsets."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), committed in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        retention_time_ms=-1,
        topics=[OffsetCommitRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
    )


def commit_error(coordinator: CoordinatorLink, member: GroupMember, answer: Any) -> KafkaError | None:
    """Return what the coordinator refused, with all partitions that met the first error, or None."""
    refused: dict[int, list[TopicPartition]] = {}
    for topic in answer.topics:
        for item in topic.partitions:
            if item.error_code:
                refused.setdefault(item.error_code, []).append(TopicPartition(topic.name, item.partition_index))
    if not refused:
        return None
    code, partitions = next(iter(refused.items()))
    return refusal(ApiKey.OFFSET_COMMIT, code, _refusal(coordinator, member, code, partitions))


def _refusal(coordinator: CoordinatorLink, member: GroupMember, code: int, partitions: list[TopicPartition]) -> str:
    text = f"group {coordinator.group_id!r}, {coordinator}: the commit of {first_of(partitions, 5)} is refused"
    if member == NO_MEMBER and code in (*_MOVED_ON, RebalanceInProgress.code):
        return (
            f"{text}: the group has members, and only they may commit. Stop the group's consumers first, or use "
            "another group.id"
        )
    if code in _MOVED_ON:
        return (
            f"{text} to {member}: the group has rebalanced and its partitions may be another member's now, which reads "
            "from the last commit on. Poll at least every max.poll.interval.ms (raise it, or lower max.poll.records), "
            "and expect records again"
        )
    if code == RebalanceInProgress.code:
        return (
            f"{text} to {member}: the group is rebalancing. poll() takes part in it; commit again after that what is "
            "still assigned"
        )
    if code == _FENCED:
        return f"{text} to {member}: another member has joined with the same group.instance.id since. Stop one of them"
    if code == UnknownTopicOrPartition.code:
        return f"{text}: there is no such topic or partition"
    return text


def fetch_offsets(
    coordinator: CoordinatorLink,
    partitions: Iterable[TopicPartition] | None,
    deadline: Deadline,
    *,
    require_stable: bool = True,
) -> dict[TopicPartition, CommittedOffset]:
    """Return what the group has committed for these partitions (None: for all); those without a commit are left out.

    ``require_stable`` waits for transactions that hold offsets of these partitions.
    """
    topics: dict[str, list[int]] | None = None
    if partitions is not None:
        topics = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        if not topics:
            return {}
    # Both forms: versions before 8 ask for one group, later ones for several.
    request = OffsetFetchRequest(
        group_id=coordinator.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in topics.items()],
        groups=[
            OffsetFetchRequestGroup(
                group_id=coordinator.group_id,
                topics=None
                if topics is None
                else [OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in topics.items()],
            )
        ],
        require_stable=require_stable,
    )
    config = coordinator.cluster.config
    backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
    while True:
        answer = coordinator.call(request, deadline)
        try:
            return _fetched(coordinator, answer)
        except KafkaError as error:
            pause_s = backoff.next_s()
            if error.code != _UNSTABLE or deadline.left_s() <= pause_s:
                raise
            coordinator.cluster.pause(pause_s)


def _fetched(coordinator: CoordinatorLink, answer: Any) -> dict[TopicPartition, CommittedOffset]:
    found = answer.groups[0] if answer.groups else answer
    whole = f"group {coordinator.group_id!r}, {coordinator}: its offsets cannot be read"
    if found.error_code:
        raise refusal(ApiKey.OFFSET_FETCH, found.error_code, whole)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in found.topics:
        for item in topic.partitions:
            topic_partition = TopicPartition(topic.name, item.partition_index)
            if item.error_code:
                raise refusal(ApiKey.OFFSET_FETCH, item.error_code, f"{whole}: {topic_partition}")
            if item.committed_offset >= 0:
                offsets[topic_partition] = CommittedOffset(
                    item.committed_offset, item.metadata or "", item.committed_leader_epoch
                )
    return offsets
