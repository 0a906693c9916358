"""The throttle of replication, by a manual clock."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle, is_listed
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import UNLIMITED_RATE


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def throttled(rate: int, windows: Windows | None = None) -> tuple[ReplicationThrottle, Clock]:
    clock = Clock()
    throttle = ReplicationThrottle(clock, windows)
    throttle.obey(rate)
    return throttle, clock


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [("", False), ("*", True), ("0:1,3:2", True), ("3:1,0:2,33:2,3:22", False)],
)
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_which_replicas_a_list_names(side: str, replicas: str, expected: bool) -> None:
    config = TopicConfig.from_properties({f"{side}.replication.throttled.replicas": replicas})
    listed = getattr(config, f"{side}_replication_throttled_replicas")
    # Each of thousands of partitions looks itself up, so no partition may walk through the list.
    assert isinstance(listed, frozenset)
    assert is_listed(listed, 3, 2) is expected


def test_without_a_rate_all_may_be_copied() -> None:
    throttle, _ = throttled(UNLIMITED_RATE)
    throttle.charge(1 << 40)
    assert (throttle.owed_s(), throttle.most_at_once, throttle.total_bytes) == (0, UNLIMITED_RATE, 1 << 40)


@pytest.mark.parametrize("fetch_bytes", [100_000, 1_000_000, 4_000_000])
def test_the_rate_is_kept_whatever_is_fetched_at_once(fetch_bytes: int) -> None:
    throttle, clock = throttled(1_000_000)
    copied = 0
    while clock.now_s < 400:
        clock.now_s += throttle.owed_s() + 1e-3
        copied += fetch_bytes
        throttle.charge(fetch_bytes)
    assert copied / 300 == pytest.approx(1_000_000, rel=0.03)


@pytest.mark.parametrize("rate", [0, 1])
def test_the_lowest_rate_lets_a_fetch_pass_in_each_time_of_the_windows(rate: int) -> None:
    throttle, _ = throttled(rate, Windows(11, 1.0))
    throttle.charge(1 << 20)
    assert throttle.owed_s() == pytest.approx(11)


def test_another_rate_holds_at_once() -> None:
    throttle, _ = throttled(1000)
    changes: list[int] = []
    throttle.on_change = lambda: changes.append(throttle.rate)
    throttle.charge(6000)
    assert throttle.owed_s() == pytest.approx(5)
    throttle.obey(5000)
    assert throttle.owed_s() == pytest.approx(1)
    throttle.obey(5000)
    throttle.obey(UNLIMITED_RATE)
    assert (throttle.owed_s(), changes) == (0, [5000, UNLIMITED_RATE])


def test_the_byte_rate_is_that_of_the_last_windows() -> None:
    throttle, clock = throttled(UNLIMITED_RATE, Windows(10, 1.0))
    for _ in range(5):
        throttle.charge(600)
        throttle.charge(400)
        clock.now_s += 1
    assert throttle.byte_rate() == 500
    clock.now_s += 7
    assert throttle.byte_rate() == 200
    clock.now_s += 10
    assert (throttle.byte_rate(), throttle.total_bytes) == (0, 5000)
