"""The states of a group and its rebalances: who is waited for and how long, and what a new generation begins with.

Between ``roster.py``, which keeps the books, and ``state.py``, which takes the requests. Whatever joins, leaves or
falls silent ends in one of three methods here: :meth:`Rebalances._prepare_rebalance` begins a rebalance,
:meth:`Rebalances._maybe_complete_join` sees whether the one under way has them all, and
:meth:`Rebalances._complete_join` begins the next generation. Two deadlines belong to the group: that of a rebalance
(its members have rejoined by then, or are out), and that of a generation (its members have asked for their assignments
by then, or are out).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from spark_kafkalite.errors import KafkaError, RebalanceInProgress
from spark_kafkalite.groups.members import GroupLimits, Persist
from spark_kafkalite.groups.roster import Roster


class GroupState(Enum):
    """The states, under the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

# From which states a state may be entered.
TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    _EMPTY: frozenset({_PREPARING}),
    _PREPARING: frozenset({_EMPTY, _COMPLETING, _STABLE}),
    _COMPLETING: frozenset({_PREPARING}),
    _STABLE: frozenset({_COMPLETING}),
    _DEAD: frozenset({_EMPTY, _PREPARING, _COMPLETING, _STABLE}),
}


class Rebalances(Roster):
    """See the module's text."""

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        super().__init__(group_id, limits)
        self.state = _EMPTY
        # Whether anything of the group has been, or is being, written.
        self.is_stored = False
        self._rebalance_deadline_ms: int | None = None
        # Whether the first rebalance waits for more members, how much longer it may, and whether one came meanwhile.
        self._gathering = False
        self._gathering_left_ms = 0
        self._gathered_more = False
        self._sync_deadline_ms: int | None = None
        self._assignment_in_flight = False

    def _enter(self, state: GroupState) -> None:
        if self.state not in TRANSITIONS[state]:
            raise RuntimeError(f"group {self.group_id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def _rejoin(self, now_ms: int) -> None:
        """Go on after somebody joined."""
        if self.state is _PREPARING:
            self._maybe_complete_join(now_ms)
        else:
            self._prepare_rebalance(now_ms)

    def _members_gone(self, now_ms: int) -> None:
        """Go on after members were dropped."""
        if self.state in (_STABLE, _COMPLETING):
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: int, error: KafkaError | None = None) -> None:
        """Have all members join anew; those that wait for an assignment are told ``error``."""
        if self.state is _COMPLETING:
            error = error or RebalanceInProgress(f"group {self.group_id}: its members have changed; join again")
            for member in self.members.values():
                member.assignment = b""
                if member.sync_ticket is not None:
                    self._answer_error(member, error)
                    self._hear(member, now_ms)
        from_empty = self.state is _EMPTY
        self._unsynced.clear()
        self._sync_deadline_ms = None
        self._assignment_in_flight = False
        self._enter(_PREPARING)
        if not from_empty:
            self._rebalance_deadline_ms = self._deadline(now_ms + self._rebalance_timeout_ms())
            self._maybe_complete_join(now_ms)
        elif self.limits.initial_rebalance_delay_ms > 0:
            self._gathering_left_ms = self._rebalance_timeout_ms()
            self._gather(now_ms)
        else:
            self._complete_join(now_ms)

    def _gather(self, now_ms: int) -> None:
        """Wait for the first members, again as long as more of them come."""
        delay_ms = min(self.limits.initial_rebalance_delay_ms, self._gathering_left_ms)
        self._gathering = True
        self._gathered_more = False
        self._gathering_left_ms -= delay_ms
        self._rebalance_deadline_ms = self._deadline(now_ms + delay_ms)

    def _maybe_complete_join(self, now_ms: int) -> None:
        """Begin the next generation if nobody is missing: no member, and nobody who was given an id to join with."""
        if self.state is not _PREPARING:
            return
        all_joined = self._joined == len(self.members) and not self.pending and not self._gathering
        if all_joined or not self.members:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begin the next generation with those that have joined, and with static members whose session goes on."""
        for member in [one for one in self.members.values() if one.join_ticket is None and not one.is_static]:
            self._drop(member, "since it did not rejoin in time")
        if self.members and self._joined == 0:
            # Nobody could lead. The sessions of these static members end, or one of them comes back.
            self._rebalance_deadline_ms = self._deadline(now_ms + max(self._rebalance_timeout_ms(), 1))
            return
        self.generation += 1
        self._gathering = False
        self._rebalance_deadline_ms = None
        if not self.members:
            self.protocol = None
            self._enter(_EMPTY)
            if self.is_stored:
                self._effects.append(Persist(self.generation))
            return
        if self.leader is None or self.members[self.leader].join_ticket is None:
            self.leader = next(one.member_id for one in self.members.values() if one.join_ticket is not None)
        self.protocol = self._choose_protocol()
        self._enter(_COMPLETING)
        for member in self.members.values():
            if member.join_ticket is not None:
                self._unsynced.add(member.member_id)
                self._answer_join(member, member.join_ticket, now_ms)
        self._sync_deadline_ms = self._deadline(now_ms + self._rebalance_timeout_ms())

    def _assigned(self, persist: Persist, error: KafkaError | None, now_ms: int) -> None:
        """Give the members their assignments, which are written now, unless the group has moved on meanwhile."""
        if self.state is not _COMPLETING or persist.generation != self.generation or persist.assignments is None:
            return
        if error is not None:
            self._prepare_rebalance(now_ms, error)
            return
        self._assignment_in_flight = False
        self._enter(_STABLE)
        for member in self.members.values():
            member.assignment = persist.assignments.get(member.member_id, b"")
            if member.sync_ticket is not None:
                self._answer_sync(member, member.sync_ticket, now_ms)

    def _expire_members(self, now_ms: int) -> None:
        """Take out members that are silent for too long, and forget ids that nobody came back with."""
        late = [member_id for member_id, deadline in self.pending.items() if deadline <= now_ms]
        for member_id in late:
            del self.pending[member_id]
        silent = [one for one in self.members.values() if one.deadline_ms is not None and one.deadline_ms <= now_ms]
        for member in silent:
            self._drop(member, f"since nothing was heard of it for {member.session_timeout_ms} ms")
        if silent:
            self._members_gone(now_ms)
        elif late:
            self._maybe_complete_join(now_ms)

    def _expire_group(self, now_ms: int) -> None:
        """Do what is due for the group as a whole."""
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            for member_id in sorted(self._unsynced):
                self._drop(self.members[member_id], "since it did not ask for its assignment in time")
            self._prepare_rebalance(now_ms)
        if self._rebalance_deadline_ms is not None and self._rebalance_deadline_ms <= now_ms:
            if self._gathering and self._gathered_more and self._gathering_left_ms > 0:
                self._gather(now_ms)
            else:
                self._complete_join(now_ms)

    def _next_wake_ms(self) -> int | None:
        """Return the earliest deadline of all."""
        deadlines = [one.deadline_ms for one in self.members.values()]
        deadlines += [*self.pending.values(), self._sync_deadline_ms, self._rebalance_deadline_ms]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)
