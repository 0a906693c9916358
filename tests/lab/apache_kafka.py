"""Apache Kafka for tests and benches: a node that is broker and controller, and Kafka's own command-line tools.

The jars come from :mod:`tests.lab.jars`. A node listens on loopback, keeps its log, configuration and
output in the directory it is given, and has every internal topic on as many replicas as there are nodes, at most three.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments, java_problem
from spark_kafkalite.wire.frame import framed
from tests.lab import jars
from tests.lab.java import run_java

_START_TIMEOUT_S: Final = 180
_STOP_TIMEOUT_S: Final = 60

# Logs go to stderr, because a tool's answer is what it writes to stdout.
_LOGGING = """\
status = ERROR
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{{ABSOLUTE}} %p %c{{1}}: %m%n
rootLogger.level = {level}
rootLogger.appenderRef.err.ref = err
"""


def available() -> str | None:
    """Return why Apache Kafka cannot run here, or None."""
    return java_problem() or jars.available(jars.APACHE_KAFKA)


def kafka_tool(
    main_class: str,
    *arguments: str,
    input: str | None = None,
    timeout_s: float = 120,
    check: bool = True,
    jvm_options: Sequence[str] = ("-Xmx512m",),
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's Java tools, such as ``org.apache.kafka.tools.TopicCommand``, against any broker or file.

    ``input`` is what it reads from stdin. Its answer is in ``stdout``, its logs (WARN and above) in ``stderr``. Raises
    JavaToolFailed for an exit code other than 0, unless ``check`` is false, and when ``timeout_s`` passes.
    """
    directory = jars.fetch(jars.APACHE_KAFKA)
    return run_java(
        jars.class_path(directory), main_class, *arguments,
        input=input, timeout_s=timeout_s, check=check,
        jvm_options=(*jvm_options, *logging_options()),
    )  # fmt: skip


def logging_options() -> tuple[str, ...]:
    """Return the JVM options with which Kafka's classes log to stderr, WARN and above."""
    return (f"-Dlog4j2.configurationFile={_logging_file(jars.fetch(jars.APACHE_KAFKA))}",)


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the content of a properties file with these settings, as Kafka and its tools read it."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in settings.items()}
    return "".join(f"{name}={value}\n" for name, value in escaped.items())


@dataclass(frozen=True)
class QuorumMember:
    """A node's place in a cluster: its number, the ports of its listeners (PLAINTEXT if it is a broker, CONTROLLER if
    it is a controller), the address of each controller, and how many brokers there are."""

    node_id: int
    cluster_id: str
    ports: Mapping[str, int]
    voters: Mapping[int, str]
    brokers: int


