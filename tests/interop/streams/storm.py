"""A storm over registry consumers: processes join, leave, are killed and frozen, and so is ZooKeeper itself.

What must hold, whatever happens: every record is read; a partition is read by one consumer at a time; committed offsets
do not go back, and who leaves in order has committed what it has read. The journals of the consumers (storm_member) and
a watcher of the offset nodes tell.

A consumer's hold on a partition ends where its journal says so, where it was frozen for longer than its session lasts,
or where another consumer begins a hold in which it reads. From then on it must hand out none of its records, whether it
knows or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from spark_kafkalite import Admin, Producer
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.store import NoNode
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.streams.mirrored_nodes import MirroredBroker
from tests.patience import PATIENCE_S, wait_until

TOPIC = "storm"
GROUP = "storm"
SESSION_MS = 3_000


@dataclass(frozen=True)
class Plan:
    """``troubles`` is how often a member leaves, is killed or is frozen; ``records`` are written at least."""

    members: int
    partitions: int
    troubles: int
    zookeeper_kills: int
    seed: int
    records: int
    records_per_s: int = 400


@dataclass
class Member:
    process: ChildProcess
    journal: Path
    # From when on what it holds does not count: it was killed or frozen.
    ended_ns: int | None = None
    # It was frozen until its session was surely over.
    woken: bool = False


@dataclass
class Outcome:
    """What came of it; ``problems`` is empty when everything held."""

    sent: int = 0
    read: int = 0
    joins: int = 0
    leaves: int = 0
    kills: int = 0
    freezes: int = 0
    zookeeper_kills: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def troubles(self) -> int:
        return self.leaves + self.kills + self.freezes


class Storm:
    def __init__(self, bootstrap: str, server: ZooKeeperServer, directory: Path, plan: Plan) -> None:
        self._bootstrap = bootstrap
        self._server = server
        self._directory = directory
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._members: list[Member] = []
        self._all: list[Member] = []
        # The end of sending, and of everything.
        self._enough = threading.Event()
        self._over = threading.Event()
        self._left: list[Member] = []
        self._served_ns = time.monotonic_ns()
        self._sent = 0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            admin.create_topic(TOPIC, self._plan.partitions, 1)
        mirrored = MirroredBroker(self._bootstrap, self._server.connect, 60_000)
        mirrored.copy_topics()
        sender, watcher = threading.Thread(target=self._send), threading.Thread(target=self._watch_offsets)
        try:
            sender.start()
            watcher.start()
            self._blow()
            wait_until(lambda: self._sent >= self._plan.records, lambda: f"enough records, there are {self._sent}")
            self._enough.set()
            sender.join()
            self._settle()
        finally:
            self._enough.set()
            self._over.set()
            for member in self._all:
                member.process.kill()
            sender.join()
            watcher.join()
            mirrored.close()
        self._judge()
        return self.outcome

    # What happens ---------------------------------------------------------------------------------------------------

    def _blow(self) -> None:
        plan = self._plan
        for _ in range(plan.members):
            self._join()
        # What happens to members that have not come up yet tests nothing.
        wait_until(
            lambda: all(self._lines(member) for member in self._members), "the first members have joined", poll_s=0.1
        )
        kills_at = [
            plan.troubles * (number + 1) // (plan.zookeeper_kills + 1) for number in range(plan.zookeeper_kills)
        ]
        while self.outcome.troubles < plan.troubles or kills_at:
            if kills_at and self.outcome.troubles >= kills_at[0]:
                kills_at.pop(0)
                self._server.kill()
                self.outcome.zookeeper_kills += 1
                self._act()  # joining has to wait, and dying is not seen
                time.sleep(self._random.uniform(0, SESSION_MS / 1000))
                self._server.start()
                self._served_ns = time.monotonic_ns()
            self._act()
            # Not longer than that, or the end may come before the registry's.
            time.sleep(min(1.0, self._random.expovariate(max(2.0, plan.members / 10))))
        self._wake()

    def _act(self) -> None:
        self._wake()
        choice = self._random.random()
        running = [member for member in self._members if member.ended_ns is None]
        if not running or (choice < 0.5 and len(self._members) < self._plan.members):
            self._join()
        elif choice < 0.7:
            self._leave(self._random.choice(running))
            self.outcome.leaves += 1
        elif choice < 0.9:
            member = self._random.choice(running)
            member.process.kill()
            member.ended_ns = time.monotonic_ns()
            self._members.remove(member)
            self.outcome.kills += 1
        else:
            member = self._random.choice(running)
            # It runs on until the last of its threads has stopped.
            member.process.pause()
            member.ended_ns = time.monotonic_ns()
            self.outcome.freezes += 1

    def _wake(self) -> None:
        """Wake those whose sessions are surely over."""
        for member in self._members:
            if member.ended_ns is None or member.woken:
                continue
            # A server that starts again gives every session its whole time again.
            if time.monotonic_ns() - max(member.ended_ns, self._served_ns) > 2 * SESSION_MS * 1_000_000:
                member.woken = True
                member.process.signal(signal.SIGCONT)

    def _leave(self, member: Member) -> None:
        member.process.signal(signal.SIGTERM)
        self._members.remove(member)
        self._left.append(member)

    def _join(self) -> None:
        name = f"member-{len(self._all)}"
        journal = self._directory / f"{name}.journal"
        given = {
            "journal": str(journal),
            "topic": TOPIC,
            "streams": self._random.randrange(1, 3),
            "settings": {
                "group.id": GROUP,
                "zookeeper.connect": self._server.connect,
                "zookeeper.session.timeout.ms": SESSION_MS,
                "zookeeper.connection.timeout.ms": int(PATIENCE_S * 1000),
                "auto.offset.reset": "smallest",
                "auto.commit.interval.ms": 200,
                "rebalance.backoff.ms": 500,
                "rebalance.max.retries": 60,
            },
        }
        command = [sys.executable, "-m", "tests.interop.streams.storm_member", json.dumps(given)]
        root = Path(__file__).resolve().parents[3]
        process = ChildProcess(
            command,
            self._directory,
            name,
            environment={**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"},
            working_directory=root,
        )
        member = Member(process, journal)
        self._members.append(member)
        self._all.append(member)
        self.outcome.joins += 1

    def _settle(self) -> None:
        """Let the rest read everything, and leave."""

        def all_read() -> bool:
            if self._read_values() == set(range(self._sent)):
                return True
            if not any(member.process.running and member.ended_ns is None for member in self._members):
                # All that are left are frozen.
                self._join()
            self._wake()
            return False

        try:
            wait_until(all_read, "all records are read", poll_s=0.3)
        except AssertionError:
            missing = sorted(set(range(self._sent)) - self._read_values())
            self.outcome.problems.append(
                f"{len(missing)} records were not read: {missing[:10]}"
                + "".join(member.process.tail() for member in self._members)
            )
            return
        for member in list(self._members):
            # Some wake and leave at once, and may or may not have their sessions still.
            member.process.signal(signal.SIGCONT)
            self._leave(member)
        for member in self._left:
            try:
                member.process.wait(PATIENCE_S)
            except ChildFailed as failure:
                self.outcome.problems.append(str(failure))
        self._check_last_commits()

    def _send(self) -> None:
        with Producer(bootstrap_servers=self._bootstrap) as producer:
            while not self._enough.wait(0.05):
                for _ in range(self._plan.records_per_s // 20):
                    partition = self._sent % self._plan.partitions
                    producer.send(TOPIC, b"%d" % self._sent, partition=partition)
                    self._sent += 1

    def _watch_offsets(self) -> None:
        last: dict[int, int] = {}
        store = None
        while not self._over.wait(0.05):
            try:
                store = store or open_zookeeper(self._server.connect, session_timeout_ms=60_000, connect_timeout_s=2)
                for partition in range(self._plan.partitions):
                    with contextlib.suppress(NoNode):
                        path = consumer_nodes.offset_path(GROUP, TOPIC, partition)
                        offset = int(store.get(path).result(PATIENCE_S)[0])
                        if offset < last.get(partition, 0):
                            self.outcome.problems.append(
                                f"the offset of partition {partition} went back from {last[partition]} to {offset}"
                            )
                        last[partition] = offset
            except (RegistryError, TimeoutError):
                continue
        if store is not None:
            store.close()

    def _check_last_commits(self) -> None:
        """Whoever leaves in order commits what it has read, and nobody sets that back.

        Not all that was read need be committed: who read the last of it may have been killed then, and the others have
        left before they owned it.
        """
        partitions = self._plan.partitions
        store = open_zookeeper(self._server.connect, session_timeout_ms=60_000)
        committed = {}
        for partition in range(partitions):
            with contextlib.suppress(NoNode):
                path = consumer_nodes.offset_path(GROUP, TOPIC, partition)
                committed[partition] = int(store.get(path).result(PATIENCE_S)[0])
        store.close()
        for member in self._left:
            lines = self._lines(member)
            if member.ended_ns is not None or not lines or lines[-1][0] != "down":
                continue
            for partition, value in sorted({int(line[2]): int(line[3]) for line in lines if line[0] == "read"}.items()):
                # Its last record may still have been in hand, so that only those before it were committed.
                if committed.get(partition, 0) < value // partitions:
                    self.outcome.problems.append(
                        f"{member.journal.stem} left when it had read offset {value // partitions} of partition "
                        f"{partition}, and {committed.get(partition)} was committed at last"
                    )

    # What is made of it ---------------------------------------------------------------------------------------------

    def _lines(self, member: Member) -> list[list[str]]:
        if not member.journal.exists():
            return []
        return [line.split() for line in member.journal.read_text(encoding="ascii").split("\n")[:-1]]

    def _read_values(self) -> set[int]:
        return {int(line[3]) for member in self._all for line in self._lines(member) if line[0] == "read"}

    def _judge(self) -> None:
        self.outcome.sent = self._sent
        lines = {member.journal.stem: self._lines(member) for member in self._all}
        # Of every partition, when somebody has come to own it: after claiming its node, before reading. Not if it then
        # read nothing: who was frozen in between says so later, when it may not read any more.
        owned: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for name, journal in lines.items():
            began: dict[int, int] = {}
            for kind, time_text, *rest in journal:
                if kind == "own":
                    began[int(rest[0])] = int(time_text)
                elif kind == "gone":
                    began.pop(int(rest[0]), None)
                elif kind == "read" and (partition := int(rest[0])) in began:
                    owned[partition].append((began.pop(partition), name))
        for member in self._all:
            name = member.journal.stem
            if (member.process.returncode or 0) > 0:
                self.outcome.problems.append(f"{name} failed{member.process.tail()}")
            ends: dict[int, int] = {}
            late: dict[int, int] = defaultdict(int)
            for kind, time_text, *rest in lines[name]:
                now, partition = int(time_text), int(rest[0]) if rest else -1
                if kind == "own":
                    others = [other for other, owner in owned[partition] if other > now and owner != name]
                    ends[partition] = min(others, default=sys.maxsize)
                    if member.woken and member.ended_ns is not None and now < member.ended_ns:
                        ends[partition] = min(ends[partition], member.ended_ns)
                    late[partition] = 0
                elif kind == "gone":
                    ends[partition] = min(ends[partition], now)
                elif kind == "read":
                    self.outcome.read += 1
                    late[partition] += now > ends[partition]
                    # The record that was in hand then may be noted afterwards.
                    if late[partition] == 2:
                        late_ms = (now - ends[partition]) / 1e6
                        self.outcome.problems.append(
                            f"{name} read on in partition {partition} {late_ms:.0f} ms after it had lost it"
                        )
