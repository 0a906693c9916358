"""The coordinator over shards in memory: requests that wait, timers, writes, deletion, memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
from spark_kafkalite.coordinator.groups.groups_state import GroupShard, GroupsState
from spark_kafkalite.coordinator.groups.members import GroupLimits, JoinAnswer, SyncRequest
from spark_kafkalite.coordinator.groups.records import GroupKey, GroupMetadata, OffsetKey, OffsetValue
from spark_kafkalite.coordinator.groups.states import GroupState
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidGroupId,
    KafkaError,
    MemberIdRequired,
    NonEmptyGroup,
    NotCoordinator,
    NotEnoughReplicas,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.patience import PATIENCE_S, wait_until_async
from tests.unit.coordinator.groups.group_world import join_request
from tests.unit.coordinator.groups.test_groups_state import records
from tests.unit.coordinator.host_double import HostDouble

Scenario = Callable[["Service"], Awaitable[None]]
# Short, so that tests that wait for a member to fall silent need not wait long.
SHORT_MS = 30
LIMITS = GroupLimits(min_session_timeout_ms=1)


class Service:
    """A coordinator over one partition of ``__consumer_offsets``."""

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        max_bytes: int = 1 << 20,
        limits: GroupLimits = LIMITS,
        timeout_ms: int = 5_000,
    ) -> None:
        self.log = HostDouble(timeout_ms=timeout_ms)
        self.shards = Shards(self.log, lambda open_keys: GroupsState(limits, open_keys), clock)
        self.coordinator = GroupCoordinator(self.shards, clock, max_bytes)

    async def lead(self) -> GroupShard:
        """Have the partition led and loaded."""
        self.shards.lead(0, self.log.leader_epoch)
        await wait_until_async(lambda: not self.shards.is_loading, "the shards are loaded", poll_s=0.001)
        return self.shards.shard_of("g")

    async def member(self, group_id: str = "g", session_ms: int = 10_000, **how: object) -> str:
        """Have one more member join an empty group."""
        answer = await self.coordinator.join(group_id, join_request(session_ms=session_ms, **how))  # type: ignore[arg-type]
        assert answer.error is None
        return answer.member_id

    async def stable(self, group_id: str = "g", **how: object) -> str:
        """Have an empty group become stable with one member."""
        member_id = await self.member(group_id, **how)  # type: ignore[arg-type]
        generation = self.group(group_id).generation
        answer = await self.coordinator.sync(
            group_id, SyncRequest(member_id, None, generation, assignments={member_id: b"all"})
        )
        assert (answer.error, answer.assignment) == (None, b"all")
        return member_id

    def group(self, group_id: str = "g"):  # type: ignore[no-untyped-def]
        return self.shards.shard_of(group_id).state.groups[group_id]

    def written(self) -> list[object]:
        return [record for batch in records(self.log) for record in batch]


def run(scenario: Scenario, service: Callable[[], Service] = Service) -> None:
    """Run a scenario over a service that serves."""

    async def main() -> None:
        one = service()
        await one.lead()
        try:
            await scenario(one)
        finally:
            one.coordinator.close()
            one.shards.close()

    asyncio.run(main())


def error_of(answer: JoinAnswer | object) -> type[KafkaError] | None:
    error = answer.error  # type: ignore[attr-defined]
    return None if error is None else type(error)


def test_the_assignment_is_answered_when_it_is_committed() -> None:
    async def scenario(service: Service) -> None:
        member_id = await service.member()
        service.log.held = True
        waiting = service.coordinator.sync("g", SyncRequest(member_id, None, 1, assignments={member_id: b"all"}))
        await wait_until_async(lambda: len(service.log.batches) == 1, "a batch is written", poll_s=0.001)
        await asyncio.sleep(0)
        assert not waiting.done()
        [(key, value)] = service.written()  # type: ignore[misc]
        assert key == GroupKey("g")
        assert isinstance(value, GroupMetadata)
        assert [(one.member_id, one.assignment) for one in value.members] == [(member_id, b"all")]
        assert (value.generation, value.protocol, value.leader) == (1, "range", member_id)
        service.log.release()
        assert (await waiting).assignment == b"all"

    run(scenario)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RequestTimedOut("slow"), RebalanceInProgress),
        (NotEnoughReplicas("few"), CoordinatorNotAvailable),
        (RuntimeError("a bug"), CoordinatorNotAvailable),
    ],
)
def test_members_are_told_of_a_failed_write_so_that_they_ask_again(
    failure: Exception, told: type[KafkaError], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(service: Service) -> None:
        member_id = await service.member()
        service.log.error = failure  # type: ignore[assignment]
        answer = await service.coordinator.sync("g", SyncRequest(member_id, None, 1, assignments={}))
        assert error_of(answer) is told
        service.log.error = None
        answer_to_join = await service.coordinator.join("g", join_request(member_id))
        assert (answer_to_join.error, answer_to_join.generation) == (None, 2)

    run(scenario)


def test_what_is_not_here_is_said_so() -> None:
    async def main() -> None:
        service = Service()
        coordinator = service.coordinator
        assert error_of(await coordinator.join("g", join_request())) is NotCoordinator
        assert error_of(await coordinator.sync("g", SyncRequest("m", None, 1))) is NotCoordinator
        with pytest.raises(NotCoordinator):
            coordinator.heartbeat("g", "m", None, 1)
        with pytest.raises(NotCoordinator):
            coordinator.leave("g", [("m", None)])
        service.log.gate = asyncio.Event()
        service.log.batches.append(b"")
        service.shards.lead(0, 1)
        await asyncio.sleep(0)
        assert coordinator.is_loading
        assert error_of(await coordinator.join("g", join_request())) is CoordinatorLoadInProgress
        assert error_of(await coordinator.sync("g", SyncRequest("m", None, 1))) is RebalanceInProgress
        coordinator.heartbeat("g", "m", None, 1)
        service.log.batches.clear()
        service.shards.close()
        coordinator.close()
        service.log.gate.set()

    asyncio.run(main())


def test_groups_that_do_not_exist_have_no_members() -> None:
    async def scenario(service: Service) -> None:
        coordinator = service.coordinator
        assert error_of(await coordinator.join("", join_request())) is InvalidGroupId
        assert error_of(await coordinator.join("g", join_request("made-up"))) is UnknownMemberId
        assert error_of(await coordinator.sync("g", SyncRequest("m", None, 1))) is UnknownMemberId
        with pytest.raises(UnknownMemberId):
            coordinator.heartbeat("g", "m", None, 1)
        assert [type(error) for error in coordinator.leave("g", [("m", None), ("", "i")])] == [UnknownMemberId] * 2
        assert coordinator.describe("g") is None
        assert coordinator.groups() == []

    run(scenario)


def test_a_silent_member_goes_by_itself_and_the_one_that_waits_goes_on() -> None:
    async def scenario(service: Service) -> None:
        await service.stable(session_ms=SHORT_MS)
        newcomer = await asyncio.wait_for(service.coordinator.join("g", join_request()), PATIENCE_S)
        assert newcomer.error is None
        assert [member_id for member_id, _, _ in newcomer.members] == [newcomer.member_id]

    run(scenario)


def test_of_ids_that_nobody_came_back_with_nothing_is_left() -> None:
    async def scenario(service: Service) -> None:
        shard = service.shards.shard_of("g")
        for number in range(20):
            request = join_request(session_ms=SHORT_MS, needs_member_id=True)
            assert error_of(await service.coordinator.join(f"g{number}", request)) is MemberIdRequired
        assert service.coordinator.held_bytes > 0
        assert len(shard.state.groups) == 20
        await wait_until_async(lambda: not shard.state.groups, "the group is forgotten", poll_s=0.001)
        assert service.coordinator.held_bytes == 0
        assert not service.coordinator._timers
        assert not service.log.batches

    run(scenario)


def test_refused_joins_leave_no_group_behind() -> None:
    async def scenario(service: Service) -> None:
        refused = await service.coordinator.join("g", join_request(session_ms=0))
        assert refused.error is not None
        assert not service.shards.shard_of("g").state.groups

    run(scenario)


def test_a_connection_that_closes_takes_its_new_member_along() -> None:
    async def scenario(service: Service) -> None:
        member_id = await service.stable()
        waiting = service.coordinator.join("g", join_request())
        service.coordinator.abandon("g", waiting)
        assert not waiting.done()
        assert service.group().members.keys() == {member_id}
        service.coordinator.abandon("no-such-group", waiting)

    run(scenario)


def test_the_answers_of_a_large_group_leave_others_their_turn() -> None:
    async def scenario(service: Service) -> None:
        leader = await service.stable()
        waiting = [service.coordinator.join("g", join_request()) for _ in range(450)]
        waiting.append(service.coordinator.join("g", join_request(leader)))
        done = []
        while not all(one.done() for one in waiting):
            done.append(sum(one.done() for one in waiting))
            await asyncio.sleep(0)
        assert done == [100, 200, 300, 400]
        assert {one.result().generation for one in waiting} == {2}

    run(scenario)


def test_a_handler_that_was_cancelled_gets_no_answer() -> None:
    async def scenario(service: Service) -> None:
        member_id = await service.stable()
        waiting = service.coordinator.join("g", join_request())
        waiting.cancel()
        assert service.coordinator.leave("g", [(member_id, None)]) == [None]

    run(scenario)


def test_members_of_all_groups_together_take_so_much_and_no_more() -> None:
    async def scenario(service: Service) -> None:
        large = (("range", bytes(30_000)),)
        members = [(f"g{number}", await service.stable(f"g{number}", protocols=large)) for number in range(9)]
        assert 270_000 < service.coordinator.held_bytes < 300_000
        refused = await service.coordinator.join("new", join_request(protocols=large))
        assert error_of(refused) is CoordinatorNotAvailable
        assert "group.coordinator.max.bytes" in str(refused.error)
        assert service.coordinator.leave(members[0][0], [(members[0][1], None)]) == [None]
        await service.stable("new", protocols=large)

    run(scenario, lambda: Service(max_bytes=300_000))


def test_groups_that_never_synced_make_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(service: Service) -> None:
        idle, some = (("range", bytes(27_000)),), (("range", bytes(20_000)),)
        synced = await service.stable("synced")
        for number in range(7):
            await service.member(f"idle\n{number}", protocols=idle)
        waiting = service.coordinator.join("idle\n1", join_request())
        await service.stable("new", protocols=some)
        await service.stable("newer", protocols=some)
        # The oldest went, which was enough; one line says so.
        groups = service.shards.shard_of("g").state.groups
        assert set(groups) == {"synced", "new", "newer", *(f"idle\n{number}" for number in range(1, 7))}
        assert not waiting.done()
        service.coordinator.heartbeat("synced", synced, None, 1)
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert "group 'idle\\n0' (" in line and "never synced" in line and "group.coordinator.max.bytes" in line
        with pytest.raises(UnknownMemberId):
            service.coordinator.heartbeat("idle\n0", "any", None, 1)
        # Another one that wants room drives out the next one, and its waiting member hears of it.
        await service.stable("newest", protocols=some)
        assert error_of(await waiting) is CoordinatorNotAvailable
        assert "idle\n1" not in groups and "idle\n2" in groups
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1

    run(scenario, lambda: Service(max_bytes=250_000))


def test_a_group_holds_no_more_than_an_eighth_while_others_want_room(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(service: Service) -> None:
        large, small = (("range", bytes(60_000)),), (("range", bytes(5_000)),)
        members = [await service.stable(f"large{number}", protocols=large) for number in range(3)]
        await service.stable("new", protocols=(("range", bytes(20_000)),))
        service.coordinator.heartbeat("large0", members[0], None, 1)
        await service.stable("other", protocols=small)
        # It is empty as if its members had left, and still known.
        assert service.group("large0").is_empty
        assert "group 'large0'" in caplog.text and "more than 1/8 of it" in caplog.text
        refused = await service.coordinator.join("large0", join_request(protocols=large))
        assert error_of(refused) is CoordinatorNotAvailable
        await service.stable("large0", protocols=small)
        service.coordinator.heartbeat("large1", members[1], None, 1)

    run(scenario, lambda: Service(max_bytes=216_000))


def test_what_refuses_joins_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(service: Service) -> None:
        for number in range(10):
            await service.stable(f"g{number}", protocols=(("range", bytes(10_000 + number)),))
        for _ in range(3):
            refused = await service.coordinator.join("new", join_request(protocols=(("range", bytes(12_000)),)))
            assert error_of(refused) is CoordinatorNotAvailable
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert "others cannot join; the largest is group 'g9' with" in line

    run(scenario, lambda: Service(max_bytes=140_000))


def test_an_empty_group_is_written_and_one_that_never_was_is_forgotten() -> None:
    async def scenario(service: Service) -> None:
        member_id = await service.stable("written")
        service.coordinator.leave("written", [(member_id, None)])
        await wait_until_async(lambda: len(service.written()) == 2, "both records are written", poll_s=0.001)
        _, value = service.written()[-1]  # type: ignore[misc]
        assert (value.members, value.generation) == ((), 2)
        assert value.current_state_timestamp_ms > 0
        assert "written" in service.shards.shard_of("g").state.groups
        member_id = await service.member("unwritten")
        service.coordinator.leave("unwritten", [(member_id, None)])
        assert "unwritten" not in service.shards.shard_of("g").state.groups
        assert service.coordinator.held_bytes == 0

    run(scenario)


def test_when_the_partition_moves_all_are_sent_away_and_the_next_leader_knows_the_members() -> None:
    async def scenario(service: Service) -> None:
        member_id = await service.stable(session_ms=SHORT_MS * 10)
        waiting = service.coordinator.join("g", join_request())
        service.shards.resign(0)
        assert error_of(await waiting) is NotCoordinator
        assert service.coordinator.held_bytes == 0
        assert not service.coordinator._timers
        service.log.leader_epoch = 2
        await service.lead()
        assert service.group().state is GroupState.STABLE
        service.coordinator.heartbeat("g", member_id, None, 1)
        answer = await service.coordinator.sync("g", SyncRequest(member_id, None, 1))
        assert answer.assignment == b"all"
        # Its session has begun anew, and ends.
        await wait_until_async(lambda: service.group().state is GroupState.EMPTY, "the group is empty", poll_s=0.001)

    run(scenario)


def test_a_broker_that_stood_still_gives_its_members_time() -> None:
    clock = ManualClock()

    async def scenario(service: Service) -> None:
        member_id = await service.stable(session_ms=SHORT_MS)
        group = service.group()
        timer = service.coordinator._timers[group]
        clock.advance(s=8)
        await wait_until_async(
            lambda: service.coordinator._timers.get(group) not in (None, timer), "another timer is set", poll_s=0.001
        )
        assert member_id in group.members, "thrown out although its heartbeats may lie unread"
        service.coordinator.heartbeat("g", member_id, None, 1)
        grace = service.coordinator._timers[group].handle
        assert grace.when() - asyncio.get_running_loop().time() == pytest.approx(8.0, abs=1.0)
        grace.cancel()
        service.coordinator._wake(service.shards.shard_of("g"), group, True)
        assert member_id in group.members
        clock.advance(ms=200)
        await wait_until_async(lambda: not group.members, "the members are gone", poll_s=0.001)

    run(scenario, lambda: Service(clock))


def test_who_joins_just_when_the_assignment_is_committed_leaves_nobody_waiting() -> None:
    async def scenario(service: Service) -> None:
        first = service.coordinator.join("g", join_request())
        leader = (await first).member_id
        second = service.coordinator.join("g", join_request())
        await service.coordinator.join("g", join_request(leader))
        follower = (await second).member_id
        service.log.held = True
        syncs = [
            service.coordinator.sync("g", SyncRequest(follower, None, 2)),
            service.coordinator.sync("g", SyncRequest(leader, None, 2, assignments={leader: b"1", follower: b"2"})),
        ]
        await wait_until_async(lambda: bool(service.log.open), "a write is under way", poll_s=0.001)
        joining: list[asyncio.Future[JoinAnswer]] = []
        # Behind the writer's own callback, and before anything that it has put off.
        service.log.open[0].add_done_callback(lambda _: joining.append(service.coordinator.join("g", join_request())))
        service.log.release()
        async with asyncio.timeout(PATIENCE_S):
            answers = [await sync for sync in syncs]
        assert [(answer.error, answer.assignment) for answer in answers] == [(None, b"2"), (None, b"1")]
        assert joining and service.group().state is GroupState.PREPARING_REBALANCE

    run(scenario)


def test_an_assignment_that_is_committed_too_late_changes_nothing() -> None:
    async def scenario(service: Service) -> None:
        member_id = await service.member()
        service.log.held = True
        sync = SyncRequest(member_id, None, 1, assignments={member_id: b"late"})
        assert error_of(await service.coordinator.sync("g", sync)) is RebalanceInProgress
        again = service.coordinator.join("g", join_request(member_id))
        answer = await again
        assert (answer.error, answer.generation) == (None, 2)
        service.log.held = False
        service.log.release()
        await wait_until_async(
            lambda: not list(service.shards.shard_of("g").open_keys()), "nothing is being written", poll_s=0.001
        )
        assert service.group().state is GroupState.COMPLETING_REBALANCE
        sync = SyncRequest(member_id, None, 2, assignments={member_id: b"all"})
        assert (await service.coordinator.sync("g", sync)).assignment == b"all"

    run(scenario, lambda: Service(timeout_ms=1))


def test_a_group_is_deleted_with_its_offsets_and_those_on_their_way() -> None:
    async def scenario(service: Service) -> None:
        shard = service.shards.shard_of("g")
        member_id = await service.stable()
        with pytest.raises(NonEmptyGroup):
            await service.coordinator.delete("g")
        service.coordinator.leave("g", [(member_id, None)])
        await shard.append([(OffsetKey("g", "t", 0), OffsetValue(5)), (OffsetKey("other", "t", 0), OffsetValue(6))])
        service.log.held = True
        commit = shard.append([(OffsetKey("g", "t", 1), OffsetValue(7))])
        deletion = asyncio.ensure_future(service.coordinator.delete("g"))
        await asyncio.sleep(0.01)
        assert service.coordinator.describe("g") is None
        assert error_of(await service.coordinator.join("g", join_request())) is CoordinatorNotAvailable
        assert not deletion.done()
        service.log.held = False
        service.log.release()
        await commit
        await deletion
        tombstones = [key for key, value in service.written() if value is None]  # type: ignore[misc]
        assert tombstones == [OffsetKey("g", "t", 0), OffsetKey("g", "t", 1), GroupKey("g")]
        assert not shard.state.offsets.has_any("g")
        assert shard.state.offsets.has_any("other")
        with pytest.raises(GroupIdNotFound):
            await service.coordinator.delete("g")
        await service.stable()

    run(scenario)


def test_a_group_whose_deletion_cannot_be_written_is_there_as_before() -> None:
    async def scenario(service: Service) -> None:
        member_id = await service.stable()
        service.coordinator.leave("g", [(member_id, None)])
        await wait_until_async(lambda: len(service.written()) == 2, "both records are written", poll_s=0.001)
        service.log.error = NotEnoughReplicas("few")
        with pytest.raises(CoordinatorNotAvailable):
            await service.coordinator.delete("g")
        assert (service.group().state, service.group().generation) == (GroupState.EMPTY, 2)
        service.log.error = None
        await service.coordinator.delete("g")

    run(scenario)
