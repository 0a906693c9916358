"""Assignors: which member of a group reads which partitions. Pure; run by the group's leader after every JoinGroup.

An assignor gets the topics' partition counts and every member's subscription, and returns each member's partitions.
Its result depends on nothing else, members are ordered as Java's clients order them, and :class:`RangeAssignor` and
:class:`RoundRobinAssignor` give what Java's assignors give: members of both kinds may lead the same group. Topics that
do not exist have no count and are left out.

The sticky ones are in :mod:`.sticky`. Racks are not considered: where no partition's replicas have racks, or no member
names one, KIP-881's rules are those here.

Range deals out each topic by itself, in order of partition numbers, the first ``partitions % members`` members getting
one more. Members therefore get the same numbers of all topics with the same count and the same subscribers, which is
what joins of co-partitioned topics rest on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from spark_kafkalite.client.group.consumer_protocol import Subscription
from spark_kafkalite.model import TopicPartition


class GroupMemberSubscription(NamedTuple):
    """One member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    subscription: Subscription

    def order(self) -> tuple[bool, list[int]]:
        """Sort key: static members first, by instance id, then the others by member id, by UTF-16 code units.

        An instance id outlives restarts, so a static member keeps its place and with it its partitions.
        Source: AbstractPartitionAssignor.MemberInfo.compareTo.
        """
        name = self.member_id if self.group_instance_id is None else self.group_instance_id
        return self.group_instance_id is None, java_order(name)


def java_order(text: str) -> list[int]:
    """Sort key for texts that orders as Java's String.compareTo does: by UTF-16 code units, not by code points."""
    data = text.encode("utf-16-be", "surrogatepass")
    return [high << 8 | low for high, low in zip(data[::2], data[1::2], strict=True)]


Members = Sequence[GroupMemberSubscription]
Assignments = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    """One way to deal out partitions, under the name that members agree on."""

    @property
    def name(self) -> str:
        """The protocol's name on the wire."""

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep their partitions while they join (KIP-429)."""

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return what a member adds to its subscription: ``owned`` is what it had in ``generation``."""

    def assign(self, partition_counts: Mapping[str, int], members: Members) -> Assignments:
        """Return the partitions of each member, by member id; members without any have an empty list."""


class RangeAssignor:
    """Each topic by itself, in stretches of neighbouring partitions."""

    name: Final = "range"
    is_cooperative: Final = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, partition_counts: Mapping[str, int], members: Members) -> Assignments:
        assigned: Assignments = {member.member_id: [] for member in members}
        for topic, readers in readers_by_topic(partition_counts, members).items():
            each, with_one_more = divmod(partition_counts[topic], len(readers))
            start = 0
            for number, member in enumerate(readers):
                until = start + each + (number < with_one_more)
                assigned[member.member_id] += [TopicPartition(topic, partition) for partition in range(start, until)]
                start = until
        return assigned


class RoundRobinAssignor:
    """All partitions of all topics in turn, passing over members that have not subscribed to the topic."""

    name: Final = "roundrobin"
    is_cooperative: Final = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, partition_counts: Mapping[str, int], members: Members) -> Assignments:
        assigned: Assignments = {member.member_id: [] for member in members}
        subscribed = {member.member_id: frozenset(member.subscription.topics) for member in members}
        turn = itertools.cycle(sorted(members, key=GroupMemberSubscription.order))
        for topic in readers_by_topic(partition_counts, members):
            for partition in range(partition_counts[topic]):
                # Somebody has subscribed to it, or it would not be among the topics.
                member_id = next(each.member_id for each in turn if topic in subscribed[each.member_id])
                assigned[member_id].append(TopicPartition(topic, partition))
        return assigned


def readers_by_topic(partition_counts: Mapping[str, int], members: Members) -> dict[str, list[GroupMemberSubscription]]:
    """Return the subscribers of each topic that exists: topics by name, members in their order."""
    readers: dict[str, list[GroupMemberSubscription]] = {}
    for member in sorted(members, key=GroupMemberSubscription.order):
        for topic in dict.fromkeys(member.subscription.topics):
            if partition_counts.get(topic):
                readers.setdefault(topic, []).append(member)
    return {topic: readers[topic] for topic in sorted(readers, key=java_order)}
