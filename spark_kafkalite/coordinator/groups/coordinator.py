"""The groups that this broker coordinates: waiting requests, timers and writes around the pure ``group.py``.

A request to join or sync is a future; it is the *ticket* that a group returns with its answer. One method carries out
what a call of a group returns (:meth:`GroupCoordinator._carry_out`). It gives the answers, hands metadata to the
group's shard, sets the group's one timer, and forgets a group that has become empty and is not stored.

A group is written when its leader has assigned (members get their assignments once that is committed), when it becomes
empty, and when a static member comes back under a new id. What was committed before a crash is read again by the shard;
the members' sessions then begin again.

Memory is bounded: the members and the ids given out in advance, of all groups together, take at most
``group.coordinator.max.bytes``. A group that needs more gets the room of groups that never synced (``memory.py``).
Otherwise its client receives CoordinatorNotAvailable and retries later. ``GroupLimits.max_bytes`` bounds one group.

If this broker itself stood still (the host was suspended, the process stopped), heartbeats lie unread while deadlines
have passed. A timer that fires late therefore waits once more, for as long as it was late, before the group removes a
member.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.groups_state import GroupShard, GroupShards
from spark_kafkalite.coordinator.groups.members import (
    NO_MEMBER_ID,
    Effect,
    JoinAnswer,
    JoinRequest,
    Persist,
    SyncAnswer,
    SyncRequest,
)
from spark_kafkalite.coordinator.groups.memory import GroupMemory
from spark_kafkalite.coordinator.groups.records import GroupKey, RecordEntry
from spark_kafkalite.errors import (
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    InvalidGroupId,
    KafkaError,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)

logger = logging.getLogger(__name__)

# A timer this much late says that the broker stood still, and did not read what members sent meanwhile.
_LATE_S: Final = 1.0
# How long members get for what they sent meanwhile, at most.
_LONGEST_GRACE_S: Final = 10.0
# Each is then packed and sent by its handler, which takes some 30 microseconds.
_ANSWERS_AT_ONCE: Final = 100
# Tombstones that are written together when a group is deleted.
_TOMBSTONES: Final = 1_000


class _Timer(NamedTuple):
    wake_ms: int
    handle: asyncio.TimerHandle


class GroupCoordinator:
    """See the module's text. Lives in the event loop."""

    def __init__(
        self,
        shards: GroupShards,
        clock: Clock,
        max_bytes: int,
        *,
        stood_still_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``stood_still_s`` gives for how long the time of groups has stood still, because members' requests could not
        be answered."""
        self._stood_still_s = stood_still_s
        self.shards = shards
        self._clock = clock
        self._timers: dict[Group, _Timer] = {}
        self._memory = GroupMemory(max_bytes, clock)
        self._warned_s = -_LONGEST_GRACE_S
        shards.on_loaded.append(self._loaded)
        shards.on_resigned.append(self._resigned)

    @property
    def held_bytes(self) -> int:
        """What the members of all groups take in memory, about."""
        return self._memory.held_bytes

    @property
    def is_loading(self) -> bool:
        """Whether some groups of this broker are not known yet."""
        return self.shards.is_loading

    def now_ms(self) -> int:
        """The time in ms, monotonic, that groups use."""
        return int(self._now_s() * 1000)

    def _now_s(self) -> float:
        return self._clock.monotonic_s() - self._stood_still_s()

    # Requests -------------------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest) -> asyncio.Future[JoinAnswer]:
        """Have a member join; the future is done when its generation begins, or it is refused."""
        ticket: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        try:
            shard = self._shard(group_id)
            group = shard.state.groups.get(group_id)
            if group is None and request.member_id != NO_MEMBER_ID:
                raise UnknownMemberId(f"there is no group {group_id}, and so no member {request.member_id!r}")
            self._make_room(group, request)
        except KafkaError as error:
            ticket.set_result(JoinAnswer(ticket, error, request.member_id))
            return ticket
        group = shard.state.group_or_new(group_id)
        self._carry_out(shard, group, group.join(request, ticket, self.now_ms()))
        return ticket

    def sync(self, group_id: str, request: SyncRequest) -> asyncio.Future[SyncAnswer]:
        """Have a member get its assignment; the leader's request brings them all."""
        ticket: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        try:
            shard, group = self._group(group_id)
        except CoordinatorLoadInProgress:
            # No generation is known: the member has to join. Source: GroupCoordinator.handleSyncGroup.
            ticket.set_result(SyncAnswer(ticket, RebalanceInProgress(f"group {group_id} is being loaded; join again")))
        except KafkaError as error:
            ticket.set_result(SyncAnswer(ticket, error))
        else:
            self._carry_out(shard, group, group.sync(request, ticket, self.now_ms()))
        return ticket

    def abandon(self, group_id: str, ticket: asyncio.Future[JoinAnswer] | asyncio.Future[SyncAnswer]) -> None:
        """Forget a request that waits, because its connection has closed."""
        try:
            shard, group = self._group(group_id)
        except KafkaError:
            return
        self._carry_out(shard, group, group.abandon(ticket, self.now_ms()))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> None:
        """Note that a member lives. Raises what it has to know."""
        try:
            shard, group = self._group(group_id)
        except CoordinatorLoadInProgress:
            # Its session begins anew once the group is loaded.
            return
        try:
            group.heartbeat(member_id, group_instance_id, generation, self.now_ms())
        finally:
            self._carry_out(shard, group, [])

    def leave(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> list[KafkaError | None]:
        """Take members (id, instance id) out; each has its own outcome. Raises what forbids them all."""
        try:
            shard, group = self._group(group_id)
        except UnknownMemberId as error:
            return [error for _ in members]
        outcomes: list[KafkaError | None] = []
        for member_id, group_instance_id in members:
            try:
                self._carry_out(shard, group, group.leave(member_id, group_instance_id, self.now_ms()))
                outcomes.append(None)
            except KafkaError as error:
                outcomes.append(error)
        return outcomes

    # Administration -------------------------------------------------------------------------------------------------

    def groups(self) -> list[Group]:
        """Return the groups that this broker serves."""
        return [group for shard in self.shards for group in shard.state.groups.values() if not group.is_dead]

    def describe(self, group_id: str) -> Group | None:
        """Return a group, None when there is none. Raises NotCoordinator, CoordinatorLoadInProgress."""
        group = self.shards.shard_of(group_id).state.groups.get(group_id)
        return None if group is None or group.is_dead else group

    async def delete(self, group_id: str) -> None:
        """Delete a group and its offsets; done when that is committed.

        Raises GroupIdNotFound, NonEmptyGroup, and what the write raises; the group is then there as before.
        """
        shard = self.shards.shard_of(group_id)
        group = shard.state.groups.get(group_id)
        if group is None or group.is_dead:
            raise GroupIdNotFound(f"there is no group {group_id}")
        former = group.to_metadata(group.current_state_timestamp_ms)
        group.delete()
        self._carry_out(shard, group, [])
        tombstones: list[RecordEntry] = [(key, None) for key in shard.state.offsets.keys(group_id)]
        # Last, so that a deletion that a crash cuts short leaves a group that can be deleted again.
        tombstones.append((GroupKey(group_id), None))
        pieces = [tombstones[first : first + _TOMBSTONES] for first in range(0, len(tombstones), _TOMBSTONES)]
        try:
            await asyncio.gather(*(shard.append(piece) for piece in pieces))
        except KafkaError:
            if shard.state.holds(group):
                shard.state.groups[group_id] = Group.from_metadata(group_id, former, group.limits)
            raise

    def close(self) -> None:
        """Stop all timers, because the broker stops."""
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()

    # Shards ---------------------------------------------------------------------------------------------------------

    def _shard(self, group_id: str) -> GroupShard:
        if not group_id:
            raise InvalidGroupId("the group id is empty; members need a group.id")
        return self.shards.shard_of(group_id)

    def _group(self, group_id: str) -> tuple[GroupShard, Group]:
        """Return a group that exists. Raises what a member of it has to know, UnknownMemberId if there is none."""
        shard = self._shard(group_id)
        group = shard.state.groups.get(group_id)
        if group is None:
            raise UnknownMemberId(f"there is no group {group_id}, and so no member of it")
        return shard, group

    def _loaded(self, shard: GroupShard) -> None:
        now_ms = self.now_ms()
        for group in list(shard.state.groups.values()):
            if group.members:
                self._carry_out(shard, group, group.resume(now_ms))

    def _resigned(self, shard: GroupShard) -> None:
        for group in shard.state.groups.values():
            self._carry_out(shard, group, group.resign())

    def _make_room(self, group: Group | None, request: JoinRequest) -> None:
        """Take groups out that are in the way of a join. Raises CoordinatorNotAvailable where that is not enough."""
        for other in self._memory.groups_in_the_way(group, request.size_bytes):
            shard = self.shards.shard_of(other.group_id)
            if other.is_stored:
                # It becomes empty as by its members' leaving, so that its generation and offsets stay.
                members = [(member.member_id, None) for member in other.members.values()]
                self.leave(other.group_id, members)
                continue
            self._carry_out(shard, other, other.evict())
            if shard.state.holds(other):
                del shard.state.groups[other.group_id]

    # Effects --------------------------------------------------------------------------------------------------------

    def _carry_out(self, shard: GroupShard, group: Group, effects: Sequence[Effect]) -> None:
        """Do what a call of a group asks for, and see to its timer and to the memory that it takes."""
        answers: list[JoinAnswer | SyncAnswer] = []
        for effect in effects:
            if isinstance(effect, Persist):
                self._write(shard, group, effect)
            else:
                answers.append(effect)
        if answers:
            _answer_all(answers)
        if group.is_forgettable and shard.state.holds(group) and not shard.state.offsets.has_any(group.group_id):
            del shard.state.groups[group.group_id]
        self._memory.note(group)
        self._set_timer(shard, group)

    def _write(self, shard: GroupShard, group: Group, persist: Persist) -> None:
        group.current_state_timestamp_ms = self._clock.wall_ms()
        metadata = group.to_metadata(group.current_state_timestamp_ms, persist)
        # Told in the step that applies the record: in between, the group would be stable with members that wait.
        written = partial(self._written, shard, group, persist)
        shard.write([(GroupKey(group.group_id), metadata)], written)

    def _written(self, shard: GroupShard, group: Group, persist: Persist, error: KafkaError | None) -> None:
        if isinstance(error, RequestTimedOut):
            # It may be in later; members join again meanwhile. Source: GroupMetadataManager.storeGroup.
            error = RebalanceInProgress(str(error))
        self._carry_out(shard, group, group.persisted(persist, error, self.now_ms()))

    # Time -----------------------------------------------------------------------------------------------------------

    def _set_timer(self, shard: GroupShard, group: Group) -> None:
        """Have the group woken when it wants to be; a timer that is too early does no harm and stays."""
        timer = self._timers.get(group)
        if group.wake_ms is None:
            if timer is not None:
                timer.handle.cancel()
                del self._timers[group]
        elif timer is None or group.wake_ms < timer.wake_ms:
            if timer is not None:
                timer.handle.cancel()
            delay_s = max(group.wake_ms / 1000 - self._now_s(), 0.0)
            self._start_timer(shard, group, delay_s, is_grace=False)

    def _start_timer(self, shard: GroupShard, group: Group, delay_s: float, *, is_grace: bool) -> None:
        assert group.wake_ms is not None
        handle = asyncio.get_running_loop().call_later(delay_s, self._wake, shard, group, is_grace)
        self._timers[group] = _Timer(group.wake_ms, handle)

    def _wake(self, shard: GroupShard, group: Group, is_grace: bool) -> None:
        timer = self._timers.pop(group)
        late_s = self._now_s() - timer.wake_ms / 1000
        if late_s > _LATE_S and not is_grace:
            self._warn_late(late_s)
            self._start_timer(shard, group, min(late_s, _LONGEST_GRACE_S), is_grace=True)
            return
        self._carry_out(shard, group, group.expire(self.now_ms()))

    def _warn_late(self, late_s: float) -> None:
        """Log once for all groups that the broker stood still."""
        now_s = self._clock.monotonic_s()
        if now_s - self._warned_s > _LONGEST_GRACE_S:
            self._warned_s = now_s
            logger.warning("this broker was stopped for %.1f s; silent members of groups get more time", late_s)


def _answer_all(answers: list[JoinAnswer | SyncAnswer]) -> None:
    """Give answers; those of a large group not all at once, so that other requests have their turn meanwhile."""
    for answer in answers[:_ANSWERS_AT_ONCE]:
        assert isinstance(answer.ticket, asyncio.Future)
        # A handler that was cancelled, because the broker stops, has cancelled it.
        if not answer.ticket.done():
            answer.ticket.set_result(answer)
    if len(answers) > _ANSWERS_AT_ONCE:
        asyncio.get_running_loop().call_soon(_answer_all, answers[_ANSWERS_AT_ONCE:])
