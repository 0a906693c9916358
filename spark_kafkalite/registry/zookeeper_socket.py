"""The two ends that kazoo's connection thread waits at: the server's socket, and the requests of other threads.

kazoo asks the system before each piece that it reads or writes, two or three times for a message of a hundred bytes,
and each time other threads take the interpreter. A failover is hundreds of messages within a moment, so here a burst is
read and sent at once. Received bytes are kept until kazoo asks for them, written bytes until no request waits; no
system call is needed to know whether one waits.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

from spark_kafkalite.platform_calls import EVENT, open_event

_READ_AT_ONCE: Final = 64 * 1024
# So much of what requests write is sent though more requests wait.
_MOST_UNSENT: Final = 16 * 1024


class ServerSocket:
    """A connected socket that does not block, with what has arrived and what is to be sent."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._arrived = b""
        self._taken = 0
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def pending(self) -> int:
        """Return how many bytes have arrived that :meth:`recv` gives without asking the system."""
        return len(self._arrived) - self._taken

    def recv(self, most: int) -> bytes:
        """Return what has arrived, ``most`` bytes of it; none at the end of the connection.

        Raises OSError as a socket does; BlockingIOError where nothing has arrived.
        """
        if self._taken == len(self._arrived):
            self._arrived, self._taken = self._socket.recv(_READ_AT_ONCE), 0
        begin, self._taken = self._taken, min(self._taken + most, len(self._arrived))
        return self._arrived[begin : self._taken]

    def send(self, data: bytes | memoryview) -> int:
        """Keep data until :meth:`flush` sends it."""
        self._unsent += data
        return len(data)

    @property
    def unsent(self) -> int:
        """How many bytes are kept."""
        return len(self._unsent)

    def flush(self) -> None:
        """Send what is kept, as much of it as the system takes. Raises OSError where the connection is broken."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return

    def close(self) -> None:
        self._socket.close()


class Waiting:
    """Counts the requests that wait for the connection thread; both ends of kazoo's "socket pair".

    Not a pair of sockets: with some hundred requests in it that is full, and the next request would block.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        # Not 0 while there is one.
        self._fd, self._writing_fd = open_event()

    def fileno(self) -> int:
        return self._fd

    def pending(self) -> int:
        """Return how many wait."""
        return self._count

    def send(self, data: bytes) -> int:
        """Count one for each byte."""
        with self._lock:
            self._count += len(data)
            if self._count == len(data):
                os.write(self._writing_fd, EVENT)
        return len(data)

    def recv(self, _: int) -> bytes:
        """Count one less. Raises BlockingIOError where none waits."""
        with self._lock:
            if not self._count:
                raise BlockingIOError(errno.EAGAIN, "no request waits")
            self._count -= 1
            if not self._count:
                os.read(self._fd, len(EVENT))
        return b"\0"

    def close(self) -> None:
        descriptors = {self._fd, self._writing_fd} - {-1}
        self._fd = self._writing_fd = -1
        for descriptor in descriptors:
            os.close(descriptor)


def readable(ends: Sequence[ServerSocket | Waiting], timeout_s: float | None) -> list[ServerSocket | Waiting]:
    """Return which ends have something to read, none when the time is over.

    What is kept to be sent is sent before the wait, and once no request waits that would add to it. While it does not
    all fit, received data is looked for as well: a server may take no more before its answers are read.
    Raises OSError where the connection is broken.
    """
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        ready = [end for end in ends if end.pending()]
        more_to_come = any(isinstance(end, Waiting) for end in ready)
        looks = not ready
        poll = select.poll()
        for end in ends:
            mask = select.POLLIN
            if isinstance(end, ServerSocket) and end.unsent and not (more_to_come and end.unsent < _MOST_UNSENT):
                end.flush()
                # After each burst, whatever waits already: else many requests would keep answers from being read.
                looks = True
                if end.unsent:
                    mask |= select.POLLOUT
            poll.register(end, mask)
        if not looks:
            return ready
        left_s = 0.0 if ready else None if until_s is None else max(until_s - time.monotonic(), 0.0)
        events = dict(poll.poll(None if left_s is None else left_s * 1000))
        found = [end for end in ends if end in ready or events.get(end.fileno(), 0) & ~select.POLLOUT]
        if found or left_s == 0.0:
            return found
