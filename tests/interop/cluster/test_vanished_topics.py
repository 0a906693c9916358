"""Topics whose nodes vanish: by hand, which costs no log and no record, and by a deletion, which costs all of them."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Create, Delete, NoNode, Store
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.cluster.conftest import SESSION
from tests.interop.cluster.test_deleted_topics import produce
from tests.interop.cluster.test_replication import values_of, wait_until_equal
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import run_command

pytestmark = pytest.mark.sampled("vanishing")

Registry = tuple[KafkaliteCluster, Store]


@pytest.fixture(params=["kafkalite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def vanishing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    overrides: dict[str, object] = {**SESSION, "log.segment.delete.delay.ms": 0}
    if request.param == "zookeeper":
        server: ZooKeeperServer = request.getfixturevalue("zookeeper")
        overrides["zookeeper.connect"] = f"{server.connect}/{uuid.uuid4().hex}"
    with KafkaliteCluster(tmp_path / "cluster", overrides=overrides) as cluster:
        store = open_zookeeper(str(overrides.get("zookeeper.connect", cluster.registry.connect)))
        try:
            yield cluster, store
        finally:
            store.close()


def directories(cluster: KafkaliteCluster, number: int, topic: str) -> list[str]:
    """How the names of the directories end that a broker has of partition 0."""
    return sorted(path.name.rpartition("-")[2] for path in cluster.broker(number).data_dir.glob(f"{topic}-0*"))


def subtree(store: Store, path: str) -> list[tuple[str, bytes]]:
    """The nodes at and below a path with their data, parents first."""
    found = [(path, store.get(path).result(PATIENCE_S)[0])]
    for name in store.children(path).result(PATIENCE_S):
        found += subtree(store, f"{path}/{name}")
    return found


def state_of(store: Store, topic: str) -> znodes.LeaderAndIsr | None:
    """What the registry has of partition 0."""
    try:
        data = store.get(znodes.state_path(topic, 0)).result(PATIENCE_S)[0]
    except NoNode:
        return None
    return znodes.LeaderAndIsr.decode(topic, 0, data)


def wait_until_in_sync(store: Store, topic: str) -> znodes.LeaderAndIsr:
    found: list[znodes.LeaderAndIsr] = []

    def is_in_sync() -> bool:
        state = state_of(store, topic)
        found.extend([state] if state is not None else [])
        return state is not None and len(state.isr) == 3

    wait_until(is_in_sync, f"all replicas of {topic} to be in sync")
    return found[-1]


def wait_for_another_leader(store: Store, topic: str, than: int) -> None:
    def is_led() -> bool:
        state = state_of(store, topic)
        return state is not None and state.leader not in (znodes.NO_LEADER, than)

    wait_until(is_led, "another replica to lead")


def wait_until_all_have(cluster: KafkaliteCluster, topic: str, ends: list[str]) -> None:
    def all_have() -> bool:
        return all(directories(cluster, number, topic) == ends for number in cluster.brokers)

    wait_until(all_have, f"all brokers to have {ends} of {topic}")


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_topic_that_is_removed_by_hand_keeps_its_logs_and_has_all_records_when_it_is_back(
    vanishing: Registry, restarted: bool
) -> None:
    cluster, store = vanishing
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=3)
        wait_until_in_sync(store, "t")
        produce(cluster, "t", b"value", 100)
        nodes = subtree(store, znodes.topic_path("t"))
        # At once: the controller would make the states again.
        store.multi([Delete(path) for path, _ in reversed(nodes)]).result(PATIENCE_S)
        wait_until_all_have(cluster, "t", ["stray"])
        assert "t" not in admin.list_topics()
    if restarted:
        for number in cluster.brokers:
            cluster.restart(number)
        wait_until_all_have(cluster, "t", ["stray"])
    store.multi([Create(path, data) for path, data in nodes]).result(PATIENCE_S)
    wait_until_all_have(cluster, "t", ["0"])
    wait_until_in_sync(store, "t")
    assert values_of(cluster.bootstrap, "t", 100) == [b"value"] * 100
    produce(cluster, "t", b"later", 1)
    assert values_of(cluster.bootstrap, "t", 101)[100:] == [b"later"]


def test_a_topic_that_is_deleted_loses_its_logs_also_those_of_a_broker_that_was_down(vanishing: Registry) -> None:
    cluster, store = vanishing
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=3)
        wait_until_in_sync(store, "t")
        produce(cluster, "t", b"value", 10)
        away = max(cluster.brokers)
        cluster.kill(away)
    living = [cluster.broker(number).bootstrap for number in cluster.brokers if number != away]
    with Admin(bootstrap_servers=living) as admin:
        admin.delete_topics(["t"])
    assert directories(cluster, away, "t") == ["0"]
    cluster.restart(away)
    wait_until_all_have(cluster, "t", [])


class Load:
    """A producer that writes numbers to partition 0 of a topic, acknowledged by all in-sync replicas, until the end."""

    def __init__(self, cluster: KafkaliteCluster, topic: str) -> None:
        self._bootstrap = cluster.bootstrap
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.acknowledged: list[bytes] = []
        self.errors: list[BaseException] = []

    def _work(self) -> None:
        try:
            with Producer(bootstrap_servers=self._bootstrap) as producer:
                sent = 0
                while not self._ended.wait(0.05):
                    values = [b"%d" % number for number in range(sent, sent + 20)]
                    deliveries = [producer.send(self._topic, value, partition=0) for value in values]
                    sent += len(values)
                    for value, delivery in zip(values, deliveries, strict=True):
                        delivery.result(PATIENCE_S)
                        self.acknowledged.append(value)
        except BaseException as error:
            self.errors.append(error)

    def wait_for_more(self) -> None:
        before = len(self.acknowledged)
        wait_until(
            lambda: len(self.acknowledged) > before + 200 or bool(self.errors), "more records to be acknowledged"
        )
        assert not self.errors

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def assert_all_replicas_have(cluster: KafkaliteCluster, store: Store, topic: str, values: list[bytes]) -> None:
    wait_until_in_sync(store, topic)
    wait_until_equal(cluster, topic)
    assert values_of(cluster.bootstrap, topic, len(values)) == values


def test_a_state_node_that_is_deleted_under_load_costs_no_record_and_forks_none(vanishing: Registry) -> None:
    cluster, store = vanishing
    path = znodes.state_path("t", 0)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=3)
    epochs = [wait_until_in_sync(store, "t").leader_epoch]
    with Load(cluster, "t") as load:
        for _ in range(3):
            load.wait_for_more()
            store.delete(path).result(PATIENCE_S)
            load.wait_for_more()
            epochs.append(wait_until_in_sync(store, "t").leader_epoch)
    assert not load.errors
    assert_all_replicas_have(cluster, store, "t", load.acknowledged)
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("gone", ["state", "partitions", "all but the topic's node"])
def test_states_that_vanish_while_no_broker_runs_are_made_by_what_the_logs_have(vanishing: Registry, gone: str) -> None:
    cluster, store = vanishing
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=3)
        first = wait_until_in_sync(store, "t").leader
        produce(cluster, "t", b"value", 100)
    # What another leader writes, under a higher epoch than that of a new partition, the first one does not have.
    cluster.kill(first)
    wait_for_another_leader(store, "t", first)
    produce(cluster, "t", b"second", 50)
    for number in cluster.brokers:
        if number != first:
            cluster.kill(number)
    top = {"state": znodes.state_path("t", 0), "partitions": znodes.partitions_path("t")}.get(
        gone, znodes.topic_path("t")
    )
    nodes = subtree(store, top)
    again = [] if top != znodes.topic_path("t") else [Create(*nodes[0])]
    store.multi([*(Delete(path) for path, _ in reversed(nodes)), *again]).result(PATIENCE_S)
    for number in cluster.brokers:
        cluster.restart(number)
    assert_all_replicas_have(cluster, store, "t", [b"value"] * 100 + [b"second"] * 50)
    produce(cluster, "t", b"later", 1)
    assert values_of(cluster.bootstrap, "t", 151)[150:] == [b"later"]


def test_where_a_replica_is_away_the_command_that_the_status_names_has_a_replica_lead(vanishing: Registry) -> None:
    cluster, store = vanishing
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=3)
    wait_until_in_sync(store, "t")
    produce(cluster, "t", b"value", 100)
    away = max(cluster.brokers)
    cluster.kill(away)
    store.delete(znodes.state_path("t", 0)).result(PATIENCE_S)
    at = ("--bootstrap-server", cluster.broker(min(cluster.brokers)).bootstrap)
    told = f"start broker {away}; where it is lost for good: kafkalite cluster elect --unclean t:0"
    wait_until(
        lambda: f"what to do: {told}" in run_command("cluster", "status", *at).stdout, "the status to say what to do"
    )
    done = run_command(*told.rpartition("kafkalite ")[2].split(), "--yes", *at)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for_another_leader(store, "t", away)
    cluster.restart(away)
    assert_all_replicas_have(cluster, store, "t", [b"value"] * 100)


def test_a_topic_whose_node_is_written_without_its_id_while_no_broker_runs_gets_back_that_of_its_logs(
    vanishing: Registry,
) -> None:
    cluster, store = vanishing
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=3)
    wait_until_in_sync(store, "t")
    produce(cluster, "t", b"value", 100)
    for number in cluster.brokers:
        cluster.kill(number)
    path = znodes.topic_path("t")
    before = znodes.TopicAssignment.decode("t", store.get(path).result(PATIENCE_S)[0])
    partitions = {str(number): list(replicas) for number, replicas in before.partitions.items()}
    store.set(path, json.dumps({"version": 1, "partitions": partitions}).encode()).result(PATIENCE_S)
    for number in cluster.brokers:
        cluster.restart(number)

    def has_it_back() -> bool:
        assignment = znodes.TopicAssignment.decode("t", store.get(path).result(PATIENCE_S)[0])
        return assignment.topic_id == before.topic_id

    wait_until(has_it_back, "the id to be put back")
    wait_until_all_have(cluster, "t", ["0"])
    assert_all_replicas_have(cluster, store, "t", [b"value"] * 100)
    produce(cluster, "t", b"later", 1)
    assert values_of(cluster.bootstrap, "t", 101)[100:] == [b"later"]
