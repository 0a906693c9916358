"""One registry session after the other: what ends with a session, what the next one begins with, what outlives both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import InconsistentClusterId, KafkaError, NotController, RegistryError, RequestTimedOut
from spark_kafkalite.model import BrokerId, Incarnation
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster import registration
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterChange, ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.membership import ClusterMembership
from spark_kafkalite.registry.cluster.registration_watch import OnAnswer
from spark_kafkalite.registry.cluster.session import RegistrySession
from spark_kafkalite.registry.controller.controller import TopicSpec
from spark_kafkalite.registry.producer_id_block import PRODUCER_ID_BLOCK_SIZE
from spark_kafkalite.registry.recovery import evidence_node
from spark_kafkalite.registry.store import Delete, SessionExpired, SessionState, answer
from spark_kafkalite.registry.znodes import BrokerRegistration, TopicAssignment
from spark_kafkalite.slices import Slices
from tests.lab.fake_registry import (
    FakeRegistry,
    FakeStore,
    Fault,
    expire_after,
    expire_before,
    lose_answer,
    lose_answer_late,
)
from tests.patience import wait_until_async
from tests.unit.registry.virtual_time import follow, run, running_loop
from tests.unit.slice_clock import SliceClock

# In virtual time.
TIMEOUT_S = 10
ME = BrokerRegistration(BrokerId(1), "h", 9001, incarnation=Incarnation(77))


class Member:
    """A broker's membership, and what it has told."""

    def __init__(
        self, registry: FakeRegistry, *, loss_is_final: bool = False, on_answer: OnAnswer | None = None
    ) -> None:
        self.registry = registry
        follow(registry.registry)
        self.view = ClusterView()
        self.changes: list[ClusterChange] = []
        self.view.add_listener(lambda _, __, change: self.changes.append(change))
        self.registrations: list[BrokerInfo | None] = []
        self.ends: list[BaseException] = []
        self.membership = ClusterMembership(
            registry.open_session,
            partial(
                RegistrySession,
                view=self.view,
                broker_id=BrokerId(1),
                clock=running_loop().clock,
                slices=Slices(asyncio.get_running_loop(), SliceClock()),
                unclean_election=lambda _: False,
                recovery=lambda _: False,
                min_insync=lambda _: 1,
                on_answer=on_answer,
            ),
            self.view,
            on_registration=self.registrations.append,
            on_end=self.ends.append,
            loss_is_final=loss_is_final,
            retry_s=0.01,
        )

    async def join(self) -> None:
        await self.membership.open(None)
        await self.membership.join(ME)

    @property
    def session(self) -> RegistrySession:
        return self.membership.session

    @property
    def me(self) -> BrokerInfo:
        info = self.registrations[-1]
        assert info is not None
        return info

    def be_another_run(self) -> None:
        """Have the next session register a run of the broker that must be elected anew."""
        self.membership._registration = replace(ME, incarnation=znodes.new_incarnation())

    @property
    def is_controller(self) -> bool:
        return self.membership._session is not None and self.session.controller.is_active

    async def until(self, condition: Callable[[ClusterState], bool]) -> ClusterState:
        return await self.view.wait_for(condition, TIMEOUT_S)

    async def led_again_after(self, epoch: int) -> ClusterState:
        """Wait until this broker is registered anew, leads everything again and is the controller."""

        def led(state: ClusterState) -> bool:
            me = state.brokers.get(1)
            return (
                me is not None
                and me.epoch > epoch
                and all(part.is_led_by(me) for topic in state.topics.values() for part in topic.partitions.values())
            )

        await self.until(led)
        await wait_until_async(lambda: self.is_controller, "this broker is the controller", poll_s=0.001)
        return self.view.state

    async def leads_in_session(self, number: int) -> ClusterState:
        """Wait until this broker leads everything in a session, the first one being 1, and is the controller there."""
        await wait_until_async(
            lambda: len(self.registry.sessions) >= number and self.is_controller,
            "it is the controller in that session",
            poll_s=0.001,
        )
        return await self.led_again_after(self.me.epoch - 1)

    async def reads_nothing(self) -> None:
        """Wait until this session has nothing under way that a fault meant for the next one could meet."""
        await self.session.watcher.caught_up()

    async def create(self, name: str) -> TopicAssignment | KafkaError:
        return (await self.session.controller.create_topics([TopicSpec(name, 2)]))[name]


