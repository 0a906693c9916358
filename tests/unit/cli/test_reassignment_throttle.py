"""What a throttle of a reassignment covers, and how long the copy takes at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.cli.cluster.reassignment_room import busiest_bytes, shown_time
from spark_kafkalite.cli.cluster.reassignment_throttle import (
    LISTS,
    ended_entries,
    held,
    list_value,
    set_throttle,
    throttled,
)
from spark_kafkalite.client.admin.configs import ConfigAdmin
from spark_kafkalite.model import UNLIMITED_RATE, TopicPartition
from spark_kafkalite.wire.primitives import MAX_STRING_BYTES

T0, T1, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("other", 7)


def test_leaders_are_those_that_there_are_and_followers_those_that_come() -> None:
    sources = {T0: (1, 2), T1: (2, 1), OTHER: (1, 2)}
    found = throttled({T0: (2, 3), T1: (4, 5), OTHER: (2, 1)}, sources)
    # The other topic's replicas only change their order.
    assert found.lists == {"t": (("0:1", "0:2", "1:2", "1:1"), ("0:3", "1:4", "1:5"))}
    assert found.brokers == {1, 2, 3, 4, 5}
    assert not throttled({OTHER: (2, 1)}, sources).brokers


def test_a_list_that_a_request_has_no_room_for_covers_all_replicas() -> None:
    assert list_value(["0:1", "1:2"]) == "0:1,1:2"
    longest = [*["1234:567"] * 3640, "12345:1"]
    assert len(list_value(longest)) == MAX_STRING_BYTES
    assert list_value([*longest[:-1], "12345:67"]) == "*"


def test_a_throttle_from_before_holds_where_topics_name_the_replicas_of_a_plan() -> None:
    found = throttled({T0: (2, 3), OTHER: (4,)}, {T0: (1, 2), OTHER: (1,)})
    rates = {1: (10, UNLIMITED_RATE), 2: (UNLIMITED_RATE, 20), 3: (30, 7)}
    assert held(found, {}, rates) == ({}, [])
    assert held(found, {"t": ({"0:1", "0:2"}, {"0:3"})}, rates) == ({1: 10, 3: 7}, ["t"])
    # The replicas of an earlier plan are others.
    assert held(found, {"t": ({"1:1"}, {"0:2"}), "other": ({"7:2"}, ())}, rates) == ({}, [])
    assert held(found, {"t": ((), {"0:4"}), "other": ({"*"}, {"*"})}, rates) == ({1: 10}, ["other"])
    assert held(found, {"t": ({"*"}, {"*"})}, {}) == ({}, [])


def test_a_plan_that_has_ended_takes_only_its_own_replicas_from_a_list() -> None:
    entries = ["0:1", "1:2", "1:3", "10:1"]
    assert ended_entries(entries, {"1"}, ()) == ["1:2", "1:3"]
    # A partition of the plan that another plan moves by now.
    assert ended_entries(entries, {"0", "1"}, {"1"}) == ["0:1"]
    assert ended_entries(entries, None, {"0"}) == ["1:2", "1:3", "10:1"]
    # All replicas of the topic: until none of it moves.
    assert ended_entries(["*"], {"1"}, {"0"}) == [] != ended_entries(["*"], {"1"}, ())


def test_the_busiest_broker_decides_how_long_it_takes() -> None:
    current = {T0: (1, 2), T1: (1, 2)}
    sizes = {T0: {1: 100, 2: 90}, T1: {1: 50, 2: 50, 4: 20}}
    # Broker 1 gives 100 and 50 bytes, which two brokers get.
    assert busiest_bytes({T0: (1, 3), T1: (1, 4)}, current, sizes) == 130
    assert busiest_bytes({T0: (1, 3), T1: (1, 3)}, current, sizes) == 150
    assert busiest_bytes({T0: (2, 1)}, current, sizes) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (121, "2 min"), (7300, "2 h"), (200_000, "2 d")]
)
def test_times_are_shown_in_one_unit(seconds: float, text: str) -> None:
    assert shown_time(seconds) == text


class _Throttling(ConfigAdmin):
    """An administrator of topics on broker 1; ``requests`` has the topics that each request changes."""

    def __init__(self, topics: int) -> None:
        self.plan = {TopicPartition(f"t-{number}", 0): (2,) for number in range(topics)}
        self.requests: list[list[str]] = []

    def list_partition_reassignments(self) -> dict[TopicPartition, Any]:
        return {}

    def describe_topics(self, names: set[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(partitions=[SimpleNamespace(partition=0, replicas=[1])]) for name in names}

    def describe_cluster(self) -> Any:
        return SimpleNamespace(brokers=())

    def _alter(self, broker_id: int | None, api_key: int, message: Any, timeout_ms: int | None) -> None:
        assert broker_id is None
        for each in message.resources:
            assert [setting.name for setting in each.configs] == list(LISTS)
        self.requests.append([each.resource_name for each in message.resources])


def test_topics_share_the_requests_that_throttle_them() -> None:
    admin: Any = _Throttling(250)
    set_throttle(admin, admin.plan, 1_000)
    assert [len(each) for each in admin.requests] == [100, 100, 50]
    assert sorted(name for each in admin.requests for name in each) == sorted(key.topic for key in admin.plan)
