"""The big outside parts that tests use: Apache Kafka, the secured one, ZooKeeper, HDFS, the JVM of Kafka's tools.

Each starts once in a run, when a test first asks for it. ``scripts/run_tests.py`` owns them, and in a run without it
each pytest process. The other processes reach the owner by the address in KAFKALITE_TEST_PARTS and get a copy of the
part, which has its addresses and cannot end it. Tests of several processes use a part at the same time: use topics,
groups and directories of your own (``names``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from spark_kafkalite.processes import zookeeper
from tests.interop.support.java_tools import JavaTools
from tests.lab import apache_kafka, hdfs

_ADDRESS: Final = "KAFKALITE_TEST_PARTS"
# A controller writes an empty record twice a second otherwise, and reads it again: a third of what an idle node does.
_IDLE_LESS: Final = {"metadata.max.idle.interval.ms": "0"}


def _apache_kafka(directory: Path, _: Parts) -> AbstractContextManager[object]:
    # Tests write records of long ago, which retention would take.
    return apache_kafka.ApacheKafka(directory, overrides={"log.initial.task.delay.ms": "86400000", **_IDLE_LESS})


def _identity_provider(_: Path, __: Parts) -> AbstractContextManager[object]:
    # It loads what signs tokens, which few tests need.
    from tests.lab.secure_kafka import ALICE
    from tests.lab.token_endpoint import TokenEndpoint

    return TokenEndpoint(subject=ALICE.name)


def _secure_kafka(directory: Path, parts: Parts) -> AbstractContextManager[object]:
    # It loads what makes certificates.
    from tests.lab.secure_kafka import SecureKafka

    return SecureKafka(directory, parts.started("identity_provider"), overrides=_IDLE_LESS)


@contextlib.contextmanager
def _kerberized_kafka(directory: Path, _: Parts) -> Iterator[object]:
    # It loads what makes certificates.
    from tests.interop.support.kerberized_kafka import KerberizedKafka
    from tests.interop.support.kerberos_realm import KerberosRealm

    with (
        KerberosRealm(directory / "realm") as realm,
        KerberizedKafka(directory, realm, overrides=_IDLE_LESS) as kafka,
    ):
        yield kafka


_STARTERS: Final[dict[str, Callable[[Path, Parts], AbstractContextManager[object]]]] = {
    "apache_kafka": _apache_kafka,
    "identity_provider": _identity_provider,
    "secure_kafka": _secure_kafka,
    "kerberized_kafka": _kerberized_kafka,
    "hdfs": lambda directory, _: hdfs.MiniHdfs(directory),
    "zookeeper": lambda directory, _: zookeeper.ZooKeeperServer(directory),
    "java_tools": lambda directory, _: JavaTools(directory),
}


class Parts:
    """The parts of a run, in the process that owns them; a context manager. It sets the address for its children."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="kafkalite-parts-"))
        self._locks = {name: threading.RLock() for name in _STARTERS}
        self._started: dict[str, Any] = {}
        self._ends = ExitStack()
        self._starter: threading.Thread | None = None
        self._is_ending = False
        self._listener = Listener(str(self._directory / "socket"))
        # A run inside another one (a test of the runner) has parts of its own for as long as it lasts.
        self._outer_address = os.environ.get(_ADDRESS)
        os.environ[_ADDRESS] = str(self._directory / "socket")
        threading.Thread(target=self._accept, name="test-parts", daemon=True).start()

    def started(self, name: str) -> Any:
        """Return the part, started. Raises what its start raises, each time."""
        with self._locks[name]:
            if name not in self._started:
                directory = self._directory / name
                directory.mkdir(exist_ok=True)
                self._started[name] = self._ends.enter_context(_STARTERS[name](directory, self))
            return self._started[name]

    def begin(self) -> None:
        """Start all parts, one after the other, while others go on: a test that needs one finds it started."""
        self._starter = threading.Thread(target=self._start_all, name="test-parts-start", daemon=True)
        self._starter.start()

    def _start_all(self) -> None:
        for name in _STARTERS:
            if self._is_ending:
                return
            # A test that asks for it gets the reason.
            with contextlib.suppress(Exception):
                self.started(name)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                connection = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        """Answer one process: with a part, or with what a method of a part that cannot be copied returns."""
        with connection, contextlib.suppress(EOFError, ConnectionError):
            while True:
                name, method, arguments, keywords = connection.recv()
                try:
                    part = self.started(name)
                    if method:
                        with self._locks[name]:
                            answer = getattr(part, method)(*arguments, **keywords)
                    else:
                        answer = part
                except Exception as error:
                    connection.send((False, error))
                else:
                    connection.send((True, answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the parts that were started. Nobody reads what they wrote: they need not stop in order."""
        self._listener.close()
        del os.environ[_ADDRESS]
        if self._outer_address is not None:
            os.environ[_ADDRESS] = self._outer_address
        self._is_ending = True
        if self._starter is not None:
            self._starter.join()
        for part in self._started.values():
            if isinstance(part, apache_kafka.ApacheKafka | hdfs.MiniHdfs):
                part.kill()
        self._ends.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class SharedJavaTools:
    """The run's :class:`JavaTools`. One tool runs at a time."""

    def run(self, *arguments: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
        """:meth:`JavaTools.run`."""
        done: subprocess.CompletedProcess[str] = _asked("java_tools", "run", *arguments, **keywords)
        return done


def is_owned_elsewhere() -> bool:
    """Whether another process owns the parts of this run."""
    return _ADDRESS in os.environ


def shared(name: str) -> Any:
    """Return a copy of a part of the run, which starts if it is the first time."""
    return _asked(name, "")


def own_identity_provider() -> Any:
    """Return an endpoint for this process alone, whose tokens are those of the run's: tests change what it answers."""
    from tests.lab.secure_kafka import ALICE
    from tests.lab.token_endpoint import TokenEndpoint

    return TokenEndpoint(subject=ALICE.name, issued_as=_asked("identity_provider", "as_issuer"))


_connections: Final = threading.local()


def _asked(name: str, method: str, *arguments: object, **keywords: object) -> Any:
    # A process that was forked from one with a connection has one of its own.
    if getattr(_connections, "owner", None) != os.getpid():
        _connections.connection, _connections.owner = Client(os.environ[_ADDRESS]), os.getpid()
    _connections.connection.send((name, method, arguments, keywords))
    good, answer = _connections.connection.recv()
    if not good:
        raise answer
    return answer
