"""Sees that an event loop is called by its own thread only, as asyncio's debug mode does.

The mode also keeps the stack of each callback, future and task, which takes more than half of the time of tests that
work on a loop. ``PYTHONASYNCIODEBUG=1`` turns it on, to see where a task came from.
"""

from __future__ import annotations

import threading
from asyncio import BaseEventLoop
from collections.abc import Callable
from typing import Any, Final

# What schedules a callback without waking the loop: from another thread it would run late, or never.
_FOR_ITS_THREAD: Final = ("call_soon", "call_at")


def install() -> None:
    """Have the loops of this process raise RuntimeError in a call from a thread that they do not run in."""
    for name in _FOR_ITS_THREAD:
        setattr(BaseEventLoop, name, _checked(getattr(BaseEventLoop, name)))


def _checked(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if self._thread_id is not None and self._thread_id != threading.get_ident():
            raise RuntimeError("a thread schedules a callback on a loop that runs in another one: call_soon_threadsafe")
        return call(self, *arguments, **keywords)

    return checked
