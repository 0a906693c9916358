"""Reads thousands of nodes in a session: some at a time, results taken in the loop, in order.

A node that is watched by itself is read with its next watch in one call; an event only causes a new read. Nodes in
watched trees are read many in one message: a message for each would cost more than all else that is done about a
node. What a call from the queue asks for is sent when it ends. While a message is not answered, others are sent only
once they are full. Answers and events come through one queue (``inbox``): one is taken after the other, in slices.

A read that fails because the connection broke is not repeated here: its owner reads everything again when the
connection is back. Until then :attr:`NodeReads.is_incomplete` is True.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, Final

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.cluster.inbox import Inbox, Take
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import MAX_READ_AT_ONCE, NoAuth, NoNode, Store, Watcher, WatchEvent
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

# Reads that the store has been asked for and has not answered; the others wait here, where they take less memory.
_MAX_READS: Final = 1000

Ask = Callable[[], "Future[Any]"]
# Takes what a read is for, and its result: None when the node does not exist.
Apply = Callable[..., "Work[None] | None"]
# A node to read, what takes the result, and its arguments before it.
_NodeRead = tuple[str, Apply, tuple[Any, ...]]


class NodeReads:
    """See the module's text."""

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, slices: Slices, after_each: Callable[[], Work[None]]
    ) -> None:
        """``after_each`` is done after each call that the queue holds, before the next one."""
        self._store = store
        self._after_each = after_each
        self._inbox = Inbox(loop, slices, self._after_call)
        self._watchers: dict[tuple[Any, ...], Watcher] = {}
        self._to_ask: deque[tuple[Ask, Apply, tuple[Any, ...]]] = deque()
        # Nodes that are read many at once, each once, and how many messages for them are not answered.
        self._unasked: dict[_NodeRead, None] = {}
        self._messages = 0
        # Reads that the store has been asked for and has not answered.
        self._asked = 0
        # Reads whose results have not been applied, among them those that have not been asked for yet.
        self.pending = 0
        # Whether nodes may be missing: nothing has been read yet, or a read of the present round has had no result.
        self.is_incomplete = True
        # How often the owner has begun to read everything.
        self._round = 0

    def begin_round(self) -> None:
        """Note that the owner begins to read everything. A read of before that fails later leaves nothing out."""
        self._round += 1
        self.is_incomplete = False

    def put(self, take: Take, *arguments: Any) -> None:
        """Have ``take(*arguments)`` called in the loop, behind all that was put before. In any thread."""
        self._inbox.put(take, *arguments)

    def close(self) -> None:
        """Take nothing more. Watches that are still out there fire into nothing."""
        self._inbox.close()
        self._to_ask.clear()
        self._unasked.clear()

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

    def read_node(self, path: str, apply: Apply, *arguments: Any) -> None:
        """Read a node as :meth:`read` does, unless the same read is waiting to be sent: that one is recent enough.

        The result of a node that this session may not read is the NoAuth.
        To be called in calls from the queue alone.
        """
        read = path, apply, arguments
        if read not in self._unasked:
            self._unasked[read] = None
            self.pending += 1
            self._ask_for_nodes(MAX_READ_AT_ONCE)

    def _after_call(self) -> Work[None]:
        self._ask()
        self._ask_for_nodes(MAX_READ_AT_ONCE if self._messages else 1)
        yield from self._after_each()

    def _ask(self) -> None:
        while self._to_ask and self._asked < _MAX_READS:
            ask, apply, arguments = self._to_ask.popleft()
            self._asked += 1
            ask().add_done_callback(partial(self._inbox.put, self._arrived, apply, arguments, self._round))

    def _ask_for_nodes(self, least: int) -> None:
        while self._asked < _MAX_READS and len(self._unasked) >= least:
            some = list(islice(self._unasked, MAX_READ_AT_ONCE))
            for read in some:
                del self._unasked[read]
            self._asked += len(some)
            self._messages += 1
            asked = self._store.get_many([path for path, _, _ in some])
            asked.add_done_callback(partial(self._inbox.put, self._many_arrived, some, self._round))

    def _arrived(self, apply: Apply, arguments: tuple[Any, ...], of_round: int, done: Future[Any]) -> Work[None]:
        self._asked -= 1
        yield from self._taken(apply, arguments, of_round, done.exception() or done.result())

    def _many_arrived(self, reads: Sequence[_NodeRead], of_round: int, done: Future[Any]) -> Work[None]:
        self._asked -= len(reads)
        self._messages -= 1
        error = done.exception()
        if error is not None:
            self._failed(len(reads), of_round, error)
        else:
            for (_, apply, arguments), result in zip(reads, done.result(), strict=True):
                if isinstance(result, NoAuth):
                    # No failure of the session: reading again would give the same.
                    yield from self._applied(apply, arguments, result)
                else:
                    yield from self._taken(apply, arguments, of_round, result)
                yield None

    def _taken(self, apply: Apply, arguments: tuple[Any, ...], of_round: int, result: Any) -> Work[None]:
        """Take what a read has given, or its error."""
        if not isinstance(result, BaseException):
            yield from self._applied(apply, arguments, result)
        elif isinstance(result, NoNode):
            yield from self._applied(apply, arguments, None)
        else:
            self._failed(1, of_round, result)

    def _applied(self, apply: Apply, arguments: tuple[Any, ...], result: Any) -> Work[None]:
        try:
            work = apply(*arguments, result)
            if work is not None:
                yield from work
        except RegistryError as error:
            # What was known before stands; a broker must not stop because another program wrote a bad node.
            remedy = error.remedy if isinstance(error, MalformedNode) else "let this broker read it (setAcl)"
            _LOG.error("%s; what was known before stays in force: %s", error, remedy)
        except Exception:
            # A fault here costs what the node says, not the news of all others.
            _LOG.exception("a registry node could not be taken up")
        self.pending -= 1

    def _failed(self, count: int, of_round: int, error: BaseException) -> None:
        # The session is suspended or over, or the node is not for this client.
        self.is_incomplete = self.is_incomplete or of_round == self._round
        self.pending -= count
        _LOG.warning("a registry read failed: %s", error)
