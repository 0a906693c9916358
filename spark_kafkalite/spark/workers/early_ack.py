"""Acknowledges a task's command early, so that Spark's JVM sends the rest of the task at once.

For each task the JVM makes two small writes to the TCP connection of a Python worker: the command, which holds the
pickled reader or writer, and then the partition or the rows. It does not set TCP_NODELAY. So the kernel keeps the
second write until the first one is acknowledged (RFC 896, Nagle's algorithm). A worker that answered the task before
within 40 ms counts as interactive: its kernel waits up to 40 ms for an answer that takes the acknowledgement along
(RFC 1122, section 4.2.3.2). The worker answers only after the second write, so both sides wait for that time.

Python reads the whole command before it unpickles it. So unpickling an :class:`EarlyAck` sends the acknowledgement
(TCP_QUICKACK of Linux's tcp(7)). The option does not last, so each task sets it again. Over Unix sockets, and where the
kernel lacks the option, nothing happens.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final

# None where the kernel lacks it, as on macOS.
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
# Spark gives it to the Python processes that it talks to over TCP, with which each connection begins. Source:
# PythonWorkerFactory.
_TCP_SECRET: Final = "PYTHON_WORKER_FACTORY_SECRET"
_DESCRIPTORS: Final = "/proc/self/fd"


class EarlyAck:
    """Base of what a task's command holds: unpickled in a Python worker, it acknowledges the command."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()


def acknowledge() -> None:
    """Acknowledge all that has come from Spark's JVM, if this process is a worker that talks to it over TCP."""
    if _QUICK_ACK is None or _TCP_SECRET not in os.environ:
        return
    descriptor = jvm_descriptor()
    if descriptor is None:
        return
    # The worker ends with the connection, and the JVM notices both: an error is not for this module to report.
    with suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        finally:
            # It belongs to PySpark.
            connection.detach()


@functools.cache
def jvm_descriptor() -> int | None:
    """Return the descriptor of this process's connection to Spark's JVM, None if it has none over TCP.

    It is the lowest one of a connection over the loopback interface: PySpark opens it before other code runs in the
    worker. A worker serves one connection until it ends.
    """
    try:
        descriptors = sorted(int(name) for name in os.listdir(_DESCRIPTORS))
    except OSError:
        return None
    return next((each for each in descriptors if _is_loopback_tcp(each)), None)


def _is_loopback_tcp(descriptor: int) -> bool:
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        # Not a socket.
        return False
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
            return False
        return all(ip_address(address[0]).is_loopback for address in (found.getsockname(), found.getpeername()))
    except (OSError, ValueError):
        # A listener has no peer.
        return False
    finally:
        found.detach()
