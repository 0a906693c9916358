"""Every rule of a group, one test each; the random schedules are in test_group_schedules.py."""

from __future__ import annotations

import pytest

from spark_kafkalite.coordinator.groups.group import MOST_PENDING, NEW_MEMBER_JOIN_TIMEOUT_MS, Group
from spark_kafkalite.coordinator.groups.members import GroupLimits, JoinAnswer, SyncAnswer
from spark_kafkalite.coordinator.groups.records import GroupKey, decode_value, encode_value
from spark_kafkalite.coordinator.groups.states import COMMIT, HEARTBEAT, GroupState
from spark_kafkalite.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidCommitOffsetSize,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    KafkaStorageError,
    MemberIdRequired,
    NonEmptyGroup,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from tests.unit.coordinator.groups.group_world import RANGE, STICKY, World, join_request, subscription

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState


def join_answer(world: World, ticket: int) -> JoinAnswer:
    answer = world.answers[ticket]
    assert isinstance(answer, JoinAnswer)
    return answer


def sync_answer(world: World, ticket: int) -> SyncAnswer:
    answer = world.answers[ticket]
    assert isinstance(answer, SyncAnswer)
    return answer


# Tables ---------------------------------------------------------------------------------------------------------------


def world_in(state: GroupState) -> tuple[World, str]:
    """A group in the state, with one member of the present generation where the state has members."""
    world = World()
    if state in (EMPTY, DEAD):
        if state is DEAD:
            world.group.delete()
        return world, "nobody"
    [leader] = world.settled(1)
    if state is PREPARING:
        world.join()
    elif state is COMPLETING:
        world.join(leader)
    assert world.group.state is state
    return world, leader


@pytest.mark.parametrize("state", GroupState)
def test_heartbeats_answer_as_the_table_says(state: GroupState) -> None:
    world, member = world_in(state)
    expected = HEARTBEAT[state]
    if expected is None:
        world.heartbeat(member)
    else:
        with pytest.raises(expected):
            world.heartbeat(member)


@pytest.mark.parametrize("state", GroupState)
def test_commits_of_members_answer_as_the_table_says(state: GroupState) -> None:
    world, member = world_in(state)
    expected: type[KafkaError] | None = UnknownMemberId if state is EMPTY else COMMIT[state]
    if expected is None:
        world.group.check_commit(member, None, world.group.generation)
    else:
        with pytest.raises(expected):
            world.group.check_commit(member, None, world.group.generation)


@pytest.mark.parametrize("state", GroupState)
def test_commits_without_a_member_need_an_empty_group(state: GroupState) -> None:
    world, _ = world_in(state)
    if state is EMPTY:
        world.group.check_commit("", None, -1)
        return
    with pytest.raises(CoordinatorNotAvailable if state is DEAD else UnknownMemberId):
        world.group.check_commit("", None, -1)


@pytest.mark.parametrize("state", [PREPARING, STABLE])
def test_commits_of_another_generation_or_member_are_refused(state: GroupState) -> None:
    world, member = world_in(state)
    with pytest.raises(IllegalGeneration):
        world.group.check_commit(member, None, world.group.generation - 1)
    with pytest.raises(UnknownMemberId):
        world.group.check_commit("somebody", None, world.group.generation)
    with pytest.raises(UnknownMemberId):
        world.group.check_commit(member, "no-instance", world.group.generation)


# First joins ----------------------------------------------------------------------------------------------------------


def test_first_member_leads_at_once_and_gets_what_it_assigned_itself() -> None:
    world = World()
    answer = join_answer(world, world.join())
    assert (answer.error, answer.generation, answer.leader) == (None, 1, answer.member_id)
    assert (answer.protocol_type, answer.protocol) == ("consumer", "range")
    assert answer.members == ((answer.member_id, None, b"subscription"),)
    sync = world.sync(answer.member_id, {answer.member_id: b"all"})
    assert sync not in world.answers, "answered before it was written"
    persist = world.write()
    assert persist.assignments == {answer.member_id: b"all"}
    assert sync_answer(world, sync).assignment == b"all"
    assert world.group.state is STABLE


def test_who_can_be_told_its_id_first_is() -> None:
    world = World()
    first = world.join(needs_member_id=True)
    assert world.error_of(first) is MemberIdRequired
    member_id = join_answer(world, first).member_id
    assert world.group.state is EMPTY
    assert list(world.group.pending) == [member_id]
    again = world.join(member_id, needs_member_id=True)
    assert world.member_of(again) == member_id
    assert not world.group.pending


