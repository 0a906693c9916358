"""A group with its surroundings played by the test: tickets, a clock, and a log that writes when it is told to."""

from __future__ import annotations

import random
from collections.abc import Sequence

from spark_kafkalite.coordinator.groups.group import MOST_PENDING, Group
from spark_kafkalite.coordinator.groups.members import (
    Effect,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    Persist,
    SyncAnswer,
    SyncRequest,
)
from spark_kafkalite.coordinator.groups.records import GroupMetadata
from spark_kafkalite.coordinator.groups.states import GroupState
from spark_kafkalite.errors import KafkaError
from tests.seeds import SEED

RANGE = ("range", b"subscription")
STICKY = ("sticky", b"subscription with user data")


def subscription(*topics: str) -> bytes:
    """A consumer's subscription, version 0."""
    names = [topic.encode() for topic in topics]
    listed = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return b"\0\0" + len(names).to_bytes(4, "big") + listed + b"\xff\xff\xff\xff"


def join_request(
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols: Sequence[tuple[str, bytes]] = (RANGE,),
    session_ms: int = 10_000,
    rebalance_ms: int = 60_000,
    protocol_type: str = "consumer",
    needs_member_id: bool = False,
    may_skip: bool = False,
) -> JoinRequest:
    """A request to join of a client that is called client."""
    return JoinRequest(
        member_id,
        instance,
        "client",
        "/127.0.0.1",
        session_ms,
        rebalance_ms,
        protocol_type,
        tuple(protocols),
        needs_member_id,
        may_skip,
    )


