"""Runs a real ZooKeeper server from the jars in PySpark, as a process.

``kafkalite zookeeper`` runs a server for development. Tests kill and restart servers. By default all listen on
loopback. A server's directory contains ``zoo.cfg`` (written at each start), ``data`` (snapshots, transaction logs,
``myid``) and the server's output.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from spark_kafkalite.processes.free_ports import free_ports, is_taken
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS, java_arguments, java_problem
from spark_kafkalite.version import install_command

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 15.0
# The smallest session timeout is two ticks. ZooKeeper's own default tick is 2000.
DEFAULT_TICK_MS: Final = 500

_SERVER: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# The jars of PySpark that a ZooKeeper server and its shell need.
_JARS: Final = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "log4j-*.jar",
    "netty-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "commons-cli-*.jar",
    "commons-io-*.jar",
)


def available() -> str | None:
    """Return the reason why ZooKeeper cannot run here, or None if it can."""
    if not _jar_directory().is_dir() or not any(_jar_directory().glob("zookeeper-[0-9]*.jar")):
        return f"PySpark, whose jars contain ZooKeeper, is not installed: {install_command('spark')}"
    return java_problem()


def class_path() -> str:
    """Return the class path of ZooKeeper's server and shell."""
    return ":".join(str(jar) for pattern in _JARS for jar in sorted(_jar_directory().glob(pattern)))


def four_letters(port: int, word: str, timeout_s: float = 1.0, host: str = "127.0.0.1") -> str:
    """Return a server's answer to a four-letter word such as ``srvr``; empty if the server does not answer."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(word.encode())
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""


class ZooKeeperServer:
    """One ZooKeeper server; a context manager. ``connect`` is its connect string, which restarts do not change."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        tick_ms: int = DEFAULT_TICK_MS,
        heap_mb: int = 128,
        server_id: int = 1,
        ensemble: Sequence[str] = (),
        command_prefix: Sequence[str] = (),
        jvm_options: Sequence[str] = (),
    ) -> None:
        """Prepare a server; ``start()`` or ``with`` starts it. It listens on ``host``. Port 0 selects a free port.

        ``ensemble``: the ``server.N=...`` lines, if the server belongs to an ensemble. ``command_prefix`` precedes the
        command (``ip netns exec N``).
        """
        self.directory = directory
        self.host = host
        self.port = port
        self._tick_ms = tick_ms
        self._heap_mb = heap_mb
        self._server_id = server_id
        self._ensemble = tuple(ensemble)
        self._command_prefix = tuple(command_prefix)
        self._jvm_options = (*SHORT_LIVED_OPTIONS, *jvm_options)
        self._process: ChildProcess | None = None
        self._starts = 0

    @property
    def connect(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self, *, wait: bool = True) -> Self:
        """Start the server and return when it serves, which one of an ensemble does once there is a majority."""
        # A port may be taken between choosing and binding it; that is then seen as an early end with this reason.
        chosen = self.port
        for attempts_left in (2, 1, 0):
            self.port = chosen or free_ports(1)[0]
            try:
                self._launch()
                if wait:
                    self.wait_until_serving()
                break
            except ChildFailed as failure:
                self.kill()
                if chosen or not attempts_left or "Address already in use" not in str(failure):
                    raise
        return self

    def wait_until_serving(self) -> None:
        """Wait until it answers requests. Raises ChildFailed."""
        self._running().wait_until(
            lambda: "Mode:" in four_letters(self.port, "srvr", host=self.host),
            START_TIMEOUT_S,
            f"serving on {self.connect}",
        )

    def kill(self) -> None:
        """End the server with SIGKILL. Nothing happens when it is not running."""
        if self._process is not None:
            self._process.kill()

    # ZooKeeper has no other way to stop: each transaction is on its disk.
    stop = kill

    def restart(self) -> Self:
        """Kill the server if it runs, and start it again on the same port and data."""
        self.kill()
        return self.start()

    def tail(self, lines: int = 20) -> str:
        """Return the end of the latest start's output, for an error message."""
        return self._running().tail(lines)

    def wait(self, timeout_s: float) -> int:
        """Wait for the server's own end. Raises ChildFailed when it does not come in time."""
        return self._running().wait(timeout_s)

    def _launch(self) -> None:
        if (problem := available()) is not None:
            raise ChildFailed(f"ZooKeeper cannot run here: {problem}")
        # Java says so in a stack trace, and another ZooKeeper at the port would answer as if it were this one. With a
        # prefix the port is that of another network.
        if not self._command_prefix and is_taken(self.host, self.port):
            raise ChildFailed(
                f"ZooKeeper cannot serve on {self.connect}: Address already in use. Choose another port (0: a free "
                "one), or stop what listens there"
            )
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self._server_id}\n", encoding="ascii")
        config = self.directory / "zoo.cfg"
        config.write_text(self._properties(data), encoding="utf-8")
        self._starts += 1
        command = java_arguments(
            class_path(), _SERVER, str(config), jvm_options=(f"-Xmx{self._heap_mb}m", *self._jvm_options)
        )
        self._process = ChildProcess([*self._command_prefix, *command], self.directory, f"zookeeper-{self._starts}")

    def _properties(self, data: Path) -> str:
        settings = {
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "tickTime": self._tick_ms,
            "maxSessionTimeout": 120_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "initLimit": 20,
            "syncLimit": 10,
            "autopurge.purgeInterval": 24,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items()) + "".join(
            f"{line}\n" for line in self._ensemble
        )

    def __getstate__(self) -> dict[str, object]:
        """A copy in another process has the address, and does not own the server's process."""
        return {**self.__dict__, "_process": None}

    def _running(self) -> ChildProcess:
        if self._process is None:
            raise ChildFailed("ZooKeeper is not running: call start() first")
        return self._process

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def _jar_directory() -> Path:
    # Not imported: PySpark takes half a second.
    found = find_spec("pyspark")
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) / "jars" if places else Path("no-pyspark")
