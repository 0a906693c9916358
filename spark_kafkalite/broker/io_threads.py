"""The broker's few threads for what may block or take long: fsync, reads from the disk, large compressed batches.

The event loop owns all state; a thread gets a self-contained piece of work and its outcome comes back to the loop. The
threads are started when they are first needed, so an idle broker has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


class IoThreads:
    """A bounded pool of threads whose outcomes are handled in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix="kafkalite-io")
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(
        self, work: Callable[[], T], on_done: Callable[[T], None], on_error: Callable[[BaseException], None]
    ) -> None:
        """Run ``work`` in a thread, then ``on_done`` with its result or ``on_error`` with its exception in the loop."""
        self._running += 1
        self._idle.clear()
        future = self._executor.submit(work)
        future.add_done_callback(lambda done: self._hand_over(done, on_done, on_error))

    def _hand_over(self, done: Future[Any], on_done: Callable[[Any], None], on_error: Callable[..., None]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._finish, done, on_done, on_error)
        except RuntimeError:
            # The loop is closed: the broker has stopped, and wait_until_idle had come back before.
            logger.debug("the outcome of a thread came after the event loop had closed")

    def _finish(self, done: Future[Any], on_done: Callable[[Any], None], on_error: Callable[..., None]) -> None:
        self._running -= 1
        if self._running == 0:
            self._idle.set()
        error = done.exception()
        if error is None:
            on_done(done.result())
        else:
            on_error(error)

    async def wait_until_idle(self) -> None:
        """Wait until no thread works and every outcome has been handled."""
        while self._running:
            await self._idle.wait()

    def close(self) -> None:
        """Let the threads end; waits for work that runs."""
        self._executor.shutdown(wait=True, cancel_futures=True)
