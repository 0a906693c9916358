"""Our cluster under chaos: some brokers whose connections to each other and to the registry can be disturbed
(``lines``), and whose disks can be filled, slowed down and broken, or lose their power."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from spark_kafkalite.log.segments.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from spark_kafkalite.processes.child_process import freeze
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.chaos.broker_program import NO_BUG, conditions_of
from tests.chaos.clients.client import HARD_END_S, Place
from tests.chaos.final_logs import complaints_of, leftovers_of, logs_of
from tests.chaos.history import Complaint, Ephemeral, Health, HistoryWriter, Leftover, State
from tests.chaos.lines import REGISTRY, ForwardedLines, Lines
from tests.chaos.played_cluster import mend_processes
from tests.chaos.power import Images
from tests.crash.loop_disk import Disks
from tests.paths import PROJECT
from tests.seeds import SOAK

SIZE: Final = 3
# A broker that does not run for two seconds, as on a busy machine, would lose what it leads with a session of three.
SESSION_S: Final = 3.0 if SOAK else 6.0
LAG_TIME_S: Final = 5.0
_POLL_S: Final = 0.05


class DisksOfBroker(Enum):
    """What the log directories of a broker lie on."""

    ONE = "one"
    TWO = "two"
    # A file system of its own, whose power can be cut; it needs root.
    IMAGED = "imaged"


class ZooKeeperRegistry(ZooKeeperServer):
    """A real ZooKeeper in the place of ``kafkalite registry``."""

    def stop(self) -> int:
        """End it; it has no other way than this."""
        self.kill()
        return 0

    def pause(self) -> None:
        freeze(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class ChaosCluster:
    """A ``KafkaliteCluster`` on ``lines``; a context manager. ``brokers`` are its processes."""

    def __init__(
        self,
        directory: Path,
        *,
        lines: Lines | None = None,
        bug: str = NO_BUG,
        overrides: Mapping[str, object] | None = None,
        disks: DisksOfBroker = DisksOfBroker.ONE,
        on_zookeeper: bool = False,
    ) -> None:
        """Prepare it; ``with`` starts it: as many brokers as the lines have, three by default. ``bug`` is planted in
        every broker (``seeded_bugs``). ``on_zookeeper``: its registry is a real ZooKeeper, as it always is where the
        lines lead to other hosts."""
        self._on_zookeeper = on_zookeeper
        self._directory = directory
        self._bug = bug
        self._overrides = dict(overrides or {})
        self._disks = disks
        # Those of ``DisksOfBroker.IMAGED``.
        self.images: Images | None = None
        self.lines = lines or ForwardedLines(SIZE)
        self.cluster: KafkaliteCluster

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def brokers(self) -> dict[int, BrokerProcess]:
        return self.cluster.brokers

    @property
    def addresses(self) -> dict[int, str]:
        return {number: broker.bootstrap for number, broker in self.brokers.items()}

    def log_directories(self, broker: int) -> list[Path]:
        """Return a broker's ``log.dirs``."""
        return [Path(path) for path in self.brokers[broker].settings["log.dirs"].split(",")]

    @contextlib.contextmanager
    def disk(self, broker: int, condition: str, log_directory: Path | None = None) -> Iterator[None]:
        """Have a broker's disk (the first one unless it is named), or its next start, in a condition
        (``broker_program``) for a while."""
        flag = conditions_of(log_directory or self.log_directories(broker)[0]) / condition
        flag.parent.mkdir(exist_ok=True)
        flag.touch()
        try:
            yield
        finally:
            flag.unlink()

    def leader_of(self, place: Place, partition: int = 0) -> int:
        """Return who leads a partition; wait for one."""
        return self.cluster.wait_for_leader(place.topic, partition, timeout_s=HARD_END_S)

    def follower_of(self, place: Place, partition: int = 0) -> int:
        """Return a follower that is in sync."""
        leader = self.leader_of(place, partition)
        return min(self.in_sync(place, partition) - {leader})

    def in_sync(self, place: Place, partition: int = 0) -> set[int]:
        return self.cluster.in_sync(place.topic, partition)

    def replicas_of(self, place: Place, partition: int = 0) -> set[int]:
        return set(self.cluster.assignment_of(place.topic).partitions[partition])

    def mend(self) -> None:
        self.lines.heal()
        mend_processes(self.brokers)

    def wait_in_sync(self, place: Place, timeout_s: float = HARD_END_S) -> None:
        self.cluster.wait_in_sync(place.topic, timeout_s=timeout_s)

    def note_states(self, place: Place) -> None:
        """Note what the registry says of the topic now."""
        now = time.monotonic()
        for partition in range(place.partitions):
            state = self.cluster.state_of(place.topic, partition)
            place.history.note(
                State(
                    begun=now, ended=now, topic=place.topic_id, partition=partition, leader=state.leader,
                    epoch=state.leader_epoch, isr=list(state.isr),
                )
            )  # fmt: skip

    def note_registrations(self, history: HistoryWriter) -> None:
        """Note which ephemeral nodes there are, and whether their brokers are."""
        numbers = {int(name) for name in self._children(znodes.BROKER_IDS)}
        running = {number for number, broker in self.brokers.items() if broker.running}
        owners = {znodes.broker_path(number): number for number in numbers}
        controller = self.cluster.controller()
        if controller is not None:
            owners[znodes.CONTROLLER] = controller
        now = time.monotonic()
        history.note(
            *(
                Ephemeral(begun=now, ended=now, path=path, owner=str(owner), owner_lives=owner in running)
                for path, owner in owners.items()
            )
        )

    def _children(self, path: str) -> list[str]:
        store = open_zookeeper(self.cluster.registry.connect)
        try:
            found: list[str] = store.children(path).result(HARD_END_S)
            return found
        finally:
            store.close()

    def note_health(self, history: HistoryWriter, phase: str) -> None:
        """Note how many files and how much memory each broker's process has."""
        now = time.monotonic()
        history.note(
            *(
                Health(
                    begun=now, ended=now, broker=number, phase=phase,
                    open_files=_open_files(broker.pid), resident_bytes=broker.resident_bytes(),
                )
                for number, broker in self.brokers.items()
            )
        )  # fmt: skip

    def stop(self) -> None:
        """Stop everything in order: what the files hold is final."""
        self.lines.heal()
        self.cluster.stop_all()

    def note_files(self, history: HistoryWriter, topics: Mapping[str, str]) -> None:
        """Note what the stopped brokers' files hold of topics (id: name)."""
        for number in self.brokers:
            for directory in self.log_directories(number):
                history.note(*logs_of(number, directory, topics))

    def complaints(self) -> list[Complaint | Leftover]:
        """Return what the stopped brokers have left behind, and what they have said, in all their starts, of things
        that nobody had thought of."""
        found: list[Complaint | Leftover] = []
        for number, broker in self.brokers.items():
            for directory in self.log_directories(number):
                found += leftovers_of(number, directory)
            for output in sorted(broker.stderr_path.parent.glob("broker-*.err")):
                found += complaints_of(number, output)
        return found

    def _registry(self, environment: Mapping[str, str]) -> RegistryProcess:
        directory = self._directory / "registry"
        host, port = self.lines.registry_address
        if self._on_zookeeper or host != "127.0.0.1":
            prefix = self.lines.prefix(REGISTRY)
            # It does what a cluster and rows do with a registry's process.
            return cast(RegistryProcess, ZooKeeperRegistry(directory, port=port, host=host, command_prefix=prefix))
        return RegistryProcess(directory, port=port, environment=environment)

    def _data_dir(self, broker: int) -> Path:
        return self._directory / f"broker-{broker}"

    def _log_dirs(self, broker: int) -> dict[str, object]:
        if self._disks is not DisksOfBroker.TWO:
            return {}
        return {"log.dirs": ",".join(str(self._data_dir(broker) / name) for name in ("one", "two"))}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.enter_context(self.lines.laid())
            brokers = self.lines.brokers
            environment = {"PYTHONPATH": str(PROJECT)}
            if self._disks is DisksOfBroker.IMAGED:
                images = Images(undo.enter_context(Disks()), {number: self._data_dir(number) for number in brokers})
                undo.callback(images.unmount)
                self.images = images
            program = (sys.executable, "-m", "tests.chaos.broker_program", self._bug)
            settings = {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
                "inter.broker.listener.name": "INNER",
                "replica.lag.time.max.ms": int(LAG_TIME_S * 1000),
                "zookeeper.session.timeout.ms": int(SESSION_S * 1000),
                # A start on a busy host, where all that is said to the registry passes through this process.
                "zookeeper.connection.timeout.ms": int(HARD_END_S * 1000),
                **self._overrides,
            }
            self.cluster = KafkaliteCluster(
                self._directory,
                size=len(self.lines.brokers),
                overrides=settings,
                overrides_of={number: {**self.lines.settings(number), **self._log_dirs(number)} for number in brokers},
                environment=environment,
                command_prefix_of={number: (*self.lines.prefix(number), *program) for number in brokers},
                registry=self._registry(environment),
            )
            for broker in self.brokers.values():
                # One that was killed reads a part of its gigabytes first.
                broker.start_timeout_s = HARD_END_S
            undo.enter_context(self.cluster)
            undo.callback(self.lines.heal)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.__exit__(kind, error, trace)


def _open_files(pid: int) -> int:
    """Return how many files a broker has open without indexes: of these as many as it has read stay open, up to a
    bound (``log.files.open_files``)."""
    directory, count = Path(f"/proc/{pid}/fd"), 0
    for name in os.listdir(directory):
        # What is closed meanwhile is not open.
        with contextlib.suppress(FileNotFoundError):
            count += not os.readlink(directory / name).endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX))
    return count
