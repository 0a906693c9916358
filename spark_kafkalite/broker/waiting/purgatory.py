"""The purgatory: fetches that wait for bytes, produces that wait for commitment, and when each wakes.

A :class:`DelayedOperation` sits on the waiting lists of its partitions and has a deadline. It is finished exactly once,
by the first of: a wake-up after which :meth:`~DelayedOperation.try_complete` succeeds, its deadline, or its
connection's end. The derived classes define what completes an operation (``handlers/fetch.py``,
``handlers/produce.py``).

Wake-ups are gathered: all appends that one pass of the event loop makes cause one check of each waiting operation, at
the end of the pass. So a fetch is not answered once for each of fifty pipelined produces, and never in the middle of a
handler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from spark_kafkalite.broker.waiting.deadlines import Deadline, Deadlines
from spark_kafkalite.net.event_loop import end_of_pass, last_in_pass
from spark_kafkalite.quiet_log import QuietLog

_quiet = QuietLog(logging.getLogger(__name__))

# Longer timeouts than this (a client may ask for 24 days) are cut, which only makes the client ask again.
_LONGEST_WAIT_S = 3600.0


class AnsweredConnection(Protocol):
    """What answers leave over."""

    def send_answers(self) -> None:
        """Send the answers that there are now, before others are made elsewhere."""


class DelayedOperation:
    """An answer that waits; derived classes give it the three decisions."""

    __slots__ = ("_deadline", "connection", "finished")

    def __init__(self, connection: AnsweredConnection | None = None) -> None:
        """``connection`` is what the answer leaves over, if it does."""
        self.connection = connection
        self._deadline: Deadline | None = None
        self.finished = False

    def wait_at_most(self, timeout_s: float, deadlines: Deadlines) -> None:
        """Set the deadline, after which :meth:`expire` is called unless the operation is finished.

        A second deadline replaces the first."""
        if self._deadline is not None:
            self._deadline.pop(self, None)
        self._deadline = deadlines.add(self, min(max(timeout_s, 0.0), _LONGEST_WAIT_S))

    def try_complete(self) -> bool:
        """Answer and finish if what was waited for has happened; return whether it has."""
        raise NotImplementedError

    def expire(self) -> None:
        """Answer and finish because time is up."""
        raise NotImplementedError

    def release(self) -> None:
        """Leave all waiting lists; called once, by :meth:`finish`."""
        raise NotImplementedError

    def finish(self) -> bool:
        """Mark the operation as finished; return False when it was already. Only the caller that gets True may
        answer."""
        if self.finished:
            return False
        self.finished = True
        deadline = self._deadline
        if deadline is not None:
            self._deadline = None
            deadline.pop(self, None)
        self.release()
        return True

    def fail(self) -> None:
        """Close the connection that waits, because no answer can be given."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Finish without an answer, because its client is gone."""
        self.finish()

    def time_is_up(self) -> None:
        """Expire, because the deadline has come."""
        self._deadline = None
        try:
            self.expire()
        except Exception:
            self.report_bug()

    def report_bug(self, error: BaseException | None = None) -> None:
        """Give up after an error that is ours: one operation must not take the others woken with it down."""
        _quiet.log(logging.ERROR, "bug", "completing a waiting request failed", exc_info=error or True)
        self.fail()
        self.abandon()


class Watcher(Protocol):
    """What hears at once what happens, and stays in the list: a partition of a fetch session.

    ``session`` is that session, ``leader_epoch`` the epoch that was last asked under.
    """

    @property
    def session(self) -> object: ...

    @property
    def leader_epoch(self) -> int: ...

    def news(self) -> None:
        """Note that what is waited for has happened."""

    def changed(self) -> None:
        """Note a change that answers contain, but no operation waits for."""

    def let_go(self) -> None:
        """Note that nothing will happen any more in the list, and drop all references to it."""


class WaitingList:
    """Operations that wait for one thing, and watchers of it. They join and leave by themselves. When it happens, all
    operations are woken after the pass of the loop. Watchers are called at once, which must not take long."""

    __slots__ = ("_purgatory", "operations", "watchers")

    def __init__(self, purgatory: Purgatory) -> None:
        self._purgatory = purgatory
        self.operations: dict[DelayedOperation, None] = {}
        self.watchers: dict[Watcher, None] = {}

    def add(self, operation: DelayedOperation) -> None:
        self.operations[operation] = None

    def remove(self, operation: DelayedOperation) -> None:
        """Take an operation out, if the list has it."""
        self.operations.pop(operation, None)

    def wake(self) -> None:
        """Have every operation of the list checked after this pass of the loop, and notify the watchers."""
        if self.operations:
            self._purgatory.wake(self.operations)
        for watcher in self.watchers:
            watcher.news()

    def wake_one(self, operation: DelayedOperation) -> None:
        """Have one operation, which need not be of the list, checked after this pass of the loop."""
        self._purgatory.wake_one(operation)

    def tell_of_change(self) -> None:
        """Notify the watchers of a change that no operation waits for: of the high watermark, or of the log start."""
        for watcher in self.watchers:
            watcher.changed()

    def close(self) -> None:
        """Wake all for the last time."""
        self.wake()
        self.operations = {}
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher.let_go()


class Purgatory:
    """Gathers wake-ups and checks each woken operation once per pass of the event loop."""

    __slots__ = ("_at_end_of_pass", "_last", "_last_in_pass", "_loop", "_woken", "deadlines")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at_end_of_pass = end_of_pass(loop)
        self._last_in_pass = last_in_pass(loop)
        self._woken: dict[DelayedOperation, None] = {}
        # What is checked when nothing else is to be done.
        self._last: dict[DelayedOperation, None] = {}
        self.deadlines = Deadlines(loop)

    def wake(self, operations: Iterable[DelayedOperation]) -> None:
        """Have these operations checked soon."""
        if not self._woken:
            self._at_end_of_pass(self._check)
        self._woken.update(dict.fromkeys(operations))

    def wake_one(self, operation: DelayedOperation) -> None:
        """Have one operation checked soon."""
        if not self._woken:
            self._at_end_of_pass(self._check)
        self._woken[operation] = None

    def wake_last(self, operation: DelayedOperation) -> None:
        """Have one operation checked when nothing else is to be done, or a pass later."""
        if not self._last:
            self._last_in_pass(self._check_last)
        self._last[operation] = None

    def waiting_list(self) -> WaitingList:
        """Return a new list of operations that wait for one thing."""
        return WaitingList(self)

    def call_after_pass(self, callback: Callable[[], None]) -> None:
        """Call once the present pass of the event loop is over."""
        self._loop.call_soon(callback)

    def now_s(self) -> float:
        """Return the loop's time; unlike a clock's it stands still while the host sleeps, as all timers do."""
        return self._loop.time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call after a delay."""
        return self._loop.call_later(max(delay_s, 0.0), callback)

    def _check_last(self) -> None:
        last, self._last = self._last, {}
        self._try(last)

    def _check(self) -> None:
        woken, self._woken = self._woken, {}
        self._try(woken)

    def _try(self, operations: Iterable[DelayedOperation]) -> None:
        connection: AnsweredConnection | None = None
        for operation in operations:
            if operation.finished:
                continue
            if operation.connection is not connection:
                # Who is answered goes on while the others' answers are made.
                if connection is not None:
                    connection.send_answers()
                connection = operation.connection
            try:
                operation.try_complete()
            except Exception:
                operation.report_bug()
        if connection is not None:
            connection.send_answers()
