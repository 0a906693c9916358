"""The stacks of all threads and asyncio tasks of this process, in its log, at SIGUSR1.

A thread of its own waits for the signal: it answers while the event loop computes, and while a call of a disk does not
return. All other threads block the signal, because they inherit that from the main thread, which starts this one first.

One log line has one stack, the innermost call first. It names functions, files and lines, and no values, which may be
secrets. Equal stacks, as those of a thousand idle connections, are one line with their number.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_LOG = logging.getLogger(__name__)

_MOST_FRAMES: Final = 60
_MOST_STACKS: Final = 500

LoopOf = Callable[[], asyncio.AbstractEventLoop | None]


def log_stacks_at_sigusr1(loop_of: LoopOf) -> None:
    """Have SIGUSR1 write the stacks to the log from now on; ``loop_of`` returns the loop whose tasks are meant.

    To be called once, in the main thread, before the process starts other threads.
    """
    # For a thread that does not block the signal, as one of a library may: else the signal would end the process.
    signal.signal(signal.SIGUSR1, lambda *_: _log_stacks(loop_of()))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    threading.Thread(target=_wait, args=(loop_of,), name="kafkalite-stacks", daemon=True).start()


def _wait(loop_of: LoopOf) -> None:
    while True:
        signal.sigwait({signal.SIGUSR1})
        _log_stacks(loop_of())


def _log_stacks(loop: asyncio.AbstractEventLoop | None) -> None:
    threads, tasks = Counter(thread_stacks()), Counter(task_stacks(loop) if loop is not None else ())
    _LOG.info("SIGUSR1: the stacks of %d threads and %d tasks follow", threads.total(), tasks.total())
    lines = [*_counted("thread", threads), *_counted("task", tasks)]
    for line in lines[:_MOST_STACKS]:
        _LOG.info("%s", line)
    if len(lines) > _MOST_STACKS:
        _LOG.info("%d more stacks were not written", len(lines) - _MOST_STACKS)


def _counted(what: str, stacks: Counter[str]) -> Iterator[str]:
    for stack, count in stacks.most_common():
        yield f"{what} {stack}" if count == 1 else f"{count} {what}s {stack}"


def thread_stacks() -> Iterator[str]:
    """Yield the name and the stack of each thread but the present one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"{names.get(ident, 'of no name')}: {_text(_frames_of(frame))}"


def task_stacks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Yield where each task of a loop waits, through all coroutines that it awaits."""
    for task in asyncio.all_tasks(loop):
        awaited = reversed(list(_awaited(task.get_coro())))
        yield _text(awaited)


def _frames_of(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _awaited(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a coroutine and of what it awaits, the outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _text(frames: Iterator[tuple[FrameType, int]]) -> str:
    calls = [f"{frame.f_code.co_qualname} ({_short(frame.f_code.co_filename)}:{line})" for frame, line in frames]
    more = [f"{len(calls) - _MOST_FRAMES} more"] if len(calls) > _MOST_FRAMES else []
    return " < ".join([*calls[:_MOST_FRAMES], *more]) or "has ended"


def _short(path: str) -> str:
    """Return the part of a source file's path that names it: the folder and the file."""
    return "/".join(path.rsplit("/", 2)[-2:])
