"""A storm: members of several libraries join, leave, crash and stand still in one group while records are written.

:class:`Storm` starts the members as processes (member.py, and java/StormMembers.java with several members in one JVM),
writes records ``PARTITION:OFFSET`` at a steady rate, looks at the group's committed offsets all the time, and does to
the members what its seed says. ``finish`` calms everything down, waits until the group has processed all there is, and
returns what history.py finds wrong. Only the seed's decisions repeat, not the kernel's scheduling.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import confluent_kafka

from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments
from tests.interop.storms.history import Event, final_owners, read_journals, violations
from tests.interop.support.java_clients import JAVA_SOURCES, compile_java
from tests.lab.apache_kafka import logging_options
from tests.patience import PATIENCE_S, wait_until

JAVA: Final = "java"
# Members hear of a rebalance by a heartbeat.
MOST_HEARTBEAT_MS: Final = 2500
# What a broker needs to allow such short sessions, and to let groups form at once.
BROKER_SETTINGS: Final = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
_PYTHON_MEMBER: Final = Path(__file__).with_name("member.py")


@dataclass(frozen=True)
class Plan:
    """What a storm is made of.

    ``kinds`` are drawn from with equal chance, after each had its turn; a JVM counts ``java_members`` members.
    ``KIND!MISDEED`` is a member that does wrong on purpose (member.py).
    """

    seed: int
    kinds: Sequence[str]
    members: int
    # How often something happens to a member.
    actions: int
    partitions: int = 12
    assignor: str = "range"
    records_per_s: int = 600
    java_members: int = 2
    static_share: float = 0.25
    pace_s: float = 0.5
    session_ms: int = 2000
    # What happens to members once all are there: "leave", "crash", "pause"; crashes twice as often as the others.
    trouble: Sequence[str] = ("leave", "crash", "crash", "pause")


class MemberProcess:
    """One process with one member, or with several of Java's."""

    def __init__(self, child: ChildProcess, names: list[str], kind: str, instance: str | None) -> None:
        self.child, self.names, self.kind, self.instance = child, names, kind, instance
        self.resume_at: float | None = None