class ApacheKafka:
    """A running Apache Kafka node; a context manager. ``bootstrap`` is its address, ``pid`` its process."""

    def __init__(
        self,
        directory: Path,
        *,
        heap_mb: int = 512,
        jvm_options: Sequence[str] = SHORT_LIVED_OPTIONS,
        overrides: Mapping[str, str] | None = None,
        further_listeners: Mapping[str, str] | None = None,
        format_arguments: Sequence[str] = (),
        membership: QuorumMember | None = None,
    ) -> None:
        """Prepare a node; ``start()`` or ``with`` starts it.

        ``overrides`` are lines of server.properties. For a bench give ``heap_mb=1024, jvm_options=("-XX:+UseG1GC",)``:
        the default options make a JVM start fast and run slowly. ``further_listeners`` gives the security protocol of
        each listener other than PLAINTEXT, by its name; ``format_arguments`` are for the tool that makes the storage.
        Without a ``membership`` the node is alone.
        """
        self.directory = directory
        self._heap_mb = heap_mb
        self._jvm_options = tuple(jvm_options)
        self._overrides = dict(overrides or {})
        names = ("PLAINTEXT", "CONTROLLER") if membership is None else membership.ports
        self._protocols = {**dict.fromkeys(names, "PLAINTEXT"), **(further_listeners or {})}
        self._format_arguments = tuple(format_arguments)
        self._process: ChildProcess | None = None
        self._ports: dict[str, int] = dict(membership.ports) if membership is not None else {}
        self._membership = membership

    @property
    def bootstrap(self) -> str:
        """The address of its first listener."""
        return self.address(next(iter(self._protocols)))

    def address(self, listener: str) -> str:
        """Return host and port of the listener of that name; a start after the first one keeps it."""
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def log_directory(self) -> Path:
        """Where the topics' segment files lie."""
        return self.directory / "log"

    def start(self) -> Self:
        """Format the storage when it is new, start the node, and return when it serves.

        Raises ChildFailed when it runs already, or does not serve in time.
        """
        if self._ports:
            self.launch()
            self.wait_until_serving()
            return self
        # A port may be taken between choosing and binding it; that is then seen as an early end with this reason.
        for attempts_left in (2, 1, 0):
            self._ports = dict(zip(self._protocols, free_ports(len(self._protocols)), strict=True))
            try:
                self.launch()
                self.wait_until_serving()
                break
            except ChildFailed as failure:
                if not attempts_left or "Address already in use" not in str(failure):
                    raise
        return self

    def launch(self) -> None:
        """Format the storage when it is new, and start a node that has its ports, without waiting for it: a member
        serves once most of its quorum runs.

        Raises ChildFailed when it runs already.
        """
        if self.running:
            raise ChildFailed(f"Apache Kafka on {self.bootstrap} is already running (pid {self.pid})")
        jar_directory = jars.fetch(jars.APACHE_KAFKA)
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "server.properties"
        config.write_text(properties_text(self._properties()), encoding="utf-8")
        if not (self.log_directory / "meta.properties").exists():
            cluster_id = new_cluster_id() if self._membership is None else self._membership.cluster_id
            kafka_tool(
                "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config), *self._format_arguments
            )
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING.format(level="WARN"), encoding="utf-8")
        command = java_arguments(
            jars.class_path(jar_directory), "kafka.Kafka", str(config),
            jvm_options=(
                f"-Xmx{self._heap_mb}m", f"-Xms{self._heap_mb}m", *self._jvm_options,
                f"-Dlog4j2.configurationFile={logging}",
            ),
        )  # fmt: skip
        self._process = ChildProcess(command, self.directory, "apache-kafka")

    def wait_until_serving(self) -> None:
        """Return when the node serves on all its listeners. Raises ChildFailed, after killing it, when it does not in
        time."""
        process = self._running()
        try:
            process.wait_until(lambda: _answers(self.bootstrap), _START_TIMEOUT_S, f"serving on {self.bootstrap}")
            # It opens its listeners one after the other; those that want a handshake are not asked anything.
            addresses = [self.address(listener) for listener in self._protocols]
            process.wait_until(lambda: all(map(_listens, addresses)), _START_TIMEOUT_S, f"listening on {addresses}")
        except ChildFailed:
            self.kill()
            raise

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop the node in order, a paused one too; kill it when it takes too long. Nothing happens when it is not
        running. Raises ChildFailed where it had to be killed."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)
        try:
            process.wait(timeout_s)
        finally:
            process.kill()

    def kill(self) -> None:
        """End the node with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def pause(self) -> None:
        """Freeze the node (SIGSTOP): its connections stay open, and nothing is answered from when this returns on."""
        self._running().pause()

    def resume(self) -> None:
        """Let the node go on after :meth:`pause`."""
        self._running().signal(signal.SIGCONT)

    def tool(
        self, main_class: str, *arguments: str, input: str | None = None, timeout_s: float = 120, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's Java tools against this node: :func:`kafka_tool` with ``--bootstrap-server`` given."""
        return kafka_tool(
            main_class, "--bootstrap-server", self.bootstrap, *arguments, input=input, timeout_s=timeout_s, check=check
        )

    def _properties(self) -> dict[str, str]:
        listeners = {name: f"{name}://{self.address(name)}" for name in self._protocols}
        member = self._membership
        voters = {1: self.address("CONTROLLER")} if member is None else member.voters
        replicas = min(3, 1 if member is None else member.brokers)
        advertised = {name: address for name, address in listeners.items() if name != "CONTROLLER"}
        roles = [*(["broker"] if advertised else []), *(["controller"] if "CONTROLLER" in listeners else [])]
        return {
            "process.roles": ",".join(roles),
            "node.id": "1" if member is None else str(member.node_id),
            "controller.quorum.voters": ",".join(f"{number}@{address}" for number, address in voters.items()),
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(advertised.values() or listeners.values()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{value}" for name, value in {"CONTROLLER": "PLAINTEXT", **self._protocols}.items()
            ),
            **({"inter.broker.listener.name": "PLAINTEXT"} if advertised else {}),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.log_directory),
            "offsets.topic.replication.factor": str(replicas),
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str((replicas + 1) // 2),
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str((replicas + 1) // 2),
            "group.initial.rebalance.delay.ms": "0",
            **self._overrides,
        }

    def __getstate__(self) -> dict[str, object]:
        """A copy in another process has the addresses and the tools, and does not own the node's process."""
        return {**self.__dict__, "_process": None}

    def _running(self) -> ChildProcess:
        if self._process is None:
            raise ChildFailed("Apache Kafka is not running: call start() first")
        return self._process

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def new_cluster_id() -> str:
    """Return an id as the tool that makes the storage takes it."""
    # A leading '-' of the URL-safe alphabet would be taken for an option.
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")


def _logging_file(jar_directory: Path) -> Path:
    """Return a logging configuration for tools, kept next to the jars."""
    path = jar_directory.with_name(f"{jar_directory.name}.log4j2.properties")
    if not path.exists():
        # The nodes of a cluster start in threads of one process.
        scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        scratch.write_text(_LOGGING.format(level="WARN"), encoding="utf-8")
        scratch.replace(path)
    return path


def _listens(address: str) -> bool:
    """Whether connections are taken at this address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _answers(address: str) -> bool:
    """Whether a node answers ApiVersions (version 0) at this address: it binds the port long before it serves."""
    host, _, port = address.rpartition(":")
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(framed(request))
            return len(connection.recv(4)) == 4
    except OSError:
        return False