def test_ids_begin_with_the_clients_name_and_end_in_what_nobody_guesses() -> None:
    world = World(GroupLimits(max_size=1000))
    ids = {join_answer(world, world.join(needs_member_id=True)).member_id for _ in range(200)}
    assert len(ids) == 200
    assert all(one.startswith("client-") and len(one) == len("client-") + 36 for one in ids)


def test_a_pending_member_is_waited_for_and_forgotten_after_its_session() -> None:
    world = World()
    [leader] = world.settled(1)
    pending = world.join(needs_member_id=True, session_ms=20_000)
    assert world.group.state is STABLE
    rejoin = world.join(leader)
    assert rejoin not in world.answers
    assert world.group.state is PREPARING
    world.advance(19_999)
    assert rejoin not in world.answers
    world.advance(1)
    assert world.member_of(rejoin) == leader
    late = world.join(join_answer(world, pending).member_id, needs_member_id=True)
    assert world.error_of(late) is UnknownMemberId


def test_a_pending_member_may_leave() -> None:
    world = World()
    [leader] = world.settled(1)
    pending = join_answer(world, world.join(needs_member_id=True)).member_id
    rejoin = world.join(leader)
    world.leave(pending)
    assert world.member_of(rejoin) == leader


def test_a_flood_of_new_ids_is_bounded_and_the_oldest_go() -> None:
    world = World()
    first = join_answer(world, world.join(needs_member_id=True)).member_id
    for number in range(MOST_PENDING + 10):
        world.group.join(join_request(needs_member_id=True), ("flood", number), world.now_ms)
    assert len(world.group.pending) == MOST_PENDING
    assert first not in world.group.pending
    world.advance(10_000)
    assert not world.group.pending
    assert world.group.is_forgettable


def test_of_a_small_group_no_more_ids_are_given_out_than_it_may_have_members() -> None:
    world = World(GroupLimits(max_size=3))
    ids = [join_answer(world, world.join(needs_member_id=True)).member_id for _ in range(5)]
    assert list(world.group.pending) == ids[2:]


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1])
def test_session_timeouts_outside_the_bounds_are_refused(session_ms: int) -> None:
    world = World()
    assert world.error_of(world.join(session_ms=session_ms)) is InvalidSessionTimeout
    assert not world.group.members


@pytest.mark.parametrize("instance", ["", "x" * 1001])
def test_bad_instance_ids_are_refused(instance: str) -> None:
    world = World()
    assert world.error_of(world.join(instance=instance)) is InvalidRequest


@pytest.mark.parametrize("instance", ["host:9092", "a/b", "caf\u00e9", "x" * 250])
def test_instance_ids_need_not_look_like_topics(instance: str) -> None:
    world = World()
    assert join_answer(world, world.join(instance=instance)).member_id.startswith(f"{instance}-")


def test_an_id_that_nobody_gave_out_is_unknown() -> None:
    world = World()
    assert world.error_of(world.join("made-up")) is UnknownMemberId
    world.settled(1)
    assert world.error_of(world.join("made-up")) is UnknownMemberId


def test_a_given_id_is_not_for_a_static_member() -> None:
    world = World()
    pending = join_answer(world, world.join(needs_member_id=True)).member_id
    assert world.error_of(world.join(pending, instance="i")) is InvalidRequest


