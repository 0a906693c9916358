"""A standalone broker's nodes in a registry that is not its own: for consumers that look for brokers in ZooKeeper.

Our brokers keep their nodes in the embedded registry; joining a ZooKeeper ensemble comes in a later version. Until then
this stands in for it: paths and payloads are those that the broker writes itself, filled with what it answers to
clients. The broker's node is ephemeral, in a session of the mirror's own.
"""

from __future__ import annotations

import contextlib

from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.model import BrokerId, ControllerEpoch, LeaderEpoch
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import NodeExists, Store
from spark_kafkalite.registry.znodes import BrokerRegistration, LeaderAndIsr, TopicAssignment
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.patience import PATIENCE_S


class MirroredBroker:
    """One broker's nodes. Its registration goes with ``close()``; topics stay, as those of a dead broker do."""

    def __init__(self, bootstrap: str, zookeeper_connect: str, session_timeout_ms: int = 10_000) -> None:
        self._cluster = ClusterClient(ClientConfig(bootstrap_servers=(bootstrap,)))
        self._store: Store = open_zookeeper(zookeeper_connect, session_timeout_ms=session_timeout_ms)
        self.register()

    def register(self) -> None:
        """Write the broker's node."""
        snapshot = self._cluster.refresh([], Deadline.after_ms(int(PATIENCE_S * 1000)))
        for node in snapshot.nodes.values():
            registration = BrokerRegistration(BrokerId(node.node_id), node.host, node.port)
            with contextlib.suppress(NodeExists):
                created = self._store.create(
                    znodes.broker_path(node.node_id), registration.encode(), ephemeral=True, make_parents=True
                )
                created.result(PATIENCE_S)

    def unregister(self) -> None:
        """Remove the broker's node, as when it dies."""
        for name in self._store.children(znodes.BROKER_IDS).result(PATIENCE_S):
            self._store.delete(znodes.broker_path(int(name))).result(PATIENCE_S)

    def copy_topics(self) -> None:
        """Write the nodes of all topics as they are now; to be called again after a change."""
        for topic in self._cluster.all_topics(Deadline.after_ms(int(PATIENCE_S * 1000))).values():
            if topic.is_internal:
                continue
            # As brokers do: the topic with what it consists of, then the states below it.
            replicas = {info.partition: tuple(map(BrokerId, info.replicas)) for info in topic.partitions}
            self._write(znodes.topic_path(topic.name), TopicAssignment(topic.topic_id, replicas).encode())
            for info in topic.partitions:
                state = LeaderAndIsr(
                    BrokerId(info.leader),
                    LeaderEpoch(info.leader_epoch),
                    tuple(map(BrokerId, info.isr)),
                    ControllerEpoch(1),
                )
                self._write(znodes.state_path(topic.name, info.partition), state.encode())

    def _write(self, path: str, data: bytes) -> None:
        try:
            self._store.create(path, data, make_parents=True).result(PATIENCE_S)
        except NodeExists:
            if self._store.get(path).result(PATIENCE_S)[0] != data:
                self._store.set(path, data).result(PATIENCE_S)

    def close(self) -> None:
        self._store.close()
        self._cluster.close()
