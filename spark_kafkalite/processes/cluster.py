"""Brokers and registries as processes: started from this interpreter, killed, stopped and restarted on the same port.

Works wherever the package is installed; ``testing.pytest_plugin`` makes fixtures of it. They listen on loopback by
default, keep their data in the directory they are given, and end with the test process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from spark_kafkalite.processes.client_access import ClientAccess
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.security.secure_directory import USER, SecureDirectory

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
_READY_LINE: Final = re.compile(r"^kafkalite (?:broker \d+|registry) ready on (.+):(\d+)$", re.MULTILINE)
_METRICS_LINE: Final = re.compile(r"^kafkalite broker \d+ metrics ready on (\S+)$", re.MULTILINE)
_REGISTRY_LINE: Final = re.compile(r"^kafkalite broker \d+ registry ready on (\S+)$", re.MULTILINE)
# Debug mode of asyncio is for loops in the test process; it makes a broker several times slower.
_NOT_INHERITED: Final = ("PYTHONASYNCIODEBUG",)


class _ServerProcess(ABC):
    """One ``kafkalite`` server in the foreground of a process of its own; a context manager."""

    _what = "server"

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        command_prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a server; ``start()`` or ``with`` starts it.

        It listens on loopback. Port 0 takes a free one, which later starts keep. ``command_prefix`` stands before the
        command (``ip netns exec N``, ``strace ...``); the attribute may be changed between two starts. ``environment``
        is added to this process's own.
        """
        self.data_dir = data_dir
        self.port = port
        self.host = "127.0.0.1"
        self.command_prefix = tuple(command_prefix)
        self._environment = dict(environment or {})
        self._process: ChildProcess | None = None
        self._starts = 0
        self.start_timeout_s = START_TIMEOUT_S
        self.start_seconds = 0.0

    @property
    def address(self) -> str:
        """``host:port`` as the ready line named it: from the first start on, and the same over restarts."""
        if not self.port:
            raise ChildFailed(f"the {self._what} has not been started yet, so it has no address")
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def stderr_path(self) -> Path:
        """The file with what the latest start wrote to stderr."""
        return self._started().stderr_path

    def start(self) -> Self:
        """Start it and return when it serves; ``start_seconds`` is then how long that took.

        Raises ChildFailed, with the end of its output, when it ends or stays silent for ``start_timeout_s``.
        """
        if self.running:
            raise ChildFailed(f"the {self._what} on {self.address} is already running (pid {self.pid})")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        # A port may be taken between choosing and binding it; that is then seen as an early end with this reason.
        chosen = self.port
        for attempts_left in (2, 1, 0):
            self.port = chosen or free_ports(1)[0]
            try:
                return self._launch()
            except ChildFailed as failure:
                self.port = chosen
                if chosen or not attempts_left or "Address already in use" not in str(failure):
                    raise
        return self

    def _launch(self) -> Self:
        self._starts += 1
        began = time.monotonic()
        self._process = process = ChildProcess(
            [*self.command_prefix, *self._command()],
            self._output_directory(),
            f"{self._what}-{self._starts}",
            environment=self._full_environment(),
        )
        try:
            process.wait_until(
                lambda: _READY_LINE.search(process.stdout_text()) is not None,
                self.start_timeout_s,
                "reporting that it is ready",
            )
        except ChildFailed:
            process.kill()
            raise
        self.start_seconds = time.monotonic() - began
        ready = _READY_LINE.search(process.stdout_text())
        assert ready is not None
        self.host, self.port = ready.group(1), int(ready.group(2))
        return self

    def kill(self) -> None:
        """End it and every process it started with SIGKILL, as a crash does. No error when it has ended."""
        if self._process is not None:
            self._process.kill()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop it with SIGTERM and return its exit code (0 when it stopped in order).

        Raises ChildFailed, after killing it, when it does not end in time.
        """
        process = self._started()
        process.signal(signal.SIGTERM)
        try:
            return process.wait(timeout_s)
        finally:
            process.kill()

    def restart(self) -> Self:
        """Stop it if it runs, and start it again on the same port and data."""
        if self.running:
            self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): its connections stay open, and nothing is answered from when this returns on."""
        self._started().pause()

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        self._started().signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Return its resident memory (RssAnon plus mapped files), as the kernel counts it now."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        if found is None:
            raise ChildFailed(f"the {self._what} (pid {self.pid}) has ended; it has no resident memory")
        return int(found.group(1)) * 1024

    def tail(self, lines: int = 20) -> str:
        """Return the end of the latest start's output, for an error message."""
        return self._started().tail(lines)

    @abstractmethod
    def _command(self) -> list[str]: ...

    def _output_directory(self) -> Path:
        # Beside the data, not in it: what lies in a log directory is the server's.
        return self.data_dir.with_name(f"{self.data_dir.name}-output")

    def _full_environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        return {**inherited, "PYTHONUNBUFFERED": "1", **self._environment}

    def _started(self) -> ChildProcess:
        if self._process is None:
            raise ChildFailed(f"the {self._what} has not been started")
        return self._process

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        """Stop it; one that a test paused or broke is killed."""
        if not self.running:
            self.kill()  # of a dead one only what it started may be left
            return
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        self.stop()


