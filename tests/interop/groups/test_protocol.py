"""The group APIs as they are on the wire: every version, what waits, what a crash leaves, and hostile members."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.wire.messages.delete_groups import DeleteGroupsRequest
from spark_kafkalite.wire.messages.describe_groups import DescribeGroupsRequest
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from spark_kafkalite.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from spark_kafkalite.wire.messages.list_groups import ListGroupsRequest
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest
from tests.interop.groups.group_peer import MEMBER_ID_REQUIRED, GroupPeer, find_coordinator
from tests.interop.support.good_client import forget_peak, peak_bytes
from tests.interop.support.raw_client import RawClient

ILLEGAL_GENERATION = 22
INCONSISTENT_GROUP_PROTOCOL = 23
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
INVALID_COMMIT_OFFSET_SIZE = 28
INVALID_REQUEST = 42
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
GROUP_MAX_SIZE_REACHED = 81
FENCED_INSTANCE_ID = 82

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    overrides = {"group.min.session.timeout.ms": 100, "offsets.topic.num.partitions": 5}
    with BrokerProcess(tmp_path_factory.mktemp("groups"), overrides=overrides) as running:
        with RawClient(running.bootstrap) as client:
            for number in range(10):
                find_coordinator(client, f"warm-up-{number}")
        yield running


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


# Versions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_member_lives_its_life_in_every_version(broker: BrokerProcess, group: str, version: int) -> None:
    sync, beat, leave = min(version, 5), min(version, 4), min(version, 5)
    with GroupPeer(broker.bootstrap, group) as peer:
        peer.send_join(version)
        first = peer.receive_join(version)
        if version >= 4:
            assert first.error_code == MEMBER_ID_REQUIRED
            assert first.protocol_name == (None if version >= 7 else "")
            peer.send_join(version)
            first = peer.receive_join(version)
        assert (first.error_code, first.generation_id, first.leader) == (0, 1, peer.member_id)
        assert first.protocol_name == "range"
        assert first.protocol_type == ("consumer" if version >= 7 else None)
        assert [member.member_id for member in first.members] == [peer.member_id]
        done = peer.sync({peer.member_id: b"share"}, sync)
        assert (done.error_code, done.assignment) == (0, b"share")
        assert done.protocol_name == ("range" if sync >= 5 else None)
        assert peer.heartbeat(beat) == 0
        peer.generation = 7
        assert peer.heartbeat(beat) == ILLEGAL_GENERATION
        assert peer.leave(leave) == 0
        assert peer.leave(leave) == UNKNOWN_MEMBER_ID
        assert peer.heartbeat(beat) == UNKNOWN_MEMBER_ID


def test_ids_name_the_client_and_nobody_guesses_them(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group) as peer:
        peer.alone()
        assert re.fullmatch(r"raw-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", peer.member_id)


def test_groups_are_listed_by_state_and_type(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group) as peer:
        peer.alone()
        for version in range(6):
            request = ListGroupsRequest(
                states_filter=["stable"] if version >= 4 else [], types_filter=["Classic"] if version >= 5 else []
            )
            listed = {one.group_id: one for one in peer.call(request, version).groups}
            assert listed[group].protocol_type == "consumer"
            if version >= 4:
                assert {one.group_state for one in listed.values()} == {"Stable"}
            if version >= 5:
                assert listed[group].group_type == "classic"
        for request in (ListGroupsRequest(states_filter=["Empty"]), ListGroupsRequest(types_filter=["share"])):
            assert group not in {one.group_id for one in peer.call(request, 5).groups}


def test_groups_are_described_with_what_their_members_said_and_got(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group, instance="i") as peer, RawClient(broker.bootstrap) as other:
        peer.alone(protocols=(("range", b"what it reads"),))
        for version in range(6):
            request = DescribeGroupsRequest(
                groups=[group, "no-such-group", group], include_authorized_operations=version >= 3
            )
            described, missing = other.call(request, version).groups
            assert (described.error_code, described.group_state, described.protocol_type) == (0, "Stable", "consumer")
            assert described.protocol_data == "range"
            [member] = described.members
            assert (member.member_id, member.client_id, member.client_host) == (peer.member_id, "raw", "/127.0.0.1")
            assert (member.member_metadata, member.member_assignment) == (b"what it reads", b"all")
            assert member.group_instance_id == ("i" if version >= 4 else None)
            assert (missing.error_code, missing.group_state, missing.members) == (0, "Dead", [])
            if version >= 3:
                # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, as Apache Kafka 4.3 has them for groups.
                assert described.authorized_operations == 0b1101_0100_1000
        peer.send_join(protocols=(("range", b"else"), ("sticky", b"")))
        peer.receive_join()
        described = other.call(DescribeGroupsRequest(groups=[group]), 5).groups[0]
        assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
        assert [(one.member_metadata, one.member_assignment) for one in described.members] == [(b"", b"")]


def test_only_groups_without_members_can_be_deleted(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group) as peer:
        peer.alone()
        assert peer.delete() == NON_EMPTY_GROUP
        assert peer.leave() == 0
        assert peer.describe().group_state == "Empty"
        assert peer.delete() == 0
        assert peer.describe().group_state == "Dead"
        assert peer.delete() == GROUP_ID_NOT_FOUND
        many = [f"none-{number}" for number in range(1000)]
        results = peer.call(DeleteGroupsRequest(groups_names=many), 1).results
        assert [one.group_id for one in results] == many
        peer.member_id = ""
        peer.alone()
        assert peer.generation == 1


# What waits -----------------------------------------------------------------------------------------------------------


def test_a_join_waits_for_the_others_and_a_sync_for_the_leader(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group) as leader, GroupPeer(broker.bootstrap, group) as other:
        leader.alone()
        other.send_join()
        other.receive_join()
        other.send_join()
        # The second join is there when the leader hears of it.
        while leader.heartbeat() != REBALANCE_IN_PROGRESS:
            pass
        assert leader.describe().group_state == "PreparingRebalance"
        assert leader.join().error_code == 0
        assert other.receive_join().members == []
        assert leader.generation == other.generation == 2
        other.send_sync()
        leader.sync({leader.member_id: b"1", other.member_id: b"2"})
        assert other.receive_sync().assignment == b"2"
        assert other.heartbeat() == leader.heartbeat() == 0


def test_a_waiting_join_whose_connection_closes_is_not_waited_for(broker: BrokerProcess, group: str) -> None:
    # A join that waited for the others would wait longer than this test may take.
    with GroupPeer(broker.bootstrap, group) as leader:
        leader.alone(rebalance_ms=600_000)
        gone = [GroupPeer(broker.bootstrap, group) for _ in range(5)]
        for peer in gone:
            peer.send_join(rebalance_ms=600_000)
            peer.receive_join()
            peer.send_join(rebalance_ms=600_000)
        while len(leader.describe().members) < 6:
            pass
        for peer in gone:
            peer.close()
        while len(leader.describe().members) > 1:
            pass
        assert len(leader.join(rebalance_ms=600_000).members) == 1


def test_a_silent_member_goes_when_its_session_ends(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group) as silent, GroupPeer(broker.bootstrap, group) as other:
        began_s = time.monotonic()
        silent.alone(session_ms=3000)
        assert len(other.join().members) == 1
        assert time.monotonic() - began_s > 3
        assert silent.heartbeat() == UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back_without_a_rebalance_and_its_former_self_is_fenced(
    broker: BrokerProcess, group: str
) -> None:
    with (
        GroupPeer(broker.bootstrap, group, instance="i") as former,
        GroupPeer(broker.bootstrap, group, instance="i") as later,
    ):
        former.alone()
        answer = later.join()
        assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (0, 1, True)
        assert later.member_id != former.member_id
        assert later.sync().assignment == b"all"
        assert former.heartbeat() == FENCED_INSTANCE_ID
        assert former.sync().error_code == FENCED_INSTANCE_ID
        assert former.leave() == FENCED_INSTANCE_ID
        assert later.heartbeat() == 0
        request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="", group_instance_id="i")])
        assert later.call(request, 5).members[0].error_code == 0
        assert later.heartbeat() == UNKNOWN_MEMBER_ID


# Crashes --------------------------------------------------------------------------------------------------------------


def test_after_a_crash_members_go_on_in_their_generation(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides={"offsets.topic.num.partitions": 3}) as broker:
        with RawClient(broker.bootstrap) as client:
            find_coordinator(client, "g")
        with GroupPeer(broker.bootstrap, "g", instance="static") as peer:
            peer.alone()
            peer.sync()
            member_id = peer.member_id
        broker.kill()
        broker.start()
        with GroupPeer(broker.bootstrap, "g", instance="static") as peer:
            find_coordinator(peer, "g")
            assert peer.describe().group_state == "Stable"
            peer.member_id, peer.generation = member_id, 1
            assert peer.heartbeat() == 0
            assert peer.sync().assignment == b"all"
            peer.member_id = ""
            restarted = peer.join()
            assert (restarted.error_code, restarted.generation_id) == (0, 1)
            restarted_id = peer.member_id
        broker.kill()
        broker.start()
        with GroupPeer(broker.bootstrap, "g", instance="static") as peer:
            find_coordinator(peer, "g")
            peer.member_id, peer.generation = member_id, 1
            assert peer.heartbeat() == FENCED_INSTANCE_ID, "the new id was written before it was answered"
            peer.member_id = restarted_id
            assert peer.leave() == 0
            assert peer.describe().group_state == "Empty"
            assert peer.delete() == 0
        broker.kill()
        broker.start()
        with GroupPeer(broker.bootstrap, "g") as peer:
            find_coordinator(peer, "g")
            assert peer.describe().group_state == "Dead", "deleted before it was answered"


def test_a_broker_stops_at_once_though_members_wait(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", overrides={"offsets.topic.num.partitions": 3}) as broker:
        with GroupPeer(broker.bootstrap, "g") as leader, GroupPeer(broker.bootstrap, "g") as waiting:
            find_coordinator(leader, "g")
            # A stop that waited for the members would wait longer than it may take.
            leader.alone(rebalance_ms=600_000)
            waiting.send_join(3, rebalance_ms=600_000)
            while leader.heartbeat() != REBALANCE_IN_PROGRESS:
                pass
            assert broker.stop() == 0
            assert waiting.is_closed()
        assert "Traceback" not in broker.stderr_path.read_text(encoding="utf-8")


# Hostile --------------------------------------------------------------------------------------------------------------


def test_bad_joins_are_refused(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group) as peer:
        assert peer.join(session_ms=99).error_code == INVALID_SESSION_TIMEOUT
        assert peer.join(session_ms=-(2**31)).error_code == INVALID_SESSION_TIMEOUT
        assert peer.join(protocols=()).error_code == INCONSISTENT_GROUP_PROTOCOL
        assert peer.join(protocols=tuple((f"p{n}", b"") for n in range(101))).error_code == INVALID_REQUEST
        large = tuple((name, bytes(6_000_000)) for name in "abc")
        assert peer.join(protocols=large).error_code == GROUP_MAX_SIZE_REACHED
        peer.instance = "x" * 1001
        assert peer.join().error_code == INVALID_REQUEST
        peer.instance, peer.member_id = None, "made-up"
        assert peer.join().error_code == UNKNOWN_MEMBER_ID
        peer.group, peer.member_id = "", ""
        assert peer.join().error_code == INVALID_GROUP_ID
        assert peer.heartbeat() == INVALID_GROUP_ID
        assert peer.leave() == INVALID_GROUP_ID
        peer.group = group
        peer.join(rebalance_ms=-5)
        assert peer.leave() == 0


def test_an_assignment_too_large_for_a_record_is_refused_and_the_group_goes_on(
    broker: BrokerProcess, group: str
) -> None:
    with GroupPeer(broker.bootstrap, group) as peer:
        assert peer.join().error_code == 0
        assert peer.sync({peer.member_id: bytes(2_000_000)}).error_code == INVALID_COMMIT_OFFSET_SIZE
        assert peer.join().error_code == 0
        assert peer.sync({peer.member_id: b"small"}).assignment == b"small"


def test_a_sync_that_names_no_protocol_is_refused_from_version_5_on(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group) as peer:
        assert peer.join().error_code == 0
        for protocol_type, protocol_name in ((None, "range"), ("consumer", None)):
            request = SyncGroupRequest(
                group_id=group,
                generation_id=peer.generation,
                member_id=peer.member_id,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
            )
            assert peer.call(request, 5).error_code == INCONSISTENT_GROUP_PROTOCOL
        assert peer.sync({peer.member_id: b"mine"}, 4).assignment == b"mine"


def test_many_members_in_one_request_do_not_stop_the_broker(broker: BrokerProcess, group: str) -> None:
    with GroupPeer(broker.bootstrap, group) as peer, GroupPeer(broker.bootstrap, group) as hostile:
        peer.alone()
        members = [MemberIdentity(member_id=f"m{number}") for number in range(100_000)]
        hostile.send(LeaveGroupRequest(group_id=group, members=members), 5)
        hostile.send(DescribeGroupsRequest(groups=[f"g{number}" for number in range(100_000)]), 5)
        assert peer.heartbeat() == 0
        assert {one.error_code for one in hostile.receive(13, 5).members} == {UNKNOWN_MEMBER_ID}
        assert len(hostile.receive(15, 5).groups) == 100_000


def test_a_flood_of_new_members_and_groups_is_bounded(tmp_path: Path) -> None:
    """Ids in advance, groups with members, and members that crash while they wait, on two connections at once."""
    overrides = {"group.coordinator.max.bytes": 4 * 1024 * 1024, "offsets.topic.num.partitions": 3}
    with (
        BrokerProcess(tmp_path / "data", overrides=overrides) as broker,
        GroupPeer(broker.bootstrap, "g") as good,
        RawClient(broker.bootstrap) as flood,
    ):
        find_coordinator(good, "g")
        good.alone()
        forget_peak(broker)
        before = broker.resident_bytes()
        codes = {0: 0, MEMBER_ID_REQUIRED: 0}
        count = 12_000
        in_flight = 0
        for number in range(count):
            # By turns: an id in advance in one group, in a group of its own, and a member of the first version.
            version = 9 if number % 3 else 3
            name = "flooded" if number % 3 == 1 else f"flooded-{number}"
            request = JoinGroupRequest(
                group_id=name,
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=1_800_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(2_000))],
            )
            flood.send(request, version)
            in_flight += 1
            if in_flight == 30:
                # Is served among them.
                assert good.heartbeat() == 0
                for earlier in range(number - in_flight + 1, number + 1):
                    codes[flood.receive(11, 9 if earlier % 3 else 3).error_code] += 1
                in_flight = 0
        grown = peak_bytes(broker) - before
        print(f"{codes}, {grown / 1e6:.1f} MB more")
        # Groups that never synced make room for those that come.
        assert codes[0] > 100 and codes[MEMBER_ID_REQUIRED] > 100
        assert grown < 25_000_000
        assert good.heartbeat() == 0
        request = HeartbeatRequest(group_id="flooded", generation_id=1, member_id="made-up")
        assert flood.call(request, 4).error_code == UNKNOWN_MEMBER_ID