class World:
    """Carries effects out: collects answers by ticket, keeps writes until :meth:`write` is called."""

    def __init__(self, limits: GroupLimits | None = None, group: Group | None = None) -> None:
        self.group = group if group is not None else Group("g", limits if limits is not None else GroupLimits())
        self.now_ms = 1_000_000
        self.tickets = 0
        self.open_tickets: set[int] = set()
        self.abandoned: set[int] = set()
        self.answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self.writes: list[Persist] = []
        # What each of them writes: the group as it was when the write began.
        self.writing: list[GroupMetadata] = []
        self.written: GroupMetadata | None = None
        self.generation = self.group.generation

    # Requests

    def join(self, member_id: str = "", **how: object) -> int:
        """Send a join; return its ticket."""
        return self.send_join(join_request(member_id, **how))  # type: ignore[arg-type]

    def send_join(self, request: JoinRequest) -> int:
        """Send this join; return its ticket."""
        ticket = self._ticket()
        self.carry_out(self.group.join(request, ticket, self.now_ms))
        return ticket

    def sync(
        self, member_id: str, assignments: dict[str, bytes] | None = None, instance: str | None = None, **how: object
    ) -> int:
        """Send a sync for the present generation; return its ticket."""
        generation = how.pop("generation", self.group.generation)
        request = SyncRequest(member_id, instance, generation, assignments=assignments or {}, **how)  # type: ignore[arg-type]
        ticket = self._ticket()
        self.carry_out(self.group.sync(request, ticket, self.now_ms))
        return ticket

    def leave(self, member_id: str, instance: str | None = None) -> None:
        self.carry_out(self.group.leave(member_id, instance, self.now_ms))

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> None:
        asked = self.group.generation if generation is None else generation
        self.group.heartbeat(member_id, instance, asked, self.now_ms)
        self.check()

    def abandon(self, ticket: int) -> None:
        """Close the connection on which a request waits."""
        self.open_tickets.discard(ticket)
        self.abandoned.add(ticket)
        self.carry_out(self.group.abandon(ticket, self.now_ms))

    def write(self, error: KafkaError | None = None) -> Persist:
        """Have the oldest write end."""
        persist = self.writes.pop(0)
        metadata = self.writing.pop(0)
        if error is None:
            self.written = metadata
            self.group.apply(metadata)
        self.carry_out(self.group.persisted(persist, error, self.now_ms))
        return persist

    def write_all(self) -> None:
        while self.writes:
            self.write()

    def advance(self, ms: int) -> None:
        """Let time pass; the group is woken whenever it wants to be."""
        end = self.now_ms + ms
        while self.group.wake_ms is not None and self.group.wake_ms <= end:
            before = self.group.wake_ms
            self.now_ms = max(self.now_ms, before)
            self.carry_out(self.group.expire(self.now_ms))
            assert self.group.wake_ms is None or self.group.wake_ms > self.now_ms, "woken for what is not done"
        self.now_ms = end

    # Whole stories

    def settled(self, count: int, **how: object) -> list[str]:
        """Have members join until the group is stable; return their ids, the leader's first."""
        tickets = [self.join(**how) for _ in range(count)]
        ids = [member_id for ticket in tickets if (member_id := self.member_of(ticket)) is not None]
        while self.group.state is not GroupState.STABLE:
            for member_id in list(self.group.members):
                if self.group.members[member_id].join_ticket is None:
                    instance = self.group.members[member_id].group_instance_id
                    if self.group.state is GroupState.PREPARING_REBALANCE:
                        request = self.group.members[member_id].as_request()
                        self.send_join(
                            join_request(
                                member_id,
                                instance=instance,
                                protocols=request.protocols,
                                session_ms=request.session_timeout_ms,
                                rebalance_ms=request.rebalance_timeout_ms,
                                protocol_type=self.group.protocol_type or "",
                            )
                        )
            if self.group.state is GroupState.COMPLETING_REBALANCE:
                self.sync_all()
        ids = list(self.group.members)
        assert self.group.leader is not None
        return [self.group.leader, *(member_id for member_id in ids if member_id != self.group.leader)]

    def sync_all(self) -> dict[str, int]:
        """Have every member sync, the leader last, and the assignment written; return the tickets."""
        leader = self.group.leader
        assert leader is not None
        tickets = {}
        for member_id in [*(one for one in self.group.members if one != leader), leader]:
            plan = {one: f"share of {one}".encode() for one in self.group.members} if member_id == leader else None
            tickets[member_id] = self.sync(member_id, plan, self.group.members[member_id].group_instance_id)
        self.write_all()
        return tickets

    def member_of(self, ticket: int) -> str | None:
        """The id that a join was answered with, None when it waits or was refused."""
        answer = self.answers.get(ticket)
        return answer.member_id if isinstance(answer, JoinAnswer) and answer.error is None else None

    def error_of(self, ticket: int) -> type[KafkaError] | None:
        """The class of the error that a request was answered with."""
        error = self.answers[ticket].error
        return None if error is None else type(error)

    # Effects and invariants

    def _ticket(self) -> int:
        self.tickets += 1
        self.open_tickets.add(self.tickets)
        return self.tickets

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self.writes.append(effect)
                self.writing.append(self.group.to_metadata(self.now_ms, effect))
                continue
            assert isinstance(effect.ticket, int)
            assert effect.ticket in self.open_tickets, f"ticket {effect.ticket} answered twice, or after it was dropped"
            self.open_tickets.remove(effect.ticket)
            self.answers[effect.ticket] = effect
            if isinstance(effect, JoinAnswer) and effect.error is None:
                assert effect.members == () or effect.leader == effect.member_id
        self.check()

    def check(self) -> None:
        """Hold the group to its invariants."""
        group, roster = self.group, self.group.roster
        assert group.generation >= self.generation, "the generation went back"
        self.generation = group.generation
        members = list(group.members.values())
        if members:
            assert group.leader in group.members
            common = set.intersection(*({name for name, _ in member.protocols} for member in members))
            assert common, "members without a common protocol"
            if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
                assert group.protocol in common
        else:
            assert group.state in (GroupState.EMPTY, GroupState.DEAD, GroupState.PREPARING_REBALANCE)
        instances = [member.group_instance_id for member in members if member.group_instance_id is not None]
        assert len(instances) == len(set(instances)), "an instance id with two members"
        assert roster.static == {
            one.group_instance_id: one.member_id for one in members if one.group_instance_id is not None
        }
        assert all(key == member.member_id for key, member in group.members.items())
        parked = {ticket: one for one in members for ticket in (one.join_ticket, one.sync_ticket) if ticket is not None}
        assert roster.parked == parked
        assert parked.keys() == self.open_tickets
        assert roster.joined == sum(one.join_ticket is not None for one in members)
        assert not any(one.join_ticket is not None and one.sync_ticket is not None for one in members)
        assert roster.unsynced <= group.members.keys()
        assert not group.pending.keys() & group.members.keys()
        assert len(group.pending) <= min(MOST_PENDING, group.limits.max_size)
        assert roster.member_bytes == sum(one.size_bytes for one in members)
        counted = [name for member in members for name in {name for name, _ in member.protocols}]
        assert dict(roster.supporters) == {name: counted.count(name) for name in set(counted)}
        if group.state is not GroupState.DEAD:
            earliest = group.rebalance.next_wake_ms()
            assert earliest is None or (group.wake_ms is not None and group.wake_ms <= earliest)
            for one in members:
                waits = one.join_ticket is not None or one.sync_ticket is not None
                assert one.deadline_ms is not None or waits, f"{one.member_id} can never fall silent"
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert sum(not one.is_static for one in members) <= group.limits.max_size
        if group.state is GroupState.PREPARING_REBALANCE and not group.rebalance.gathering:
            assert roster.joined < len(members) or group.pending, "nobody is missing, and nothing happens"


def seed_of(test: str) -> random.Random:
    """A random source whose seed pytest shows when the test fails."""
    print(f"{test}: KAFKALITE_SEED={SEED} repeats it")
    return random.Random(SEED)
