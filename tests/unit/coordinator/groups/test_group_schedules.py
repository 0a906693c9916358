"""Random schedules of a group: clients of every kind join, sync, crash and return in any order while writes fail.

``World`` holds the group to its invariants after every step (one leader, generations only grow, no instance id with two
members, every ticket answered once). Here two more: within a generation all shares come from one plan and nobody has
another's, and when the storm is over the group settles with exactly those that live.
"""

from __future__ import annotations

import random

import pytest

from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.members import GroupLimits, JoinAnswer, SyncAnswer
from spark_kafkalite.coordinator.groups.states import GroupState
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    KafkaError,
    KafkaStorageError,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from tests.seeds import SOAK
from tests.unit.coordinator.groups.group_world import World, join_request, seed_of, subscription

ROUNDS = 300 if SOAK else 12
SESSION_MS = 10_000
REBALANCE_MS = 20_000
PROTOCOLS = [
    (("range", subscription("t")), ("sticky", subscription("t"))),
    (("sticky", subscription("t")), ("range", subscription("t"))),
    (("range", subscription("t", "u")),),
]


class Client:
    """One consumer. Without a ticket or a generation it has to join; with a generation and no share, to sync."""

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm = storm
        self.kind = ("first-version", "dynamic", "static", "static-skipping")[number % 4]
        self.instance = f"i{number}" if self.kind.startswith("static") else None
        self.protocols = PROTOCOLS[number % 2]
        self.member_id = ""
        self.generation = -1
        self.share: bytes | None = None
        self.ticket: int | None = None

    def forget(self) -> None:
        """Start anew, as a restarted process does."""
        self.member_id, self.generation, self.share, self.ticket = "", -1, None, None

    def join(self) -> None:
        self.generation, self.share = -1, None
        self.ticket = self.storm.world.send_join(
            join_request(
                self.member_id,
                instance=self.instance,
                protocols=self.protocols,
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
                needs_member_id=self.kind != "first-version",
                may_skip=self.kind == "static-skipping",
            )
        )
        self.hear()

    def sync(self) -> None:
        plan = self.storm.plan(self) if self.storm.leads(self) else {}
        self.ticket = self.storm.world.sync(self.member_id, plan, self.instance, generation=self.generation)
        self.hear()

    def heartbeat(self) -> None:
        try:
            self.storm.world.heartbeat(self.member_id, self.generation, self.instance)
        except KafkaError as error:
            self.refused(error)

    def hear(self) -> None:
        """Take the answer, if there is one."""
        answer = self.storm.world.answers.get(self.ticket) if self.ticket is not None else None
        if answer is None:
            return
        self.ticket = None
        if answer.error is not None:
            if isinstance(answer.error, MemberIdRequired):
                assert isinstance(answer, JoinAnswer) and self.kind == "dynamic"
                self.member_id = answer.member_id
            else:
                self.refused(answer.error)
        elif isinstance(answer, JoinAnswer):
            self.member_id, self.generation = answer.member_id, answer.generation
            if answer.leader == answer.member_id and not answer.skip_assignment:
                assert {member_id for member_id, _, _ in answer.members} >= {self.member_id}
                self.storm.led[answer.generation] = self.member_id
        else:
            assert isinstance(answer, SyncAnswer)
            self.share = answer.assignment
            self.storm.check_share(self)

    def refused(self, error: KafkaError) -> None:
        """Do as clients do with an error."""
        self.generation, self.share = -1, None
        if isinstance(error, (UnknownMemberId, FencedInstanceId)):
            self.member_id = ""

    def act(self) -> None:
        """Do what a client in good health would do now."""
        self.hear()
        if self.ticket is not None:
            return
        if self.generation < 0:
            self.join()
        elif self.share is None:
            self.sync()
        else:
            self.heartbeat()


