"""The threads for work that blocks or takes long: fsync, reads from the disk, large compressed batches.

The event loop owns all state; a thread gets a self-contained piece of work and its outcome comes back to the loop. The
threads are started when they are first needed, so an idle broker has none. Where not even the first can be started,
for want of memory, the loop does the work itself: slowly is better than never. How many there may be can be changed:
new threads take what comes from then on, the old ones end when they have done what they were given.

There are lanes, each with threads of its own, because what is done in one may take long: a produce that waits for its
fsync must not queue behind a dozen consumers that read old data from the disk, nor behind batches being decompressed.
Nor behind calls to another disk that hang: where these are found (``hung_disks``) others take what is waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import Any, TypeVar

from spark_kafkalite.errors import ClosedError, KafkaStorageError
from spark_kafkalite.log.steps import Steps

T = TypeVar("T")
logger = logging.getLogger(__name__)


# Syncs of several files that wait together share a commit of the file system's journal: 64 producers on 16 partitions
# get one and a half times as much through as with four threads.
_SYNC_THREADS = 16


class Lane(Enum):
    """What a thread is wanted for."""

    SYNC = "sync"  # fsync, which answers wait for
    READ = "read"  # old data from the disk
    CHECK = "check"  # decompressing and walking batches
    FILES = "files"  # everything else: removing files, writing back


class IoThreads:
    """Bounded pools of threads whose outcomes are handled in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """``count`` threads at most in each lane; more for fsync."""
        self._loop = loop
        self._counts = dict.fromkeys(Lane, 0)
        self._executors: dict[Lane, ThreadPoolExecutor] = {}
        # Lanes that have a thread: it never ends before close, so it will run whatever is queued there.
        self._started: dict[Lane, ThreadPoolExecutor] = {}
        # What no thread has begun, in the order in which it was given.
        self._waiting: dict[Future[Any], tuple[Lane, Callable[[], Any]]] = {}
        self.resize(count)
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def resize(self, count: int) -> None:
        """Have ``count`` threads at most in each lane from now on; more for fsync."""
        counts = dict.fromkeys(Lane, count) | {Lane.SYNC: max(count, _SYNC_THREADS)}
        for lane in Lane:
            if counts[lane] != self._counts[lane]:
                self._replace(lane, counts[lane])
        self._counts = counts

    def _replace(self, lane: Lane, count: int) -> None:
        old = self._executors.get(lane)
        self._executors[lane] = ThreadPoolExecutor(count, f"kafkalite-{lane.value}")
        if old is not None:
            old.shutdown(wait=False)

    def renew(self) -> None:
        """Have new threads do what waits for one, because those that there are may hang. They end when they return."""
        for lane in Lane:
            self._replace(lane, self._counts[lane])
        for outcome, (lane, work) in list(self._waiting.items()):
            self._start(lane, work, outcome)

    def submit(
        self,
        work: Callable[[], T],
        on_done: Callable[[T], None],
        on_error: Callable[[BaseException], None],
        lane: Lane = Lane.FILES,
    ) -> None:
        """Run ``work`` in a thread, then ``on_done`` with its result or ``on_error`` with its exception in the loop."""
        self._running += 1
        self._idle.clear()
        outcome: Future[T] = Future()
        outcome.add_done_callback(lambda done: self._hand_over(done, on_done, on_error))
        self._waiting[outcome] = lane, work
        self._start(lane, work, outcome)

    def _start(self, lane: Lane, work: Callable[[], T], outcome: Future[T]) -> None:
        executor = self._executors[lane]
        try:
            executor.submit(self._run_in_thread, lane, executor, work, outcome)
        except (RuntimeError, MemoryError):
            # No thread can be started for want of memory. What was submitted is queued for those that there are.
            if self._started.get(lane) is not executor:
                self._loop.call_soon(self._run, work, outcome)

    def _run_in_thread(
        self, lane: Lane, executor: ThreadPoolExecutor, work: Callable[[], T], outcome: Future[T]
    ) -> None:
        if self._executors[lane] is executor:
            self._started[lane] = executor
        self._run(work, outcome)

    def _run(self, work: Callable[[], T], outcome: Future[T]) -> None:
        # Whoever takes it first: it may have been given to several.
        if self._waiting.pop(outcome, None) is None or not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

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

    async def run(self, work: Callable[[], T], lane: Lane = Lane.FILES) -> T:
        """Run ``work`` in a thread and return its result, or raise its exception."""
        outcome: asyncio.Future[T] = self._loop.create_future()

        def done(result: T) -> None:
            if not outcome.done():
                outcome.set_result(result)

        def failed(error: BaseException) -> None:
            if not outcome.done():
                outcome.set_exception(error)

        self.submit(work, done, failed, lane)
        return await outcome

    async def wait_until_idle(self) -> None:
        """Wait until no thread works and every outcome has been handled."""
        while self._running:
            await self._idle.wait()

    def close(self) -> None:
        """Let the threads end; waits for work that runs."""
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)


def run_in_threads(
    io: IoThreads, steps: Steps[None], on_end: Callable[[KafkaStorageError | ClosedError | None], None]
) -> None:
    """Do the next step, and have a thread run what comes before the one after it; ``on_end`` gets what ends them."""
    try:
        piece = next(steps)
    except StopIteration:
        on_end(None)
    except (KafkaStorageError, ClosedError) as error:
        on_end(error)
    else:

        def failed(error: BaseException) -> None:
            piece.fail(error)
            run_in_threads(io, steps, on_end)

        io.submit(piece.run, lambda _: run_in_threads(io, steps, on_end), failed)
