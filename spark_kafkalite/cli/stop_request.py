"""A flag that the handler of a signal raises and the main thread waits for."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class StopRequest:
    """Whether this process was asked to stop. Any thread and any signal handler may ask.

    ``threading.Event`` cannot do this. Python runs the handler in the main thread, also while that thread is within
    ``Event.wait`` and holds the lock of the event; ``Event.set`` would then wait for that lock for ever. The ``put`` of
    a SimpleQueue is reentrant.
    """

    def __init__(self) -> None:
        self.came = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask this process to stop. May be called again."""
        self.came = True
        self._wake.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until this process is asked to stop, at most ``timeout_s`` seconds; return whether it was."""
        if not self.came:
            with suppress(Empty):
                self._wake.get(timeout=timeout_s)
        return self.came