class Storm:
    """A group, its clients, and what is remembered of its generations."""

    def __init__(self, rng: random.Random, limits: GroupLimits, clients: int) -> None:
        self.rng = rng
        self.world = World(limits)
        self.clients = [Client(self, number) for number in range(clients)]
        self.nonce = 0
        self.led: dict[int, str] = {}
        self.plans: dict[int, bytes] = {}
        self.shares: dict[tuple[int, bytes], str] = {}

    def leads(self, client: Client) -> bool:
        return self.led.get(client.generation) == client.member_id

    def plan(self, leader: Client) -> dict[str, bytes]:
        """Give everybody a share that says which plan it is of."""
        self.nonce += 1
        return {
            member_id: b"%d:%d:%d" % (leader.generation, self.nonce, index)
            for index, member_id in enumerate(self.world.group.members)
        }

    def check_share(self, client: Client) -> None:
        if not client.share:
            return
        generation, plan, _ = client.share.split(b":")
        assert int(generation) <= client.generation, "a share of a later generation"
        if int(generation) != client.generation:
            raise AssertionError(f"{client.member_id} has a share of generation {generation!r}")
        assert self.plans.setdefault(client.generation, plan) == plan, "two plans in one generation"
        identity = client.instance or client.member_id
        owner = self.shares.setdefault((client.generation, client.share), identity)
        assert owner == identity, f"{owner} and {identity} have the same share"

    def step(self) -> None:
        rng, world = self.rng, self.world
        client = rng.choice(self.clients)
        what = rng.random()
        if what < 0.62:
            client.act()
        elif what < 0.68:
            world.advance(rng.choice([1, 100, 2_000, 7_000]))
        elif what < 0.82 and world.writes:
            world.write(KafkaStorageError("disk") if rng.random() < 0.1 else None)
        elif what < 0.86 and client.ticket in world.open_tickets:
            assert client.ticket is not None
            world.abandon(client.ticket)
            client.ticket = None
        elif what < 0.90:
            if client.ticket in world.open_tickets and rng.random() < 0.5:
                assert client.ticket is not None
                world.abandon(client.ticket)
            client.forget()
        elif what < 0.93 and client.member_id and client.ticket is None:
            try:
                world.leave(client.member_id, client.instance)
            except (UnknownMemberId, FencedInstanceId):
                pass
            client.forget()
        elif what < 0.96 and client.ticket is None:
            client.protocols = rng.choice(PROTOCOLS)
            client.join()
        elif what < 0.97:
            self.move()

    def move(self) -> None:
        """Have another broker take the group over: it knows what was written."""
        world = self.world
        world.carry_out(world.group.resign())
        assert not world.open_tickets
        for client in self.clients:
            client.hear()
        world.writes.clear()
        world.writing.clear()
        limits, written = world.group.limits, world.written
        group = Group("g", limits) if written is None else Group.from_metadata("g", written, limits)
        world.group = group
        # A generation that was agreed upon and not written is forgotten, and its number is used again.
        world.generation = group.generation
        for generation in [one for one in self.led if one > group.generation]:
            del self.led[generation]
        for generation in [one for one in self.plans if one > group.generation]:
            del self.plans[generation]
        self.shares = {key: owner for key, owner in self.shares.items() if key[0] <= group.generation}
        world.carry_out(group.resume(world.now_ms))

    def settle(self) -> None:
        """Let all clients live and behave; the group must come to rest with them."""
        for client in self.clients:
            client.protocols = PROTOCOLS[0]
        for _ in range(200):
            for client in self.clients:
                client.act()
            self.world.write_all()
            self.world.advance(500)
        group = self.world.group
        assert group.state is GroupState.STABLE, group.state
        for client in self.clients:
            client.act()
            assert client.share, f"{client.kind} {client.member_id} has no share"
            assert client.generation == group.generation
        assert group.members.keys() == {client.member_id for client in self.clients}
        assert len({client.share for client in self.clients}) == len(self.clients)
        generation = group.generation
        for _ in range(40):
            self.world.advance(2_000)
            for client in self.clients:
                client.act()
        assert group.generation == generation, "a rebalance although nothing happened"


@pytest.mark.parametrize("delay_ms", [0, 3_000])
@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_storms_keep_the_invariants_and_leave_a_group_that_settles(delay_ms: int, round_number: int) -> None:
    rng = seed_of(f"storm {round_number}, initial delay {delay_ms} ms")
    storm = Storm(rng, GroupLimits(initial_rebalance_delay_ms=delay_ms), rng.randint(1, 9))
    for _ in range(600):
        storm.step()
    storm.settle()


@pytest.mark.parametrize("round_number", range(ROUNDS // 2))
def test_storms_never_make_a_group_larger_than_it_may_be(round_number: int) -> None:
    rng = seed_of(f"small group {round_number}")
    storm = Storm(rng, GroupLimits(max_size=3), 9)
    for client in storm.clients:
        # Silent static members keep their places, whoever comes.
        client.kind, client.instance = "dynamic", None
    for _ in range(800):
        storm.step()
        if storm.world.group.state is not GroupState.PREPARING_REBALANCE:
            assert len(storm.world.group.members) <= 3
    assert any(isinstance(answer.error, GroupMaxSizeReached) for answer in storm.world.answers.values())


def test_the_storm_meets_every_error_and_state() -> None:
    """What the storms above are worth: they come by every way that a client can be refused."""
    rng = seed_of("coverage")
    wanted = {
        MemberIdRequired,
        UnknownMemberId,
        FencedInstanceId,
        RebalanceInProgress,
        NotCoordinator,
        KafkaStorageError,
    }
    seen: set[type] = set()
    states: set[GroupState] = set()
    # Twenty nearly always show all of it.
    for _ in range(300):
        storm = Storm(rng, GroupLimits(), 8)
        for _ in range(600):
            storm.step()
            states.add(storm.world.group.state)
        seen |= {type(answer.error) for answer in storm.world.answers.values()}
        if wanted <= seen and len(states) == len(GroupState) - 1:
            break
    assert wanted <= seen
    assert states == set(GroupState) - {GroupState.DEAD}
    assert CoordinatorNotAvailable not in seen
