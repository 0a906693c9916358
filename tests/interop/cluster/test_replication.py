"""What is on the replicas: the same bytes on all of them, and a leader's state on whoever leads next."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S, wait_until

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from tests.interop.support.python_clients import aiokafka_produce, confluent_produce, kafka_python_produce
from tests.interop.cluster.conftest import SESSION
from tests.interop.cluster.heard import wait_until_told_of_isr
from tests.interop.support.raw_client import RawClient
from tests.interop.support.records import Sent

NOT_ENOUGH_REPLICAS = 19

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def log_bytes(cluster: KafkaliteCluster, number: int, topic: str, partition: int = 0) -> bytes:
    directory = cluster.broker(number).data_dir / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def wait_until_equal(cluster: KafkaliteCluster, topic: str, partition: int = 0) -> bytes:
    """Wait until all replicas have the same bytes, and return these."""

    found: set[bytes] = set()

    def are_equal() -> bool:
        found.clear()
        # A file goes while a log is cut back or set aside.
        with suppress(FileNotFoundError):
            found.update(log_bytes(cluster, number, topic, partition) for number in cluster.brokers)
            return len(found) == 1
        return False

    wait_until(are_equal, f"equal replicas of {topic}-{partition}")
    (content,) = found
    return content


def admin_of(cluster: KafkaliteCluster) -> Admin:
    return Admin(bootstrap_servers=cluster.bootstrap)


def values_of(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()

        def has_all() -> bool:
            found.extend(record.value for record in consumer.poll(500))
            return len(found) >= count

        wait_until(has_all, lambda: f"{count} records of {topic}, of which {len(found)} are read")
    return found


@pytest.mark.parametrize("produce", [confluent_produce, kafka_python_produce, aiokafka_produce])
def test_replicas_hold_the_producers_bytes(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    topic = new_topic()
    now_ms = int(time.time() * 1000)
    codecs = ("none", "gzip", "lz4")
    if produce is kafka_python_produce:
        codecs = ("none", "gzip", "gzip")  # which it has without other libraries
    for codec in codecs:
        records = [Sent(b"k%d" % n, b"v%d" % n * 50, now_ms + n, (("h", b"x"),)) for n in range(200)]
        produce(cluster.bootstrap, topic, records, codec, "all", True)
    assert len(wait_until_equal(cluster, topic)) > 10_000
    # Whoever leads shows the same.
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for _ in range(2):
            former = cluster.wait_for_leader(topic)
            assert len(values_of(cluster.bootstrap, topic, 600)) == 600
            cluster.stop(former)
            cluster.wait_for_leader(topic, other_than=former)
            assert len(values_of(cluster.bootstrap, topic, 600)) == 600
            cluster.restart(former)
            cluster.wait_in_sync(topic)
            assert admin.list_offsets({TopicPartition(topic, 0): -1})[TopicPartition(topic, 0)].offset == 600  # type: ignore[union-attr]


def test_a_broker_that_was_away_catches_up(cluster: KafkaliteCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    away = next(number for number in cluster.brokers if number != cluster.leader_of(topic))
    cluster.kill(away)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        deliveries = [producer.send(topic, b"x" * 1000, partition=n % 3) for n in range(9_000)]
        for delivery in deliveries:
            delivery.result(PATIENCE_S)
    cluster.restart(away)
    cluster.wait_in_sync(topic)
    for partition in range(3):
        wait_until_equal(cluster, topic, partition)


def test_too_few_in_sync_refuse_what_they_could_lose(cluster: KafkaliteCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    leader = cluster.wait_for_leader(topic)
    others = [number for number in cluster.brokers if number != leader]
    for number in others:
        cluster.stop(number)
    wait_until_told_of_isr(cluster.broker(leader).bootstrap, topic, {leader})
    with RawClient(cluster.broker(leader).bootstrap) as client:
        for _ in range(3):
            assert client.produce(topic, make_batch([b"alone"]), acks=-1).error_code == NOT_ENOUGH_REPLICAS
    cluster.restart(others[0])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert producer.send(topic, b"together").result(PATIENCE_S).offset == 0


def test_deleted_records_are_deleted_on_all_replicas(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin
) -> None:
    topic = new_topic(1, segment_bytes=10_000)
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, batch_size=1000) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n + b"x" * 900).result(PATIENCE_S)
    assert admin.delete_records({partition: 50}) == {partition: 50}
    for end in (cluster.stop, cluster.kill):
        former = cluster.wait_for_leader(topic)
        end(former)
        cluster.wait_for_leader(topic, other_than=former)
        found = admin.list_offsets({partition: -2})[partition]
        assert found is not None and found.offset == 50
        cluster.restart(former)
        cluster.wait_in_sync(topic)

    def first_segments() -> set[str]:
        return {
            min(path.name for path in (Path(broker.data_dir) / f"{topic}-0").glob("*.log"))
            for broker in cluster.brokers.values()
        }

    wait_until(lambda: "0" * 20 + ".log" not in first_segments(), "all replicas to remove their first segments")


@pytest.mark.parametrize("is_empty", [False, True], ids=["behind", "empty"])
def test_a_follower_that_ends_before_the_log_start_begins_anew_there(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin, is_empty: bool
) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(20):
            producer.send(topic, b"%d" % n)
        producer.flush()
        away = min(cluster.in_sync(topic) - {cluster.wait_for_leader(topic)})
        cluster.kill(away)
        wait_until(lambda: away not in cluster.in_sync(topic), "the dead broker to leave the ISR")
        for n in range(20, 100):
            producer.send(topic, b"%d" % n)
        producer.flush()
    assert admin.delete_records({partition: 60}) == {partition: 60}
    if is_empty:
        shutil.rmtree(cluster.broker(away).data_dir)
    cluster.restart(away)
    cluster.wait_in_sync(topic)
    # It has all there is, and leads with it.
    for number in set(cluster.brokers) - {away}:
        cluster.stop(number)
        wait_until(lambda number=number: number not in cluster.in_sync(topic), "the stopped broker to leave the ISR")
        cluster.restart(number)
        cluster.wait_in_sync(topic)
    assert values_of(cluster.bootstrap, topic, 40) == [b"%d" % n for n in range(60, 100)]


def test_what_retention_has_deleted_stays_deleted_when_another_leads(tmp_path: Path) -> None:
    overrides = {**SESSION, "log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 200}
    partition = TopicPartition("t", 0)
    with (
        KafkaliteCluster(tmp_path, overrides=overrides) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        admin.create_topic("t", configs={"segment.bytes": "10000", "retention.bytes": "30000"})
        with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, batch_size=1000) as producer:
            for n in range(100):
                producer.send("t", b"%d" % n + b"x" * 900).result(PATIENCE_S)

        def first_offsets() -> list[int]:
            """Return where the first segment of each replica begins."""
            logs = [Path(broker.data_dir) / "t-0" for broker in cluster.brokers.values()]
            return [min(int(path.stem) for path in log.glob("*.log")) for log in logs]

        # About 33 records are kept, and up to a segment more.
        wait_until(lambda: min(first_offsets()) > 50, lambda: f"retention; logs begin at {first_offsets()}")
        deleted = min(first_offsets())
        former = cluster.wait_for_leader("t")
        cluster.kill(former)
        cluster.wait_for_leader("t", other_than=former)
        found = admin.list_offsets({partition: -2})[partition]
        assert found is not None and found.offset >= deleted
        assert values_of(cluster.bootstrap, "t", 100 - found.offset) == [
            b"%d" % n + b"x" * 900 for n in range(found.offset, 100)
        ]


def test_high_watermarks_are_written_down_while_brokers_run(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(7):
            producer.send(topic, b"%d" % n).result(PATIENCE_S)
    for broker in cluster.brokers.values():
        path = broker.data_dir / "replication-offset-checkpoint"

        def told(path: Path = path) -> bool:
            return path.exists() and f"{topic} 0 7" in path.read_text().splitlines()

        wait_until(told, f"the high watermark of {topic} in {path}")


def test_a_topic_made_again_has_nothing_of_the_old_one(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin
) -> None:
    topic = new_topic()
    away = next(number for number in cluster.brokers if number != cluster.leader_of(topic))
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"old").result(PATIENCE_S)
    # One that is away while it is made again comes back with the log of another topic.
    cluster.stop(away)
    admin.delete_topics([topic])
    admin.create_topic(topic, 1, 2)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert producer.send(topic, b"new").result(PATIENCE_S).offset == 0
    cluster.restart(away)
    cluster.wait_in_sync(topic)
    assert values_of(cluster.bootstrap, topic, 1) == [b"new"]
    assert not any(b"old" in log_bytes(cluster, number, topic) for number in cluster.brokers)
    admin.delete_topics([topic])
