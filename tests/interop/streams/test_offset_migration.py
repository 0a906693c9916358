"""The document's migration of offsets from ZooKeeper to Kafka and back, by rolling bounces under load.

Real ZooKeeper, our broker (its nodes are kept there by mirrored_nodes), three consumers, a producer that never stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite import Admin, ConsumerConnector, Producer, TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.store import Store
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.streams.reading import Reader
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.zookeeper]

PARTITIONS = 6


class Load(threading.Thread):
    """Sends numbered records until stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(bootstrap_servers=bootstrap)
        self._topic = topic
        self._stopping = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._stopping.wait(0.005):
            for _ in range(10):
                self._producer.send(self._topic, b"%d" % self.sent, partition=self.sent % PARTITIONS)
                self.sent += 1

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._producer.close()


class Offsets:
    """What both stores hold; raises when an offset is seen to have gone back."""

    def __init__(self, admin: Admin, store: Store, group: str, topic: str) -> None:
        self._admin = admin
        self._store = store
        self._group = group
        self._topic = topic
        self._last: dict[str, dict[int, int]] = {"kafka": {}, "zookeeper": {}}

    def look(self) -> dict[str, dict[int, int]]:
        group = self._admin.group_offsets(self._group)
        seen = {
            "kafka": {each.partition: found.offset for each, found in group.items()},
            "zookeeper": {},
        }
        for partition in range(PARTITIONS):
            path = consumer_nodes.offset_path(self._group, self._topic, partition)
            if self._store.exists(path).result(PATIENCE_S) is not None:
                seen["zookeeper"][partition] = int(self._store.get(path).result(PATIENCE_S)[0])
        for name, offsets in seen.items():
            for partition, last in self._last[name].items():
                assert offsets[partition] >= last, f"{name}: partition {partition} went back from {last}"
        self._last = seen
        return seen


@pytest.fixture
def store(ensemble: str) -> Iterator[Store]:
    opened = open_zookeeper(ensemble)
    yield opened
    opened.close()


def test_offsets_move_to_kafka_and_back_under_load_without_loss(
    make_topic: Callable[..., str], our_broker: BrokerProcess, ensemble: str, store: Store
) -> None:
    topic = make_topic(PARTITIONS, "migrated")
    group = f"group-{topic}"
    readers: list[Reader] = []

    def start(storage: str, dual: bool) -> ConsumerConnector:
        consumer = ConsumerConnector(
            {
                "group.id": group,
                "zookeeper.connect": ensemble,
                "auto.offset.reset": "smallest",
                "auto.commit.interval.ms": 50,
                "rebalance.backoff.ms": 200,
                "offsets.storage": storage,
                "dual.commit.enabled": dual,
            }
        )
        readers.append(Reader(consumer.create_message_streams({topic: 1})[topic][0]))
        return consumer

    load = Load(our_broker.bootstrap, topic)
    load.start()
    with Admin(bootstrap_servers=our_broker.bootstrap) as admin:
        offsets = Offsets(admin, store, group, topic)

        def moves(name: str) -> bool:
            """Whether commits of every partition arrive in a store, which health shows in."""
            before = offsets.look()[name]

            def has_moved() -> bool:
                now = offsets.look()[name]
                return len(now) == PARTITIONS and all(now[each] > before.get(each, -1) for each in now)

            return wait_until(has_moved, f"commits of all partitions in {name}", poll_s=0.02)

        consumers = [start("zookeeper", False) for _ in range(3)]
        assert moves("zookeeper")
        assert offsets.look()["kafka"] == {}
        for storage, dual in (("kafka", True), ("kafka", False), ("zookeeper", True), ("zookeeper", False)):
            for index, consumer in enumerate(consumers):
                consumer.shutdown()
                offsets.look()
                consumers[index] = start(storage, dual)
                offsets.look()
            wait_until(
                lambda: sum(len(each.owned_partitions) for each in consumers) == PARTITIONS, "all partitions owned"
            )
            assert moves(storage)
            other = "zookeeper" if storage == "kafka" else "kafka"
            if dual:
                assert moves(other)
            else:
                still = offsets.look()[other]
                assert moves(storage)
                assert offsets.look()[other] == still
        load.stop()
        sent = load.sent
        wait_until(lambda: len({value for reader in readers for _, value in reader.seen}) == sent, "all records read")
        for consumer in consumers:
            consumer.shutdown()
        final = offsets.look()["zookeeper"]
    assert [reader.error for reader in readers] == [None] * len(readers)
    read = [value for reader in readers for _, value in reader.seen]
    assert set(read) == set(range(sent))
    assert final == {each: len(range(each, sent, PARTITIONS)) for each in range(PARTITIONS)}
    for reader in readers:
        for partition in range(PARTITIONS):
            numbers = [value for each, value in reader.seen if each == TopicPartition(topic, partition)]
            assert numbers == sorted(numbers)
    print(f"{sent} records, {len(read) - sent} delivered twice")
