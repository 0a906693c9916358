"""Followers whose copying is throttled (KIP-73), in manual time, with the leader of ``test_replica_fetcher``."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import UNLIMITED_RATE
from tests.unit.broker.replication.test_replica_fetcher import ID, World, make_world

__all__ = ["make_world"]

BATCHES = 40


def copied(world: World, number: int = 0) -> int:
    return world.partitions[number].log.local.size_bytes


def throttled(make_world: Callable[..., World], count: int, rate: int, replicas: str = "*") -> World:
    """Return a world in which the leader has much of each partition, and the follower begins to copy it."""
    world = make_world(count, follower_replication_throttled_replicas=replicas)
    for number in range(count):
        world.leader.append(number, BATCHES)
    world.services.follower_throttle.obey(rate)
    world.follow()
    world.run()
    return world


def test_what_is_listed_is_copied_at_the_rate_and_the_rest_at_once(make_world: Callable[..., World]) -> None:
    world = throttled(make_world, 2, 400, "0:1")
    assert world.is_same(1) and not world.is_same(0)
    # It is not asked for any more, so that the leader does not answer with it.
    assert list(world.leader.session) == [(ID, 1)]
    before, size = copied(world), world.leader.logs[0].local.size_bytes
    world.run(4.0)
    assert abs(copied(world) - before - 4 * 400) <= 600
    world.leader.append(1)
    world.run()
    assert world.is_same(1) and not world.is_same(0)
    world.run(size / 400)
    assert world.is_same(0)
    assert world.services.follower_throttle.total_bytes == size


def test_an_idle_throttle_asks_as_seldom_as_a_follower_without_one(make_world: Callable[..., World]) -> None:
    world = throttled(make_world, 3, 1)
    before = len(world.leader.requests)
    world.run(10.0)
    # A batch in each time of the windows, and what ends the waits.
    assert len(world.leader.requests) - before <= 8


def test_partitions_take_turns_at_a_low_rate(make_world: Callable[..., World]) -> None:
    world = throttled(make_world, 5, 300)
    most = 0
    for _ in range(100):
        world.run(0.5)
        most = max(most, sum(1 for _ in world.leader.session))
        world.leader.end_waits()
    assert most == 1
    sizes = [copied(world, number) for number in range(5)]
    assert min(sizes) > 0.5 * max(sizes)
    world.run(200.0)
    assert all(world.is_same(number) for number in range(5))


def test_a_partition_without_news_does_not_keep_the_others_from_their_turn(make_world: Callable[..., World]) -> None:
    world = make_world(2, follower_replication_throttled_replicas="*")
    world.leader.append(1, 2)
    world.services.follower_throttle.obey(300)
    world.follow()
    # Its leader has nothing for it, until the fetch has waited long enough.
    for _ in range(20):
        world.leader.end_waits()
        world.run(0.5)
    assert world.is_same(1)
    # Nor do those without news ask all the time, taking turns.
    before = len(world.leader.requests)
    for _ in range(20):
        world.leader.end_waits()
        world.run(0.5)
    assert len(world.leader.requests) - before <= 2 * 20


def test_a_member_of_the_isr_is_not_throttled(make_world: Callable[..., World]) -> None:
    world = throttled(make_world, 1, 1)
    assert not world.is_same()
    world.services.is_member = lambda topic_partition: True
    # As the registry says it.
    world.partitions[0].resign(2, 5, 2)
    world.run()
    assert world.is_same()
    charged = world.services.follower_throttle.total_bytes
    assert charged < copied(world)


def test_a_throttle_that_is_taken_away_holds_nothing(make_world: Callable[..., World]) -> None:
    world = throttled(make_world, 3, 1)
    assert not any(world.is_same(number) for number in range(3))
    world.services.follower_throttle.on_change = world.fetchers.throttle_changed
    world.services.follower_throttle.obey(UNLIMITED_RATE)
    world.run()
    assert all(world.is_same(number) for number in range(3))


def test_a_replica_that_is_listed_no_longer_is_copied_at_once(make_world: Callable[..., World]) -> None:
    world = throttled(make_world, 1, 1)
    assert not world.is_same()
    world.partitions[0].apply_config(TopicConfig.from_properties({}))
    world.run()
    assert world.is_same()


def test_what_is_followed_no_longer_is_not_asked_for_when_its_turn_comes(make_world: Callable[..., World]) -> None:
    world = throttled(make_world, 3, 1)
    for number in (0, 1):
        world.partitions[number].resign(-1, 6, 2)
    before = [copied(world, number) for number in (0, 1)]
    world.run(60.0)
    assert [copied(world, number) for number in (0, 1)] == before
    assert copied(world, 2) > 0
