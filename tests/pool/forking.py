"""Starts the tests' brokers, registries and commands by forking them from a fork server (``fork_server``).

:func:`install` makes :class:`~spark_kafkalite.processes.child_process.ChildProcess` do so for every child that is
``python -m MODULE ...`` or ``python SCRIPT ...`` of this interpreter. A ``command_prefix``, or a variable that the
interpreter reads at its start, makes it a real start; so does the fixture ``real_starts``.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from spark_kafkalite.processes import child_process
from tests.paths import PROJECT
from tests.patience import PATIENCE_S

# A fork does not read them again.
_READ_AT_START: Final = ("PYTHONPATH", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONDEVMODE", "KAFKALITE_PURE_PYTHON")


class ForkedProcess:
    """A child of the fork server, with what is used of :class:`subprocess.Popen`."""

    def __init__(self, status: int) -> None:
        """Take over the descriptor on which the server reports the child's number and, later, its end."""
        self._status = status
        self._lock = threading.Lock()
        self._received = b""
        self.returncode: int | None = None
        while b"\n" not in self._received:
            if not self._receive():
                raise child_process.ChildFailed("the fork server ended")
        number, _, self._received = self._received.partition(b"\n")
        self.pid = int(number)

    def _receive(self) -> bool:
        some = os.read(self._status, 64)
        self._received += some
        return bool(some)

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0)
        return code

    def _ended_within(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
                # The server ends before its child only if both are killed.
                while self._receive():
                    pass
                self.returncode = int(self._received) if self._received.strip() else -signal.SIGKILL
                os.close(self._status)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """The fork server of this process, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self.is_suspended = False

    def start(
        self,
        command: Sequence[str],
        files: tuple[Path, Path, Path],
        environment: Mapping[str, str] | None,
        directory: Path | None,
    ) -> ForkedProcess | None:
        """Fork the command's process; None where it has to be a real start. A ``child_process.Starter``."""
        environment = dict(os.environ if environment is None else environment)
        program = _program(command)
        if self.is_suspended or program is None or not _is_as_forked(environment):
            return None
        module, arguments = program
        request = {
            "module": module,
            "arguments": arguments,
            "environment": environment,
            "directory": str(directory or Path.cwd()),
        }
        answers, status = os.pipe()
        with files[0].open("rb") as given, files[1].open("wb") as out, files[2].open("wb") as err, self._lock:
            streams = [given.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(self._connection(), [json.dumps(request).encode()], [*streams, status])
        os.close(status)
        return ForkedProcess(answers)

    def _connection(self) -> socket.socket:
        if self._requests is None or self._owner != os.getpid():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", "tests.pool.fork_server", str(theirs.fileno())]
                environment = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
                self._process = child_process.start_in_spawner(
                    lambda: subprocess.Popen(
                        child_process.dying_with_this_process(command),
                        cwd=PROJECT,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                    )
                )
            self._requests, self._owner = ours, os.getpid()
        return self._requests

    def stop(self) -> None:
        """End the server, and its children with it. A later start starts another one."""
        if self._requests is not None and self._owner == os.getpid() and self._process is not None:
            self._requests.close()
            self._process.wait()
            self._requests = self._process = None


_server: Final = ForkServer()


def install() -> None:
    """Start the children of this process by its fork server from now on."""
    child_process.set_starter(_server.start)
    atexit.register(_server.stop)


@contextlib.contextmanager
def real_starts() -> Iterator[None]:
    """Start real processes within."""
    before, _server.is_suspended = _server.is_suspended, True
    try:
        yield
    finally:
        _server.is_suspended = before


def run_command(
    *arguments: str, input: bytes = b"", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``kafkalite ARGUMENTS`` to its end and return its exit code and output."""
    command = [sys.executable, "-m", "spark_kafkalite.cli", *arguments]
    with tempfile.TemporaryDirectory(prefix="kafkalite-command-") as scratch:
        given = Path(scratch) / "stdin"
        given.write_bytes(input)
        child = child_process.ChildProcess(command, Path(scratch), "command", environment=environment, stdin_path=given)
        try:
            code = child.wait(PATIENCE_S)
        finally:
            child.kill()
        out, err = (path.read_text(encoding="utf-8") for path in (child.stdout_path, child.stderr_path))
    return subprocess.CompletedProcess(command, code, out, err)


def _is_as_forked(environment: Mapping[str, str]) -> bool:
    """Return whether an interpreter that starts with these variables would be as the fork server is."""
    different = {name for name in _READ_AT_START if environment.get(name) != os.environ.get(name)}
    # The server's path begins with the project.
    return not different or (different == {"PYTHONPATH"} and environment.get("PYTHONPATH") == str(PROJECT))


def _program(command: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the module ("" for a script) and the arguments of a command of this interpreter, if it is one."""
    if len(command) < 2 or command[0] != sys.executable:
        return None
    if command[1] == "-m" and len(command) > 2:
        return command[2], list(command[3:])
    return None if command[1].startswith("-") else ("", list(command[1:]))
