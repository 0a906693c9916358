"""A group's state, generations and rebalances: which members it waits for, and how long. Pure.

``group.py`` takes the requests and hands them on to here; ``roster.py`` keeps the books. Whatever joins, leaves or
falls silent ends in one of three methods: :meth:`Rebalance.prepare` begins a rebalance,
:meth:`Rebalance.maybe_complete` sees whether the one under way has them all, and :meth:`Rebalance.complete` begins the
next generation. Two deadlines belong to the group: that of a rebalance (its members have rejoined by then, or are out),
and that of a generation (its members have asked for their assignments by then, or are out).

Every answer to a waiting request is made here, as an effect that :meth:`Rebalance.take_effects` hands over, each once.
``wake_ms`` is at most the earliest deadline of all.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from spark_kafkalite.coordinator.groups.members import (
    NO_MEMBER_ID,
    Effect,
    GroupLimits,
    JoinAnswer,
    Member,
    Persist,
    SyncAnswer,
)
from spark_kafkalite.coordinator.groups.roster import Roster
from spark_kafkalite.coordinator.groups.states import TRANSITIONS, GroupState
from spark_kafkalite.errors import KafkaError, RebalanceInProgress, UnknownMemberId

# What an id given out in advance takes in memory, about.
_PENDING_BYTES: Final = 300

_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState


class Rebalance:
    """See the module's text."""

    def __init__(self, roster: Roster, limits: GroupLimits) -> None:
        self.roster = roster
        self.limits = limits
        self.state = _EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        # Whether anything of the group has been, or is being, written.
        self.is_stored = False
        # Ids given out to clients that have not joined with them yet, with their deadlines, oldest first.
        self.pending: dict[str, int] = {}
        # No deadline comes before this time; it may be too early, never too late.
        self.wake_ms: int | None = None
        # Whether the leader's assignment is being written.
        self.assignment_in_flight = False
        # Whether the first rebalance waits for more members, how much longer it may, and whether one came meanwhile.
        self.gathering = False
        self._gathering_left_ms = 0
        self._gathered_more = False
        self._rebalance_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._effects: list[Effect] = []

    @property
    def pending_bytes(self) -> int:
        """What ids given out in advance take in memory, about."""
        return len(self.pending) * _PENDING_BYTES

    def enter(self, state: GroupState) -> None:
        """Change the state. Raises RuntimeError for what TRANSITIONS do not allow, which is a bug."""
        if self.state not in TRANSITIONS[state]:
            raise RuntimeError(f"group {self.roster.group_id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def end(self) -> None:
        """End the group."""
        self.pending.clear()
        self.wake_ms = None
        self.enter(_DEAD)

    # Rebalances -----------------------------------------------------------------------------------------------------

    def rejoin(self, now_ms: int) -> None:
        """Go on after a member joined."""
        if self.state is _PREPARING:
            self.maybe_complete(now_ms)
        else:
            self.prepare(now_ms)

    def joined_new(self, now_ms: int) -> None:
        """Go on after a new member joined."""
        self._gathered_more = True
        self.rejoin(now_ms)

    def members_gone(self, now_ms: int) -> None:
        """Go on after members were dropped."""
        if self.state in (_STABLE, _COMPLETING):
            self.prepare(now_ms)
        else:
            self.maybe_complete(now_ms)

    def prepare(self, now_ms: int, error: KafkaError | None = None) -> None:
        """Have all members join again; those that wait for an assignment receive ``error``."""
        roster = self.roster
        if self.state is _COMPLETING:
            error = error or RebalanceInProgress(f"group {roster.group_id}: its members have changed; join again")
            for member in roster.members.values():
                member.assignment = b""
                if member.sync_ticket is not None:
                    self.answer_error(member, error)
                    self.hear(member, now_ms)
        from_empty = self.state is _EMPTY
        roster.unsynced.clear()
        self._sync_deadline_ms = None
        self.assignment_in_flight = False
        self.enter(_PREPARING)
        if not from_empty:
            self._rebalance_deadline_ms = self.deadline(now_ms + roster.rebalance_timeout_ms)
            self.maybe_complete(now_ms)
        elif self.limits.initial_rebalance_delay_ms > 0:
            self._gathering_left_ms = roster.rebalance_timeout_ms
            self._gather(now_ms)
        else:
            self.complete(now_ms)

    def _gather(self, now_ms: int) -> None:
        """Wait for the first members, again as long as more of them come."""
        delay_ms = min(self.limits.initial_rebalance_delay_ms, self._gathering_left_ms)
        self.gathering = True
        self._gathered_more = False
        self._gathering_left_ms -= delay_ms
        self._rebalance_deadline_ms = self.deadline(now_ms + delay_ms)

    def maybe_complete(self, now_ms: int) -> None:
        """Begin the next generation if no member is missing, and no id was given out that has not joined yet."""
        if self.state is not _PREPARING:
            return
        roster = self.roster
        all_joined = roster.joined == len(roster.members) and not self.pending and not self.gathering
        if all_joined or not roster.members:
            self.complete(now_ms)

    def complete(self, now_ms: int) -> None:
        """Begin the next generation with those that have joined, and with static members whose session goes on."""
        roster = self.roster
        for member in [one for one in roster.members.values() if one.join_ticket is None and not one.is_static]:
            self.drop(member, "since it did not rejoin in time")
        if roster.members and roster.joined == 0:
            # Nobody could lead. The sessions of these static members end, or one of them comes back.
            self._rebalance_deadline_ms = self.deadline(now_ms + max(roster.rebalance_timeout_ms, 1))
            return
        self.generation += 1
        self.gathering = False
        self._rebalance_deadline_ms = None
        if not roster.members:
            self.protocol = None
            self.enter(_EMPTY)
            if self.is_stored:
                self.persist(Persist(self.generation))
            return
        if roster.leader is None or roster.members[roster.leader].join_ticket is None:
            roster.leader = next(one.member_id for one in roster.members.values() if one.join_ticket is not None)
        self.protocol = roster.choose_protocol()
        self.enter(_COMPLETING)
        for member in roster.members.values():
            if member.join_ticket is not None:
                roster.unsynced.add(member.member_id)
                self.answer_join(member, member.join_ticket, now_ms)
        self._sync_deadline_ms = self.deadline(now_ms + roster.rebalance_timeout_ms)

    # Assignments ----------------------------------------------------------------------------------------------------

    def synced(self, member: Member) -> None:
        """Note that a member has asked for its assignment."""
        self.roster.unsynced.discard(member.member_id)
        if not self.roster.unsynced:
            self._sync_deadline_ms = None

    def assign(self, generation: int, assignments: Mapping[str, bytes]) -> None:
        """Make the assignments hold that are committed now, unless the group has moved on meanwhile."""
        if not self.assignment_in_flight or generation != self.generation:
            return
        self.assignment_in_flight = False
        self.enter(_STABLE)
        for member in self.roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")

    def tell_assigned(self, generation: int, now_ms: int) -> None:
        """Give the members their assignments, which hold now."""
        if self.state is not _STABLE or generation != self.generation:
            return
        for member in self.roster.members.values():
            if member.sync_ticket is not None:
                self.answer_sync(member, member.sync_ticket, now_ms)

    def assignment_failed(self, generation: int, error: KafkaError, now_ms: int) -> None:
        """Have members join again, because their assignments are not committed."""
        if self.assignment_in_flight and generation == self.generation:
            self.prepare(now_ms, error)

    # Time -----------------------------------------------------------------------------------------------------------

    def deadline(self, at_ms: int) -> int:
        """Return ``at_ms``, and have the group woken by then."""
        if self.wake_ms is None or at_ms < self.wake_ms:
            self.wake_ms = at_ms
        return at_ms

    def hear(self, member: Member, now_ms: int) -> None:
        """Begin a member's session again, unless its request waits here."""
        if member.join_ticket is None and member.sync_ticket is None:
            member.deadline_ms = self.deadline(now_ms + member.session_timeout_ms)

    def expire(self, now_ms: int) -> None:
        """Do what is due: silent members go, rebalances that waited long enough go on."""
        self._expire_members(now_ms)
        self._expire_rebalance(now_ms)
        self.wake_ms = self.next_wake_ms()

    def _expire_members(self, now_ms: int) -> None:
        """Remove members whose sessions have expired, and forget ids that no member joined with."""
        late = [member_id for member_id, deadline in self.pending.items() if deadline <= now_ms]
        for member_id in late:
            del self.pending[member_id]
        members = self.roster.members.values()
        silent = [one for one in members if one.deadline_ms is not None and one.deadline_ms <= now_ms]
        for member in silent:
            self.drop(member, f"since nothing was heard from it for {member.session_timeout_ms} ms")
        if silent:
            self.members_gone(now_ms)
        elif late:
            self.maybe_complete(now_ms)

    def _expire_rebalance(self, now_ms: int) -> None:
        """Do what is due for the group as a whole."""
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            for member_id in sorted(self.roster.unsynced):
                self.drop(self.roster.members[member_id], "since it did not ask for its assignment in time")
            self.prepare(now_ms)
        if self._rebalance_deadline_ms is not None and self._rebalance_deadline_ms <= now_ms:
            if self.gathering and self._gathered_more and self._gathering_left_ms > 0:
                self._gather(now_ms)
            else:
                self.complete(now_ms)

    def next_wake_ms(self) -> int | None:
        """Return the earliest deadline of all."""
        deadlines = [one.deadline_ms for one in self.roster.members.values()]
        deadlines += [*self.pending.values(), self._sync_deadline_ms, self._rebalance_deadline_ms]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # Requests that wait, and answers --------------------------------------------------------------------------------

    def park_join(self, member: Member, ticket: Hashable) -> None:
        """Have a member wait until the next generation begins."""
        self.make_way(member)
        self.roster.park_join(member, ticket)
        if not member.is_new:
            member.deadline_ms = None

    def park_sync(self, member: Member, ticket: Hashable) -> None:
        """Have a member wait until its assignment is committed."""
        self.make_way(member)
        self.roster.park_sync(member, ticket)
        member.deadline_ms = None

    def make_way(self, member: Member) -> None:
        """Answer the member's earlier request. The member has sent it again, so it no longer waits for that answer."""
        error = RebalanceInProgress(f"group {self.roster.group_id}: {member.member_id} has asked again")
        self.answer_error(member, error)

    def drop(self, member: Member, reason: str) -> None:
        """Take a member out; a request of it that waits is answered."""
        self.answer_error(member, UnknownMemberId(f"group {self.roster.group_id}: {member.member_id} is out, {reason}"))
        self.roster.remove(member)

    def refuse_join(self, ticket: Hashable, error: KafkaError, member_id: str) -> None:
        """Answer a request to join that does not wait."""
        self._effects.append(JoinAnswer(ticket, error, member_id))

    def refuse_sync(self, ticket: Hashable, error: KafkaError) -> None:
        """Answer a request for an assignment that does not wait."""
        self._effects.append(SyncAnswer(ticket, error))

    def answer_error(self, member: Member, error: KafkaError) -> None:
        """Answer whatever waits of a member, if anything does."""
        join_ticket, sync_ticket = member.join_ticket, member.sync_ticket
        self.roster.unpark(member)
        if join_ticket is not None:
            self.refuse_join(join_ticket, error, NO_MEMBER_ID)
        if sync_ticket is not None:
            self.refuse_sync(sync_ticket, error)

    def answer_join(
        self, member: Member, ticket: Hashable, now_ms: int, *, leader: str | None = None, skip_assignment: bool = False
    ) -> None:
        """Answer a join with the present generation. ``leader``: the leader's id in the answer, if not the real one."""
        self.roster.unpark(member)
        member.is_new = False
        told_leader = (self.roster.leader or NO_MEMBER_ID) if leader is None else leader
        self._effects.append(
            JoinAnswer(
                ticket,
                None,
                member.member_id,
                self.generation,
                self.protocol_type,
                self.protocol,
                told_leader,
                self.roster.described(self.protocol) if told_leader == member.member_id else (),
                skip_assignment,
            )
        )
        self.hear(member, now_ms)

    def answer_sync(self, member: Member, ticket: Hashable, now_ms: int) -> None:
        """Give a member its assignment."""
        self.roster.unpark(member)
        self._effects.append(SyncAnswer(ticket, None, self.protocol_type, self.protocol, member.assignment))
        self.hear(member, now_ms)

    def persist(self, effect: Persist) -> None:
        """Have the group written."""
        self.is_stored = True
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """Return what is to be done, each thing once."""
        effects, self._effects = self._effects, []
        return effects
