"""Requests of groups when the lease is over (rule R20), and the time that groups go by meanwhile."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from spark_kafkalite.broker.internal_topic_host import InternalTopicHost
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.coordination import Coordination, Stillness
from spark_kafkalite.broker.requests.dispatch import SERVED_APIS
from spark_kafkalite.coordinator.internal_topic import partition_for
from spark_kafkalite.errors import CoordinatorLoadInProgress, IllegalGeneration, NotCoordinator, NotLeaderOrFollower
from spark_kafkalite.slices import run_whole
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.message import RequestBody
from spark_kafkalite.wire.messages.delete_groups import DeleteGroupsRequest
from spark_kafkalite.wire.messages.describe_groups import DescribeGroupsRequest
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.join_group import JoinGroupRequest
from spark_kafkalite.wire.messages.leave_group import LeaveGroupRequest
from spark_kafkalite.wire.messages.offset_delete import OffsetDeleteRequest
from spark_kafkalite.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from spark_kafkalite.wire.messages.sync_group import SyncGroupRequest

PARTITIONS = 50


class Host:
    """Questions to the leaders of an internal topic; the test answers them."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, asyncio.Future[bool]]] = []
        self.leads = True
        self.partitions = PARTITIONS

    def partition_count(self) -> int:
        return self.partitions

    def confirm(self, partition: int) -> asyncio.Future[bool]:
        if not self.leads:
            raise NotLeaderOrFollower("another broker leads")
        question: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.asked.append((partition, question))
        return question

    def answer(self, is_confirmed: bool) -> None:
        asked, self.asked = self.asked, []
        for _, question in asked:
            question.set_result(is_confirmed)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def coordination(clock: ManualClock, host: Host) -> Coordination:
    return Coordination(RegistryLease(), cast(InternalTopicHost, host), clock)


def answered(coordination: Coordination, host: Host, partitions: list[int], *answers: bool) -> bool:
    """Ask for some partitions and give the answers."""

    async def ask() -> bool:
        question = asyncio.ensure_future(coordination.confirm(partitions))
        await asyncio.sleep(0)
        for (_, each), is_confirmed in zip(host.asked, answers, strict=True):
            each.set_result(is_confirmed)
        return await question

    return asyncio.run(ask())


def test_partitions_are_those_of_the_groups(coordination: Coordination, host: Host) -> None:
    groups = [f"group-{number}" for number in range(700)]
    assert set(run_whole(coordination.partitions_of(groups))) == {partition_for(each, PARTITIONS) for each in groups}
    host.partitions = 0
    assert not run_whole(coordination.partitions_of(groups))


def test_all_partitions_have_to_be_led_still(coordination: Coordination, host: Host) -> None:
    assert answered(coordination, host, [1, 2], True, True)
    host.asked.clear()
    assert not answered(coordination, host, [1, 2], True, False)
    host.asked.clear()
    # Without a topic there is nothing to ask; its handlers say what is missing.
    assert answered(coordination, host, [])
    host.leads = False
    assert not answered(coordination, host, [1])
    assert coordination.stood_still_s() == 0


def test_an_error_is_believed_while_nobody_needs_to_be_asked(clock: ManualClock, host: Host) -> None:
    lease = RegistryLease()
    coordination = Coordination(lease, cast(InternalTopicHost, host), clock)
    error, loading = IllegalGeneration("generation 4"), CoordinatorLoadInProgress("wait")
    assert isinstance(coordination.said(error), NotCoordinator)
    assert coordination.said(loading) is loading
    lease.renew(clock.monotonic_s(), 6_000)
    assert coordination.is_certain
    assert coordination.said(error) is error


def test_the_time_of_groups_stands_still_while_questions_are_not_answered(clock: ManualClock, host: Host) -> None:
    lease = RegistryLease()
    coordination = Coordination(lease, cast(InternalTopicHost, host), clock)
    assert not answered(coordination, host, [1], False)
    clock.advance(s=4.5)
    assert coordination.stood_still_s() == pytest.approx(4)
    clock.advance(s=1)
    assert coordination.stood_still_s() == pytest.approx(5)
    # The lease holds again, and time goes on.
    lease.renew(clock.monotonic_s(), 60_000)
    assert coordination.stood_still_s() == pytest.approx(5)
    clock.advance(s=10)
    assert coordination.stood_still_s() == pytest.approx(5)


def test_questions_that_are_answered_soon_let_the_time_of_groups_go_on() -> None:
    stillness, now_s = Stillness(), 0.0
    for _ in range(100):
        # Another one is always waiting.
        stillness.asked(now_s)
        now_s += 0.1
        stillness.answered(now_s, is_asked_on=True)
    assert stillness.seconds(now_s) == 0
    # One that waits for long does not count beyond its first half second.
    assert stillness.seconds(now_s + 3) == pytest.approx(2.5)
    stillness.answered(now_s + 3, is_asked_on=False)
    assert stillness.seconds(now_s + 60) == pytest.approx(2.5)


GROUP_APIS: dict[ApiKey, RequestBody] = {
    ApiKey.JOIN_GROUP: JoinGroupRequest(group_id="g"),
    ApiKey.SYNC_GROUP: SyncGroupRequest(group_id="g"),
    ApiKey.HEARTBEAT: HeartbeatRequest(group_id="g"),
    ApiKey.LEAVE_GROUP: LeaveGroupRequest(group_id="g"),
    ApiKey.OFFSET_DELETE: OffsetDeleteRequest(group_id="g"),
    ApiKey.OFFSET_FETCH: OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g")]),
    ApiKey.DESCRIBE_GROUPS: DescribeGroupsRequest(groups=["g"]),
    ApiKey.DELETE_GROUPS: DeleteGroupsRequest(groups_names=["g"]),
}


def test_every_api_of_groups_says_which_groups_it_names() -> None:
    handlers.load()
    named = {key for key, api in SERVED_APIS.items() if api.groups_of is not None}
    assert named == set(GROUP_APIS)
    for key, message in GROUP_APIS.items():
        groups_of = SERVED_APIS[key].groups_of
        assert groups_of is not None
        assert list(groups_of(message)) == ["g"]