class BrokerProcess(_ServerProcess, ClientAccess):
    """One ``kafkalite broker`` process; a context manager.

    ``bootstrap`` is its address from the first start on, and stays the same over restarts.
    """

    _what = "broker"

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        overrides: Mapping[str, object] | None = None,
        command_prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        registry_port: int | None = None,
        tls: bool = False,
        sasl: str | None = None,
        security: SecureDirectory | None = None,
        config: Path | None = None,
    ) -> None:
        """Prepare a broker; ``start()`` or ``with`` starts it.

        Port 0 takes a free one, which later starts keep. ``overrides`` are broker settings in Kafka's names; giving
        ``listeners`` replaces the loopback listener (and then ``port`` means nothing). With a ``registry_port`` its
        registry is served there (0 takes a free one). The rest is as for every server here.

        ``tls`` gives the listener TLS, and ``sasl`` (SCRAM-SHA-256 or SCRAM-SHA-512) a user; with ``tls`` alone clients
        authenticate by a certificate. ``client_settings`` then has what a client needs. ``security`` takes the place of
        both; its user is the caller's to add. ``config`` is a file of settings below all others, which other users of
        the host do not see, as they see the command.
        """
        super().__init__(data_dir, port=port, command_prefix=command_prefix, environment=environment)
        self.overrides = dict(overrides or {})
        self._config = config
        if "broker.id" in self.overrides:
            self._what = f"broker-{self.overrides['broker.id']}"
        self._registry_port = registry_port
        self._has_own_user = security is None and sasl is not None
        if security is None and (tls or sasl is not None):
            security = SecureDirectory(data_dir.with_name(f"{data_dir.name}-security"), tls=tls, sasl=sasl)
        self.security = security

    @property
    def bootstrap(self) -> str:
        """``host:port`` as the broker's ready line named it."""
        return self.address

    @property
    def registry_connect(self) -> str:
        """Where its registry is served; what ``registry.zookeeper.open_zookeeper`` or kazoo connects to."""
        found = _REGISTRY_LINE.search(self._started().stdout_text())
        if found is None:
            raise ChildFailed("the broker does not serve its registry; give it a registry_port")
        return found.group(1)

    @property
    def metrics_url(self) -> str:
        """Where its metrics are served, ``http://HOST:PORT``; needs the setting ``metrics.listener``."""
        found = _METRICS_LINE.search(self._started().stdout_text())
        if found is None:
            raise ChildFailed("the broker serves no metrics; set metrics.listener")
        return found.group(1)

    def start(self) -> Self:
        if self._registry_port == 0:
            self._registry_port = free_ports(1)[0]
        if self._has_own_user:
            self._add_user()
        return super().start()

    def _add_user(self) -> None:
        """Add the user to the broker's own registry, while the broker does not run."""
        from spark_kafkalite.broker.authentication.first_user import ensure_user
        from spark_kafkalite.registry.tree.embedded_store import open_embedded

        assert self.security is not None and self.security.sasl is not None
        directory = Path(str(self.overrides.get("registry.dir") or self.data_dir / "_registry"))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = open_embedded(directory)
        try:
            ensure_user(store, USER, self.security.sasl, self.security.password)
        finally:
            store.close()

    @property
    def settings(self) -> dict[str, str]:
        """What it is started with, in Kafka's names."""
        protocol, secured = "PLAINTEXT", {}
        if self.security is not None:
            protocol, secured = self.security.protocol.value, self.security.broker_settings(self._what, [self.host])
        settings: dict[str, object] = {
            "log.dirs": self.data_dir,
            "listeners": f"{protocol}://{self.host}:{self.port}",
            **secured,
            **({} if self._registry_port is None else {"registry.listener": f"{self.host}:{self._registry_port}"}),
            **self.overrides,
        }
        return {name: _text(value) for name, value in settings.items()}

    def _command(self) -> list[str]:
        pairs = [part for name, value in self.settings.items() for part in ("--override", f"{name}={value}")]
        config = [] if self._config is None else ["--config", str(self._config)]
        return [sys.executable, "-m", "spark_kafkalite.cli", "broker", *config, *pairs]


class RegistryProcess(_ServerProcess):
    """One ``kafkalite registry`` process; a context manager. ``connect`` is its connect string.

    ``digest_file`` has the ``USER:PASSWORD`` that its clients have to know; without one it is open.
    """

    _what = "registry"
    digest_file: Path | None = None

    @property
    def connect(self) -> str:
        return self.address

    def _command(self) -> list[str]:
        where = ["--data", str(self.data_dir), "--port", str(self.port)]
        if self.digest_file is not None:
            where += ["--digest-file", str(self.digest_file)]
        return [sys.executable, "-m", "spark_kafkalite.cli", "registry", *where]


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
