"""A process that has imported PySpark and the source, and forks Spark's Python processes (``spark_python.py``).

A session of tests starts one (:func:`serving`). It listens on a Unix socket. A request has a module, its arguments, the
working directory, the number of the JVM and the environment, and brings three descriptors: stdin, stdout and stderr.
The server answers ``forked``, and later the exit code. The forked process gets SIGTERM if the connection ends before it
does. The server ends with the process that started it.

It refuses what has to differ from it before the first import (:data:`_READ_AT_START`), or has more directories on its
path: a real Python starts then. pyarrow has a thread here, for the memory that it gives back. Spark's own daemons fork
next to that thread, too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from spark_kafkalite.processes.child_process import dying_with_this_process, start_in_spawner
from tests.paths import PROJECT
from tests.pool.fork_server import Child, become, detach

# Packages all of whose modules are imported.
_PRELOADED: Final = ("pyspark.sql.worker", "spark_kafkalite.spark", "spark_kafkalite.client")
# Modules that Spark runs. They are imported for what they import.
_PROGRAMS: Final = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner")
_READ_AT_START: Final = ("PYTHONSAFEPATH", "PYTHONWARNINGS", "PYTHONDEVMODE", "KAFKALITE_PURE_PYTHON")
_LARGEST_REQUEST: Final = 1 << 20


@contextlib.contextmanager
def serving(address: Path) -> Iterator[None]:
    """Run a server at an address until the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen(64)
        command = dying_with_this_process([sys.executable, "-m", "tests.spark.python_server", str(listener.fileno())])
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
        # As Spark has it in its Python processes.
        environment.setdefault("PYTHONHASHSEED", "0")
        process = start_in_spawner(
            lambda: subprocess.Popen(
                command, cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait()
        address.unlink()


def main(listening: int) -> NoReturn:
    """Serve requests at the socket with this descriptor until the process is killed."""
    for package in _PRELOADED:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            # Some need what not every environment has.
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    for program in _PROGRAMS:
        importlib.import_module(program)
    # The directory of the project, where this program runs.
    del sys.path[0]
    gc.collect()
    gc.freeze()
    try:
        Server(socket.socket(fileno=listening)).serve()
    except Child as child:
        request = child.request
    sys.path[:0] = [request["directory"], *filter(None, request["environment"]["PYTHONPATH"].split(os.pathsep))]
    # The source finds the JVM, and by it the application, as its parent or grandparent.
    os.getppid = lambda: request["jvm"]
    # Python warns of a module that was imported before it is run.
    sys.modules.pop(request["module"], None)
    become(request)


class Server:
    """Forks a process for each request, and reports its end."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> NoReturn:
        """Raises Child in the children."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ, None)
                elif isinstance(key.fileobj, int):
                    self._report_end(key)
                elif key.data is None:
                    self._take(key.fileobj)
                elif key.fileobj.fileno() >= 0:
                    # The connection has ended. The number is the child's until its end is reported.
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGTERM)

    def _take(self, connection: Any) -> None:
        """Answer a request."""
        self._selector.unregister(connection)
        message, streams, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 3)
        request = _request(message.decode()) if message else None
        if request is None:
            with contextlib.suppress(BrokenPipeError):
                connection.send(b"real")
            connection.close()
        else:
            server = os.getpid()
            if not (child := os.fork()):
                connection.close()
                self._close()
                detach(server, streams)
                raise Child(request)
            with contextlib.suppress(BrokenPipeError):
                connection.send(b"forked")
            self._selector.register(connection, selectors.EVENT_READ, child)
            self._selector.register(os.pidfd_open(child), selectors.EVENT_READ, (child, connection))
        for stream in streams:
            os.close(stream)

    def _report_end(self, key: selectors.SelectorKey) -> None:
        child, connection = key.data
        self._selector.unregister(key.fileobj)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection)
        os.close(key.fd)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            connection.send(b"%d" % ended)
        connection.close()

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()


def _request(message: str) -> dict[str, Any] | None:
    """Return a request as ``become`` takes it; None if a real Python has to start."""
    count, *words = message.split("\0")
    module, *arguments, directory, jvm = words[: int(count)]
    environment = dict(word.split("=", 1) for word in words[int(count) :])
    if any(environment.get(name) != os.environ.get(name) for name in _READ_AT_START):
        return None
    own, given = (set(each.get("PYTHONPATH", "").split(os.pathsep)) for each in (os.environ, environment))
    if not given <= own | {""}:
        return None
    return {
        "module": module,
        "arguments": arguments,
        "environment": environment,
        "directory": directory,
        "jvm": int(jvm),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))
