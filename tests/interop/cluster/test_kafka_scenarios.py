"""The replication and truncation scenarios of Apache Kafka's system tests, with Kafka's own verifiable producer and
consumer: three partitions on three brokers, of which two must be in sync.

For the soak: ``test_failover`` moves leaders under Kafka's verifiable producer, and ``test_truncation`` cuts logs.
Source: tests/kafkatest/tests/core/replication_test.py and tests/client/truncation_test.py of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from spark_kafkalite import Consumer, TopicPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.conftest import fetch_or_skip
from tests.interop.cluster.verifiable import (
    ConsoleConsumer,
    Told,
    VerifiableConsumer,
    VerifiableProducer,
    assert_delivered,
    assert_once_in_order,
    by_partition,
)
from tests.lab import apache_kafka, jars
from tests.lab.apache_kafka import kafka_tool
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

PARTITIONS = 3
RECORDS = 5_000
PER_SECOND = 1_000
BOUNCES = 5

IDEMPOTENT = {"enable.idempotence": "true"}
# One batch at a time: what is tried again does not overtake.
PLAIN = {"enable.idempotence": "false", "max.in.flight.requests.per.connection": "1", "compression.type": "gzip"}

Find = Callable[[KafkaliteCluster, str], int]
Act = Callable[[KafkaliteCluster, int], object]


@pytest.fixture(autouse=True)
def _needs_kafka() -> None:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)


def leader(cluster: KafkaliteCluster, topic: str) -> int:
    return cluster.wait_for_leader(topic)


def controller(cluster: KafkaliteCluster, _: str) -> int:
    found: list[int] = []

    def is_live() -> bool:
        number = cluster.controller()
        found.append(-1 if number is None else number)
        return number is not None and cluster.broker(number).running

    wait_until(is_live, "a controller")
    return found[-1]


def clean_bounce(cluster: KafkaliteCluster, number: int) -> None:
    cluster.restart(number)


def hard_bounce(cluster: KafkaliteCluster, number: int) -> None:
    """Kill a broker and start it again once its registration is gone, which is when its session has ended."""
    cluster.kill(number)
    store = open_zookeeper(cluster.registry.connect)
    try:
        path = znodes.broker_path(number)
        wait_until(lambda: store.exists(path).result(PATIENCE_S) is None, f"{path} to be gone")
    finally:
        store.close()
    cluster.restart(number)


def several(bounce: Act, find: Find) -> Callable[[KafkaliteCluster, str], None]:
    """Return what bounces whoever has the part, and then whoever has it after that, without a pause."""

    def chase(cluster: KafkaliteCluster, topic: str) -> None:
        for _ in range(BOUNCES):
            bounce(cluster, find(cluster, topic))

    return chase


def once(act: Act, find: Find) -> Callable[[KafkaliteCluster, str], None]:
    """Return what does it to whoever has the part, and leaves it at that."""

    def do(cluster: KafkaliteCluster, topic: str) -> None:
        act(cluster, find(cluster, topic))

    return do


FAILURES = {
    f"{name} of the {part.__name__}": make(act, part)
    for part in (leader, controller)
    for name, make, act in (
        ("clean shutdown", once, KafkaliteCluster.stop),
        ("hard kill", once, KafkaliteCluster.kill),
        ("clean bounces", several, clean_bounce),
        ("hard bounces", several, hard_bounce),
    )
}


@contextmanager
def producing_and_consuming(
    cluster: KafkaliteCluster, topic: str, directory: Path, settings: dict[str, str]
) -> Iterator[tuple[VerifiableProducer, VerifiableConsumer]]:
    """Run both around a failure; then stop the producer, and the consumer when it has been shown everything."""
    producer = VerifiableProducer(cluster.bootstrap, topic, directory, per_second=PER_SECOND, settings=settings)
    consumer = VerifiableConsumer(cluster.bootstrap, topic, directory)
    try:
        wait_until(lambda: bool(producer.acknowledged and consumer.records), lambda: producer.problem or "at work")
        yield producer, consumer
        wait_until(lambda: len(producer.acknowledged) >= RECORDS, lambda: f"{len(producer.acknowledged)} records")
        producer.stop()
        sent = {each.value for each in producer.acknowledged}
        wait_until(
            lambda: sent <= {each.value for each in list(consumer.records)},
            lambda: f"{len(sent)} records read, {len(consumer.records)} are; {consumer.problem}",
        )
    finally:
        producer.stop()
        consumer.stop()


def assert_nothing_lost(producer: VerifiableProducer, consumer: VerifiableConsumer, *, once_each: bool) -> None:
    assert producer.refused == []
    assert_delivered(producer.acknowledged, consumer.records)
    if once_each:
        assert_once_in_order(consumer.records)
    assert len(by_partition(consumer.records)) == PARTITIONS


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ([(0, 0, 0), (0, 1, 2)], "1 of 3 acknowledged records are lost"),
        ([(0, 0, 0), (1, 1, 1), (0, 1, 2)], "1 of 3 records are not where they were acknowledged"),
        ([(0, 0, 0), (1, 0, 1), (0, 1, 2), (0, 0, 0)], "partition 0 was read again"),
        ([(0, 0, 0), (1, 0, 1), (0, 1, 2), (0, 2, 2)], "partition 0: twice, or out of order"),
        ([(0, 0, 0), (1, 0, 1), (0, 1, 2), (0, 2, 1)], "partition 0: twice, or out of order"),
    ],
)
def test_what_is_wrong_is_noticed(shown: list[tuple[int, int, int]], said: str) -> None:
    acknowledged = [Told(0, 0, 0), Told(1, 0, 1), Told(0, 1, 2)]
    with pytest.raises(AssertionError, match=said):
        assert_delivered(acknowledged, [Told(*each) for each in shown])
        assert_once_in_order([Told(*each) for each in shown])
    assert_delivered(acknowledged, acknowledged)
    assert_once_in_order(acknowledged)


@pytest.mark.soak
def test_one_clean_and_one_hard_bounce_of_the_leader(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(PARTITIONS)
    with producing_and_consuming(cluster, topic, tmp_path, IDEMPOTENT) as (producer, consumer):
        for bounce in (clean_bounce, hard_bounce):
            bounce(cluster, leader(cluster, topic))
    assert_nothing_lost(producer, consumer, once_each=True)


@pytest.mark.soak
@pytest.mark.parametrize("settings", [pytest.param(IDEMPOTENT, id="idempotent"), pytest.param(PLAIN, id="plain-gzip")])
@pytest.mark.parametrize("fail", [pytest.param(fail, id=name) for name, fail in FAILURES.items()])
def test_replication(
    cluster: KafkaliteCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    fail: Callable[[KafkaliteCluster, str], None],
    settings: dict[str, str],
) -> None:
    topic = new_topic(PARTITIONS)
    with producing_and_consuming(cluster, topic, tmp_path, settings) as (producer, consumer):
        fail(cluster, topic)
    print(f"{len(producer.acknowledged)} acknowledged, {len(consumer.records)} shown")
    assert_nothing_lost(producer, consumer, once_each=settings is IDEMPOTENT)


class _Librdkafka:
    """librdkafka's consumer, which goes where auto.offset.reset says when its log is cut."""

    def __init__(self, cluster: KafkaliteCluster, topic: str) -> None:
        self.records: list[Told] = []
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"{topic}-librdkafka",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self.consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def has(self, value: int) -> bool:
        """Read on for a moment; whether it has been shown a value."""
        for message in self.consumer.consume(1_000, 0.05):
            if message.error() is None:
                self.records.append(Told(0, message.offset(), int(message.value())))
        return any(each.value == value for each in self.records)


