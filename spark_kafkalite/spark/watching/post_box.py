"""Sends warnings and figures of Spark's Python processes on the driver's host to the application.

The application has Spark's log. The way is a datagram socket in a directory of the user's own. Its name is that of the
JVM's process, the parent or grandparent of these processes. The sender of a warning never waits, that of figures waits
for a moment. If no application listens, or it is too slow, a warning is on standard error only, and figures are lost.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

_LONGEST: Final = 16_384
_LONGEST_TEXT: Final = 2_000
# The kernel keeps some ten datagrams for a receiver, and many tasks may end at the same time.
_FIGURES_WAIT_S: Final = 0.2


class PostedWarning(NamedTuple):
    """A warning: its speaker, what that reads or writes, the level (``WARN``, ``ERROR``), and the text."""

    speaker: str
    subject: str
    level: str
    text: str


class TaskFigures(NamedTuple):
    """What one task has read, or the tasks of one write have written.

    ``query_id`` is empty, and ``batch_id`` -1, outside of streaming queries. ``place`` names the task in its batch. A
    repeated task has the same one. ``bytes`` are those of record batches, compressed as they are. ``busy_ms`` is the
    time of fetches, or of encoding and handing over; ``wait_ms`` that in which the task waited for brokers. ``text`` is
    a line for the log.
    """

    speaker: str
    subject: str
    query_id: str
    batch_id: int
    place: str
    tasks: int
    records: int
    bytes: int
    busy_ms: int
    wait_ms: int
    text: str


_FIGURE_TYPES: Final = (str, str, str, int, str, int, int, int, int, int, str)


class PostBox:
    """Where the warnings and figures of one JVM's Python processes arrive."""

    def __init__(self, jvm_pid: int) -> None:
        """Raises OSError where there can be none: another user has the directory, or its path is too long."""
        directory = post_directory()
        directory.mkdir(mode=0o700, exist_ok=True)
        if not is_private(directory):
            raise PermissionError(f"{directory} is not a directory of this user's alone")
        self._path = directory / str(jvm_pid)
        # A process of the same number may have been killed.
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise

    def next(self, timeout_s: float) -> PostedWarning | TaskFigures | None:
        """Return what came, or None when nothing came in time, or what came is neither a warning nor figures."""
        self._socket.settimeout(timeout_s)
        try:
            fields = json.loads(self._socket.recv(_LONGEST))
            if len(fields) == len(_FIGURE_TYPES):
                return TaskFigures(*(kind(each) for kind, each in zip(_FIGURE_TYPES, fields, strict=True)))
            return PostedWarning(*map(str, fields))
        except (TimeoutError, ValueError, TypeError, OverflowError, RecursionError):
            return None

    def close(self) -> None:
        """Take no more."""
        self._socket.close()
        self._path.unlink(missing_ok=True)


def post(sent: PostedWarning | TaskFigures, pids: tuple[int, ...] | None = None) -> None:
    """Hand this to the application that listens for one of these JVMs: this process's parent or grandparent."""
    directory = post_directory()
    if not is_private(directory):
        return
    text = sent.text if len(sent.text) <= _LONGEST_TEXT else f"{sent.text[:_LONGEST_TEXT]}..."
    datagram = json.dumps(sent._replace(text=text)).encode()
    for pid in ancestors() if pids is None else pids:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_FIGURES_WAIT_S if isinstance(sent, TaskFigures) else 0)
                sender.connect(str(directory / str(pid)))
                sender.send(datagram)
            return
        except OSError:
            continue


def listening_jvm() -> int:
    """Return the number of the JVM that has started this process, if an application listens for it, else 0."""
    directory = post_directory()
    if not is_private(directory):
        return 0
    return next((pid for pid in ancestors() if (directory / str(pid)).exists()), 0)


def post_directory() -> Path:
    """Return the directory in which applications listen; whether it is private is to be checked."""
    return Path(tempfile.gettempdir(), f"spark-kafkalite-{os.geteuid()}")


def is_private(directory: Path) -> bool:
    """Whether the directory is this user's, and closed to all others."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def ancestors() -> tuple[int, ...]:
    """Return the numbers of the parent and the grandparent, one of which is the JVM."""
    parent = os.getppid()
    try:
        # The name, in brackets, may have anything in it. Source: proc_pid_stat(5).
        grandparent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return (parent,)
    return (parent, grandparent)
