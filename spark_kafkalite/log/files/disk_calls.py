"""The calls of a file system that wait for its disk: which have not returned, of what file, and since when.

A thread makes each one through :meth:`DiskCalls.make`, which notes it. One system call is the unit, however long the
work is that it is part of: a large recovery or copy makes many of them, and only a disk that does not answer keeps one
of them from returning.

Not noted are calls that take long on a sound disk: ``syncfs``, which waits for what others have written, and making
room for a large file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import NamedTuple, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DiskCall(NamedTuple):
    """One call of a thread's, by its name in the system, of a file or directory; under way since this monotonic time,
    in seconds."""

    thread: int
    name: str
    path: str
    since_s: float


class DiskCalls:
    """See the module's text. Any thread makes its own calls, one at a time, and any may ask for all."""

    __slots__ = ("_now_s", "_under_way")

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._under_way: dict[int, tuple[str, str, float]] = {}

    def make(self, name: str, path: str, call: Callable[_P, _T], *arguments: _P.args, **more: _P.kwargs) -> _T:
        """Make a call of this thread's, and return what it returns; it is under way until then."""
        thread = get_ident()
        self._under_way[thread] = name, path, self._now_s()
        try:
            return call(*arguments, **more)
        finally:
            self._under_way.pop(thread, None)

    def under_way(self) -> list[DiskCall]:
        """Return the calls that have not returned, of all threads."""
        # Copied in one step, which no other thread comes between.
        return [DiskCall(thread, *call) for thread, call in list(self._under_way.items())]


# Of this process's files, in whatever file system of the operating system's they are.
CALLS = DiskCalls()
