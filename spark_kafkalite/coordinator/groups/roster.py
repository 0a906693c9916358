"""The members of a group by id and instance id, the protocols that they share, and their waiting requests. Pure.

The books of a group, without time, states or answers: ``rebalance.py`` and ``group.py`` decide, and change them through
methods that keep them together:

- an instance id belongs to one member (``static``), and a member's id never changes but by :meth:`Roster.rename`;
- a roster with members has one leader, which is one of them;
- ``supporters`` counts for each protocol the members that have it;
- a waiting request (its ticket) belongs to one member, which has at most one; only :meth:`Roster.unpark` removes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

from spark_kafkalite.coordinator.groups.members import NO_MEMBER_ID, JoinRequest, Member
from spark_kafkalite.coordinator.groups.records import MemberMetadata
from spark_kafkalite.errors import FencedInstanceId, InconsistentGroupProtocol, UnknownMemberId

# What a group takes in memory without its members, about.
_GROUP_BYTES: Final = 2048


class Roster:
    """See the module's text."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: dict[str, Member] = {}
        self.leader: str | None = None
        self.static: dict[str, str] = {}
        self.supporters: Counter[str] = Counter()
        # Members whose requests wait, by ticket; and how many of these wait to have joined.
        self.parked: dict[Hashable, Member] = {}
        self.joined = 0
        # Members of this generation that have not asked for their assignment yet.
        self.unsynced: set[str] = set()
        self.member_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What the members take in memory, about."""
        return _GROUP_BYTES + self.member_bytes

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members, 0 without any."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Finding --------------------------------------------------------------------------------------------------------

    def find(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return a member. Raises UnknownMemberId, or FencedInstanceId when another one has its instance id."""
        if group_instance_id is not None:
            owner = self.static.get(group_instance_id)
            if owner is not None and owner != member_id:
                raise FencedInstanceId(f"group {self.group_id}: {group_instance_id} is {owner} now, not {member_id}")
            if owner is None:
                raise UnknownMemberId(f"group {self.group_id}: it has no member {group_instance_id}")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"group {self.group_id}: it has no member {member_id!r}")
        return member

    def id_of(self, group_instance_id: str | None) -> str:
        """Return the id of the member with this instance id, NO_MEMBER_ID if there is none."""
        return self.static.get(group_instance_id or "", NO_MEMBER_ID)

    def check_protocols(self, request: JoinRequest, former: Member | None, protocol_type: str | None) -> None:
        """Raise InconsistentGroupProtocol unless all members would still have a protocol in common.

        ``former``: the member that asks, if it is one. ``protocol_type``: that of the members there are.
        """
        names = frozenset(name for name, _ in request.protocols)
        fits = bool(request.protocol_type and names)
        if self.members:
            others = len(self.members) - (former is not None)
            own = former.protocol_names if former is not None else frozenset()
            fits = request.protocol_type == protocol_type and any(
                self.supporters[name] - (name in own) == others for name in names
            )
        if not fits:
            raise InconsistentGroupProtocol(
                f"group {self.group_id} of type {protocol_type}: a member of type {request.protocol_type!r} that "
                f"has the protocols {', '.join(sorted(names)) or 'none'} shares none with all others"
            )

    def choose_protocol(self) -> str:
        """Return the protocol that most members like best among those that all have; the leader's order breaks ties."""
        common = {name for name, supporters in self.supporters.items() if supporters == len(self.members)}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            for name, _ in member.protocols:
                if name in common:
                    votes[name] += 1
                    break
        leader = self.members[self.leader] if self.leader is not None else next(iter(self.members.values()))
        return max((name for name, _ in leader.protocols if name in common), key=lambda name: votes[name])

    def described(self, protocol: str | None) -> tuple[tuple[str, str | None, bytes], ...]:
        """Return id, instance id and subscription of each member, as the leader receives them."""
        return tuple(
            (member.member_id, member.group_instance_id, member.metadata(protocol)) for member in self.members.values()
        )

    # Members --------------------------------------------------------------------------------------------------------

    def insert(self, member: Member) -> None:
        """Take a member in; the first one leads."""
        if not self.members:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        self.supporters.update(member.protocol_names)
        self.member_bytes += member.size_bytes

    def insert_stored(self, metadata: MemberMetadata, protocol: str | None) -> None:
        """Take a member in as the log has it, which knows of one protocol only."""
        if metadata.member_id in self.members or metadata.group_instance_id in self.static:
            # Nothing that wrote this had a member or an instance twice; a damaged record must not do harm, though.
            return
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
        self.insert(member)

    def remove(self, member: Member) -> None:
        """Take a member out; no request of it waits any more."""
        del self.members[member.member_id]
        self.unsynced.discard(member.member_id)
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        self._forget_protocols(member)
        self.member_bytes -= member.size_bytes
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id."""
        former_id = member.member_id
        del self.members[former_id]
        member.member_id = member_id
        self.members[member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member_id
        if former_id in self.unsynced:
            self.unsynced.remove(former_id)
            self.unsynced.add(member_id)
        if self.leader == former_id:
            self.leader = member_id

    def update(self, member: Member, request: JoinRequest) -> None:
        """Take over the member's properties from its new request."""
        self.member_bytes -= member.size_bytes
        self._forget_protocols(member)
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        self.supporters.update(member.protocol_names)
        self.member_bytes += member.size_bytes

    def _forget_protocols(self, member: Member) -> None:
        self.supporters.subtract(member.protocol_names)
        self.supporters += Counter()  # without those that nobody has any more

    # Requests that wait ---------------------------------------------------------------------------------------------

    def park_join(self, member: Member, ticket: Hashable) -> None:
        """Note that a member, of which nothing waits, waits to have joined."""
        member.join_ticket = ticket
        self.parked[ticket] = member
        self.joined += 1

    def park_sync(self, member: Member, ticket: Hashable) -> None:
        """Note that a member, of which nothing waits, waits for its assignment."""
        member.sync_ticket = ticket
        self.parked[ticket] = member

    def unpark(self, member: Member) -> None:
        """Note that no request of the member waits any more."""
        if member.join_ticket is not None:
            del self.parked[member.join_ticket]
            self.joined -= 1
            member.join_ticket = None
        if member.sync_ticket is not None:
            del self.parked[member.sync_ticket]
            member.sync_ticket = None
