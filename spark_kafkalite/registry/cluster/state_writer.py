"""Writes changes of partitions' states: some together in one step, and what that refuses each alone.

A broker has the ISRs of its leaders written, leaves the ISRs of others, and elects leaders as the controller. For each
there is a :class:`StateWriter`, with a :class:`StateWrites` that makes the changes and handles the outcomes:

- Writes that wait go together, so many to a step and so many steps at a time. A refused step has changed nothing, and
  does not name the write that it was refused for: each of its writes is then written alone.
- A write that is refused alone has the node read again, and goes on from the state that is found.
- A write that may have been done or not is done again, after a pause, as long as its caller wants that: it succeeds, or
  is refused for the version (rule R5).

None is under way twice. What is written alone begins and ends a few at a time in a pass of the loop. What guards a
write against another topic, or another controller, is the business of ``state_nodes``.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.cluster.state_nodes import GuardMissing, StateChange, StateNodes
from spark_kafkalite.registry.store import BadVersion, NodeError, NodeExists, NoNode
from spark_kafkalite.slices import Slices

# Writes of one change that begin or end in one pass of the loop: each takes 0.2 ms, and answers come in bursts.
_ALONE_IN_A_PASS: Final = 8


class StateWrite(Protocol):
    """A state that is to be written."""

    @property
    def key(self) -> Hashable:
        """What no other write that is under way has."""


W = TypeVar("W", bound=StateWrite)


class WritePace(NamedTuple):
    """How a writer writes."""

    # Changes that share a step, and such steps under way at a time.
    together: int
    steps: int
    # Changes that are written alone at a time.
    alone: int
    # After which a write of unknown outcome is done again.
    retry_s: float


class StateWrites(ABC, Generic[W]):
    """The caller's side of its writes. Its errors are errors of the write; see :meth:`failed`."""

    async def prepare(self, writes: Sequence[W]) -> None:
        """Have these ready, before they are written together."""

    def may_share(self, write: W, other: W) -> bool:
        """Return whether a step may hold both."""
        return True

    @abstractmethod
    def change(self, write: W) -> StateChange | None:
        """Return what is to be written now; None when the write is not wanted any more."""

    @abstractmethod
    def written(self, write: W, change: StateChange, state: PartitionState) -> None:
        """Take over a change that has been written as ``state``."""

    def refused(self, write: W, error: NodeError) -> bool:
        """Return whether a write that was refused alone goes on from what its node holds now."""
        return True

    @abstractmethod
    def found(self, write: W, change: StateChange, state: PartitionState | None) -> None:
        """Take over the state that was read after ``change`` was refused; None: there is none, and the write ends.

        The next :meth:`change` is made of it.
        """

    @abstractmethod
    def failed(self, writes: Sequence[W], error: Exception) -> bool:
        """Return whether these are to be done again: they may have been written or not, or their node is malformed."""

    def ended(self, write: W) -> None:
        """Take note that a write is not under way any more, whatever became of it."""


class _Lane(Generic[W]):
    """Writes that wait, and the tasks of those that have begun."""

    __slots__ = ("at_once", "size", "tasks", "waiting", "write")

    def __init__(self, at_once: int, size: int, write: Callable[[Sequence[W]], Awaitable[Sequence[W]]]) -> None:
        """``write`` returns those of at most ``size`` writes that are to be written alone."""
        self.at_once = at_once
        self.size = size
        self.write = write
        self.waiting: deque[W] = deque()
        self.tasks: set[asyncio.Task[None]] = set()

    def next(self, may_share: Callable[[W, W], bool]) -> list[W]:
        writes = [self.waiting.popleft()]
        while self.waiting and len(writes) < self.size and may_share(writes[0], self.waiting[0]):
            writes.append(self.waiting.popleft())
        return writes


