"""Loopback ports for processes that are about to be started: brokers, clusters, and the parts that tests start."""

from __future__ import annotations

import atexit
import errno
import random
import socket
from collections import deque
from pathlib import Path
from typing import Final

# Linux gives connections the ports from 32768 on unless told otherwise; well-known servers lie below 20000.
_FIRST_FREE_PORT: Final = 20_000
_USUAL_FIRST_GIVEN_PORT: Final = 32_768
_MOST_HELD_PORTS: Final = 200
_held_ports: deque[socket.socket] = deque()


def free_ports(count: int) -> list[int]:
    """Return different loopback TCP ports that no process listens on.

    They lie below those that the system gives to connections, so a server that is restarted finds its port free. For a
    while no other process is given them by this function: they stay bound, in a way that lets a server listen on them
    which sets SO_REUSEADDR, as servers do.
    """
    try:
        first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first_given = _USUAL_FIRST_GIVEN_PORT
    candidates = range(_FIRST_FREE_PORT, max(first_given, _FIRST_FREE_PORT + 1000))
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(candidates)
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        # Not before: the kernel would share a port that another process holds.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held_ports.append(holder)
        found.append(port)
    while len(_held_ports) > _MOST_HELD_PORTS:
        _held_ports.popleft().close()
    return found


@atexit.register
def _release() -> None:
    # Before the interpreter warns of each of them.
    while _held_ports:
        _held_ports.popleft().close()


def is_taken(host: str, port: int) -> bool:
    """Return whether something listens at an address of this host. False, too, where that cannot be found out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        # What was there before may leave connections that are still closing.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
