"""Reads thousands of nodes in a session: some at a time, results taken in the loop, in order.

A node that is watched by itself is read with its next watch in one call; an event only causes a new read. Answers and
events come through one queue (``inbox``): one is taken after the other, in slices.

A read that fails because the connection broke is not repeated here: its owner reads everything again when the
connection is back. Until then :attr:`NodeReads.is_incomplete` is True.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.cluster.inbox import Inbox, Take
from spark_kafkalite.registry.store import NoNode, Store, Watcher, WatchEvent
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

# Reads that the store has been asked for and has not answered; the others wait here, where they take less memory.
_MAX_READS: Final = 1000

Ask = Callable[[], "Future[Any]"]
# Takes what a read is for, and its result: None when the node does not exist.
Apply = Callable[..., "Work[None] | None"]


class NodeReads:
    """See the module's text."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slices: Slices, after_each: Callable[[], Work[None]]) -> None:
        """``after_each`` is done after each call that the queue holds, before the next one."""
        self._inbox = Inbox(loop, slices, after_each)
        self._watchers: dict[tuple[Any, ...], Watcher] = {}
        self._to_ask: deque[tuple[Ask, Apply, tuple[Any, ...]]] = deque()
        self._unasked: set[tuple[Any, ...]] = set()
        self._asked = 0
        # Reads whose results have not been applied, among them those that have not been asked for yet.
        self.pending = 0
        # Whether nodes may be missing: nothing has been read yet, or a read since this was last cleared has had no
        # result. The owner clears it when it begins to read everything.
        self.is_incomplete = True

    def put(self, take: Take, *arguments: Any) -> None:
        """Have ``take(*arguments)`` called in the loop, behind all that was put before. In any thread."""
        self._inbox.put(take, *arguments)

    def close(self) -> None:
        """Take nothing more. Watches that are still out there fire into nothing."""
        self._inbox.close()
        self._to_ask.clear()

    def watch(self, read_again: Callable[..., None], *arguments: Any) -> Watcher:
        """Return the one watcher of a node: a store keeps equal watchers once, so repeated reads add none."""
        key = (read_again, *arguments)
        watcher = self._watchers.get(key)
        if watcher is None:

            def on_event(_: WatchEvent) -> None:
                self._inbox.put(read_again, *arguments)

            watcher = self._watchers[key] = on_event
        return watcher

    def read(self, ask: Ask, apply: Apply, *arguments: Any) -> None:
        """Have ``apply(*arguments, result)`` called in the loop; the result is None when the node does not exist."""
        self.pending += 1
        self._to_ask.append((ask, apply, arguments))
        self._ask()

    def read_node(self, store: Store, path: str, apply: Apply, *arguments: Any) -> None:
        """Read a node as :meth:`read` does, unless the same read is waiting to be sent: that one is recent enough."""
        key = (path, *arguments)
        if key in self._unasked:
            return
        self._unasked.add(key)

        def ask() -> Future[Any]:
            self._unasked.discard(key)
            return store.get(path)

        self.read(ask, apply, *arguments)

    def _ask(self) -> None:
        while self._to_ask and self._asked < _MAX_READS:
            ask, apply, arguments = self._to_ask.popleft()
            self._asked += 1
            ask().add_done_callback(partial(self._inbox.put, self._arrived, apply, arguments))

    def _arrived(self, apply: Apply, arguments: tuple[Any, ...], done: Future[Any]) -> Work[None]:
        self._asked -= 1
        error = done.exception()
        if error is None or isinstance(error, NoNode):
            try:
                work = apply(*arguments, None if error else done.result())
                if work is not None:
                    yield from work
            except RegistryError as malformed:
                # What was known before stands; a broker must not stop because another program wrote a bad node.
                _LOG.error("ignoring a registry node: %s", malformed)
            except Exception:
                # A fault here costs what the node says, not the news of all others.
                _LOG.exception("a registry node could not be taken up")
        else:
            # The session is suspended or over.
            self.is_incomplete = True
            _LOG.warning("a registry read failed: %s", error)
        self.pending -= 1
        self._ask()