@asynccontextmanager
async def a_member(
    directory: Path, *, loss_is_final: bool = False, session_timeout_ms: int = 6000, ends: bool = False
) -> AsyncIterator[Member]:
    with FakeRegistry(directory, session_timeout_ms) as registry:
        member = Member(registry, loss_is_final=loss_is_final)
        try:
            yield member
        finally:
            await member.membership.close()
        assert bool(member.ends) == ends


def test_the_next_session_registers_and_goes_on_leading(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            before = await member.session.watcher.caught_up()
            first, controller_epoch = member.session, member.session.controller.epoch
            for _ in range(3):
                epoch = member.me.epoch
                member.registry.expire()
                state = await member.led_again_after(epoch)
            assert [info is None for info in member.registrations] == [False, True, False, True, False, True, False]
            assert member.me.epoch == state.brokers[1].epoch
            # Nobody was elected meanwhile, and the process is the same.
            assert [part.leader_epoch for part in state.topics["t"].partitions.values()] == [0, 0]
            assert state.topics["t"].topic_id == before.topics["t"].topic_id
            assert not any(change.deleted_topics or change.unreadable_topics for change in member.changes)
            assert member.session is not first
            assert (first.controller.is_active, member.session.controller.epoch) == (False, controller_epoch + 3)

    run(work())


def test_nothing_of_a_lost_session_is_left(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            await member.session.watcher.caught_up()
            old, tree, epoch = member.session, member.registry.registry.tree, member.me.epoch
            watches = len(tree.watches)
            member.registry.expire()
            await member.led_again_after(epoch)
            await member.session.watcher.caught_up()
            assert len(tree.watches) == watches
            assert member.registry.sessions[0].is_closed
            assert list(tree.sessions) == [member.session.store.session_id]
            # What is told to the old one reaches nobody.
            published = len(member.changes)
            old.watcher._reads.put(old.watcher._read_all)
            old.controller.resume()
            old.controller.check_everything()
            with pytest.raises(SessionExpired):
                await old.watcher.caught_up()
            with pytest.raises(NotController):
                await old.controller.create_topics([TopicSpec("no")])
            with pytest.raises(SessionExpired):
                await old.producer_ids._take_block()
            await member.session.watcher.caught_up()
            assert len(member.changes) == published

    run(work())


def test_a_block_of_producer_ids_is_not_used_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            assert [await member.session.producer_ids.next_id() for _ in range(2)] == [0, 1]
            epoch = member.me.epoch
            member.registry.expire()
            await member.led_again_after(epoch)
            assert await member.session.producer_ids.next_id() == PRODUCER_ID_BLOCK_SIZE

    run(work())


def test_without_a_session_the_view_stands_and_the_registry_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            state, epoch = await member.session.watcher.caught_up(), member.me.epoch
            waiting = asyncio.ensure_future(member.view.wait_for(lambda new: "later" in new.topics, TIMEOUT_S))
            member.registry.become_unreachable()
            member.registry.expire()
            await wait_until_async(
                lambda: member.registrations[-1] is None, "it learns that its registration has ended", poll_s=0.001
            )
            with pytest.raises(SessionExpired):
                _ = member.membership.session
            member.membership.check_everything()
            assert member.view.state is state
            member.registry.become_reachable()
            await member.led_again_after(epoch)
            await member.create("later")
            await waiting

    run(work())


@pytest.mark.parametrize("fault", [expire_before, expire_after])
@pytest.mark.parametrize("path", ["/brokers/topics/new", "/config/topics/new"])
def test_a_session_lost_in_the_middle_of_a_creation(tmp_path: Path, fault: Fault, path: str) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            await member.reads_nothing()
            epoch = member.me.epoch
            member.registry.arm(path, fault)
            # It may or may not have been done, and says so.
            assert isinstance(await member.create("new"), RequestTimedOut)
            state = await member.led_again_after(epoch)
            assert ("new" in state.topics) == (fault is expire_after)
            # Whoever tries again finds one of the two.
            await member.create("new")
            state = await member.session.watcher.caught_up()
            assert [part.leader for part in state.topics["new"].partitions.values()] == [1, 1]

    run(work())


@pytest.mark.parametrize("fault", [expire_before, expire_after])
def test_a_session_lost_in_the_middle_of_elections_and_of_deletions(tmp_path: Path, fault: Fault) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            for name in ("a", "b"):
                await member.create(name)
            await member.reads_nothing()
            member.be_another_run()
            member.registry.arm("/state", fault)  # the next session's first election
            member.registry.expire()
            state = await member.leads_in_session(3)
            assert member.registry.armed == 0
            assert set(state.topics) == {"a", "b"}
            await member.reads_nothing()
            member.registry.arm("/brokers/topics/a", fault)
            results = await member.session.controller.delete_topics(["a"])
            assert isinstance(results["a"], RequestTimedOut)
            state = await member.leads_in_session(4)
            assert ("a" in state.topics) == (fault is expire_before)
            assert "b" in state.topics

    run(work())


# Every kind of node that a session reads or writes until it has joined.
STEPS = [
    "/cluster/id",
    "/brokers/ids",
    "/config/brokers",
    "/brokers/topics",
    "/brokers/topics/t",
    "/config/topics/t",
    "/brokers/topics/t/partitions/1/state",
    "/controller",
    "/controller_epoch",
    "/admin/delete_topics",
]


@pytest.mark.parametrize("fault", [expire_before, expire_after, lose_answer, lose_answer_late])
@pytest.mark.parametrize("path", STEPS)
def test_a_session_lost_at_any_step_of_joining_deletes_nothing(tmp_path: Path, path: str, fault: Fault) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            await member.reads_nothing()
            epoch = member.me.epoch
            member.registry.arm(path, fault)
            member.registry.expire()
            await wait_until_async(lambda: not member.registry.armed, "the fault has happened", poll_s=0.001)
            # However many sessions it took.
            await member.led_again_after(epoch)
            state = await member.leads_in_session(2 if fault in (lose_answer, lose_answer_late) else 3)
            assert set(state.topics) == {"t"}
            assert not any(change.deleted_topics or change.unreadable_topics for change in member.changes)

    run(work())


@pytest.mark.parametrize("fault", [expire_before, expire_after])
@pytest.mark.parametrize("path", ["/cluster", *(step for step in STEPS if "/t" not in step.removeprefix("/brokers"))])
def test_a_session_lost_at_any_step_of_the_start_is_followed_by_another(
    tmp_path: Path, path: str, fault: Fault
) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            member.registry.arm(path, fault)
            await member.join()
            assert member.registry.armed == 0
            assert isinstance(await member.create("t"), TopicAssignment)

    run(work())


def test_a_session_may_be_lost_between_the_snapshot_and_the_registration(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.membership.open(None)
            first = member.session
            for _ in range(2):
                old = member.session
                member.registry.expire()
                await wait_until_async(
                    lambda old=old: old.watcher._closed and member.membership._session is not None,
                    "the next session has replaced the old one",
                    poll_s=0.001,
                )  # type: ignore[misc]
            assert member.session is not first
            # Nobody has asked for it yet.
            assert (await member.session.watcher.caught_up()).brokers == {}
            await member.membership.join(ME)
            assert (await member.session.watcher.caught_up()).brokers[1].epoch == member.me.epoch

    run(work())


def test_what_has_gone_meanwhile_is_deleted_and_what_is_unreadable_is_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            for name in ("goes", "stays", "damaged"):
                await member.create(name)
            state, epoch = await member.session.watcher.caught_up(), member.me.epoch
            other = member.registry.connect()
            member.registry.become_unreachable()
            member.registry.expire()
            member.changes.clear()
            paths = [f"{znodes.topic_path('goes')}/partitions/{number}/state" for number in range(2)]
            paths += [f"{znodes.topic_path('goes')}/partitions/{number}" for number in range(2)]
            paths += [f"{znodes.topic_path('goes')}/partitions", znodes.topic_path("goes")]
            await answer(other.multi([Delete(path) for path in paths]))
            await answer(other.set(znodes.topic_path("damaged"), b"{"))
            member.registry.become_reachable()
            await member.led_again_after(epoch)
            assert [change.deleted_topics for change in member.changes if change.deleted_topics] == [
                (("goes", state.topics["goes"].topic_id),)
            ]
            assert [change.unreadable_topics for change in member.changes if change.unreadable_topics] == [("damaged",)]

    run(work())


def test_an_emptied_registry_is_not_believed_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            state, epoch = await member.session.watcher.caught_up(), member.me.epoch
            other = member.registry.connect()
            data, _ = await answer(other.get(znodes.CLUSTER_ID))
            await answer(other.delete(znodes.CLUSTER_ID))
            member.registry.expire()
            await wait_until_async(
                lambda: len(member.registry.sessions) >= 4, "it opens one session after another", poll_s=0.001
            )
            # It has tried again, and has not taken up anything.
            assert member.view.state is state
            # Which is said once, not with every attempt.
            assert caplog.text.count("emptied or replaced") == 1
            assert all(session.is_closed for session in member.registry.sessions[:3])
            await answer(other.create(znodes.CLUSTER_ID, data))
            await member.led_again_after(epoch)

    run(work())


def test_an_older_copy_of_the_registry_is_not_believed_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            state, epoch = await member.session.watcher.caught_up(), member.me.epoch
            now = member.membership.seen_zxid
            member.membership._seen_zxid = now + 1000
            member.registry.expire()
            await wait_until_async(
                lambda: len(member.registry.sessions) >= 4, "it opens one session after another", poll_s=0.001
            )
            assert member.view.state is state
            assert caplog.text.count("the registry is older than this broker has seen it") == 1
            # Back is what has come farther.
            member.membership._seen_zxid = now
            await member.led_again_after(epoch)

    run(work())


def test_what_a_session_has_seen_counts_in_the_next_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            seen = member.session.store.seen_zxid
            member.registry.become_unreachable()
            member.registry.expire()
            await wait_until_async(
                lambda: member.registrations[-1] is None, "it learns that its registration has ended", poll_s=0.001
            )
            assert member.membership.seen_zxid >= seen
            member.registry.become_reachable()

    run(work())


def test_another_clusters_registry_in_a_later_session_ends_the_membership(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path, ends=True) as member:
            await member.join()
            await member.create("t")
            state = await member.session.watcher.caught_up()
            another = znodes.encode_cluster_id(znodes.uuid_text(znodes.new_uuid()))
            await answer(member.registry.connect().set(znodes.CLUSTER_ID, another))
            member.registry.expire()
            await wait_until_async(lambda: member.ends, "the membership ends", poll_s=0.001)
            assert isinstance(member.ends[0], InconsistentClusterId)
            assert member.view.state is state
            assert member.registrations[-1] is None
            assert all(session.is_closed for session in member.registry.sessions)

    run(work())


def test_another_brokers_data_ends_the_start(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await registration.create_base_nodes(member.registry.connect())
            await registration.cluster_id(member.registry.connect())
            with pytest.raises(InconsistentClusterId):
                await member.membership.open(znodes.uuid_text(znodes.new_uuid()))
            assert member.registry.sessions[-1].is_closed

    run(work())


@pytest.mark.parametrize("is_new", [True, False])
def test_of_another_registry_it_is_said_that_it_is_another_and_not_that_it_is_older(
    tmp_path: Path, is_new: bool
) -> None:
    def older(*_: object) -> None:
        raise AssertionError("it is compared")

    async def work() -> None:
        async with a_member(tmp_path) as member:
            if not is_new:
                await registration.create_base_nodes(member.registry.connect())
                await registration.cluster_id(member.registry.connect())
            stored = znodes.uuid_text(znodes.new_uuid())
            with pytest.raises(RegistryError if is_new else InconsistentClusterId, match=stored):
                await member.membership.open(stored, holds_logs=True, check_zxid=older)

    run(work())


def test_evidence_that_a_recovery_has_settled_is_read_where_the_registry_has_not_come_far_enough(
    tmp_path: Path,
) -> None:
    calls: list[Mapping[BrokerId, int]] = []

    def older(_: int, settled: Mapping[BrokerId, int]) -> None:
        calls.append(settled)
        if settled != {BrokerId(1): 7}:
            raise RegistryError("older")

    async def work() -> None:
        async with a_member(tmp_path) as member:
            store = member.registry.connect()
            await registration.create_base_nodes(store)
            known = await registration.cluster_id(store)
            await answer(store.create(evidence_node.PATH, evidence_node.encode({BrokerId(1): 7})))
            await member.membership.open(known, holds_logs=True, check_zxid=older)

    run(work())
    assert calls == [{}, {1: 7}]


@pytest.mark.parametrize("held", [None, b"junk"])
def test_a_registry_that_settles_nothing_is_refused(tmp_path: Path, held: bytes | None) -> None:
    def older(*_: object) -> None:
        raise RegistryError("older")

    async def work() -> None:
        async with a_member(tmp_path) as member:
            store = member.registry.connect()
            await registration.create_base_nodes(store)
            known = await registration.cluster_id(store)
            if held is not None:
                await answer(store.create(evidence_node.PATH, held))
            with pytest.raises(RegistryError, match="older"):
                await member.membership.open(known, holds_logs=True, check_zxid=older)

    run(work())


def test_an_id_that_another_broker_has_taken_meanwhile_ends_the_membership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "EXPIRY_MARGIN_S", 0.0)

    async def work() -> None:
        async with a_member(tmp_path, session_timeout_ms=50, ends=True) as member:
            await member.join()
            registry = member.registry
            other = registry.connect()
            registry.become_unreachable()
            registry.expire()
            await registration.register_broker(other, BrokerRegistration(BrokerId(1), "other", 9009))
            registry.become_reachable()
            await wait_until_async(lambda: member.ends, "the membership ends", poll_s=0.001)
            assert isinstance(member.ends[0], registration.DuplicateBrokerId)
            assert "broker.id=1 is taken by the broker at other:9009" in str(member.ends[0])
            assert (await answer(other.exists(znodes.broker_path(1)))).ephemeral_owner == other.session_id

    run(work())


def test_the_node_of_a_session_that_was_given_up_is_replaced_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            first, epoch = member.session, member.me.epoch
            # As when the connection is gone: the registry does not hear of the end, and keeps the node.
            store = first.store
            assert isinstance(store, FakeStore)
            store.inner.close = lambda: None  # type: ignore[method-assign]
            first._registered = False
            began_s = asyncio.get_running_loop().time()
            first.lost.set()
            await member.led_again_after(epoch)
            # Not after its timeout, which nobody waits for here.
            assert asyncio.get_running_loop().time() - began_s < 3

    run(work())


def test_a_registration_that_somebody_removes_is_made_again(tmp_path: Path) -> None:
    async def work() -> None:
        answers: list[float] = []
        with FakeRegistry(tmp_path, session_timeout_ms=60) as registry:
            member = Member(registry, on_answer=lambda sent_s, _: answers.append(sent_s))
            await member.join()
            # The lease has begun before anything is led.
            assert answers
            await member.create("t")
            epoch = member.me.epoch
            await answer(registry.connect().delete(znodes.broker_path(1)))
            await member.led_again_after(epoch)
            await member.membership.close()
            assert not member.ends

    run(work())


def test_a_start_fails_with_what_the_registry_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "EXPIRY_MARGIN_S", 0.0)

    async def work() -> None:
        async with a_member(tmp_path, session_timeout_ms=50) as member:
            other = member.registry.connect()
            await registration.register_broker(other, BrokerRegistration(BrokerId(1), "other", 9009))
            await member.membership.open(None)
            with pytest.raises(registration.DuplicateBrokerId, match="other:9009"):
                await member.membership.join(ME)
            await member.membership.close()
            assert member.registry.sessions[-1].is_closed

    run(work())


def test_a_membership_is_closed_in_time_whatever_it_waits_for(tmp_path: Path) -> None:
    async def work() -> None:
        for lose in (False, True):
            with FakeRegistry(tmp_path / str(lose)) as registry:
                member = Member(registry)
                if lose:
                    await member.join()
                registry.become_unreachable()
                if lose:
                    registry.expire()
                    await wait_until_async(
                        lambda told=member.registrations: told[-1] is None,
                        "it learns that its registration has ended",
                        poll_s=0.001,
                    )  # type: ignore[misc]
                    opening = None
                else:
                    opening = asyncio.ensure_future(member.membership.open(None))
                    await wait_until_async(lambda: registry.is_waited_for, "it waits for a session", poll_s=0.001)
                async with asyncio.timeout(1):
                    await member.membership.close()
                    await member.membership.close()
                # What is opened for nobody is closed.
                registry.become_reachable()
                assert registry.sessions[-1].is_closed
                assert not member.ends
                if opening is not None:
                    with pytest.raises(asyncio.CancelledError):
                        await opening

    run(work())


def test_a_membership_is_closed_at_any_step_of_a_sessions_end(tmp_path: Path) -> None:
    async def work() -> None:
        for passes in range(12):
            with FakeRegistry(tmp_path / str(passes)) as registry:
                member = Member(registry)
                await member.join()
                registry.become_unreachable()
                registry.expire()
                while member.registrations[-1] is not None:
                    await asyncio.sleep(0)
                for _ in range(passes):
                    await asyncio.sleep(0)
                async with asyncio.timeout(TIMEOUT_S):
                    await member.membership.close()
                assert not member.ends

    run(work())


def test_leaving_gives_up_the_role_and_the_registration(tmp_path: Path) -> None:
    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            other = member.registry.connect()
            await member.membership.close()
            for path in (znodes.CONTROLLER, znodes.broker_path(1)):
                assert await answer(other.exists(path)) is None
            assert member.registry.sessions[-1].is_closed
            # That nothing is led any more is no news to a broker that stops.
            assert len(member.registrations) == 1

    run(work())


def test_a_loss_that_is_final_is_told_once(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeRegistry(tmp_path) as registry:
            member = Member(registry, loss_is_final=True)
            await member.join()
            registry.expire()
            await wait_until_async(lambda: member.ends, "the membership ends", poll_s=0.001)
            (end,) = member.ends
            assert isinstance(end, RegistryError)
            assert "the registry is lost" in str(end)
            assert len(registry.sessions) == 1
            await member.membership.close()

    run(work())


@pytest.mark.parametrize("path", ["/controller", "/state", "/admin/delete_topics"])
def test_a_controller_goes_on_after_a_reconnection(tmp_path: Path, path: str) -> None:
    """Rule R13: what a broken connection has interrupted is repeated without another change."""

    async def work() -> None:
        async with a_member(tmp_path) as member:
            await member.join()
            await member.create("t")
            await member.reads_nothing()
            epoch = member.me.epoch
            member.registry.arm(path, lose_answer)
            member.be_another_run()
            member.registry.expire()
            state = await member.led_again_after(epoch)
            assert member.registry.armed == 0
            assert [part.leader_epoch for part in state.topics["t"].partitions.values()] == [1, 1]
            assert member.session.controller.is_active

    run(work())


def test_a_session_that_was_lost_before_anybody_listened_is_noticed(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeRegistry(tmp_path) as registry:
            store = registry.connect()
            registry.registry.expire(store.session_id).result()
            assert store.state is SessionState.LOST
            session = RegistrySession(
                store,
                ClusterView(),
                BrokerId(1),
                SYSTEM_CLOCK,
                Slices(asyncio.get_running_loop(), SliceClock()),
                lambda _: False,
                lambda _: False,
                lambda _: 1,
            )
            assert session.lost.is_set()
            await session.close()
            assert isinstance(store, FakeStore)
            assert store.is_closed

    run(work())
