"""ConsumerConnector over a broker's own registry, which it serves on registry.listener: no ZooKeeper, no helper."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from spark_kafkalite import Admin, ConsumerConnector, Producer, TopicPartition
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.streams.reading import Reader, values
from tests.patience import PATIENCE_S, wait_until


def all_seen(readers: list[Reader]) -> set[int]:
    return {value for reader in readers for _, value in reader.seen}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("with-registry")
    with BrokerProcess(directory, overrides={"offsets.topic.num.partitions": 4}, registry_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def registry(broker: BrokerProcess) -> str:
    return broker.registry_connect


def settings(registry: str, group: str, **more: object) -> dict[str, object]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "group.id": group,
        "zookeeper.connect": registry,
        "auto.offset.reset": "smallest",
        "consumer.timeout.ms": int(PATIENCE_S * 1000),
        "rebalance.backoff.ms": 200,
        **named,
    }


def filled_topic(broker: BrokerProcess, topic: str, partitions: int, count: int) -> str:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions, 1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)
    return topic


def test_two_consumers_share_a_topic_through_the_broker_s_registry(broker: BrokerProcess, registry: str) -> None:
    topic = filled_topic(broker, "shared", 4, 400)
    with ConsumerConnector(settings(registry, "g1")) as first, ConsumerConnector(settings(registry, "g1")) as second:
        readers = [Reader(first.create_message_streams({topic: 1})[topic][0])]
        readers += [Reader(second.create_message_streams({topic: 1})[topic][0])]
        wait_until(lambda: all_seen(readers) == set(range(400)), "400 records read")
        wait_until(lambda: [len(each.owned_partitions) for each in (first, second)] == [2, 2], "shares of two")
        first.shutdown()
        wait_until(lambda: len(second.owned_partitions) == 4, "all partitions owned")


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
@pytest.mark.parametrize("dual", [False, True])
def test_offsets_go_to_the_stores_that_were_asked_for(
    broker: BrokerProcess, registry: str, storage: str, dual: bool
) -> None:
    topic = filled_topic(broker, f"stored-{storage}-{dual}", 1, 20)
    group = f"g-{topic}"
    store_settings = settings(registry, group, offsets_storage=storage, dual_commit_enabled=dual)
    with ConsumerConnector(store_settings) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        assert values(stream, 12) == list(range(12))
        consumer.commit_offsets()
        consumer.rewind({TopicPartition(topic, 0): 7})
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            at_coordinator = {each: found.offset for each, found in admin.group_offsets(group).items()}
        store = open_zookeeper(registry)
        path = consumer_nodes.offset_path(group, topic, 0)
        in_registry = store.exists(path).result(PATIENCE_S) and store.get(path).result(PATIENCE_S)[0]
        store.close()
    assert at_coordinator == ({TopicPartition(topic, 0): 7} if dual or storage == "kafka" else {})
    assert in_registry == (b"7" if dual or storage == "zookeeper" else None)
    with ConsumerConnector(store_settings) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        assert values(stream, 13) == list(range(7, 20))


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_while_dual_a_start_takes_the_larger_offset(broker: BrokerProcess, registry: str, storage: str) -> None:
    topic = filled_topic(broker, f"larger-{storage}", 2, 40)
    group = f"g-{topic}"
    store = open_zookeeper(registry)
    for partition, offset in ((0, b"5"), (1, b"12")):
        path = consumer_nodes.offset_path(group, topic, partition)
        store.create(path, offset, make_parents=True).result(PATIENCE_S)
    store.close()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 9, TopicPartition(topic, 1): 3})
    with ConsumerConnector(
        settings(registry, group, offsets_storage=storage, dual_commit_enabled=True, auto_commit_enable=False)
    ) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        first: dict[int, int] = {}
        for record in islice(stream, 11 + 8):
            first.setdefault(record.partition, record.offset)
    assert first == {0: 9, 1: 12}


def test_consumers_outlive_their_broker_and_registry(tmp_path: Path) -> None:
    """The registry lives in the broker: kill -9 ends all sessions, and the consumers join again on its return."""
    with BrokerProcess(tmp_path / "broker", registry_port=0) as broker:
        topic = filled_topic(broker, "outlived", 4, 200)
        quick = settings(broker.registry_connect, "g", consumer_timeout_ms=-1, zookeeper_session_timeout_ms=2000)
        with ConsumerConnector(quick) as first, ConsumerConnector(quick) as second:
            readers = [Reader(each.create_message_streams({topic: 1})[topic][0]) for each in (first, second)]
            wait_until(lambda: all_seen(readers) == set(range(200)), "200 records read")
            broker.kill()
            broker.start()
            with Producer(bootstrap_servers=broker.bootstrap) as producer:
                for number in range(200, 400):
                    producer.send(topic, b"%d" % number, partition=number % 4)
            wait_until(
                lambda: {value for reader in readers for _, value in reader.seen} == set(range(400)), "400 records read"
            )
            wait_until(
                lambda: (len(first.owned_partitions), len(second.owned_partitions)) == (2, 2), "the partitions shared"
            )


def test_a_registry_that_asks_for_proof_gets_it(tmp_path: Path) -> None:
    overrides = {"registry.listener.digest": "kafka:secret"}
    with BrokerProcess(tmp_path / "broker", overrides=overrides, registry_port=0) as broker:
        topic = filled_topic(broker, "guarded", 1, 5)
        guarded = settings(broker.registry_connect, "g", zookeeper_connection_timeout_ms=2000, rebalance_max_retries=0)
        with pytest.raises(RegistryError):
            ConsumerConnector(guarded).create_message_streams({topic: 1})
        with ConsumerConnector({**guarded, "zookeeper.digest": "kafka:secret"}) as consumer:
            (stream,) = consumer.create_message_streams({topic: 1})[topic]
            assert values(stream, 5) == list(range(5))
