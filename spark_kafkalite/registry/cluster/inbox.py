"""Passes what a store's thread calls back to an event loop, in order and in slices.

A registry answers by the thousand: each answer handed over by itself would be a call in the same pass of the loop, and
a pass of thousands of them delays all other work. Here they wait in one queue, and the loop takes as many as one slice
allows. Taking one may itself be long: then it is work (``slices``), and the next one waits for its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from spark_kafkalite.registry.store import call_in_loop
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

# What is done with one thing; work if it may be long.
Take = Callable[..., Work[None] | None]


class Inbox:
    """A queue of calls, filled in any thread and run in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slices: Slices, after_each: Callable[[], Work[None]]) -> None:
        """``after_each`` is done after each call, before the next one."""
        self._loop = loop
        self._slices = slices
        self._after_each = after_each
        self._calls: deque[tuple[Take, tuple[Any, ...]]] = deque()
        # Whether the loop has been told, or takes calls already.
        self._told = False
        self._taking = False
        self._closed = False

    def put(self, take: Take, *arguments: Any) -> None:
        """Have ``take(*arguments)`` called in the loop, behind all that were put before. In any thread."""
        if self._closed:
            return
        self._calls.append((take, arguments))
        if not self._told:
            self._told = True
            call_in_loop(self._loop, self._start)

    def close(self) -> None:
        """Take nothing more."""
        self._closed = True
        self._calls.clear()

    def _start(self) -> None:
        if not self._taking:
            self._taking = True
            self._slices.start(self._take_all(), self._taken)

    def _taken(self, _: None, error: BaseException | None) -> None:
        self._taking = False
        if error is not None:
            _LOG.critical("this broker does not follow the registry any more", exc_info=error)

    def _take_all(self) -> Work[None]:
        while True:
            while self._calls:
                take, arguments = self._calls.popleft()
                try:
                    work = take(*arguments)
                    if work is not None:
                        yield from work
                    yield from self._after_each()
                except Exception:
                    _LOG.exception("a registry answer or event could not be taken")
                yield None
            # In this order: what is put after the look is told anew.
            self._told = False
            if not self._calls:
                return
            self._told = True