def final_log(cluster: KafkaliteCluster, topic: str) -> dict[int, int]:
    """Return the values of partition 0 by offset."""
    partition = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([partition])[partition]
        found: dict[int, int] = {}
        while len(found) < end:
            records = consumer.poll(int(PATIENCE_S * 1000))
            assert records, f"only {len(found)} of {end} records"
            found.update({record.offset: int(record.value or b"-1") for record in records})
    return found


def elect_by_tool(cluster: KafkaliteCluster, topic: str) -> None:
    wait_until(lambda: cluster.leader_of(topic) is None, f"{topic} to lose its leader")
    done = kafka_tool(
        "org.apache.kafka.tools.LeaderElectionCommand", "--bootstrap-server", cluster.bootstrap,
        "--election-type", "unclean", "--topic", topic, "--partition", "0",
    )  # fmt: skip
    assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("by", ["the topic's setting", "Kafka's tool"])
def test_consumers_go_on_after_an_unclean_election(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], tmp_path: Path, by: str
) -> None:
    elects_by_itself = by == "the topic's setting"
    topic = new_topic(1, min_insync_replicas=1, unclean_leader_election_enable=str(elects_by_itself).lower())
    producer = VerifiableProducer(cluster.bootstrap, topic, tmp_path, per_second=200, settings=IDEMPOTENT)
    consumer, strict = (ConsoleConsumer(cluster.bootstrap, topic, tmp_path, reset) for reset in ("earliest", "none"))
    librdkafka = _Librdkafka(cluster, topic)

    def shown(more: int) -> list[list[Told]]:
        """Wait until so many more are acknowledged, and who goes on has been shown them; return what that is."""
        wanted = len(producer.acknowledged) + more
        wait_until(lambda: len(producer.acknowledged) >= wanted, lambda: f"{wanted} records; {producer.problem}")
        value = producer.acknowledged[wanted - 1].value
        wait_until(lambda: librdkafka.has(value), lambda: f"{value} shown to librdkafka")
        wait_until(lambda: any(each.value == value for each in consumer.records), consumer.tail)
        return [consumer.records, librdkafka.records]

    try:
        shown(200)
        last = leader(cluster, topic)
        others = [number for number in cluster.brokers if number != last]
        shared = len(producer.acknowledged)
        for number in others:
            cluster.stop(number)
        shown(300)
        # Whoever has no policy has read on, too.
        wait_until(lambda: any(each.value == shared + 200 for each in strict.records), strict.tail)
        cluster.kill(last)
        for number in others:
            cluster.restart(number)
        if not elects_by_itself:
            elect_by_tool(cluster, topic)
        cluster.wait_for_leader(topic, other_than=last)
        shown(500)
        cluster.restart(last)
        cluster.wait_in_sync(topic)
        shown(200)
        producer.stop()
        seen = dict(zip(("Java's", "librdkafka's"), shown(0), strict=True))
        wait_until(lambda: not strict.running, strict.tail)
    finally:
        librdkafka.consumer.close()
        strict.kill()
        consumer.kill()
        producer.stop()
    final = final_log(cluster, topic)
    values = set(final.values())
    lost = [each for each in producer.acknowledged if each.value not in values]
    print(f"{len(lost)} of {len(producer.acknowledged)} are lost with the only leader that had them")
    # What was there before the others stopped is kept, and so is what the next leader acknowledged.
    told = producer.acknowledged
    alone = next(at for at in range(1, len(told)) if told[at].offset <= told[at - 1].offset)
    assert lost and set(lost) <= set(told[shared:alone]), lost[:5]
    assert producer.refused == []
    # Java's consumer went back once, to where the logs part; each has the final log in the end.
    offsets = [each.offset for each in seen["Java's"]]
    back = [at for at in range(1, len(offsets)) if offsets[at] != offsets[at - 1] + 1]
    assert len(back) == 1 and offsets[back[0]] == min(each.offset for each in lost), [offsets[at] for at in back]
    for name, records in seen.items():
        assert {each.offset: each.value for each in records} == final, f"{name} consumer has another log"
    assert "LogTruncationException" in strict.stderr_path.read_text(encoding="utf-8"), strict.tail()
