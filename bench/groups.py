"""How long does a consumer group take to come to rest, with 3, 10 and 30 members, and when one of ten crashes?

The members are confluent-kafka consumers, the same on both sides: one process polls them all, so that the broker has a
core of its own. They send a heartbeat every 100 ms, and there is no delay for new groups: what is left is the
protocol's own work. A rebalance is measured from the call that causes it until every partition has one owner again and
every member has some. The crash is a SIGKILL of a member in a process of its own; until its session of six seconds
(Kafka's least by default) ends, nobody can know.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka

from bench.measurement import Row, thread_seconds
from spark_kafkalite import Admin
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab.apache_kafka import ApacheKafka

SIZES = (3, 10, 30)
PARTITIONS = 60
SESSION_MS = 6000
TOPIC = "shared"
_PEER = "Apache Kafka 4.3.0"
_PATIENCE_S = 60
_FORMED = "whoever comes after the first generation has begun is taken in when the others' next heartbeats are answered"
_OVERRIDES = {"group.initial.rebalance.delay.ms": "0"}


def consumer(bootstrap: str, group: str) -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 100,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )


class Group:
    """The members of one group that live in this process."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap, self._name = bootstrap, name
        self._members: list[Any] = []
        self._owned: dict[int, frozenset[int]] = {}

    def join(self) -> None:
        """Start one more member; it has nothing until the group has rebalanced."""
        member = consumer(self._bootstrap, self._name)
        number = len(self._members)
        self._owned[number] = frozenset()

        def assigned(consumer: Any, partitions: list[Any]) -> None:
            self._owned[number] = frozenset(each.partition for each in partitions)

        def revoked(consumer: Any, partitions: list[Any]) -> None:
            self._owned[number] = frozenset()

        member.subscribe([TOPIC], on_assign=assigned, on_revoke=revoked)
        self._members.append(member)

    def leave(self) -> None:
        """Close the member that joined last."""
        self._members.pop().close()
        del self._owned[len(self._members)]

    def owned(self) -> list[int]:
        return sorted(partition for owned in self._owned.values() for partition in owned)

    def serve_until_settled(self, elsewhere: int = 0) -> None:
        """Poll every member until all own something and together everything but ``elsewhere`` partitions."""
        deadline = time.monotonic() + _PATIENCE_S
        # Empty topic: a poll only serves callbacks.
        while True:
            for member in self._members:
                member.poll(0)
            owned = self.owned()
            if len(owned) == len(set(owned)) == PARTITIONS - elsewhere and all(self._owned.values()):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._name}: not at rest after {_PATIENCE_S} s; owned: {owned}")
            time.sleep(0.001)

    def serve(self, seconds: float) -> None:
        """Poll for a while, so that every member has sent what it had to send after a rebalance."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for member in self._members:
                member.poll(0)
            time.sleep(0.001)

    def close(self) -> None:
        for member in self._members:
            member.close()


class Subject:
    """A broker that groups are formed on."""

    def __init__(self, bootstrap: str, pid: int) -> None:
        self.bootstrap = bootstrap
        self._pid = pid
        self._groups = 0
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(TOPIC, PARTITIONS, 1)

    def _group(self) -> Group:
        self._groups += 1
        return Group(self.bootstrap, f"group-{self._groups}")

    def rebalance(self, size: int) -> dict[str, float]:
        """Form a group of ``size``, let one more join, and leave again."""
        group, found = self._group(), {}
        try:
            began = time.monotonic()
            for _ in range(size):
                group.join()
            group.serve_until_settled()
            found["formed"] = time.monotonic() - began
            group.serve(0.3)
            began, cpu_s = time.monotonic(), thread_seconds(self._pid)
            group.join()
            group.serve_until_settled()
            found["joined"] = time.monotonic() - began
            group.serve(0.3)
            began = time.monotonic()
            group.leave()
            group.serve_until_settled()
            found["left"] = time.monotonic() - began
            found["cpu"] = (thread_seconds(self._pid) - cpu_s) * 1000
        finally:
            group.close()
        return found

    def crash(self, directory: Path) -> float:
        """Kill one member of ten; return the seconds until the others own everything."""
        group = self._group()
        directory.mkdir()
        command = [sys.executable, "-m", "bench.groups", self.bootstrap, f"group-{self._groups}"]
        doomed = ChildProcess(command, directory, "member")
        try:
            doomed.wait_until(lambda: "assigned" in doomed.stdout_text(), _PATIENCE_S, "owning something")
            for _ in range(9):
                group.join()
            group.serve_until_settled(elsewhere=PARTITIONS // 10)
            group.serve(1.0)
            began = time.monotonic()
            doomed.kill()
            group.serve_until_settled()
            return time.monotonic() - began
        finally:
            doomed.kill()
            group.close()


def rows(quick: bool) -> Iterator[Row]:
    """Measure both brokers in turn and yield a row for each figure."""
    rounds = 2 if quick else 9
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="kafkalite-bench-")))
        our_broker = running.enter_context(BrokerProcess(directory / "ours", overrides=_OVERRIDES))
        peer_broker = running.enter_context(ApacheKafka(directory / "peer", heap_mb=1024, overrides=_OVERRIDES))
        ours, peer = Subject(our_broker.bootstrap, our_broker.pid), Subject(peer_broker.bootstrap, peer_broker.pid)
        for size in SIZES:
            measured: dict[Subject, list[dict[str, float]]] = {ours: [], peer: []}
            for number in range(rounds + 1):
                for subject, found in measured.items():
                    figures = subject.rebalance(size)
                    if number:  # the first of each warms up
                        found.append(figures)
            for what, unit, key, target, note in (
                ("formed at once", "s", "formed", 1.0, _FORMED),
                # These are waits for the next heartbeat, for the most part: how much is chance.
                ("one joins", "s", "joined", 1.2, ""),
                ("one leaves", "s", "left", 1.2, ""),
                ("broker CPU of a join and a leave", "CPU ms", "cpu", 1.0, ""),
            ):
                yield Row(
                    f"{size} members, {what}", unit,
                    [each[key] for each in measured[ours]], [each[key] for each in measured[peer]],
                    _PEER, higher_is_better=False, target=target, note=note,
                )  # fmt: skip
        crashes: dict[Subject, list[float]] = {ours: [], peer: []}
        for number in range(1 if quick else 3):
            for subject, seconds in crashes.items():
                seconds.append(subject.crash(directory / f"crash-{number}-{id(subject)}"))
        yield Row(
            "10 members, one crashes, until the others own everything", "s", crashes[ours], crashes[peer],
            _PEER, higher_is_better=False, target=1.05,
            note=f"{SESSION_MS / 1000:g} s of it are the session of the dead member",
        )  # fmt: skip


def be_a_member(bootstrap: str, group: str) -> None:
    """Be the member that is killed."""
    member = consumer(bootstrap, group)
    member.subscribe([TOPIC], on_assign=lambda _, partitions: print("assigned", len(partitions), flush=True))
    while True:
        member.poll(0.05)


if __name__ == "__main__":
    be_a_member(*sys.argv[1:])
