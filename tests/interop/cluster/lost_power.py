"""A power loss of all hosts of a cluster, as its disks show it: ends of logs are gone, and nobody can prove a log."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry.znodes import BROKER_IDS
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.patience import PATIENCE_S, wait_until

_RUN_FILE: Final = "kafkalite-run"
# What says how far logs had come; it reaches the disk with them, or after them.
_CHECKPOINTS: Final = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")


def create(cluster: KafkaliteCluster, topic: str, *replicas: list[int]) -> None:
    """Make a topic with these replicas of its partitions."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, assignments=dict(enumerate(replicas)))])
    cluster.wait_in_sync(topic, timeout_s=PATIENCE_S)
    logs = [log_file(cluster, broker, topic, number) for number, each in enumerate(replicas) for broker in each]
    # In sync by the registry is a replica, too, that has not heard of the topic yet.
    wait_until(lambda: all(path.exists() for path in logs), f"all logs of {topic} to be made")


def produce(cluster: KafkaliteCluster, topic: str, first: int, end: int, partition: int = 0) -> None:
    """Send records whose values are their numbers, and have them acknowledged by all."""
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for each in [producer.send(topic, b"%d" % number, partition=partition) for number in range(first, end)]:
            each.result(PATIENCE_S)


def log_file(cluster: KafkaliteCluster, broker: int, topic: str, partition: int = 0) -> Path:
    return cluster.broker(broker).data_dir / f"{topic}-{partition}" / f"{0:020d}.log"


def whole_batches_bytes(path: Path) -> int:
    """Return the size of what has been appended to a log; zeros behind it are reserved room."""
    data = path.read_bytes()
    position = 0
    while position + 12 <= len(data) and (length := int.from_bytes(data[position + 8 : position + 12], "big")):
        position += 12 + length
    return position


def lose_all_power(cluster: KafkaliteCluster, kept_bytes: Mapping[Path, int]) -> None:
    """Kill all brokers; logs lose what is behind ``kept_bytes``, and the next starts are after their machines'.

    Returns when the registry has ended all their sessions. A broker that came back before would find others registered
    that have gone, too: one of them would be elected, and the broker itself would leave the ISR.
    """
    for number in cluster.brokers:
        cluster.kill(number)
    with closing(open_zookeeper(cluster.registry.connect)) as store:
        wait_until(lambda: store.children(BROKER_IDS).result(PATIENCE_S) == [], "all brokers' sessions to end")
    for path, size in kept_bytes.items():
        with path.open("r+b") as file:
            file.truncate(size)
        for index in path.parent.glob("*index"):
            index.unlink()
        for name in _CHECKPOINTS:
            (path.parent.parent / name).unlink(missing_ok=True)
    for broker in cluster.brokers.values():
        (broker.data_dir / _RUN_FILE).unlink()


def restart_all(cluster: KafkaliteCluster) -> None:
    for number in cluster.brokers:
        cluster.restart(number)


def wait_until_leaderless(cluster: KafkaliteCluster, topic: str, partition: int = 0) -> None:
    wait_until(lambda: cluster.leader_of(topic, partition) is None, f"{topic}-{partition} to have no leader")
