"""The threads for work that blocks or takes long: fsync, reads from the disk, large compressed batches.

The event loop owns all state. A thread gets a self-contained piece of work, and the loop handles its outcome. Threads
start when the broker first needs them, so an idle broker has none. If the system has no memory for even the first
thread, the loop does the work itself, because slow work is better than none. The number of threads may change: new
threads then take the new work, and the old threads end after their work.

Each kind of work has a lane with its own threads, because work in one lane may take long. For example, a Produce that
waits for its fsync must not queue behind consumers that read old data from the disk, or behind decompression. Nor may
work queue behind hanging calls to another disk. When ``hung_disks`` finds such calls, new threads take the waiting
work.
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
from spark_kafkalite.slices import Work

T = TypeVar("T")
logger = logging.getLogger(__name__)


# Concurrent syncs of several files share a commit of the file system's journal. With 64 producers on 16 partitions the
# throughput is one and a half times that with four threads.
_SYNC_THREADS = 16


class Lane(Enum):
    """The kind of a thread's work."""

    SYNC = "sync"  # fsync, which answers wait for
    READ = "read"  # old data from the disk
    CHECK = "check"  # decompressing and walking batches
    TICKETS = "tickets"  # of Kerberos, which logins wait for
    KEYS = "keys"  # of identity providers on other hosts, which may hang for seconds
    FILES = "files"  # everything else: removing files, writing back


class IoThreads:
    """Bounded pools of threads. The loop handles the outcomes of their work."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        """``count``: the largest number of threads in each lane, except that for fsync, which has more."""
        self._loop = loop
        self._counts = dict.fromkeys(Lane, 0)
        self._executors: dict[Lane, ThreadPoolExecutor] = {}
        # The pools that have a thread. It does not end before close, so it will run everything in its queue.
        self._started: dict[Lane, ThreadPoolExecutor] = {}
        # The work that no thread has begun, in the order of its submission.
        self._waiting: dict[Future[Any], tuple[Lane, Callable[[], Any]]] = {}
        self.resize(count)
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def resize(self, count: int) -> None:
        """Set the largest number of threads in each lane, as for the constructor."""
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
        """Let new threads do the waiting work, because the present ones may hang. These end when their calls return."""
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
            # The system has no memory for another thread. The pool has queued the work for its present threads, if any.
            if self._started.get(lane) is not executor:
                self._loop.call_soon(self._run, work, outcome)

    def _run_in_thread(
        self, lane: Lane, executor: ThreadPoolExecutor, work: Callable[[], T], outcome: Future[T]
    ) -> None:
        if self._executors[lane] is executor:
            self._started[lane] = executor
        self._run(work, outcome)

    def _run(self, work: Callable[[], T], outcome: Future[T]) -> None:
        # The first thread to take it runs it: the work may have been submitted to several pools.
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
            # The loop is closed: the broker has stopped, and wait_until_idle has returned before.
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
        """Wait until no thread works and the loop has handled every outcome."""
        while self._running:
            await self._idle.wait()

    def close(self) -> None:
        """End the threads. Waits for running work, and cancels queued work."""
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)


def run_in_threads(
    io: IoThreads, steps: Steps[None], on_end: Callable[[KafkaStorageError | ClosedError | None], None]
) -> None:
    """Do the next step in the loop, let a thread run the work that it yields, and so on up to the last step.

    ``on_end`` gets the error that ended the steps, or None.
    """
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


def in_thread(
    io: IoThreads, loop: asyncio.AbstractEventLoop, work: Callable[[], T], lane: Lane = Lane.FILES
) -> Work[T]:
    """Have a thread do something that other work waits for; return its result, or raise its exception."""
    outcome: asyncio.Future[T] = loop.create_future()
    io.submit(work, outcome.set_result, outcome.set_exception, lane)
    yield outcome
    return outcome.result()
