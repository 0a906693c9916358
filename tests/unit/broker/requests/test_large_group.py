"""A large group rebalances: how much the broker's loop does of that in one turn, through the real handlers."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.requests.dispatch import SMALL_REQUEST_BYTES
from spark_kafkalite.broker.requests.handlers import join_group, sync_group
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.coordinator.groups import coordinator as coordinator_module
from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
from spark_kafkalite.coordinator.groups.groups_state import GroupsState
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.slices import SLICE_S, Slices
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.unit.coordinator.host_double import HostDouble
from tests.unit.slice_clock import SliceClock
from tests.unit.turns import Turns, run_collected

MEMBERS = 500
# In a turn of the loop. The group itself takes about ten calls a member at the end of a rebalance, without a yield.
MOST_CALLS = 12 * MEMBERS
# Topics "t", no user data, as the client libraries send them.
SUBSCRIPTION = bytes.fromhex("0001 00000001 0001 74 ffffffff 00000000")
ASSIGNMENT = bytes.fromhex("0001 00000001 0001 74 00000001 00000007 ffffffff")


def test_no_turn_of_the_loop_is_long_when_hundreds_rebalance() -> None:
    calls = rebalance()
    assert max(calls.values()) < MOST_CALLS, calls


def test_a_turn_in_which_all_are_answered_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above can fail."""
    monkeypatch.setattr(coordinator_module, "_ANSWERS_AT_ONCE", MEMBERS)
    calls = rebalance()
    assert min(calls.values()) > MOST_CALLS, calls


def rebalance() -> dict[str, int]:
    """Let a group form. Return the most calls in a turn until all have joined, and until all have their assignments."""
    calls: dict[str, int] = {}

    async def scenario() -> None:
        limits = GroupLimits(initial_rebalance_delay_ms=200, max_bytes=1 << 30)
        shards = Shards(HostDouble(), partial(GroupsState, limits), SYSTEM_CLOCK)
        slices = Slices(asyncio.get_running_loop(), SliceClock(reading_s=SLICE_S))
        context: Any = SimpleNamespace(
            groups=GroupCoordinator(shards, SYSTEM_CLOCK, 1 << 30), work=lambda _, work: slices.run(work)
        )
        shards.lead(0, 1)
        while shards.is_loading:
            await asyncio.sleep(0)

        def serve(handler: Any, frame: bytes, key: int, version: int) -> asyncio.Task[bytes]:
            """As the dispatcher does: it decodes large requests and encodes answers in slices."""
            request: Any = SimpleNamespace(
                api_version=version,
                client_id="member",
                session=SimpleNamespace(client_host="/127.0.0.1"),
                call_if_abandoned=lambda callback: None,
                may=lambda *_: True,
            )
            is_small = len(frame) <= SMALL_REQUEST_BYTES
            begun = handler(context, request, codec.decode_request(key, version, frame, 0)) if is_small else None

            async def run() -> bytes:
                answering = begun
                if answering is None:
                    decoded = codec.decode_request_in_slices(key, version, memoryview(frame), 0)
                    answering = handler(context, request, await slices.run(decoded))
                return bytes(await slices.run(codec.encode_response_in_slices(await answering, version, 1)))

            return asyncio.get_running_loop().create_task(run())

        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=300_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=SUBSCRIPTION) for name in ("range", "sticky")],
        )
        frame = codec.encode_body(join, 3)
        joining = []
        for number in range(MEMBERS):
            joining.append(serve(join_group.handle, frame, 11, 3))
            if number % 50 == 0:
                await asyncio.sleep(0)
        turns = Turns(asyncio.get_running_loop())
        joined: list[JoinGroupResponse] = []
        with turns:
            for one in joining:
                joined.append(codec.decode_response(ApiKey.JOIN_GROUP, 3, await one)[1])
                await asyncio.sleep(0)
        calls["join"] = turns.most_calls
        (leader,) = [one for one in joined if one.members]
        assert len(leader.members) == MEMBERS and {one.error_code for one in joined} == {0}

        syncing = []
        for number, one in enumerate(joined):
            sync = SyncGroupRequest(group_id="g", generation_id=one.generation_id, member_id=one.member_id)
            if one is leader:
                continue
            syncing.append(serve(sync_group.handle, codec.encode_body(sync, 3), 14, 3))
            if number % 50 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        shares = [SyncGroupRequestAssignment(member_id=one.member_id, assignment=ASSIGNMENT) for one in joined]
        sync = SyncGroupRequest(
            group_id="g", generation_id=leader.generation_id, member_id=leader.member_id, assignments=shares
        )
        frame = codec.encode_body(sync, 3)
        await asyncio.sleep(0)
        with turns:
            syncing.append(serve(sync_group.handle, frame, 14, 3))
            for waiting in syncing:
                answer: SyncGroupResponse = codec.decode_response(ApiKey.SYNC_GROUP, 3, await waiting)[1]
                assert (answer.error_code, answer.assignment) == (0, ASSIGNMENT)
                await asyncio.sleep(0)
        calls["sync"] = turns.most_calls
        context.groups.close()

    run_collected(scenario)
    return calls