@pytest.mark.parametrize("how", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_member_without_protocols_or_type_is_refused(how: dict[str, object]) -> None:
    world = World()
    assert world.error_of(world.join(**how)) is InconsistentGroupProtocol


def test_a_member_needs_the_groups_type_and_a_protocol_that_all_have() -> None:
    world = World()
    world.settled(2)
    assert world.error_of(world.join(protocol_type="connect")) is InconsistentGroupProtocol
    assert world.error_of(world.join(protocols=(STICKY,))) is InconsistentGroupProtocol
    assert world.group.state is STABLE


def test_a_lone_member_may_replace_its_protocols() -> None:
    world = World()
    [leader] = world.settled(1)
    answer = join_answer(world, world.join(leader, protocols=(STICKY,)))
    assert (answer.error, answer.protocol) == (None, "sticky")


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    world = World()
    leader = world.settled(1, protocols=(RANGE, RANGE))[0]
    assert world.group.protocol == RANGE[0]
    assert join_answer(world, world.join(leader, protocols=(RANGE, STICKY, RANGE))).error is None
    assert world.join(protocols=(STICKY,)) not in world.answers, "refused, instead of waiting for the leader"


def test_the_protocol_most_members_like_best_is_chosen() -> None:
    world = World()
    world.settled(1, protocols=(RANGE, STICKY))
    world.settled(1, protocols=(STICKY, RANGE))
    assert world.group.protocol == "range", "one vote each: the leader's order decides"
    world.settled(1, protocols=(STICKY, RANGE))
    assert world.group.protocol == "sticky"


# The first rebalance waits --------------------------------------------------------------------------------------------


def test_the_first_rebalance_waits_for_more_members_as_long_as_they_come() -> None:
    world = World(GroupLimits(initial_rebalance_delay_ms=3_000))
    tickets = [world.join(rebalance_ms=7_000)]
    world.advance(2_999)
    tickets.append(world.join(rebalance_ms=7_000))
    world.advance(2_000)
    assert not world.answers
    tickets.append(world.join(rebalance_ms=7_000))
    world.advance(1_999)
    assert not world.answers, "6998 ms after the first, within the rebalance timeout"
    world.advance(2)
    assert all(world.member_of(ticket) for ticket in tickets)
    assert world.group.generation == 1


def test_the_first_rebalance_ends_when_nobody_more_comes() -> None:
    world = World(GroupLimits(initial_rebalance_delay_ms=3_000))
    ticket = world.join()
    world.advance(2_999)
    assert ticket not in world.answers
    world.advance(1)
    assert world.member_of(ticket)


def test_a_group_that_its_only_member_deserted_while_waiting_is_empty_again() -> None:
    world = World(GroupLimits(initial_rebalance_delay_ms=3_000))
    world.abandon(world.join())
    assert world.group.state is EMPTY
    assert world.group.is_forgettable
    assert not world.writes


# Rebalances -----------------------------------------------------------------------------------------------------------


def test_a_new_member_makes_all_rejoin() -> None:
    world = World()
    [leader] = world.settled(1)
    newcomer = world.join()
    with pytest.raises(RebalanceInProgress):
        world.heartbeat(leader)
    assert newcomer not in world.answers
    rejoin = world.join(leader)
    for ticket in (newcomer, rejoin):
        assert join_answer(world, ticket).generation == 2
    assert join_answer(world, rejoin).leader == leader
    assert len(join_answer(world, rejoin).members) == 2
    assert join_answer(world, newcomer).members == ()


def test_who_does_not_rejoin_in_time_is_out() -> None:
    world = World()
    world.settled(2, rebalance_ms=20_000, session_ms=30_000)
    leader, other = world.group.members
    newcomer = world.join(rebalance_ms=5_000, session_ms=30_000)
    rejoin = world.join(leader, rebalance_ms=20_000, session_ms=30_000)
    world.advance(19_999)
    assert newcomer not in world.answers
    world.advance(1)
    assert world.member_of(newcomer) and world.member_of(rejoin)
    with pytest.raises(UnknownMemberId):
        world.heartbeat(other)


def test_another_leads_when_the_leader_does_not_rejoin() -> None:
    world = World()
    leader, other = world.settled(2, session_ms=60_000)
    newcomer = world.join(session_ms=60_000)
    rejoin = world.join(other, session_ms=60_000)
    world.advance(60_000)
    assert leader not in world.group.members
    assert join_answer(world, rejoin).leader == other == join_answer(world, newcomer).leader


def test_a_silent_member_is_out_after_its_session_and_others_rejoin() -> None:
    world = World()
    leader, other = world.settled(2)
    world.advance(9_999)
    world.heartbeat(leader)
    world.advance(1)
    assert world.group.members.keys() == {leader}
    assert world.group.state is PREPARING
    assert world.member_of(world.join(leader)) == leader
    assert world.error_of(world.join(other)) is UnknownMemberId


def test_the_last_silent_member_leaves_an_empty_group_which_is_written() -> None:
    world = World()
    world.settled(1)
    generation = world.group.generation
    world.advance(10_000)
    assert (world.group.state, world.group.generation) == (EMPTY, generation + 1)
    [persist] = world.writes
    metadata = world.group.to_metadata(77, persist)
    assert (metadata.members, metadata.generation, metadata.current_state_timestamp_ms) == ((), generation + 1, 77)
    assert metadata.protocol_type == "consumer"


def test_a_leaving_member_makes_the_others_rejoin() -> None:
    world = World()
    leader, other = world.settled(2)
    world.leave(other)
    assert world.group.state is PREPARING
    assert len(join_answer(world, world.join(leader)).members) == 1


def test_leaving_answers_what_waits() -> None:
    world = World()
    leader, other = world.settled(2)
    waiting = world.join(leader)
    assert waiting not in world.answers
    world.leave(leader)
    assert world.error_of(waiting) is UnknownMemberId
    assert world.group.leader == other


def test_leaving_twice_or_as_a_stranger_is_refused() -> None:
    world = World()
    leader, other = world.settled(2)
    world.leave(other)
    for member_id in (other, "stranger", ""):
        with pytest.raises(UnknownMemberId):
            world.leave(member_id)
    world.leave(leader)
    assert world.group.state is EMPTY


def test_a_follower_that_missed_its_answer_is_told_again_without_a_rebalance() -> None:
    world = World()
    leader, other = world.settled(2)
    generation = world.group.generation
    again = join_answer(world, world.join(other))
    assert (again.error, again.generation, again.members, again.leader) == (None, generation, (), leader)
    assert world.group.state is STABLE


def test_a_leader_that_rejoins_wants_a_new_assignment() -> None:
    world = World()
    leader, _ = world.settled(2)
    rejoin = world.join(leader)
    assert rejoin not in world.answers
    assert world.group.state is PREPARING


def test_a_follower_with_new_metadata_starts_a_rebalance() -> None:
    world = World()
    _, other = world.settled(2)
    rejoin = world.join(other, protocols=(("range", b"other topics"),))
    assert rejoin not in world.answers
    assert world.group.state is PREPARING


def test_before_the_assignment_a_member_that_missed_its_answer_is_told_again() -> None:
    world = World()
    world.settled(2)
    leader, other = world.group.members
    rejoins = [world.join(leader), world.join(other, protocols=(RANGE,))]
    assert world.group.state is COMPLETING
    waiting = world.sync(other)
    told = {member_id: join_answer(world, world.join(member_id)) for member_id in (leader, other)}
    assert all(answer.generation == world.group.generation for answer in told.values())
    assert len(told[leader].members) == 2
    assert told[other].members == ()
    assert world.error_of(waiting) is RebalanceInProgress, "nobody listens to that answer any more"
    assert all(world.member_of(ticket) for ticket in rejoins)


def test_a_newcomer_before_the_assignment_sends_all_back() -> None:
    world = World()
    world.settled(2)
    leader, other = world.group.members
    world.join(leader)
    world.join(other)
    waiting = world.sync(other)
    newcomer = world.join()
    assert world.error_of(waiting) is RebalanceInProgress
    assert world.error_of(world.sync(leader, {})) is RebalanceInProgress
    assert world.group.state is PREPARING
    world.join(leader)
    world.join(other)
    assert world.member_of(newcomer)


# Assignments ----------------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_assignment_and_the_forgotten_get_nothing() -> None:
    world = World()
    world.settled(3)
    leader, first, second = world.group.members
    for member_id in (leader, first, second):
        world.join(member_id)
    waiting = world.sync(first)
    led = world.sync(leader, {leader: b"1", first: b"2", "stranger": b"9"})
    late = world.sync(second)
    assert not {waiting, led, late} & world.answers.keys()
    metadata = world.group.to_metadata(1, world.writes[0])
    assert {one.member_id: one.assignment for one in metadata.members} == {leader: b"1", first: b"2", second: b""}
    world.write()
    assert [sync_answer(world, one).assignment for one in (led, waiting, late)] == [b"1", b"2", b""]


def test_a_failed_write_sends_all_back_and_nobody_gets_an_assignment() -> None:
    world = World()
    world.settled(2)
    leader, other = world.group.members
    world.join(leader)
    world.join(other)
    tickets = [world.sync(other), world.sync(leader, {leader: b"1", other: b"2"})]
    world.write(KafkaStorageError("disk"))
    assert all(world.error_of(ticket) is KafkaStorageError for ticket in tickets)
    assert world.group.state is PREPARING
    assert all(one.assignment == b"" for one in world.group.members.values())


def test_a_write_that_ends_after_the_group_moved_on_changes_nothing() -> None:
    world = World()
    world.settled(2)
    leader, other = world.group.members
    world.join(leader)
    world.join(other)
    world.sync(leader, {leader: b"old", other: b"old"})
    world.leave(other)
    rejoin = world.join(leader)
    assert world.member_of(rejoin) == leader
    waiting = world.sync(leader, {leader: b"new"})
    world.write()
    assert waiting not in world.answers
    world.write()
    assert sync_answer(world, waiting).assignment == b"new"


def test_the_leader_that_syncs_twice_writes_once() -> None:
    world = World()
    world.join()
    [leader] = world.group.members
    first = world.sync(leader, {leader: b"1"})
    second = world.sync(leader, {leader: b"2"})
    assert world.error_of(first) is RebalanceInProgress
    assert len(world.writes) == 1
    world.write()
    assert sync_answer(world, second).assignment == b"1"


def test_assignments_that_no_record_takes_are_not_even_packed() -> None:
    world = World(GroupLimits(max_bytes=50_000))
    world.join()
    [leader] = world.group.members
    refused = world.sync(leader, {leader: bytes(50_001)})
    assert world.error_of(refused) is InvalidCommitOffsetSize
    assert not world.writes
    world.sync(leader, {leader: bytes(50_000)})
    assert len(world.writes) == 1


def test_in_a_stable_group_a_sync_gives_the_assignment_again() -> None:
    world = World()
    leader, other = world.settled(2)
    assert sync_answer(world, world.sync(other)).assignment == f"share of {other}".encode()
    assert sync_answer(world, world.sync(leader, {leader: b"ignored"})).assignment == f"share of {leader}".encode()
    assert not world.writes


def test_syncs_are_checked() -> None:
    world = World()
    [leader] = world.settled(1)
    assert world.error_of(world.sync("stranger")) is UnknownMemberId
    assert world.error_of(world.sync(leader, generation=7)) is IllegalGeneration
    assert world.error_of(world.sync(leader, protocol_type="connect")) is InconsistentGroupProtocol
    assert world.error_of(world.sync(leader, protocol="sticky")) is InconsistentGroupProtocol
    assert world.error_of(world.sync(leader, protocol_type="consumer", protocol="range")) is None


def test_who_never_asks_for_its_assignment_is_out_after_the_rebalance_timeout() -> None:
    world = World()
    world.settled(2, rebalance_ms=8_000, session_ms=20_000)
    leader, other = world.group.members
    world.join(leader, rebalance_ms=8_000, session_ms=20_000)
    world.join(other, rebalance_ms=8_000, session_ms=20_000)
    world.sync(leader, {})
    world.write()
    assert world.group.state is STABLE
    world.advance(7_999)
    world.heartbeat(other)
    world.advance(1)
    assert world.group.members.keys() == {leader}
    assert world.group.state is PREPARING


def test_who_waits_for_its_assignment_does_not_fall_silent() -> None:
    world = World()
    world.settled(2, rebalance_ms=60_000)
    leader, other = world.group.members
    world.join(leader, rebalance_ms=60_000)
    world.join(other, rebalance_ms=60_000)
    waiting = world.sync(other)
    for _ in range(5):
        world.advance(9_000)
        world.heartbeat(leader)
    assert waiting not in world.answers
    assert other in world.group.members


def test_who_waits_for_others_to_join_does_not_fall_silent() -> None:
    world = World()
    world.settled(2, session_ms=10_000, rebalance_ms=50_000)
    leader, other = world.group.members
    waiting = world.join(leader, session_ms=10_000, rebalance_ms=50_000)
    for _ in range(5):
        world.advance(9_000)
        with pytest.raises(RebalanceInProgress):
            world.heartbeat(other)
    assert waiting not in world.answers
    assert leader in world.group.members


# Size -----------------------------------------------------------------------------------------------------------------


def test_a_full_group_takes_nobody_more() -> None:
    world = World(GroupLimits(max_size=2))
    world.settled(2)
    refused = world.join()
    assert world.error_of(refused) is GroupMaxSizeReached
    assert world.group.state is STABLE


def test_in_a_full_group_the_first_to_rejoin_have_the_places() -> None:
    world = World(GroupLimits(max_size=2))
    world.settled(2)
    leader, other = world.group.members
    world.join(leader)
    newcomer = world.join()
    late = world.join(other)
    assert world.error_of(late) is GroupMaxSizeReached
    assert world.member_of(newcomer)
    assert len(world.group.members) == 2


def test_bytes_of_all_members_are_bounded() -> None:
    world = World(GroupLimits(max_bytes=100_000))
    world.settled(1)
    assert world.error_of(world.join(protocols=(("range", bytes(100_000)),))) is GroupMaxSizeReached
    [member] = world.group.members
    assert world.error_of(world.join(member, protocols=(("range", bytes(100_000)),))) is GroupMaxSizeReached
    assert world.group.state is STABLE
    assert world.member_of(world.join(member, protocols=(("range", bytes(90_000)),)))


# Static members -------------------------------------------------------------------------------------------------------


def test_a_static_member_gets_its_id_at_once() -> None:
    world = World()
    ticket = world.join(instance="i", needs_member_id=True)
    member_id = world.member_of(ticket)
    assert member_id is not None and member_id.startswith("i-")


def restarted(may_skip: bool, leader_restarts: bool) -> tuple[World, str, str, JoinAnswer]:
    world = World()
    world.settled(1, instance="a", session_ms=30_000)
    world.settled(1, instance="b", session_ms=30_000)
    former_leader = world.group.leader
    assert former_leader is not None
    instance = world.group.members[former_leader].group_instance_id if leader_restarts else "b"
    if not leader_restarts:
        assert world.group.members[former_leader].group_instance_id == "a"
    former = next(one.member_id for one in world.group.members.values() if one.group_instance_id == instance)
    ticket = world.join(instance=instance, may_skip=may_skip, session_ms=30_000)
    assert ticket not in world.answers, "answered before the new id was written"
    assert world.write().restart is not None
    return world, former, former_leader, join_answer(world, ticket)


@pytest.mark.parametrize("may_skip", [False, True])
def test_the_restart_of_a_static_follower_causes_no_rebalance(may_skip: bool) -> None:
    world, former, leader, answer = restarted(may_skip, leader_restarts=False)
    assert (answer.error, answer.leader, answer.members, answer.skip_assignment) == (None, leader, (), False)
    assert world.group.state is STABLE
    assert answer.member_id != former
    sync = sync_answer(world, world.sync(answer.member_id, instance="b"))
    assert sync.assignment == f"share of {former}".encode()
    for outdated in (former,):
        with pytest.raises(FencedInstanceId):
            world.heartbeat(outdated, instance="b")
        with pytest.raises(UnknownMemberId):
            world.heartbeat(outdated)
        with pytest.raises(FencedInstanceId):
            world.group.check_commit(outdated, "b", world.group.generation)
        with pytest.raises(FencedInstanceId):
            world.leave(outdated, "b")
        assert world.error_of(world.join(outdated, instance="b")) is FencedInstanceId
        assert world.error_of(world.sync(outdated, instance="b")) is FencedInstanceId


def test_a_static_leader_that_restarts_is_told_not_to_assign() -> None:
    world, _, _, answer = restarted(may_skip=True, leader_restarts=True)
    assert answer.skip_assignment
    assert answer.leader == answer.member_id == world.group.leader
    assert len(answer.members) == 2
    assert world.group.state is STABLE


def test_a_static_leader_of_an_older_version_is_told_of_its_former_id() -> None:
    world, former, former_leader, answer = restarted(may_skip=False, leader_restarts=True)
    assert answer.leader == former == former_leader
    assert (answer.members, answer.skip_assignment) == ((), False)
    assert world.group.leader == answer.member_id


def test_a_static_restart_that_cannot_be_written_is_undone() -> None:
    world = World()
    [former] = world.settled(1, instance="a")
    ticket = world.join(instance="a", session_ms=20_000)
    world.write(KafkaStorageError("disk"))
    assert world.error_of(ticket) is KafkaStorageError
    assert world.group.members[former].session_timeout_ms == 10_000
    world.heartbeat(former, instance="a")
    assert world.group.leader == former


@pytest.mark.parametrize("error", [None, KafkaStorageError("disk")])
def test_a_static_restart_that_is_written_after_a_rebalance_began_is_answered_by_the_rebalance(
    error: KafkaError | None,
) -> None:
    world = World()
    world.settled(1, instance="a")
    ticket = world.join(instance="a")
    newcomer = world.join()
    assert world.group.state is COMPLETING, "the static member has joined already"
    assert join_answer(world, ticket).generation == 2 == join_answer(world, newcomer).generation
    world.write(error)
    assert join_answer(world, ticket).member_id in world.group.members

    world = World()
    leader, _ = world.settled(2)
    world.settled(1, instance="a")
    ticket = world.join(instance="a")
    world.join(leader, protocols=(("range", b"new"),))
    assert world.group.state is PREPARING
    world.write(error)
    assert ticket not in world.answers


def test_a_silent_static_leader_leads_the_next_generation_no_more() -> None:
    world = World()
    [static] = world.settled(1, instance="a", session_ms=60_000, rebalance_ms=5_000)
    newcomer = world.join(session_ms=60_000, rebalance_ms=5_000)
    world.advance(5_000)
    answer = join_answer(world, newcomer)
    assert answer.leader == answer.member_id
    assert {member_id for member_id, _, _ in answer.members} == {static, answer.member_id}


def test_a_second_restart_fences_the_first_that_still_waits() -> None:
    world = World()
    world.settled(1, instance="a")
    first = world.join(instance="a")
    second = world.join(instance="a")
    assert world.error_of(first) is FencedInstanceId
    world.write_all()
    assert world.member_of(second) == next(iter(world.group.members))


def test_a_static_member_that_comes_back_with_other_topics_starts_a_rebalance() -> None:
    world = World()
    old, new = (("range", subscription("t")),), (("range", subscription("t", "u")),)
    world.settled(2, protocols=old)
    world.settled(1, instance="a", protocols=old)
    unchanged = world.join(instance="a", protocols=(("range", subscription("t") + b"other user data"),))
    world.write_all()
    assert world.member_of(unchanged)
    world.join(instance="a", protocols=new)
    assert world.group.state is PREPARING


def test_a_static_member_that_comes_back_with_another_choice_of_protocol_starts_a_rebalance() -> None:
    world = World()
    world.settled(1, instance="a", protocols=(RANGE, STICKY))
    answer = join_answer(world, world.join(instance="a", protocols=(STICKY,)))
    assert (answer.error, answer.protocol, answer.generation) == (None, "sticky", 2)


def test_a_static_member_that_comes_back_before_the_assignment_sends_all_back() -> None:
    world = World()
    world.settled(1, session_ms=30_000)
    world.settled(1, instance="a", session_ms=30_000)
    dynamic, former = world.group.members
    if world.group.members[dynamic].is_static:
        dynamic, former = former, dynamic
    world.join(dynamic, session_ms=30_000, protocols=(("range", b"new"),))
    world.join(former, instance="a", session_ms=30_000)
    assert world.group.state is COMPLETING
    waiting = world.sync(former, instance="a")
    back = world.join(instance="a", session_ms=30_000)
    assert world.error_of(waiting) is FencedInstanceId
    assert world.group.state is PREPARING
    world.join(dynamic, session_ms=30_000, protocols=(("range", b"new"),))
    assert world.member_of(back)


def test_a_silent_static_member_keeps_its_place_over_a_rebalance_until_its_session_ends() -> None:
    world = World()
    [leader] = world.settled(1, session_ms=60_000, rebalance_ms=10_000)
    world.settled(1, instance="a", session_ms=60_000, rebalance_ms=10_000)
    static = next(one.member_id for one in world.group.members.values() if one.is_static)
    rejoin = world.join(leader, session_ms=60_000, rebalance_ms=10_000, protocols=(("range", b"new"),))
    world.advance(10_000)
    assert world.member_of(rejoin) == leader
    assert static in world.group.members
    world.sync(leader, {})
    world.write()
    for _ in range(5):
        world.advance(10_000)
        if world.group.state is STABLE:
            world.heartbeat(leader)
    assert static not in world.group.members
    assert leader in world.group.members


def test_silent_static_members_alone_lead_nobody_until_their_sessions_end() -> None:
    world = World()
    world.settled(1, instance="a", session_ms=60_000, rebalance_ms=5_000)
    world.settled(1, session_ms=60_000, rebalance_ms=5_000)
    dynamic = next(one.member_id for one in world.group.members.values() if not one.is_static)
    world.leave(dynamic)
    generation = world.group.generation
    world.advance(59_000)
    assert (world.group.state, world.group.generation) == (PREPARING, generation)
    world.advance(2_000)
    assert world.group.state is EMPTY


def test_an_administrator_removes_a_static_member_by_its_instance_id_alone() -> None:
    world = World()
    world.settled(1, instance="a")
    with pytest.raises(UnknownMemberId):
        world.leave("", "b")
    world.leave("", "a")
    assert world.group.state is EMPTY


# Connections that close -----------------------------------------------------------------------------------------------


def test_a_new_member_whose_connection_closes_is_forgotten_and_nobody_waits_for_it() -> None:
    world = World()
    [leader] = world.settled(1)
    newcomer = world.join()
    world.abandon(newcomer)
    assert world.group.members.keys() == {leader}
    assert world.member_of(world.join(leader)) == leader


def test_a_known_member_whose_connection_closes_has_its_session_to_come_back() -> None:
    world = World()
    leader, other = world.settled(2)
    world.abandon(world.join(leader))
    assert leader in world.group.members
    world.advance(9_000)
    assert leader in world.group.members
    back = world.join(leader)
    world.join(other)
    assert world.member_of(back) == leader


def test_a_member_that_goes_while_it_waits_for_its_assignment_falls_silent() -> None:
    world = World()
    world.settled(2)
    leader, other = world.group.members
    world.join(leader)
    world.join(other)
    world.abandon(world.sync(other))
    world.advance(9_000)
    world.heartbeat(leader)
    world.advance(1_000)
    assert world.group.members.keys() == {leader}


def test_a_new_member_that_waits_for_very_long_is_given_up() -> None:
    world = World()
    [leader] = world.settled(1, rebalance_ms=10 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    newcomer = world.join(rebalance_ms=10 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        assert newcomer not in world.answers
        with pytest.raises(RebalanceInProgress):
            world.heartbeat(leader)
        world.advance(5_000)
    assert world.error_of(newcomer) is UnknownMemberId


# Ends, and the log ----------------------------------------------------------------------------------------------------


def test_only_an_empty_group_can_be_deleted() -> None:
    world = World()
    [leader] = world.settled(1)
    with pytest.raises(NonEmptyGroup):
        world.group.delete()
    world.leave(leader)
    world.group.delete()
    assert world.group.is_dead
    assert world.error_of(world.join()) is CoordinatorNotAvailable
    assert world.error_of(world.sync(leader)) is CoordinatorNotAvailable
    with pytest.raises(CoordinatorNotAvailable):
        world.group.delete()


def test_whoever_waits_when_the_group_moves_is_sent_away() -> None:
    world = World()
    world.settled(2)
    waiting = [world.join(next(iter(world.group.members))), world.join()]
    world.carry_out(world.group.resign())
    assert all(world.error_of(ticket) is NotCoordinator for ticket in waiting)
    assert world.group.is_dead
    world.carry_out(world.group.expire(world.now_ms + 10**9))
    world.carry_out(world.group.resign())


def test_a_group_comes_back_from_the_log_as_it_was_and_its_members_have_their_sessions_anew() -> None:
    world = World()
    world.settled(2, session_ms=15_000, protocols=(RANGE, STICKY))
    world.settled(1, instance="a", session_ms=20_000, protocols=(RANGE, STICKY))
    metadata = world.group.to_metadata(123)
    value = encode_value(metadata)
    stored = decode_value(GroupKey("g"), value)
    loaded = World(group=Group.from_metadata("g", stored, GroupLimits()))  # type: ignore[arg-type]
    assert loaded.group.to_metadata(123) == metadata
    assert loaded.group.current_state_timestamp_ms == 123
    loaded.carry_out(loaded.group.resume(loaded.now_ms))
    assert loaded.group.state is STABLE
    member_id, member = next((key, one) for key, one in loaded.group.members.items() if not one.is_static)
    loaded.heartbeat(member_id)
    assert sync_answer(loaded, loaded.sync(member_id)).assignment == member.assignment != b""
    loaded.advance(15_000)
    assert [one.group_instance_id for one in loaded.group.members.values()] == ["a"]


def test_a_loaded_group_that_is_too_large_now_has_to_join_anew() -> None:
    world = World()
    world.settled(3)
    loaded = World(group=Group.from_metadata("g", world.group.to_metadata(1), GroupLimits(max_size=2)))
    loaded.carry_out(loaded.group.resume(loaded.now_ms))
    assert loaded.group.state is PREPARING
    tickets = [loaded.join(member_id) for member_id in list(loaded.group.members)]
    loaded.advance(60_000)
    assert sorted(str(loaded.error_of(ticket)) for ticket in tickets) == sorted(
        ["None", "None", str(GroupMaxSizeReached)]
    )


def test_a_record_that_names_a_member_or_an_instance_twice_does_no_harm() -> None:
    world = World()
    world.settled(2, instance=None, session_ms=15_000)
    metadata = world.group.to_metadata(1)
    first, second = (one._replace(group_instance_id="i") for one in metadata.members)
    loaded = World(group=Group.from_metadata("g", metadata._replace(members=(first, first, second)), GroupLimits()))
    loaded.carry_out(loaded.group.resume(loaded.now_ms))
    assert list(loaded.group.members) == [first.member_id]
    loaded.advance(15_000)
    assert loaded.group.state is EMPTY


def test_an_empty_group_comes_back_empty() -> None:
    world = World()
    [leader] = world.settled(1)
    world.leave(leader)
    loaded = Group.from_metadata("g", world.group.to_metadata(5), GroupLimits())
    assert (loaded.state, loaded.generation, loaded.protocol_type) == (EMPTY, 2, "consumer")
    assert not loaded.is_forgettable


# Subscriptions --------------------------------------------------------------------------------------------------------


def test_topics_of_consumers_are_those_of_all_members() -> None:
    world = World()
    assert world.group.subscribed_topics() == frozenset()
    world.settled(1, protocols=(("range", subscription("a", "b")),))
    world.settled(1, protocols=(("range", subscription("b", "c")),))
    assert world.group.subscribed_topics() == {"a", "b", "c"}


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\0\0", b"\0\0\0\0\0\1\0\5ab", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\xff\xff", b"\0\0\0\0\0\1\0\1\xff"],
)
def test_of_subscriptions_that_cannot_be_read_nobody_knows_the_topics(metadata: bytes) -> None:
    world = World()
    world.settled(1, protocols=(("range", metadata),))
    assert world.group.subscribed_topics() is None


def test_of_members_that_are_no_consumers_nobody_knows_the_topics() -> None:
    world = World()
    world.settled(1, protocol_type="connect", protocols=(("range", subscription("a")),))
    assert world.group.subscribed_topics() is None
