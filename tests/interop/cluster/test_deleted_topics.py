"""Topics that are deleted, or deleted and made again, while one of their replicas cannot hear of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import RequestTimedOut
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.cluster.heard import wait_until_known
from tests.interop.cluster.test_replication import log_bytes, values_of, wait_until_equal
from tests.patience import PATIENCE_S, wait_until


def produce(cluster: KafkaliteCluster, topic: str, value: bytes, count: int) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for delivery in [producer.send(topic, value, partition=0) for _ in range(count)]:
            delivery.result(PATIENCE_S)


@pytest.fixture
def with_settings(cluster: KafkaliteCluster) -> Iterator[Callable[..., None]]:
    """Restarts a broker with other settings, which it loses at the end of the test."""
    changed = {}

    def restart(number: int, **settings: object) -> None:
        broker = cluster.broker(number)
        changed.setdefault(number, dict(broker.overrides))
        broker.overrides.update({name.replace("_", "."): value for name, value in settings.items()})
        broker.restart()

    yield restart
    for number, overrides in changed.items():
        broker = cluster.broker(number)
        broker.overrides = overrides
        if broker.running:
            broker.resume()
        broker.restart()


def end_session(cluster: KafkaliteCluster, number: int) -> None:
    """Have the registry hold a broker that has died for dead, as at the end of its session."""
    store = open_zookeeper(cluster.registry.connect)
    try:
        store.delete(znodes.broker_path(number)).result(PATIENCE_S)
    finally:
        store.close()


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_a_topic_made_again_before_a_replica_hears_that_it_was_deleted_has_nothing_of_the_old_one(
    cluster: KafkaliteCluster,
    new_topic: Callable[..., str],
    admin: Admin,
    with_settings: Callable[..., None],
    end: str,
) -> None:
    topic = new_topic()
    away = cluster.wait_for_leader(topic)
    # It is registered for as long as it takes to make it a replica of the new topic, and not the controller any more.
    with_settings(away, zookeeper_session_timeout_ms=30_000)
    cluster.wait_in_sync(topic)
    admin.elect_leaders([TopicPartition(topic, 0)])
    produce(cluster, topic, b"old", 100)
    others = [number for number in cluster.brokers if number != away]
    getattr(cluster, end)(away)
    with Admin(bootstrap_servers=[cluster.broker(number).bootstrap for number in others]) as living:
        living.delete_topics([topic])
        wait_until(lambda: topic not in living.list_topics(), f"{topic} to be gone")
        # It leads the new topic, too, and so the answer would be late.
        with contextlib.suppress(RequestTimedOut):
            living.create_topics([NewTopic(topic, assignments={0: [away, *others]})], timeout_ms=2_000)
    wait_until_known(cluster.broker(others[0]).bootstrap, topic)
    if end == "kill":
        end_session(cluster, away)
        cluster.restart(away)
    else:
        cluster.resume(away)
    wait_until_known(cluster.broker(away).bootstrap, topic)
    produce(cluster, topic, b"new", 10)
    cluster.wait_in_sync(topic)
    assert cluster.in_sync(topic) == set(cluster.brokers)
    assert b"old" not in wait_until_equal(cluster, topic)
    assert values_of(cluster.bootstrap, topic, 10) == [b"new"] * 10
    # Whoever has had the old one leads the new one.
    for number in others:
        cluster.stop(number)
        cluster.wait_for_leader(topic, other_than=number)
        cluster.restart(number)
        cluster.wait_in_sync(topic)
    assert b"old" not in b"".join(log_bytes(cluster, number, topic) for number in cluster.brokers)
    assert values_of(cluster.bootstrap, topic, 10) == [b"new"] * 10
