"""Who is in a group: members under their ids and instance ids, what they have in common, and which requests wait.

The book-keeping under ``state.py``, which decides; nothing here knows of states. Every change goes through a method
that keeps the books together:

- an instance id belongs to one member (``_static``), and a member's id never changes but by :meth:`Roster._rename`;
- ``_supporters`` counts for each protocol the members that have it;
- a waiting request (its ticket) belongs to one member, who has at most one; :meth:`Roster._unpark` is the only way out,
  and everything that answers goes through it;
- ``wake_ms`` is at most the earliest deadline of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

from spark_kafkalite.errors import FencedInstanceId, IllegalGeneration, KafkaError, RebalanceInProgress, UnknownMemberId
from spark_kafkalite.groups.members import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    Effect,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    Member,
    SyncAnswer,
    topics_of,
)
from spark_kafkalite.groups.records import MemberMetadata

# What a group, and an id given out in advance, take in memory, about.
_GROUP_BYTES: Final = 2048
_PENDING_BYTES: Final = 300


class Roster:
    """See the module's text."""

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.limits = limits
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        # Ids given out to clients that have not joined with them yet, with their deadlines, oldest first.
        self.pending: dict[str, int] = {}
        # No deadline comes before this time; it may be too early, never too late.
        self.wake_ms: int | None = None
        self._member_bytes = 0
        self._static: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self._parked: dict[Hashable, Member] = {}
        self._joined = 0
        # Members of this generation that have not asked for their assignment yet.
        self._unsynced: set[str] = set()
        self._effects: list[Effect] = []

    @property
    def size_bytes(self) -> int:
        """What the group takes in memory, about."""
        return _GROUP_BYTES + self._member_bytes + len(self.pending) * _PENDING_BYTES

    @property
    def waiting(self) -> int:
        """How many requests wait for their answers."""
        return len(self._parked)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members read; None when nobody can say, as of members that are no consumers."""
        if self.members and (self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None):
            return None
        return topics_of(member.metadata(self.protocol) for member in self.members.values())

    def touch(self, member_id: str, now_ms: int) -> None:
        """Note that the member was heard of."""
        member = self.members.get(member_id)
        if member is not None:
            self._hear(member, now_ms)

    # Finding --------------------------------------------------------------------------------------------------------

    def _find(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return a member. Raises UnknownMemberId, or FencedInstanceId when another one has its instance id."""
        if group_instance_id is not None:
            owner = self._static.get(group_instance_id)
            if owner is not None and owner != member_id:
                raise FencedInstanceId(f"group {self.group_id}: {group_instance_id} is {owner} now, not {member_id}")
            if owner is None:
                raise UnknownMemberId(f"group {self.group_id}: it has no member {group_instance_id}")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"group {self.group_id}: it has no member {member_id!r}")
        return member

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(f"group {self.group_id} is in generation {self.generation}, not {generation}")

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _choose_protocol(self) -> str:
        """Return the protocol that most members like best among those that all have; the leader's order breaks ties."""
        common = {name for name, supporters in self._supporters.items() if supporters == len(self.members)}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            for name, _ in member.protocols:
                if name in common:
                    votes[name] += 1
                    break
        leader = self.members[self.leader] if self.leader is not None else next(iter(self.members.values()))
        return max((name for name, _ in leader.protocols if name in common), key=lambda name: votes[name])

    def _members_metadata(self) -> tuple[tuple[str, str | None, bytes], ...]:
        return tuple(
            (member.member_id, member.group_instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    # Deadlines ------------------------------------------------------------------------------------------------------

    def _deadline(self, at_ms: int) -> int:
        """Return ``at_ms``, and have the group woken by then."""
        if self.wake_ms is None or at_ms < self.wake_ms:
            self.wake_ms = at_ms
        return at_ms

    def _hear(self, member: Member, now_ms: int) -> None:
        """Begin a member's session anew, unless its request waits here."""
        if member.join_ticket is None and member.sync_ticket is None:
            member.deadline_ms = self._deadline(now_ms + member.session_timeout_ms)

    # Members --------------------------------------------------------------------------------------------------------

    def _insert(self, member: Member) -> None:
        if not self.members:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id
        self._supporters.update(_names(member))
        self._member_bytes += member.size_bytes

    def _insert_stored(self, metadata: MemberMetadata, protocol: str | None) -> None:
        """Insert a member as the log has it, which knows of one protocol only."""
        protocols = ((protocol or "", metadata.subscription),)
        member = Member(
            metadata.member_id,
            metadata.group_instance_id,
            metadata.client_id,
            metadata.client_host,
            metadata.session_timeout_ms,
            metadata.rebalance_timeout_ms,
            protocols,
            assignment=metadata.assignment,
        )
        self._insert(member)

    def _drop(self, member: Member, reason: str) -> None:
        """Take a member out; a request of it that waits is answered."""
        self._answer_error(member, UnknownMemberId(f"group {self.group_id}: {member.member_id} is out, {reason}"))
        del self.members[member.member_id]
        self._unsynced.discard(member.member_id)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        self._supporters.subtract(_names(member))
        self._supporters += Counter()  # without those that nobody has any more
        self._member_bytes -= member.size_bytes
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id."""
        former_id = member.member_id
        del self.members[former_id]
        member.member_id = member_id
        self.members[member_id] = member
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member_id
        if former_id in self._unsynced:
            self._unsynced.remove(former_id)
            self._unsynced.add(member_id)
        if self.leader == former_id:
            self.leader = member_id

    def _update(self, member: Member, request: JoinRequest) -> None:
        """Take over what a member says of itself now."""
        self._member_bytes -= member.size_bytes
        self._supporters.subtract(_names(member))
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        self._supporters.update(_names(member))
        self._supporters += Counter()
        self._member_bytes += member.size_bytes

    # Requests that wait ---------------------------------------------------------------------------------------------

    def _park_join(self, member: Member, ticket: Hashable) -> None:
        self._make_way(member)
        member.join_ticket = ticket
        self._parked[ticket] = member
        self._joined += 1
        if not member.is_new:
            member.deadline_ms = None

    def _park_sync(self, member: Member, ticket: Hashable) -> None:
        self._make_way(member)
        member.sync_ticket = ticket
        self._parked[ticket] = member
        member.deadline_ms = None

    def _make_way(self, member: Member) -> None:
        """Answer what the member asked before: it asks again because nobody listens to that answer any more."""
        self._answer_error(member, RebalanceInProgress(f"group {self.group_id}: {member.member_id} has asked again"))

    def _unpark(self, member: Member) -> None:
        if member.join_ticket is not None:
            del self._parked[member.join_ticket]
            self._joined -= 1
            member.join_ticket = None
        if member.sync_ticket is not None:
            del self._parked[member.sync_ticket]
            member.sync_ticket = None

    def _answer_error(self, member: Member, error: KafkaError) -> None:
        """Answer whatever waits of a member, if anything does."""
        join_ticket, sync_ticket = member.join_ticket, member.sync_ticket
        self._unpark(member)
        if join_ticket is not None:
            self._effects.append(JoinAnswer(join_ticket, error, NO_MEMBER_ID))
        if sync_ticket is not None:
            self._effects.append(SyncAnswer(sync_ticket, error))

    def _answer_join(
        self, member: Member, ticket: Hashable, now_ms: int, *, leader: str | None = None, skip_assignment: bool = False
    ) -> None:
        """Tell a member of the present generation. ``leader``: the id that it is told, if not that of the leader."""
        self._unpark(member)
        member.is_new = False
        told_leader = (self.leader or NO_MEMBER_ID) if leader is None else leader
        self._effects.append(
            JoinAnswer(
                ticket,
                None,
                member.member_id,
                self.generation,
                self.protocol_type,
                self.protocol,
                told_leader,
                self._members_metadata() if told_leader == member.member_id else (),
                skip_assignment,
            )
        )
        self._hear(member, now_ms)

    def _answer_sync(self, member: Member, ticket: Hashable, now_ms: int) -> None:
        """Give a member its assignment."""
        self._unpark(member)
        self._effects.append(SyncAnswer(ticket, None, self.protocol_type, self.protocol, member.assignment))
        self._hear(member, now_ms)

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _names(member: Member) -> set[str]:
    """Return the protocols that a member has, each once, however often it named it."""
    return {name for name, _ in member.protocols}
