"""The producer thread's way to one broker, and how the thread is woken.

A :class:`BrokerLink` has a pipeline, or is connecting in a short-lived thread, or waits until it may try again.
A :class:`WakeUp` is a pipe that the thread's selector watches; signals that come before it has looked are one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.pipeline import Pipeline
from spark_kafkalite.client.network.retry import Backoff
from spark_kafkalite.errors import BrokerUnreachable, KafkaliteError

_LOG: Final = logging.getLogger("spark_kafkalite.client")


class BrokerLink:
    """What the sender knows of one broker: its pipeline, or when to try for one."""

    __slots__ = ("backoff", "connecting", "pipeline", "reported", "retry_at_s")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.pipeline: Pipeline | None = None
        self.connecting = False
        self.retry_at_s = 0.0
        # The problem of this outage that the log has already: every try meets it again.
        self.reported = ""

    def connect(
        self,
        open_connection: Callable[[], BrokerConnection],
        deliver: Callable[[BrokerConnection | KafkaliteError], None],
    ) -> None:
        """Open a connection in another thread, which then calls ``deliver`` with it or with why there is none."""
        self.connecting = True

        def connect() -> None:
            try:
                opened: BrokerConnection | KafkaliteError = open_connection()
            except KafkaliteError as error:
                opened = error
            except Exception as error:  # a mistake of ours: the sender would wait for this thread for ever
                _LOG.exception("a producer's connection could not be opened")
                opened = BrokerUnreachable(f"opening a connection failed: {type(error).__name__}")
            deliver(opened)

        threading.Thread(target=connect, name="kafkalite-producer-connect", daemon=True).start()


class WakeUp:
    """Wakes a thread that waits in a selector; any thread may signal."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._signalled = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._read

    def signal(self) -> None:
        """Make the pipe readable, unless it is or the thread has not looked since."""
        if self._signalled:
            return
        self._signalled = True
        # The lock keeps close() from handing the descriptor's number to somebody else in between.
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._write >= 0:
                os.write(self._write, b"w")

    def drain(self) -> None:
        """Take what was signalled out of the pipe."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def rearm(self) -> None:
        """Have the next signal count; call it before reading what was signalled."""
        self._signalled = False

    def close(self) -> None:
        """Close the pipe; later signals do nothing."""
        with self._lock:
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1
