"""Administration of one group at its coordinator: describe it, delete its offsets, delete it.

They are no members of it. The coordinator decides whether they may: it deletes no group with members, and no offsets
that members read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.client.group.consumer_protocol import PROTOCOL_TYPE, Assignment
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.network.metadata import Node
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    KafkaliteError,
    NonEmptyGroup,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.delete_groups import DeleteGroupsRequest
from spark_kafkalite.wire.messages.describe_groups import DescribeGroupsRequest
from spark_kafkalite.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from spark_kafkalite.wire.rights import refusal

# The state of a group that is not there.
DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member. ``assignment`` is empty in groups of another protocol type than "consumer", and in a rebalance.

    ``host`` is the address that the coordinator sees, in Kafka's spelling with a slash in front.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group. ``protocol`` is the name of its assignor, empty before its first rebalance is done."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: Node
    members: tuple[MemberDescription, ...]

    @property
    def exists(self) -> bool:
        """Whether the coordinator knows the group: describing one that it does not know is no error."""
        return self.state != DEAD


def describe_group(coordinator: CoordinatorLink, deadline: Deadline) -> GroupDescription:
    """Return state, assignor and members; a group that does not exist has the state "Dead" and no members."""
    (found,) = coordinator.call(DescribeGroupsRequest(groups=[coordinator.group_id]), deadline).groups
    if found.error_code:
        raise refusal(ApiKey.DESCRIBE_GROUPS, found.error_code, f"group {coordinator.group_id!r} cannot be described")
    consumers = found.protocol_type == PROTOCOL_TYPE
    return GroupDescription(
        coordinator.group_id,
        found.group_state,
        found.protocol_type,
        found.protocol_data,
        coordinator.node(deadline),
        tuple(
            MemberDescription(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                _assigned(bytes(each.member_assignment)) if consumers else (),
            )
            for each in found.members
        ),
    )


def delete_offsets(coordinator: CoordinatorLink, partitions: Iterable[TopicPartition], deadline: Deadline) -> None:
    """Delete a group's committed offsets of partitions; those without any are passed over.

    Raises GroupIdNotFound (69), GroupSubscribedToTopic (86) for topics that its members read, UnknownTopicOrPartition
    (3); other partitions are deleted all the same.
    """
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=partition))
    if not topics:
        return
    group_id = coordinator.group_id
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[OffsetDeleteRequestTopic(name=name, partitions=each) for name, each in topics.items()],
    )
    answer = coordinator.call(request, deadline)
    doing = f"offsets of group {group_id!r} cannot be deleted"
    if answer.error_code:
        raise refusal(ApiKey.OFFSET_DELETE, answer.error_code, f"{doing}: {_why(group_id, answer.error_code)}")
    refused: dict[int, list[str]] = {}
    for topic_answer in answer.topics:
        for item in topic_answer.partitions:
            if item.error_code:
                refused.setdefault(item.error_code, []).append(
                    str(TopicPartition(topic_answer.name, item.partition_index))
                )
    raise_first(
        [
            refusal(ApiKey.OFFSET_DELETE, code, f"{doing} for {', '.join(names)}: {_why(group_id, code)}")
            for code, names in refused.items()
        ]
    )


def delete_group(coordinator: CoordinatorLink, deadline: Deadline) -> None:
    """Delete a group without members and all its offsets. Raises NonEmptyGroup (68), GroupIdNotFound (69)."""
    group_id = coordinator.group_id
    (result,) = coordinator.call(DeleteGroupsRequest(groups_names=[group_id]), deadline).results
    if result.error_code:
        why = _why(group_id, result.error_code)
        raise refusal(ApiKey.DELETE_GROUPS, result.error_code, f"group {group_id!r} cannot be deleted: {why}")


def _why(group_id: str, code: int) -> str:
    if code == NonEmptyGroup.code:
        return "it has members; stop its consumers first"
    if code == GroupIdNotFound.code:
        return f"there is no group {group_id!r}"
    if code == GroupSubscribedToTopic.code:
        return "members of the group read the topic; stop its consumers first"
    if code == UnknownTopicOrPartition.code:
        return "there is no such topic or partition"
    return "the coordinator refuses it"


def raise_first(failed: Sequence[KafkaliteError]) -> None:
    """Raise the first error, with the texts of all of them; nothing when there is none."""
    if not failed:
        return
    first, *others = failed
    raise type(first)("; ".join(str(error) for error in (first, *others))) if others else first


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment; none where its bytes, an assignor's word, are not one."""
    try:
        return tuple(sorted(Assignment.decode(data).partitions))
    except KafkaliteError:
        return ()
