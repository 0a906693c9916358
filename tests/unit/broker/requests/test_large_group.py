"""A group of thousands rebalances: what that holds of the broker's loop at a time, through the real handlers."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

from spark_kafkalite.broker.requests.handlers import join_group, sync_group
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.coordinator.groups.coordinator import GroupCoordinator
from spark_kafkalite.coordinator.groups.groups_state import GroupsState
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.slices import Slices
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests import processor
from tests.unit.coordinator.host_double import HostDouble
from tests.unit.slice_clock import SliceClock
from tests.unit.turns import Turns, run_collected

MEMBERS = 5_000
BOUND_MS = 20
# Topics "t", no user data, as the client libraries send them.
SUBSCRIPTION = bytes.fromhex("0001 00000001 0001 74 ffffffff 00000000")
ASSIGNMENT = bytes.fromhex("0001 00000001 0001 74 00000001 00000007 ffffffff")


def test_no_turn_of_the_loop_is_long_when_thousands_rebalance() -> None:
    """In processor time, so that whatever else the machine does is not counted; of what it makes slower, as in sharing
    its caches, the best of three rounds is free. A round takes a second, in which the machine's speed may change."""
    slow_before = processor.slowness()
    for _ in range(3):
        longest_ms = rebalance()
        slow_after = processor.slowness()
        bound_ms, slow_before = BOUND_MS * max(slow_before, slow_after), slow_after
        if max(longest_ms.values()) < bound_ms:
            return
    raise AssertionError(f"longest turns in ms: {longest_ms}, at most {bound_ms}")


def rebalance() -> dict[str, float]:
    """Have a group form, and return the longest turns until all have joined and until all have their assignments."""
    longest_ms = {}

    async def scenario() -> None:
        limits = GroupLimits(initial_rebalance_delay_ms=200, max_bytes=1 << 30)
        shards = Shards(HostDouble(), partial(GroupsState, limits), SYSTEM_CLOCK)
        slices = Slices(asyncio.get_running_loop(), SliceClock())
        context: Any = SimpleNamespace(
            groups=GroupCoordinator(shards, SYSTEM_CLOCK, 1 << 30), work=lambda _, work: slices.run(work)
        )
        shards.lead(0, 1)
        while shards.is_loading:
            await asyncio.sleep(0)

        def serve(handler: Any, frame: bytes, key: int, version: int) -> asyncio.Task[bytes]:
            """As the dispatcher does: decode at once, then run the handler and encode what it answers as a task."""
            request: Any = SimpleNamespace(
                api_version=version,
                client_id="member",
                session=SimpleNamespace(client_host="/127.0.0.1"),
                call_if_abandoned=lambda callback: None,
            )
            work = handler(context, request, codec.decode_request(key, version, frame, 0))

            async def run() -> bytes:
                return codec.encode_response(await work, version, 1)

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
        for one in joining:
            joined.append(codec.decode_response(ApiKey.JOIN_GROUP, 3, await one)[1])
            await asyncio.sleep(0)
        longest_ms["join"] = turns.longest_ms
        (leader,) = [one for one in joined if one.members]
        assert len(leader.members) == MEMBERS and {one.error_code for one in joined} == {0}

        syncing = []
        turns.longest_ms = 0.0
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
        turns.longest_ms = 0.0
        syncing.append(serve(sync_group.handle, frame, 14, 3))
        for waiting in syncing:
            answer: SyncGroupResponse = codec.decode_response(ApiKey.SYNC_GROUP, 3, await waiting)[1]
            assert (answer.error_code, answer.assignment) == (0, ASSIGNMENT)
            await asyncio.sleep(0)
        longest_ms["sync"] = turns.longest_ms
        context.groups.close()

    run_collected(scenario)
    return longest_ms