class Storm:
    """A context manager: members and writer run inside it, and are gone after it."""

    def __init__(self, bootstrap: str, directory: Path, plan: Plan, *, topic: str = "storm", group: str = "storm"):
        self.plan = plan
        self.directory = directory
        self.group, self.topic = group, topic
        self.actions: list[str] = []
        self._bootstrap = bootstrap
        self._random = random.Random(plan.seed)
        self._processes: list[MemberProcess] = []
        self._leaving: list[MemberProcess] = []
        self._dead_instances: list[tuple[str, str]] = []
        self._started = 0
        self._writer = _Writer(bootstrap, topic, plan)
        self._observer = Observer(bootstrap, directory, group, topic, plan.partitions)
        self._java_class_path = ""

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            admin.create_topic(self.topic, self.plan.partitions, 1)
        if JAVA in self.plan.kinds:
            self._java_class_path = compile_java(JAVA_SOURCES / "StormMembers.java")
        self._writer.start()
        self._observer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self._processes, *self._leaving):
            process.child.kill()
        self._writer.stop()
        self._observer.stop()

    @property
    def members(self) -> int:
        """How many members are running, paused ones too."""
        return sum(len(process.names) for process in self._processes)

    def blow(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Let it storm once all members have joined; ``meanwhile`` is called after every action."""
        while self.members < self.plan.members:
            self._join()
        names = {name for process in self._processes for name in process.names}
        wait_until(
            lambda: (
                names <= {event.member for event in self.events() if event.kind == "assigned"} or self._dead_members()
            ),
            "all members have joined",
            poll_s=0.1,
        )
        for _ in range(self.plan.actions):
            self._resume_paused()
            self._act()
            if meanwhile is not None:
                meanwhile()
            time.sleep(self._random.uniform(0, 2 * self.plan.pace_s))

    def wait_for_deliveries(self, count: int) -> None:
        """Wait until every member that runs has processed so many pieces; each may take a while to start, and for each
        piece, on a slow host."""
        names = [name for process in self._processes for name in process.names]

        def fewest() -> int:
            counts = Counter(event.member for event in self.events() if event.kind == "delivered")
            return min(counts[name] for name in names)

        def what() -> str:
            events = self.events()
            counts = Counter(event.member for event in events if event.kind == "delivered")
            return (
                f"{count} pieces of each member: { ({name: counts[name] for name in names}) }; ended: "
                f"{self._dead_members()}; not in the newest generation: {self._stragglers(events)}"
            )

        while (before := fewest()) < count:
            wait_until(lambda before=before: fewest() > before, what, poll_s=0.1)  # type: ignore[misc]

    def wait_for_commit(self) -> None:
        """Wait until the observer sees a commit that it has not seen before."""
        before = dict(self._observer.latest)
        wait_until(lambda: self._observer.latest != before, "a commit")

    def settle(self) -> list[Event]:
        """Wait until the members that run share the partitions in one generation; return the events until then."""

        def at_rest() -> list[Event] | None:
            events = self.events()
            shared = sorted(self._owned(events)) == list(range(self.plan.partitions))
            return events if shared and not self._stragglers(events) else None

        events = wait_until(at_rest, lambda: f"rest; behind are {self._stragglers(self.events())}", poll_s=0.05)
        assert events is not None
        return events

    def finish(self, timeout_s: float = PATIENCE_S) -> list[str]:
        """Stop the trouble, wait until all records are processed and committed; return every violation.

        A group that does not come to rest, or ends with a partition of nobody or of two, is a violation too.
        """
        for process in self._processes:
            if process.resume_at is not None:
                process.resume_at = 0.0
        self._resume_paused()
        while self.members < 2:
            self._join()
        ends = self._writer.stop()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not (self._settled(ends) or self._dead_members()):
            time.sleep(0.1)
        found = [f"member ended: {text}" for text in self._dead_members()]
        settled = self._settled(ends)
        for process in self._processes:
            process.child.signal(signal.SIGTERM)
        events = self.events()
        if not settled:
            found += self._unrest(events, ends)
        for process in (*self._processes, *self._leaving):
            try:
                process.child.wait(PATIENCE_S)
            except ChildFailed as failure:
                found.append(f"member does not leave: {failure}")
        self._observer.stop()
        return [*found, *violations(self.events(), ends)]

    def events(self) -> list[Event]:
        return read_journals(self.directory)

    # What happens to members -----------------------------------------------------------------------------------------

    def _act(self) -> None:
        if self.members < self.plan.members:
            self._join()
            return
        running = [process for process in self._processes if process.resume_at is None]
        if running and self.plan.trouble:
            actions = {"leave": self._leave, "crash": self.crash, "pause": self._pause}
            actions[self._random.choice(self.plan.trouble)](self._random.choice(running))

    def join(self, kind: str, instance: str | None = None) -> MemberProcess:
        """Start a process with a member, or with several of Java's."""
        self._note("join", kind, instance or "")
        process = self._start(kind, instance)
        self._processes.append(process)
        return process

    def _join(self) -> None:
        kinds = list(self.plan.kinds)
        kind = kinds[self._started] if self._started < len(kinds) else self._random.choice(kinds)
        instance = None
        if self._dead_instances and self._random.random() < 0.7:
            kind, instance = self._dead_instances.pop(0)  # a static member comes back
        elif self._random.random() < self.plan.static_share:
            instance = f"static-{self._started}"
        self.join(kind, instance)

    def _leave(self, process: MemberProcess) -> None:
        self._note("leave", *process.names)
        process.child.signal(signal.SIGTERM)
        self._gone(process)
        self._leaving.append(process)

    def crash(self, process: MemberProcess) -> None:
        """Kill a process with SIGKILL."""
        self._note("crash", *process.names)
        process.child.kill()
        self._gone(process)

    def _pause(self, process: MemberProcess) -> None:
        """Let it stand still, for a moment or for longer than its session lasts."""
        seconds = self._random.choice((0.3, self.plan.session_ms / 1000 + 1.5))
        self._note("pause", *process.names, f"for {seconds} s")
        process.child.pause()
        process.resume_at = time.monotonic() + seconds

    def _gone(self, process: MemberProcess) -> None:
        self._processes.remove(process)
        if process.instance:
            self._dead_instances.append((process.kind, process.instance))

    def _resume_paused(self) -> None:
        for process in self._processes:
            if process.resume_at is not None and process.resume_at <= time.monotonic():
                process.child.signal(signal.SIGCONT)
                process.resume_at = None

    def _note(self, *words: str) -> None:
        self.actions.append(" ".join(words))

    # Starting, and coming to rest ------------------------------------------------------------------------------------

    def _start(self, kind: str, instance: str | None) -> MemberProcess:
        self._started += 1
        library, _, misdeed = kind.partition("!")
        name = f"{kind}-{self._started}"
        seed = self._random.randrange(2**31)
        if kind == JAVA:
            names = [f"{name}.{number}" for number in range(self.plan.java_members)]
            command = self._java_command(names, instance, seed)
        else:
            names = [name]
            settings = {
                "kind": library,
                "bootstrap": self._bootstrap,
                "group": self.group,
                "topic": self.topic,
                "name": name,
                "journal": str(self.directory / f"{name}.journal"),
                "assignor": self.plan.assignor,
                "session_ms": self.plan.session_ms,
                "heartbeat_ms": min(self.plan.session_ms // 8, MOST_HEARTBEAT_MS),
                "seed": seed,
                "instance": instance,
                "misdeed": misdeed or None,
            }
            command = [sys.executable, str(_PYTHON_MEMBER), json.dumps(settings)]
        return MemberProcess(ChildProcess(command, self.directory, name), names, kind, instance)

    def _java_command(self, names: list[str], instance: str | None, seed: int) -> list[str]:
        journals = [part for name in names for part in (str(self.directory / f"{name}.journal"), name)]
        return java_arguments(
            self._java_class_path, "StormMembers",
            self._bootstrap, self.group, self.topic, self.plan.assignor, str(self.plan.session_ms), str(seed),
            instance or "-", *journals,
            jvm_options=(*SHORT_LIVED_OPTIONS, "-Xmx128m", *logging_options()),
        )  # fmt: skip

    def _settled(self, ends: Mapping[int, int]) -> bool:
        """Whether everything is committed, and all that run are in one generation and own each partition once."""
        if self._observer.latest != ends:
            return False
        events = self.events()
        return sorted(self._owned(events)) == sorted(ends) and not self._stragglers(events)

    def _stragglers(self, events: list[Event]) -> list[str]:
        """Running members that have not come into the newest generation."""
        generations = {name: -1 for process in self._processes for name in process.names}
        for event in events:
            if event.kind == "assigned" and event.member in generations:
                generations[event.member] = event.generation
        # A cooperative member whose partitions stay the same need not be told.
        newest = 0 if self.plan.assignor == "cooperative-sticky" else max(generations.values())
        return [f"{name} ({generation})" for name, generation in generations.items() if generation < newest]

    def _owned(self, events: list[Event]) -> list[int]:
        running = {name for process in self._processes for name in process.names}
        owners = final_owners(events)
        return [partition for name in running for partition in owners.get(name, ())]

    def _dead_members(self) -> list[str]:
        """Members that ended by themselves."""
        return [
            f"{process.child.name}: exit code {process.child.returncode}{process.child.tail()}"
            for process in self._processes
            if not process.child.running
        ]

    def _unrest(self, events: list[Event], ends: Mapping[int, int]) -> list[str]:
        behind = {
            partition: (self._observer.latest.get(partition, 0), end)
            for partition, end in ends.items()
            if self._observer.latest.get(partition, 0) != end
        }
        return [
            f"no rest: committed and end {behind}; owned at the end {sorted(self._owned(events))}; not in the newest "
            f"generation {self._stragglers(events)}"
        ]


class _Writer:
    """Writes ``PARTITION:OFFSET`` to every partition in turn; idempotent, so that a record's number is its offset."""

    def __init__(self, bootstrap: str, topic: str, plan: Plan) -> None:
        self._bootstrap, self._topic, self._plan = bootstrap, topic, plan
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storm-writer", daemon=True)
        self._ends = dict.fromkeys(range(plan.partitions), 0)
        self._failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> dict[int, int]:
        """Stop, and return the end offsets. Raises what a record failed with."""
        self._stopping.set()
        self._thread.join(2 * PATIENCE_S)
        if self._failure is not None:
            raise self._failure
        return self._ends

    def _run(self) -> None:
        try:
            with Producer(bootstrap_servers=self._bootstrap, linger_ms=5, delivery_timeout_ms=100_000) as producer:
                began, sent = time.monotonic(), 0
                while not self._stopping.wait(0.02):
                    due = int((time.monotonic() - began) * self._plan.records_per_s)
                    for number in range(sent, due):
                        partition = number % self._plan.partitions
                        value = b"%d:%d" % (partition, self._ends[partition])
                        last = producer.send(self._topic, value, partition=partition)
                        self._ends[partition] += 1
                    sent = due
                producer.flush(100)
                if sent:
                    last.result(PATIENCE_S)
        except Exception as error:  # it has to fail the test, not this thread
            self._failure = error


class Observer:
    """Asks for the group's committed offsets all the time, and keeps a journal of them."""

    def __init__(
        self, bootstrap: str, directory: Path, group: str, topic: str, partitions: int, *, pause_s: float = 0.05
    ) -> None:
        self.latest: dict[int, int] = {}
        self._pause_s = pause_s
        self._bootstrap, self._directory, self._group = bootstrap, directory, group
        self._partitions = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storm-observer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                "enable.auto.commit": False,
            }
        )
        with (self._directory / "observer.journal").open("ab", buffering=0) as journal:
            while not self._stopping.wait(self._pause_s):
                since = time.monotonic_ns()
                try:
                    found = consumer.committed(self._partitions, 2)
                except confluent_kafka.KafkaException:
                    continue  # the broker or its coordinator is not there: it is asked again
                for each in found:
                    if each.error is None and (each.offset >= 0 or each.partition in self.latest):
                        # No offset where there was one: all of the partition's commits are gone.
                        offset = self.latest[each.partition] = max(each.offset, 0)
                        line = {
                            "time": time.monotonic_ns(), "member": "observer", "event": "observed", "since": since,
                            "partition": each.partition, "offset": offset,
                        }  # fmt: skip
                        journal.write(json.dumps(line).encode() + b"\n")
        consumer.close()
