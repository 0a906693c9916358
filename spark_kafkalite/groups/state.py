"""One group: its members, its generation, and what every request and every deadline does to it. Pure.

No clock, no socket, no log: methods take the time (``now_ms``, monotonic) and return what is to be done about it as
values (``members.py``: answers to requests that waited, metadata to be written). Whoever holds a group calls
:meth:`Group.expire` when :attr:`Group.wake_ms` has come, and :meth:`Group.persisted` when what was to be written is in,
or could not be. Below are ``rebalance.py`` (states, deadlines, generations) and ``roster.py`` (the books).

===================  ===================================================================================================
state                what it means, and what ends it
===================  ===================================================================================================
Empty                no members; committed offsets may be there. A join.
PreparingRebalance   members rejoin; each waits for its answer. All have joined, or the rebalance timeout is over.
CompletingRebalance  all know the generation, and wait for the leader's assignment. It is written; or somebody joins,
                     leaves, or does not sync within the rebalance timeout.
Stable               all have their assignments. Somebody joins, leaves or falls silent; the leader joins.
Dead                 deleted, or moved to another broker. Nothing.
===================  ===================================================================================================

Invariants: a generation number only grows; a group with members has one leader, who is one of them; all members have
at least one protocol in common; an instance id belongs to one member; every ticket is answered once, or dropped by
:meth:`Group.abandon`. A member whose request waits here cannot be heard of, so it cannot fall silent either; only a
new one that waits for long is given up, since it may have gone and come again under another id.

Where a rule surprises, it is Apache Kafka's (GroupCoordinator and GroupMetadata of 3.9), and clients rely on it. Five
are our own: a static member that nothing is heard of keeps its place until its session ends, not until the next
rebalance does; a static member that comes back with other topics starts a rebalance; a new member whose connection
closes before it got an answer is forgotten at once; a member may replace all of its protocols if the others have one of
the new ones; ids given out in advance are bounded in number, the oldest goes first.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable
from typing import Final

from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidCommitOffsetSize,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    MemberIdRequired,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from spark_kafkalite.groups.members import (
    CONSUMER_PROTOCOL_TYPE,
    MOST_INSTANCE_ID_CHARS,
    NO_MEMBER_ID,
    Effect,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    Member,
    Persist,
    StaticRestart,
    SyncAnswer,
    SyncRequest,
    is_instance_id,
    topics_of,
)
from spark_kafkalite.groups.rebalance import GroupState, Rebalances
from spark_kafkalite.groups.records import NO_TIME, GroupMetadata

# How long a new member's join may wait: nothing tells a client that waits from one that has gone. Source: KAFKA-7610.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
# Ids given out to clients that have yet to come back with them; a client needs no longer than a round trip.
MOST_PENDING: Final = 10_000
# Protocols (assignors) that a member may have; clients have two or three.
MOST_PROTOCOLS: Final = 100
# A member's id begins with as much of the client's.
_CLIENT_ID_CHARS: Final = 249

_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState
_Outcomes = dict[GroupState, type[KafkaError] | None]

# What a member of the present generation is told, by state; None is no error.
HEARTBEAT: Final[_Outcomes] = {
    _EMPTY: UnknownMemberId,
    _PREPARING: RebalanceInProgress,
    _COMPLETING: None,
    _STABLE: None,
    _DEAD: CoordinatorNotAvailable,
}
SYNC: Final[_Outcomes] = dict(HEARTBEAT)
COMMIT: Final[_Outcomes] = {
    _EMPTY: None,
    # Members commit before they rejoin.
    _PREPARING: None,
    # Its partitions may be another member's by now, and this one has not heard of it yet.
    _COMPLETING: RebalanceInProgress,
    _STABLE: None,
    _DEAD: CoordinatorNotAvailable,
}


class Group(Rebalances):
    """See the module's text."""

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        super().__init__(group_id, limits)
        # When the group became what it is, by the wall clock; set by whoever writes the metadata.
        self.current_state_timestamp_ms = NO_TIME

    @classmethod
    def from_metadata(cls, group_id: str, metadata: GroupMetadata, limits: GroupLimits) -> Group:
        """Return the group that was written. Its members have no deadlines before :meth:`resume`."""
        group = cls(group_id, limits)
        group.generation = metadata.generation
        group.protocol_type = metadata.protocol_type or None
        group.protocol = metadata.protocol
        group.current_state_timestamp_ms = metadata.current_state_timestamp_ms
        group.is_stored = True
        for member in metadata.members:
            # Nothing that wrote this had a member or an instance twice; a damaged record must not do harm, though.
            if member.member_id not in group.members and member.group_instance_id not in group._static:
                group._insert_stored(member, metadata.protocol)
        if group.members:
            group.state = _STABLE
            if metadata.leader in group.members:
                group.leader = metadata.leader
        return group

    def to_metadata(self, current_state_timestamp_ms: int, persist: Persist | None = None) -> GroupMetadata:
        """Return what is to be written: the group as it is or, with ``persist``, with that effect's assignments."""
        assignments = persist.assignments if persist is not None else None
        return GroupMetadata(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            current_state_timestamp_ms,
            tuple(member.to_metadata(self.protocol, assignments) for member in self.members.values()),
        )

    def resume(self, now_ms: int) -> list[Effect]:
        """Begin to watch the members of a group that was read from the log. Too many of them have to join anew."""
        for member in self.members.values():
            self._hear(member, now_ms)
        if len(self.members) > self.limits.max_size:
            self._prepare_rebalance(now_ms)
        return self._take()

    # What others ask ------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the group exists and has no members."""
        return self.state is _EMPTY

    @property
    def is_dead(self) -> bool:
        """Whether the group is gone from this broker."""
        return self.state is _DEAD

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be missed, if the group has no offsets: it is empty, unwritten, and expects nobody."""
        return self.state is _EMPTY and not self.is_stored and not self.pending

    def check_commit(self, member_id: str, group_instance_id: str | None, generation: int) -> None:
        """Raise what forbids a commit: who names no member may commit to an empty group only."""
        self._raise_if_dead()
        if generation < 0 and self.state is _EMPTY:
            return
        if generation < 0 and member_id == NO_MEMBER_ID and group_instance_id is None:
            raise UnknownMemberId(f"group {self.group_id} has members; only they can commit its offsets")
        self._find(member_id, group_instance_id)
        self._check_generation(generation)
        self._raise_for(COMMIT)

    # Requests -------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: Hashable, now_ms: int) -> list[Effect]:
        """Have a member join, or join again. The answer may be among the effects, or come later."""
        try:
            self._raise_if_dead()
            former_id = request.member_id or self._static.get(request.group_instance_id or "", NO_MEMBER_ID)
            former = self.members.get(former_id)
            self._check_join(request)
            self._check_room(request, former, now_ms)
            self._check_protocols(request, former)
            if request.member_id == NO_MEMBER_ID:
                self._join_unknown(request, former, ticket, now_ms)
            else:
                self._join_known(request, ticket, now_ms)
        except KafkaError as error:
            self._effects.append(JoinAnswer(ticket, error, request.member_id))
        return self._take()

    def sync(self, request: SyncRequest, ticket: Hashable, now_ms: int) -> list[Effect]:
        """Take the leader's assignments, and give the member its own once they are written."""
        try:
            self._raise_if_dead()
            member = self._find(request.member_id, request.group_instance_id)
            self._check_generation(request.generation)
            self._check_sync(request)
            self._raise_for(SYNC)
            self._sync(member, request, ticket, now_ms)
        except KafkaError as error:
            self._effects.append(SyncAnswer(ticket, error))
        return self._take()

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now_ms: int) -> None:
        """Note that the member lives. Raises what it has to know: to rejoin, or that it is out."""
        self._raise_if_dead()
        member = self._find(member_id, group_instance_id)
        self._check_generation(generation)
        self._hear(member, now_ms)
        self._raise_for(HEARTBEAT)

    def leave(self, member_id: str, group_instance_id: str | None, now_ms: int) -> list[Effect]:
        """Take a member out. An administrator names an instance id alone. Raises UnknownMemberId, FencedInstanceId."""
        self._raise_if_dead()
        if member_id == NO_MEMBER_ID:
            member_id = self._static.get(group_instance_id or "", NO_MEMBER_ID)
        if member_id in self.pending:
            del self.pending[member_id]
            self._maybe_complete_join(now_ms)
        else:
            self._drop(self._find(member_id, group_instance_id), "since it has left")
            self._members_gone(now_ms)
        return self._take()

    def abandon(self, ticket: Hashable, now_ms: int) -> list[Effect]:
        """Drop a waiting request whose client has gone. Its member goes too if it never got an answer."""
        member = self._parked.get(ticket)
        if member is None:
            return []
        self._unpark(member)
        if member.is_new and not member.is_static:
            self._drop(member, "since its connection has closed")
            self._members_gone(now_ms)
        else:
            self._hear(member, now_ms)
        return self._take()

    def delete(self) -> None:
        """End the group. Raises NonEmptyGroup while it has members."""
        self._raise_if_dead()
        if self.state is not _EMPTY:
            raise NonEmptyGroup(f"group {self.group_id} has {len(self.members)} members; stop them first")
        self._end()

    def resign(self) -> list[Effect]:
        """End the group here, because another broker coordinates it; whoever waits is sent there."""
        error = NotCoordinator(f"group {self.group_id} has moved to another broker")
        for member in list(self._parked.values()):
            self._answer_error(member, error)
        if self.state is not _DEAD:
            self._end()
        return self._take()

    # What happens by itself -----------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> list[Effect]:
        """Do what is due: silent members go, rebalances that waited long enough go on."""
        if self.state is not _DEAD:
            self._expire_members(now_ms)
            self._expire_group(now_ms)
            self.wake_ms = self._next_wake_ms()
        return self._take()

    def persisted(self, persist: Persist, error: KafkaError | None, now_ms: int) -> list[Effect]:
        """Go on after a write; ``error`` is what members are to be told of a write that failed."""
        if persist.restart is not None:
            self._restarted(persist.restart, error, now_ms)
        else:
            self._assigned(persist, error, now_ms)
        return self._take()

    # Checks ---------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self.pending.clear()
        self.wake_ms = None
        self._enter(_DEAD)

    def _raise_if_dead(self) -> None:
        if self.state is _DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} was deleted or has moved; look for it again")

    def _raise_for(self, outcomes: _Outcomes) -> None:
        error = outcomes[self.state]
        if error is not None:
            raise error(f"group {self.group_id} is in state {self.state.value}")

    def _check_join(self, request: JoinRequest) -> None:
        limits = self.limits
        if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"group {self.group_id}: a session timeout of {request.session_timeout_ms} ms; allowed are "
                f"{limits.min_session_timeout_ms} (group.min.session.timeout.ms) to {limits.max_session_timeout_ms} "
                "(group.max.session.timeout.ms)"
            )
        if len(request.protocols) > MOST_PROTOCOLS:
            raise InvalidRequest(f"group {self.group_id}: a member with more than {MOST_PROTOCOLS} protocols")
        if request.group_instance_id is not None and not is_instance_id(request.group_instance_id):
            raise InvalidRequest(
                f"group {self.group_id}: a group.instance.id of {len(request.group_instance_id)} characters; allowed "
                f"are 1 to {MOST_INSTANCE_ID_CHARS}"
            )

    def _check_room(self, request: JoinRequest, former: Member | None, now_ms: int) -> None:
        """Raise GroupMaxSizeReached. While members rejoin, the first ones get the places."""
        max_size = self.limits.max_size
        if self.state is _PREPARING:
            full = self._joined >= max_size and (former is None or former.join_ticket is None)
        else:
            full = former is None and len(self.members) >= max_size
        if full:
            if former is not None:
                self._drop(former, f"since the group has {max_size} members already")
                self._members_gone(now_ms)
            raise GroupMaxSizeReached(f"group {self.group_id} has {max_size} members already (group.max.size)")
        would_take = self._member_bytes + request.size_bytes - (former.size_bytes if former is not None else 0)
        if would_take > max(self.limits.max_bytes, self._member_bytes):
            raise GroupMaxSizeReached(
                f"group {self.group_id}: its members would take {would_take} bytes, allowed are "
                f"{self.limits.max_bytes} (group.max.bytes)"
            )

    def _check_protocols(self, request: JoinRequest, former: Member | None) -> None:
        """Raise InconsistentGroupProtocol unless all members would still have a protocol in common."""
        names = {name for name, _ in request.protocols}
        fits = bool(request.protocol_type and names)
        if self.members:
            others = len(self.members) - (former is not None)
            own = {name for name, _ in former.protocols} if former is not None else frozenset()
            fits = request.protocol_type == self.protocol_type and any(
                self._supporters[name] - (name in own) == others for name in names
            )
        if not fits:
            raise InconsistentGroupProtocol(
                f"group {self.group_id} of type {self.protocol_type}: a member of type {request.protocol_type!r} that "
                f"has the protocols {', '.join(sorted(names)) or 'none'} shares none with all others"
            )

    def _check_sync(self, request: SyncRequest) -> None:
        for asked, present in ((request.protocol_type, self.protocol_type), (request.protocol, self.protocol)):
            if asked is not None and asked != present:
                raise InconsistentGroupProtocol(f"group {self.group_id} uses {present}, its member {asked!r}")
        size_bytes = sum(map(len, request.assignments.values()))
        if size_bytes > self.limits.max_bytes:
            # No record takes it; packing it only to learn that would hold everybody up.
            raise InvalidCommitOffsetSize(
                f"group {self.group_id}: assignments of {size_bytes} bytes, at most {self.limits.max_bytes} "
                "(group.max.bytes)"
            )

    # Joining and syncing --------------------------------------------------------------------------------------------

    def _join_unknown(self, request: JoinRequest, former: Member | None, ticket: Hashable, now_ms: int) -> None:
        """Have somebody join who has no id yet; ``former``: the member that the same instance was before."""
        prefix = request.group_instance_id or request.client_id[:_CLIENT_ID_CHARS]
        # A random id, which nobody can guess: whoever knows it may act for the member.
        member_id = f"{prefix}-{uuid.uuid4()}"
        if former is not None:
            self._restart(former, member_id, request, ticket, now_ms)
        elif request.group_instance_id is None and request.needs_member_id:
            if len(self.pending) >= min(self.limits.max_size, MOST_PENDING):
                del self.pending[next(iter(self.pending))]
            self.pending[member_id] = self._deadline(now_ms + request.session_timeout_ms)
            error = MemberIdRequired(f"group {self.group_id}: join as {member_id}")
            self._effects.append(JoinAnswer(ticket, error, member_id))
        else:
            self._join_new(member_id, request, ticket, now_ms)

    def _join_new(self, member_id: str, request: JoinRequest, ticket: Hashable, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        member = Member.of(member_id, request)
        self._insert(member)
        self._park_join(member, ticket)
        member.deadline_ms = self._deadline(now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._gathered_more = True
        self._rejoin(now_ms)

    def _join_known(self, request: JoinRequest, ticket: Hashable, now_ms: int) -> None:
        """Have a member join again, or somebody join with the id given out to it."""
        if request.member_id in self.pending:
            if request.group_instance_id is not None:
                raise InvalidRequest(f"group {self.group_id}: {request.member_id} was not given to a static member")
            del self.pending[request.member_id]
            self._join_new(request.member_id, request, ticket, now_ms)
            return
        member = self._find(request.member_id, request.group_instance_id)
        unchanged = member.protocols == request.protocols
        # It may have missed the answer to its last join. The leader of a stable group wants to assign anew.
        if unchanged and (self.state is _COMPLETING or (self.state is _STABLE and self.leader != member.member_id)):
            self._make_way(member)
            self._answer_join(member, ticket, now_ms)
            return
        self._update(member, request)
        self._park_join(member, ticket)
        self._rejoin(now_ms)

    def _restart(self, member: Member, member_id: str, request: JoinRequest, ticket: Hashable, now_ms: int) -> None:
        """Give a static member that came back a new id; whoever still uses the old one is fenced."""
        restart = StaticRestart(
            ticket, member.member_id, self.leader or NO_MEMBER_ID, member.as_request(), request.may_skip_assignment
        )
        former_topics = topics_of([member.metadata(self.protocol)])
        self._answer_error(member, FencedInstanceId(f"group {self.group_id}: {member.group_instance_id} came back"))
        self._rename(member, member_id)
        self._update(member, request)
        self._park_join(member, ticket)
        if self.state is _STABLE and self._choose_protocol() == self.protocol:
            same_topics = topics_of([member.metadata(self.protocol)]) == former_topics
            if same_topics or self.protocol_type != CONSUMER_PROTOCOL_TYPE:
                self.is_stored = True
                self._effects.append(Persist(self.generation, restart=restart))
                return
        self._rejoin(now_ms)

    def _restarted(self, restart: StaticRestart, error: KafkaError | None, now_ms: int) -> None:
        """Go on after a static member's new id was written, or was not."""
        member = self._parked.get(restart.ticket)
        if member is None or self.state is not _STABLE:
            # It has gone or come back once more; or a rebalance has begun, which will answer.
            return
        if error is not None:
            self._answer_error(member, error)
            self._rename(member, restart.former_id)
            self._update(member, restart.former)
            self._hear(member, now_ms)
        elif restart.may_skip_assignment:
            leads = self.leader == member.member_id
            self._answer_join(member, restart.ticket, now_ms, skip_assignment=leads)
        else:
            # Told of the former leader, a leader does not know itself, and makes no assignment that nobody asked for.
            self._answer_join(member, restart.ticket, now_ms, leader=restart.former_leader)

    def _sync(self, member: Member, request: SyncRequest, ticket: Hashable, now_ms: int) -> None:
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            self._sync_deadline_ms = None
        if self.state is _STABLE:
            self._make_way(member)
            self._answer_sync(member, ticket, now_ms)
            return
        self._park_sync(member, ticket)
        if member.member_id == self.leader and not self._assignment_in_flight:
            self._assignment_in_flight = True
            self.is_stored = True
            assignments = {member_id: request.assignments.get(member_id, b"") for member_id in self.members}
            self._effects.append(Persist(self.generation, assignments))
