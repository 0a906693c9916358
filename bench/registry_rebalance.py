"""How long does a group without a master take to rebalance, at 3, 10 and 30 consumers?

Consumers of one topic with 60 partitions, in one process, each with its own session; nothing is sent. Timed is from the
moment one more consumer begins to join (or one begins to leave) until every partition has its owner again and no
consumer has more than its share. A crash costs the session's time (`zookeeper.session.timeout.ms`) on top of a leave.
ZooKeeper is the real one, from PySpark's jars; `kafkalite registry` serves the embedded tree. There is no peer: Kafka's
consumers of this kind ended with version 2.0, and do not speak to brokers of today.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measurement import Row
from spark_kafkalite import Admin, ConsumerConnector
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from tests.interop.streams.mirrored_nodes import MirroredBroker

TOPIC = "shared"
PARTITIONS = 60
SIZES = (3, 10, 30)
_TIMEOUT_S = 60.0


def rows(quick: bool) -> Iterator[Row]:
    """Yield one row for each event and size, over both registries."""
    rounds = 3 if quick else 10
    for name in ("ZooKeeper", "kafkalite registry"):
        for size in SIZES:
            joins, leaves = _measure(name, size, rounds)
            note = f"worst of {rounds}: {max(joins):.2f} s to join, {max(leaves):.2f} s to leave"
            yield Row(f"{name}: one joins, {size} after it", "s", joins, (), "-", False, note=note)
            yield Row(f"{name}: one leaves, {size} before it", "s", leaves, (), "-", False)


def _measure(name: str, size: int, rounds: int) -> tuple[list[float], list[float]]:
    joins, leaves = [], []
    with contextlib.ExitStack() as closing:
        directory = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        broker = closing.enter_context(BrokerProcess(directory / "broker"))
        kind: type[ZooKeeperServer | RegistryProcess] = ZooKeeperServer if name == "ZooKeeper" else RegistryProcess
        registry = kind(directory / "registry")
        closing.enter_context(registry)
        connect = registry.connect
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic(TOPIC, PARTITIONS, 1)
        mirrored = MirroredBroker(broker.bootstrap, connect, 60_000)
        closing.callback(mirrored.close)
        mirrored.copy_topics()
        members = [closing.enter_context(_join(connect)) for _ in range(size - 1)]
        _settle(members)
        for _ in range(rounds):
            began_s = time.perf_counter()
            members.append(closing.enter_context(_join(connect)))
            _settle(members)
            joins.append(time.perf_counter() - began_s)
            leaving = members.pop(0)
            began_s = time.perf_counter()
            leaving.shutdown()
            _settle(members)
            leaves.append(time.perf_counter() - began_s)
    return joins, leaves


def _join(connect: str) -> ConsumerConnector:
    connector = ConsumerConnector(
        {
            "group.id": "bench",
            "zookeeper.connect": connect,
            "zookeeper.session.timeout.ms": 30_000,
            "auto.offset.reset": "smallest",
            "fetch.wait.max.ms": 5_000,
            "rebalance.max.retries": 30,
        }
    )
    connector.create_message_streams({TOPIC: 1})
    return connector


def _settle(members: list[ConsumerConnector]) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    shares = sorted(len(range(index, PARTITIONS, len(members))) for index in range(len(members)))
    while True:
        owned = [member.owned_partitions for member in members]
        if sorted(map(len, owned)) == shares and len({each for one in owned for each in one}) == PARTITIONS:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{len(members)} consumers did not settle: {sorted(map(len, owned))}")
        time.sleep(0.002)
