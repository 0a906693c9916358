"""Sends warnings of Spark's Python processes on the driver's host to the application, which has Spark's log.

The way is a datagram socket in a directory of the user's own. Its name is that of the JVM's process, the parent or
grandparent of these processes. A sender never waits. If no application listens, or it is too slow, the warning is on
standard error only.
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


class PostedWarning(NamedTuple):
    """A warning: its speaker, what that reads or writes, the level (``WARN``, ``ERROR``), and the text."""

    speaker: str
    subject: str
    level: str
    text: str


class PostBox:
    """Where the warnings of one JVM's Python processes arrive."""

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

    def next(self, timeout_s: float) -> PostedWarning | None:
        """Return a warning, or None when none came in time, or what came is none."""
        self._socket.settimeout(timeout_s)
        try:
            fields = json.loads(self._socket.recv(_LONGEST))
            return PostedWarning(*map(str, fields))
        except (TimeoutError, ValueError, TypeError):
            return None

    def close(self) -> None:
        """Take no more."""
        self._socket.close()
        self._path.unlink(missing_ok=True)


def post(warning: PostedWarning, pids: tuple[int, ...] | None = None) -> None:
    """Hand a warning to the application that listens for one of these JVMs: this process's parent or grandparent."""
    directory = post_directory()
    if not is_private(directory):
        return
    text = warning.text if len(warning.text) <= _LONGEST_TEXT else f"{warning.text[:_LONGEST_TEXT]}..."
    sent = json.dumps(warning._replace(text=text)).encode()
    for pid in ancestors() if pids is None else pids:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(sent, str(directory / str(pid)))
            return
        except OSError:
            continue


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
