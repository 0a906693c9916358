"""The sticky assignors: balanced, and within that with as few partitions as possible changing hands. Pure.

What a member had comes with its subscription: :class:`StickyAssignor` puts partitions and generation into user data,
because its members have given everything back before they join; :class:`CooperativeStickyAssignor` reads the owned
partitions of the subscription. Where two members claim a partition, the newer generation is believed; in the same
generation neither is.

With the same subscription everywhere, quotas decide, as in Java's assignors (ConstrainedAssignmentBuilder): every
member keeps what it has up to its quota, and the rest is dealt out in order. With different subscriptions, every member
first keeps what is still subscribed to, and new partitions go to the member with the fewest. Partitions then move along
chains of members until no chain leads from a member to one with at least two fewer. Last, partitions of the same topic
are exchanged where that brings one back. Java's search stops earlier: its results may be less even, never more.

Cooperative members keep their partitions while they join, so a partition that changes hands is unassigned at first. Its
owner sees that it is gone, gives it up and joins again. Only then is it assigned to the other (KIP-429).

Source: AbstractStickyAssignor, StickyAssignor, CooperativeStickyAssignor; KIP-54.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from spark_kafkalite.client.group.assignors import (
    Assignments,
    GroupMemberSubscription,
    Members,
    java_order,
    readers_by_topic,
)
from spark_kafkalite.client.group.consumer_protocol import NO_GENERATION, FieldReader, Subscription, Writer
from spark_kafkalite.errors import FrameError
from spark_kafkalite.model import TopicPartition

Owned = tuple[Sequence[TopicPartition], int]


class StickyAssignor:
    """Balanced and sticky; members give everything back before they join."""

    name: Final = "sticky"
    is_cooperative: Final = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """[string topic, [int32 partition]] owned, int32 generation; nothing before the first assignment."""
        if not owned and generation == NO_GENERATION:
            return None
        writer = Writer()
        writer.partitions(owned)
        writer.int32(generation)
        return writer.getvalue()

    def assign(self, partition_counts: Mapping[str, int], members: Members) -> Assignments:
        owned = {member.member_id: _from_user_data(member.subscription) for member in members}
        return assign_sticky(partition_counts, members, owned)


class CooperativeStickyAssignor:
    """Balanced and sticky; members keep what they have while they join."""

    name: Final = "cooperative-sticky"
    is_cooperative: Final = True

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """int32 generation: for leaders that know no newer subscription than version 1."""
        writer = Writer()
        writer.int32(generation)
        return writer.getvalue()

    def assign(self, partition_counts: Mapping[str, int], members: Members) -> Assignments:
        owned = {member.member_id: _from_subscription(member.subscription) for member in members}
        assigned = assign_sticky(partition_counts, members, owned)
        holders: dict[TopicPartition, set[str]] = {}
        for member_id, (partitions, _) in owned.items():
            for topic_partition in partitions:
                holders.setdefault(topic_partition, set()).add(member_id)
        return {
            member_id: [each for each in partitions if holders.get(each, set()) <= {member_id}]
            for member_id, partitions in assigned.items()
        }


def _from_user_data(subscription: Subscription) -> Owned:
    if not subscription.user_data:
        return (), NO_GENERATION
    reader = FieldReader(subscription.user_data, "the sticky assignor's user data")
    try:
        partitions = reader.partitions()
        # Its first version has no generation.
        return partitions, reader.int32() if reader.left else NO_GENERATION
    except FrameError:
        # Another assignor's bytes under this name cost the member its stickiness, not the group its assignment.
        return (), NO_GENERATION


def _from_subscription(subscription: Subscription) -> Owned:
    generation = subscription.generation
    if generation == NO_GENERATION and subscription.user_data and len(subscription.user_data) >= 4:
        generation = FieldReader(subscription.user_data, "the cooperative assignor's user data").int32()
    return subscription.owned, generation


def assign_sticky(partition_counts: Mapping[str, int], members: Members, owned: Mapping[str, Owned]) -> Assignments:
    """Return an assignment that is balanced and keeps as much of ``owned`` (by member id) as it can."""
    readers = readers_by_topic(partition_counts, members)
    everybody = [member.member_id for member in sorted(members, key=GroupMemberSubscription.order)]
    may_read = {
        topic: frozenset(member.member_id for member in topic_readers) for topic, topic_readers in readers.items()
    }
    kept = _believed(partition_counts, everybody, may_read, owned)
    taken = {topic_partition for partitions in kept.values() for topic_partition in partitions}
    free = [
        topic_partition
        for topic in readers
        for partition in range(partition_counts[topic])
        if (topic_partition := TopicPartition(topic, partition)) not in taken
    ]
    if all(len(topic_readers) == len(everybody) for topic_readers in readers.values()):
        return _by_quota(kept, free)
    return _Exchange(everybody, readers, kept).run(free)


def _believed(
    partition_counts: Mapping[str, int],
    everybody: Sequence[str],
    may_read: Mapping[str, frozenset[str]],
    owned: Mapping[str, Owned],
) -> Assignments:
    """Return what each member may keep, by partition number and topic."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member_id in everybody:
        partitions, generation = owned[member_id]
        for topic_partition in dict.fromkeys(partitions):
            topic, partition = topic_partition
            if 0 <= partition < partition_counts.get(topic, 0) and member_id in may_read.get(topic, ()):
                claims.setdefault(topic_partition, []).append((generation, member_id))
    kept: Assignments = {member_id: [] for member_id in everybody}
    for topic_partition, claimants in claims.items():
        newest = max(generation for generation, _ in claimants)
        believed = [member_id for generation, member_id in claimants if generation == newest]
        if len(believed) == 1:
            kept[believed[0]].append(topic_partition)
    for partitions in kept.values():
        partitions.sort(key=lambda each: (each.partition, java_order(each.topic)))
    return kept


