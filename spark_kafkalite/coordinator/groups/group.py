"""One group: what every request, every deadline and every committed record does to it. Pure.

No clock, no socket, no log: methods take the time (``now_ms``, monotonic) and return what is to be done about it as
values (``members.py``: answers to requests that waited, metadata to be written). The owner of a group calls
:meth:`Group.expire` when :attr:`Group.wake_ms` has come, and :meth:`Group.apply` when a record of it is committed. It
calls :meth:`Group.persisted` when a write has succeeded or failed. A group has a roster (``roster.py``: its members and
the requests that wait) and a rebalance (``rebalance.py``: state, generation, deadlines, answers). The states and their
transitions are in ``states.py``.

Only :meth:`Group.apply` changes the committed part of a group: the members and the generation that a load finds, and
the assignments that make a generation stable. Everything else (joining members, waiting requests, the generation that
is being agreed upon) belongs to this broker until it is written, and ends with it.

Invariants: a generation number only grows. A group with members has one leader, which is one of them. All members have
at least one protocol in common. An instance id belongs to one member. Every ticket is answered once, or dropped by
:meth:`Group.abandon`. A member whose request waits here cannot send heartbeats, so its session cannot expire either.
Only a new member that waits for long is removed, since it may have gone and joined again under another id.

Where a rule surprises, it is Apache Kafka's (GroupCoordinator and GroupMetadata of 3.9), and clients rely on it. Five
rules are our own:

- a static member that sends no heartbeats keeps its place until its session ends, not until the next rebalance does;
- a static member that comes back with other topics starts a rebalance;
- a new member whose connection closes before it got an answer is forgotten at once;
- a member may replace all of its protocols if the others have one of the new ones;
- ids given out in advance are bounded in number, the oldest is dropped first.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from typing import Final

from spark_kafkalite.coordinator.groups.members import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    Effect,
    GroupLimits,
    JoinRequest,
    Member,
    Persist,
    StaticRestart,
    SyncRequest,
    topics_of,
)
from spark_kafkalite.coordinator.groups.rebalance import Rebalance
from spark_kafkalite.coordinator.groups.records import NO_TIME, GroupMetadata
from spark_kafkalite.coordinator.groups.roster import Roster
from spark_kafkalite.coordinator.groups.states import COMMIT, HEARTBEAT, SYNC, GroupState, Outcomes
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidCommitOffsetSize,
    InvalidRequest,
    KafkaError,
    MemberIdRequired,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
)

# For what runs with each commit: a look-up of a member in its class takes 0.2 us in Python 3.11.
_EMPTY: Final = GroupState.EMPTY
_DEAD: Final = GroupState.DEAD
# How long a new member's join may wait: nothing tells a client that waits from one that has gone. Source: KAFKA-7610.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
# Ids given out to clients that have yet to come back with them; a client needs no longer than a round trip.
MOST_PENDING: Final = 10_000
# A member's id begins with as much of the client's.
_CLIENT_ID_CHARS: Final = 249


class Group:
    """See the module's text."""

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.limits = limits
        self.roster = Roster(group_id)
        self.rebalance = Rebalance(self.roster, limits)
        # When the group became what it is, by the wall clock; set by whoever writes the metadata.
        self.current_state_timestamp_ms = NO_TIME

    # What is committed ----------------------------------------------------------------------------------------------

    @classmethod
    def from_metadata(cls, group_id: str, metadata: GroupMetadata, limits: GroupLimits) -> Group:
        """Return the group that was written. Its members have no deadlines before :meth:`resume`."""
        group = cls(group_id, limits)
        group.apply(metadata)
        return group

    def apply(self, metadata: GroupMetadata) -> None:
        """Take over a committed record of the group.

        A group that was unknown takes its state from the record. A group at work is ahead of its records: only the
        assignments for which this record was written take effect, and an outdated record changes nothing.
        """
        if self.is_forgettable:
            self._restore(metadata)
        else:
            assignments = {member.member_id: member.assignment for member in metadata.members}
            self.rebalance.assign(metadata.generation, assignments)

    def _restore(self, metadata: GroupMetadata) -> None:
        rebalance, roster = self.rebalance, self.roster
        rebalance.generation = metadata.generation
        rebalance.protocol_type = metadata.protocol_type or None
        rebalance.protocol = metadata.protocol
        rebalance.is_stored = True
        self.current_state_timestamp_ms = metadata.current_state_timestamp_ms
        for member in metadata.members:
            roster.insert_stored(member, metadata.protocol)
        if roster.members:
            rebalance.state = GroupState.STABLE
            if metadata.leader in roster.members:
                roster.leader = metadata.leader

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
        """Begin to watch the members of a group that was read from the log. If there are too many, all have to join
        again."""
        for member in self.members.values():
            self.rebalance.hear(member, now_ms)
        if len(self.members) > self.limits.max_size:
            self.rebalance.prepare(now_ms)
        return self.rebalance.take_effects()

    # What others ask ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        """The state, as ``states.py`` has them."""
        return self.rebalance.state

    @property
    def generation(self) -> int:
        """The number of the generation that is, or is being agreed upon."""
        return self.rebalance.generation

    @property
    def protocol_type(self) -> str | None:
        """What kind of members the group has, None before the first."""
        return self.rebalance.protocol_type

    @property
    def protocol(self) -> str | None:
        """The assignor of this generation."""
        return self.rebalance.protocol

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by their ids."""
        return self.roster.members

    @property
    def leader(self) -> str | None:
        """The id of the member that assigns."""
        return self.roster.leader

    @property
    def pending(self) -> Mapping[str, int]:
        """Ids given out to clients that have not joined with them yet, with their deadlines."""
        return self.rebalance.pending

    @property
    def wake_ms(self) -> int | None:
        """When :meth:`expire` is wanted, None for never."""
        return self.rebalance.wake_ms

    @property
    def size_bytes(self) -> int:
        """What the group takes in memory, about."""
        return self.roster.size_bytes + self.rebalance.pending_bytes

    @property
    def is_empty(self) -> bool:
        """Whether the group exists and has no members."""
        return self.rebalance.state is _EMPTY

    @property
    def is_dead(self) -> bool:
        """Whether the group is gone from this broker."""
        return self.rebalance.state is _DEAD

    @property
    def is_stored(self) -> bool:
        """Whether anything of the group has been, or is being, written."""
        return self.rebalance.is_stored

    @property
    def is_vacant(self) -> bool:
        """Whether the group has no members, and no id was given out to join with."""
        return self.is_dead or (self.is_empty and not self.pending)

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be missed, if the group has no offsets: it has no members, no pending ids, and is not
        stored."""
        return self.is_empty and not self.is_stored and not self.pending

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members read; None when it is unknown, such as for members that are no
        consumers."""
        if self.members and (self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None):
            return None
        return topics_of(member.metadata(self.protocol) for member in self.members.values())

    def check_commit(self, member_id: str, group_instance_id: str | None, generation: int) -> None:
        """Raise what forbids a commit: a request without a member id and generation may commit to an empty group
        only."""
        if generation < 0 and self.rebalance.state is _EMPTY:
            return
        self._raise_if_dead()
        if generation < 0 and member_id == NO_MEMBER_ID and group_instance_id is None:
            raise UnknownMemberId(f"group {self.group_id} has members; only they can commit its offsets")
        self.roster.find(member_id, group_instance_id)
        self._check_generation(generation)
        self._raise_for(COMMIT)

    # Requests -------------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, ticket: Hashable, now_ms: int) -> list[Effect]:
        """Have a member join, or join again. The answer may be among the effects, or come later."""
        try:
            self._raise_if_dead()
            former = self.members.get(request.member_id or self.roster.id_of(request.group_instance_id))
            self.limits.check_join(self.group_id, request)
            self._check_room(request, former, now_ms)
            self.roster.check_protocols(request, former, self.protocol_type)
            if request.member_id == NO_MEMBER_ID:
                self._join_unknown(request, former, ticket, now_ms)
            else:
                self._join_known(request, ticket, now_ms)
        except KafkaError as error:
            self.rebalance.refuse_join(ticket, error, request.member_id)
        return self.rebalance.take_effects()

    def sync(self, request: SyncRequest, ticket: Hashable, now_ms: int) -> list[Effect]:
        """Take the leader's assignments, and give the member its own once they are committed."""
        try:
            self._raise_if_dead()
            member = self.roster.find(request.member_id, request.group_instance_id)
            self._check_generation(request.generation)
            self._check_sync(request)
            self._raise_for(SYNC)
            self._sync(member, request, ticket, now_ms)
        except KafkaError as error:
            self.rebalance.refuse_sync(ticket, error)
        return self.rebalance.take_effects()

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now_ms: int) -> None:
        """Note that the member lives. Raises what it has to know: to rejoin, or that it is out."""
        self._raise_if_dead()
        member = self.roster.find(member_id, group_instance_id)
        self._check_generation(generation)
        self.rebalance.hear(member, now_ms)
        self._raise_for(HEARTBEAT)

    def touch(self, member_id: str, now_ms: int) -> None:
        """Note that the member sent a request."""
        member = self.members.get(member_id)
        if member is not None:
            self.rebalance.hear(member, now_ms)

    def leave(self, member_id: str, group_instance_id: str | None, now_ms: int) -> list[Effect]:
        """Take a member out. An administrator names an instance id alone. Raises UnknownMemberId, FencedInstanceId."""
        self._raise_if_dead()
        rebalance = self.rebalance
        if member_id == NO_MEMBER_ID:
            member_id = self.roster.id_of(group_instance_id)
        if member_id in rebalance.pending:
            del rebalance.pending[member_id]
            rebalance.maybe_complete(now_ms)
        else:
            rebalance.drop(self.roster.find(member_id, group_instance_id), "since it has left")
            rebalance.members_gone(now_ms)
        return rebalance.take_effects()

    def abandon(self, ticket: Hashable, now_ms: int) -> list[Effect]:
        """Drop a waiting request whose client has gone. Its member goes too if it never got an answer."""
        member = self.roster.parked.get(ticket)
        if member is None:
            return []
        self.roster.unpark(member)
        if member.is_new and not member.is_static:
            self.rebalance.drop(member, "since its connection has closed")
            self.rebalance.members_gone(now_ms)
        else:
            self.rebalance.hear(member, now_ms)
        return self.rebalance.take_effects()

    def delete(self) -> None:
        """End the group. Raises NonEmptyGroup while it has members."""
        self._raise_if_dead()
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.group_id} has {len(self.members)} members; stop them first")
        self.rebalance.end()

    def resign(self) -> list[Effect]:
        """End the group here, because another broker coordinates it; waiting requests are answered with
        NotCoordinator."""
        return self._end_with(NotCoordinator(f"group {self.group_id} has moved to another broker"))

    def evict(self) -> list[Effect]:
        """End a group of which nothing is written, because others need its memory; members that wait may ask again."""
        return self._end_with(CoordinatorNotAvailable(f"group {self.group_id} had to make room; join it again"))

    def _end_with(self, error: KafkaError) -> list[Effect]:
        for member in list(self.roster.parked.values()):
            self.rebalance.answer_error(member, error)
        if not self.is_dead:
            self.rebalance.end()
        return self.rebalance.take_effects()

    # What happens by itself -----------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> list[Effect]:
        """Do what is due: silent members go, rebalances that waited long enough go on."""
        if not self.is_dead:
            self.rebalance.expire(now_ms)
        return self.rebalance.take_effects()

    def persisted(self, persist: Persist, error: KafkaError | None, now_ms: int) -> list[Effect]:
        """Go on after a write, in the step that applied its record; ``error``: what members receive if it failed."""
        if persist.restart is not None:
            self._restarted(persist.restart, error, now_ms)
        elif persist.assignments is not None:
            if error is None:
                self.rebalance.tell_assigned(persist.generation, now_ms)
            else:
                self.rebalance.assignment_failed(persist.generation, error, now_ms)
        return self.rebalance.take_effects()

    # Checks ---------------------------------------------------------------------------------------------------------

    def _raise_if_dead(self) -> None:
        if self.is_dead:
            raise CoordinatorNotAvailable(f"group {self.group_id} was deleted or has moved; look for it again")

    def _raise_for(self, outcomes: Outcomes) -> None:
        error = outcomes[self.state]
        if error is not None:
            raise error(f"group {self.group_id} is in state {self.state.value}")

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(f"group {self.group_id} is in generation {self.generation}, not {generation}")

    def _check_room(self, request: JoinRequest, former: Member | None, now_ms: int) -> None:
        """Raise GroupMaxSizeReached. While members rejoin, the first ones get the places."""
        max_size, member_bytes = self.limits.max_size, self.roster.member_bytes
        if self.state is GroupState.PREPARING_REBALANCE:
            full = self.roster.joined >= max_size and (former is None or former.join_ticket is None)
        else:
            full = former is None and len(self.members) >= max_size
        if full:
            if former is not None:
                self.rebalance.drop(former, f"since the group has {max_size} members already")
                self.rebalance.members_gone(now_ms)
            raise GroupMaxSizeReached(f"group {self.group_id} has {max_size} members already (group.max.size)")
        would_take = member_bytes + request.size_bytes - (former.size_bytes if former is not None else 0)
        if would_take > max(self.limits.max_bytes, member_bytes):
            raise GroupMaxSizeReached(
                f"group {self.group_id}: its members would take {would_take} bytes, allowed are "
                f"{self.limits.max_bytes} (group.max.bytes)"
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
        """Add a member that has no id yet; ``former``: the member that the same instance was before."""
        prefix = request.group_instance_id or request.client_id[:_CLIENT_ID_CHARS]
        # A random id, which nobody can guess: whoever knows it may act for the member.
        member_id = f"{prefix}-{uuid.uuid4()}"
        if former is not None:
            self._restart(former, member_id, request, ticket, now_ms)
        elif request.group_instance_id is None and request.needs_member_id:
            pending = self.rebalance.pending
            if len(pending) >= min(self.limits.max_size, MOST_PENDING):
                del pending[next(iter(pending))]
            pending[member_id] = self.rebalance.deadline(now_ms + request.session_timeout_ms)
            error = MemberIdRequired(f"group {self.group_id}: join as {member_id}")
            self.rebalance.refuse_join(ticket, error, member_id)
        else:
            self._join_new(member_id, request, ticket, now_ms)

    def _join_new(self, member_id: str, request: JoinRequest, ticket: Hashable, now_ms: int) -> None:
        rebalance = self.rebalance
        if not self.members:
            rebalance.protocol_type = request.protocol_type
        member = Member.of(member_id, request)
        self.roster.insert(member)
        rebalance.park_join(member, ticket)
        member.deadline_ms = rebalance.deadline(now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        rebalance.joined_new(now_ms)

    def _join_known(self, request: JoinRequest, ticket: Hashable, now_ms: int) -> None:
        """Have a member join again, or add a member that joins with the id given out to it."""
        rebalance = self.rebalance
        if request.member_id in rebalance.pending:
            if request.group_instance_id is not None:
                raise InvalidRequest(f"group {self.group_id}: {request.member_id} was not given to a static member")
            del rebalance.pending[request.member_id]
            self._join_new(request.member_id, request, ticket, now_ms)
            return
        member = self.roster.find(request.member_id, request.group_instance_id)
        unchanged = member.protocols == request.protocols
        # It may have missed the answer to its last join. The leader of a stable group wants to assign anew.
        is_follower = self.state is GroupState.STABLE and self.leader != member.member_id
        if unchanged and (self.state is GroupState.COMPLETING_REBALANCE or is_follower):
            rebalance.make_way(member)
            rebalance.answer_join(member, ticket, now_ms)
            return
        self.roster.update(member, request)
        rebalance.park_join(member, ticket)
        rebalance.rejoin(now_ms)

    def _restart(self, member: Member, member_id: str, request: JoinRequest, ticket: Hashable, now_ms: int) -> None:
        """Give a static member that came back a new id; requests with the old one are fenced."""
        rebalance, roster = self.rebalance, self.roster
        restart = StaticRestart(
            ticket, member.member_id, self.leader or NO_MEMBER_ID, member.as_request(), request.may_skip_assignment
        )
        former_topics = topics_of([member.metadata(self.protocol)])
        came_back = FencedInstanceId(f"group {self.group_id}: {member.group_instance_id} came back")
        rebalance.answer_error(member, came_back)
        roster.rename(member, member_id)
        roster.update(member, request)
        rebalance.park_join(member, ticket)
        if self.state is GroupState.STABLE and roster.choose_protocol() == self.protocol:
            same_topics = topics_of([member.metadata(self.protocol)]) == former_topics
            if same_topics or self.protocol_type != CONSUMER_PROTOCOL_TYPE:
                rebalance.persist(Persist(self.generation, restart=restart))
                return
        rebalance.rejoin(now_ms)

    def _restarted(self, restart: StaticRestart, error: KafkaError | None, now_ms: int) -> None:
        """Go on after a static member's new id was written, or was not."""
        rebalance = self.rebalance
        member = self.roster.parked.get(restart.ticket)
        if member is None or self.state is not GroupState.STABLE:
            # It has gone or come back once more; or a rebalance has begun, which will answer.
            return
        if error is not None:
            rebalance.answer_error(member, error)
            self.roster.rename(member, restart.former_id)
            self.roster.update(member, restart.former)
            rebalance.hear(member, now_ms)
        elif restart.may_skip_assignment:
            leads = self.leader == member.member_id
            rebalance.answer_join(member, restart.ticket, now_ms, skip_assignment=leads)
        else:
            # Told of the former leader, a leader does not know itself, and makes no assignment that nobody asked for.
            rebalance.answer_join(member, restart.ticket, now_ms, leader=restart.former_leader)

    def _sync(self, member: Member, request: SyncRequest, ticket: Hashable, now_ms: int) -> None:
        rebalance = self.rebalance
        rebalance.synced(member)
        if self.state is GroupState.STABLE:
            rebalance.make_way(member)
            rebalance.answer_sync(member, ticket, now_ms)
            return
        rebalance.park_sync(member, ticket)
        if member.member_id == self.leader and not rebalance.assignment_in_flight:
            rebalance.assignment_in_flight = True
            assignments = {member_id: request.assignments.get(member_id, b"") for member_id in self.members}
            rebalance.persist(Persist(self.generation, assignments))
