"""A flag that the handler of a signal raises and the main thread waits for."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from contextlib import suppress


class StopRequest:
    """Whether this process was asked to stop. Any thread and any signal handler may ask.

    A lock of Python, and what is built on one (``threading.Event``, ``queue.SimpleQueue``), cannot do this. Python runs
    a handler in the main thread. A signal that comes just before that thread begins to sleep on the lock does not end
    the sleep, and the handler waits for the next signal. So the wait sleeps on a pipe, into which the interpreter
    writes at each signal, in whatever thread it comes (``signal.set_wakeup_fd``).

    The pipe is never closed: a process makes one request, and its handlers use it until the process ends.
    """

    def __init__(self) -> None:
        self.came = False
        self._reader, self._writer = os.pipe()
        # The interpreter asks for that, and a handler must not wait for room.
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        """Ask this process to stop. May be called again."""
        self.came = True
        # A full pipe wakes the wait, too.
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until this process is asked to stop, at most ``timeout_s`` seconds; return whether it was.

        To be called in the main thread. The handlers of all signals run within the wait.
        """
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            while not self.came and (left_s := until_s - time.monotonic()) > 0:
                if poll.poll(None if left_s == math.inf else math.ceil(left_s * 1000)):
                    os.read(self._reader, select.PIPE_BUF)
        finally:
            signal.set_wakeup_fd(before)
        return self.came