def _by_quota(kept: Assignments, free: list[TopicPartition]) -> Assignments:
    """Assign every member ``partitions // members`` or one more, from what it has first.

    ``free`` is in order of topics and numbers.
    """
    total = len(free) + sum(map(len, kept.values()))
    quota, with_one_more = divmod(total, len(kept)) if kept else (0, 0)
    assigned: Assignments = {}
    # Below the quota, and at it while some must still get one more.
    under: list[str] = []
    at_quota: list[str] = []
    given_up: list[TopicPartition] = []
    for member_id, partitions in kept.items():
        if len(partitions) < quota:
            keeps = len(partitions)
            under.append(member_id)
        elif len(partitions) > quota and with_one_more:
            keeps = quota + 1
            with_one_more -= 1
        else:
            keeps = quota
            at_quota.append(member_id)
        assigned[member_id] = partitions[:keeps]
        given_up += partitions[keeps:]
    if given_up:
        free = sorted([*free, *given_up], key=lambda each: (java_order(each.topic), each.partition))
    hungry = deque(sorted(under, key=java_order))
    satisfied = deque(sorted(at_quota, key=java_order))
    for topic_partition in free:
        member_id = hungry.popleft() if hungry else satisfied.popleft()
        assigned[member_id].append(topic_partition)
        if len(assigned[member_id]) < quota:
            hungry.append(member_id)
        elif len(assigned[member_id]) == quota:
            satisfied.append(member_id)
    return assigned


class _Exchange:
    """Members with different subscriptions."""

    def __init__(
        self, everybody: Sequence[str], readers: Mapping[str, list[GroupMemberSubscription]], kept: Assignments
    ) -> None:
        self._place = {member_id: place for place, member_id in enumerate(everybody)}
        self._readers = {topic: [member.member_id for member in members] for topic, members in readers.items()}
        self._owner = {each: member_id for member_id, partitions in kept.items() for each in partitions}
        # Member, then topic: its partitions.
        self._held: dict[str, dict[str, list[TopicPartition]]] = {member_id: {} for member_id in everybody}
        self._load = dict.fromkeys(everybody, 0)
        for member_id, partitions in kept.items():
            for topic_partition in partitions:
                self._give(topic_partition, member_id)

    def _give(self, topic_partition: TopicPartition, member_id: str) -> None:
        self._held[member_id].setdefault(topic_partition.topic, []).append(topic_partition)
        self._load[member_id] += 1

    def _take(self, topic_partition: TopicPartition, member_id: str) -> None:
        held = self._held[member_id]
        held[topic_partition.topic].remove(topic_partition)
        if not held[topic_partition.topic]:
            del held[topic_partition.topic]
        self._load[member_id] -= 1

    def run(self, free: list[TopicPartition]) -> Assignments:
        # Those that few may read come first: the others can still be used to even things out.
        for topic_partition in sorted(free, key=lambda each: len(self._readers[each.topic])):
            readers = self._readers[topic_partition.topic]
            self._give(topic_partition, min(readers, key=lambda each: (self._load[each], self._place[each])))
        while (chain := self._uneven_chain()) is not None:
            for giver, topic, taker in chain:
                self._move(giver, topic, taker)
        self._bring_back()
        return {
            member_id: [each for topic in sorted(held, key=java_order) for each in sorted(held[topic])]
            for member_id, held in self._held.items()
        }

    def _uneven_chain(self) -> list[tuple[str, str, str]] | None:
        """Return the moves (giver, topic, taker) from a member to one with at least two partitions fewer, or None."""
        seen: set[str] = set()
        for first in sorted(self._load, key=lambda each: (-self._load[each], self._place[each])):
            if first in seen:
                # Whoever reached it had as much or more, and found nobody.
                continue
            came_by: dict[str, tuple[str, str]] = {}
            reached = deque([first])
            visited = {first}
            topics_done: set[str] = set()
            while reached:
                giver = reached.popleft()
                for topic in self._held[giver]:
                    if topic in topics_done:
                        continue
                    topics_done.add(topic)
                    for taker in self._readers[topic]:
                        if taker in visited:
                            continue
                        visited.add(taker)
                        came_by[taker] = (giver, topic)
                        if self._load[taker] <= self._load[first] - 2:
                            return _chain_to(taker, first, came_by)
                        reached.append(taker)
            seen |= visited
        return None

    def _move(self, giver: str, topic: str, taker: str) -> None:
        """Move the partition that costs the least stickiness: the taker's own, else one that is not the giver's."""
        topic_partition = min(
            self._held[giver][topic],
            key=lambda each: (self._owner.get(each) != taker, self._owner.get(each) == giver, -each.partition),
        )
        self._take(topic_partition, giver)
        self._give(topic_partition, taker)

    def _bring_back(self) -> None:
        """Exchange partitions of a topic where that returns one to its owner."""
        for topic_partition, owner in sorted(self._owner.items()):
            topic = topic_partition.topic
            if topic_partition in self._held[owner].get(topic, ()):
                continue
            other = next((each for each in self._held[owner].get(topic, ()) if self._owner.get(each) != owner), None)
            if other is None:
                continue
            holder = next(each for each in self._readers[topic] if topic_partition in self._held[each].get(topic, ()))
            self._take(topic_partition, holder)
            self._take(other, owner)
            self._give(topic_partition, owner)
            self._give(other, holder)


def _chain_to(last: str, first: str, came_by: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    moves: list[tuple[str, str, str]] = []
    taker = last
    while taker != first:
        giver, topic = came_by[taker]
        moves.append((giver, topic, taker))
        taker = giver
    return moves