class StateWriter(Generic[W]):
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        nodes: StateNodes,
        writes: StateWrites[W],
        pace: WritePace,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """``soon`` calls back when what is added now may be written; the loop's next pass if None."""
        self._loop = loop
        self._turns = _Turns(loop, slices)
        self._nodes = nodes
        self.writes = writes
        self._retry_s = pace.retry_s
        self._together: _Lane[W] = _Lane(pace.steps, pace.together, self._write_together)
        self._alone: _Lane[W] = _Lane(pace.alone, 1, self._write_alone)
        self._under_way: set[Hashable] = set()
        self._soon = soon or loop.call_soon
        self._begins_soon = False
        # Set when nothing is under way any more; made by who waits for that.
        self._idle: asyncio.Event | None = None
        self._is_stopped = False

    def is_writing(self, key: Hashable) -> bool:
        """Return whether a write with this key waits, or is under way."""
        return key in self._under_way

    def add(self, write: W) -> None:
        """Have a change written soon, together with others; nothing happens if it is under way already."""
        self._note(self._together, write)
        if not self._begins_soon:
            self._begins_soon = True
            self._soon(self._begin)

    async def write_all(self, together: Iterable[W], alone: Iterable[W] = ()) -> None:
        """Write all of these, wait until that has ended, and stop. Cancelled, it leaves undone what is not done yet."""
        self._idle = asyncio.Event()
        for each in together:
            self._note(self._together, each)
        for each in alone:
            self._note(self._alone, each)
        self._begin()
        try:
            if self._under_way:
                await self._idle.wait()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End; the caller hears nothing more. What is being written may be done or not."""
        self._is_stopped = True
        tasks = [*self._together.tasks, *self._alone.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Writes begin and end -------------------------------------------------------------------------------------------

    def _note(self, lane: _Lane[W], write: W) -> None:
        if write.key not in self._under_way and not self._is_stopped:
            self._under_way.add(write.key)
            lane.waiting.append(write)

    def _begin(self) -> None:
        self._begins_soon = False
        for lane in (self._together, self._alone):
            while lane.waiting and len(lane.tasks) < lane.at_once and not self._is_stopped:
                task = self._loop.create_task(self._write(lane, lane.next(self.writes.may_share)))
                lane.tasks.add(task)
                task.add_done_callback(lane.tasks.discard)
                task.add_done_callback(lambda _: self._begin())

    async def _write(self, lane: _Lane[W], writes: Sequence[W]) -> None:
        going_on: Sequence[W] = ()
        try:
            going_on = await self._tried(lane, writes)
        finally:
            if not self._is_stopped:
                self._end(writes, {each.key for each in going_on})

    async def _tried(self, lane: _Lane[W], writes: Sequence[W]) -> Sequence[W]:
        """Write, and return those of the writes that are under way further on."""
        try:
            to_write_alone = await lane.write(writes)
        except Exception as error:
            if not self.writes.failed(writes, error):
                return ()
            self._loop.call_later(self._retry_s, self._write_again, lane, writes)
            return writes
        self._alone.waiting.extend(to_write_alone)
        return to_write_alone

    def _end(self, writes: Sequence[W], but: set[Hashable]) -> None:
        ended = [each for each in writes if each.key not in but]
        self._under_way.difference_update(each.key for each in ended)
        if self._idle is not None and not self._under_way:
            self._idle.set()
        for each in ended:
            self.writes.ended(each)

    def _write_again(self, lane: _Lane[W], writes: Sequence[W]) -> None:
        lane.waiting.extend(writes)
        self._begin()

    async def _write_together(self, writes: Sequence[W]) -> Sequence[W]:
        await self.writes.prepare(writes)
        due = [(each, change) for each in writes if (change := self.writes.change(each)) is not None]
        if not due:
            return ()
        try:
            states = await self._nodes.write([change for _, change in due])
        except NodeError:
            return [each for each, _ in due]
        for (each, change), state in zip(due, states, strict=True):
            self.writes.written(each, change, state)
        return ()

    async def _write_alone(self, writes: Sequence[W]) -> Sequence[W]:
        (write,) = writes
        await self._turns.next()
        while (change := self.writes.change(write)) is not None:
            try:
                (state,) = await self._nodes.write([change])
            except GuardMissing:
                raise
            except (BadVersion, NoNode, NodeExists) as error:
                await self._turns.next()
                if not self.writes.refused(write, error):
                    break
                found = await self._nodes.read(change)
                await self._turns.next()
                self.writes.found(write, change, found)
                if found is None:
                    break
            else:
                await self._turns.next()
                self.writes.written(write, change, state)
                break
        return ()


class _Turns:
    """Has a few small things done in one pass of the loop, and more of them in later ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slices: Slices) -> None:
        self._loop = loop
        self._slices = slices
        self._in_this_pass = 0

    async def next(self) -> None:
        """Wait until one more may be done."""
        while self._in_this_pass >= _ALONE_IN_A_PASS:
            await self._slices.next_turn()
        if not self._in_this_pass:
            self._loop.call_soon(self._pass_ended)
        self._in_this_pass += 1

    def _pass_ended(self) -> None:
        self._in_this_pass = 0
