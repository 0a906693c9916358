"""Long work on an event loop, cut into slices so that everything else is served in between.

Work is a generator: it yields wherever it may be interrupted, after every few hundred microseconds at the latest, and
returns its result. It may also yield a future of the loop, and goes on when that is done. :class:`Slices` runs all such
work of one loop in turn. It runs one slice in a pass of the loop, however many pieces of work wait. So other callbacks
are delayed by one slice at most. Work that one slice completes is completed at once, without a task or a future: most
requests are small. Many small ones must not add up, so all work in one pass shares less than two slices' time. Once
that is used up, later work in that pass waits for its turn.

:class:`Slices` owns the clock by which slices and passes end. Whatever shares its passes reads that clock
(:attr:`Slices.now`) and no other, so that a test or a simulation sets the time of a whole broker in one place.

Between two yields nothing else runs on the loop; after a yield everything may have changed. So work yields only where
it can go on from what it then finds, and relies on nothing that it looked up before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import islice
from time import perf_counter
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

if TYPE_CHECKING:
    # Not otherwise: the codec is made of work in slices, and clients that have no loop import it, too.
    import asyncio

# What comes just after a pass has begun waits for the rest of it, and then for its turn in the next: up to two passes.
SLICE_S = 0.003
PASS_S = 0.005
# Where the loop does not count its passes, what was used is forgotten at the next one once it is this much; less may
# add up over several. To be told of a pass costs another one, so it is not asked for after each.
_FORGOTTEN_S = PASS_S / 2
# Elements that are put into a container, or freed with whatever they hold, between two yields.
_ELEMENTS_AT_ONCE = 256

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Work = Generator["asyncio.Future[Any] | None", None, T]
# A clock for slices: seconds that never go back, since any time.
Now = Callable[[], float]


class _Waiting(Generic[T]):
    """Work that is not finished, and the callback for its result."""

    __slots__ = ("done", "dropped", "work")

    def __init__(self, work: Work[T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self.work: GeneratorType[asyncio.Future[Any] | None, None, T] = work  # type: ignore[assignment]
        self.done = done
        self.dropped = False


class NotFinished(Exception):
    """Work has more to do than one slice, or waits: for ``future``, None when only for its next turn."""

    def __init__(self, future: asyncio.Future[Any] | None = None) -> None:
        self.future = future


def run_slice(work: Work[T], now: Now, slice_s: float = SLICE_S) -> T:
    """Run ``work`` for one slice and return its result. Raises NotFinished, and what the work raises.

    The work takes at least one step, whatever the clock shows.
    """
    until_s = now() + slice_s
    try:
        while True:
            future = next(work)
            if future is not None:
                break
            if now() >= until_s:
                break
    except StopIteration as end:
        result: T = end.value
        return result
    raise NotFinished(future)


def run_whole(work: Work[T]) -> T:
    """Run ``work`` that waits for nothing to its end, where there is little of it or no loop to be kept free."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


@overload
def filled(container: list[T], elements: Iterable[T]) -> Work[list[T]]: ...
@overload
def filled(container: set[K], elements: Iterable[K]) -> Work[set[K]]: ...
@overload
def filled(container: dict[K, T], elements: Iterable[tuple[K, T]]) -> Work[dict[K, T]]: ...
def filled(container: Any, elements: Iterable[Any]) -> Work[Any]:
    """Put elements into a container, pairs into a dictionary, and return it: a quarter of a million take 50 ms.

    What the elements are made from must not change meanwhile.
    """
    add = container.extend if isinstance(container, list) else container.update
    iterator = iter(elements)
    while some := tuple(islice(iterator, _ELEMENTS_AT_ONCE)):
        add(some)
        yield None
    return container


def counted(elements: Iterable[K]) -> Work[Counter[K]]:
    """Return how often there is each element, in the order of their first times."""
    counts: Counter[K] = Counter()
    iterator = iter(elements)
    while some := tuple(islice(iterator, _ELEMENTS_AT_ONCE)):
        counts.update(some)
        yield None
    return counts


def freed(container: list[Any] | set[Any] | dict[Any, Any]) -> Work[None]:
    """Empty a container that is not needed any more: to free its items may take as long as to make them took."""
    if isinstance(container, list):
        while container:
            del container[-_ELEMENTS_AT_ONCE:]
            yield None
        return
    take = container.popitem if isinstance(container, dict) else container.pop
    while container:
        for _ in range(min(len(container), _ELEMENTS_AT_ONCE)):
            take()
        yield None


class CountsPasses(Protocol):
    """A loop that counts its passes; see ``broker.event_loop``."""

    pass_count: int


class _Uncounted:
    """Takes the place of a loop that does not count its passes."""

    pass_count = 0


class Slices:
    """The unfinished work of one event loop, run in turn."""

    __slots__ = (
        "_counter",
        "_forgets",
        "_loop",
        "_noted_until_s",
        "_pass",
        "_ready",
        "_scheduled",
        "_told_beyond_s",
        "_used_s",
        "is_spent",
        "now",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Now = perf_counter) -> None:
        """``now`` is the clock of all that shares the passes of this loop."""
        self._loop = loop
        self.now = now
        is_counted = hasattr(loop, "pass_count")
        self._counter: CountsPasses = cast("CountsPasses", loop) if is_counted else _Uncounted()
        # From when on the next pass has to be told of.
        self._told_beyond_s = PASS_S if is_counted else _FORGOTTEN_S
        self._ready: deque[_Waiting[Any]] = deque()
        self._scheduled = False
        # How much of the present pass was used, and until when that is said.
        self._pass = 0
        self._used_s = 0.0
        self._noted_until_s = 0.0
        self._forgets: asyncio.Handle | None = None
        # Whether the pass's time is used up, so that nothing more is to be begun in it.
        self.is_spent = False

    # The pass of the loop -------------------------------------------------------------------------------------------

    def note(self, since_s: float) -> None:
        """Count what was done since then (by :attr:`now`) for this pass.

        Time is counted once, however often it is noted.
        """
        now_s = self.now()
        if since_s < self._noted_until_s:
            since_s = self._noted_until_s
        self._noted_until_s = now_s
        if self._pass != self._counter.pass_count:
            self._begin_pass()
        self._used_s = used_s = self._used_s + now_s - since_s
        if used_s >= self._told_beyond_s:
            self.is_spent = used_s >= PASS_S
            if self._forgets is None:
                self._forgets = self._loop.call_soon(self._forget)

    def _begin_pass(self) -> None:
        self._pass = self._counter.pass_count
        self._used_s = 0.0

    def _forget(self) -> None:
        self._forgets = None
        self.is_spent = False
        self._used_s = 0.0

    # Work -----------------------------------------------------------------------------------------------------------

    def start(self, work: Work[T], done: Callable[[T | None, BaseException | None], None]) -> Callable[[], None] | None:
        """Run one slice of ``work``, now if this pass of the loop has time left, and the others in coming passes.

        ``done`` is called with its result, or with what it raised: before this returns None, or later; then what is
        returned ends the work without another word.
        """
        try:
            result = self._first_slice(work)
        except NotFinished as unfinished:
            waiting = _Waiting(work, done)
            self._wait(waiting, unfinished.future)
            return lambda: self._drop(waiting)
        except Exception as error:
            done(None, error)
        else:
            done(result, None)
        return None

    def _first_slice(self, work: Work[T]) -> T:
        if self.is_spent:
            raise NotFinished
        if self._pass != self._counter.pass_count:
            self._begin_pass()
        since_s = self.now()
        try:
            return run_slice(work, self.now, min(SLICE_S, PASS_S - self._used_s))
        finally:
            self.note(since_s)

    def go_on(
        self,
        work: Work[T],
        future: asyncio.Future[Any] | None,
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """Go on in coming passes with work that has begun and has yielded ``future``; ``done`` as for :meth:`start`."""
        self._wait(_Waiting(work, done), future)

    async def run(self, work: Work[T]) -> T:
        """Return the result of ``work``, at once if one slice completes it. Cancellation ends the work."""
        try:
            return self._first_slice(work)
        except NotFinished as unfinished:
            outcome: asyncio.Future[T] = self._loop.create_future()
            waiting = _Waiting(work, _setter(outcome))
            self._wait(waiting, unfinished.future)
        try:
            return await outcome
        except BaseException:
            self._drop(waiting)
            raise

    def next_turn(self) -> asyncio.Future[None]:
        """Return a future that is done when all that waits for its slice now has had one."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._make_ready(_Waiting(_nothing(), _setter(future)))
        return future

    def call_in_turn(self, callback: Callable[[], None]) -> None:
        """Call back first in a pass, when all that waits for its slice now has had one. It takes no more itself."""
        self._make_ready(_Waiting(_calling(callback), _call_has_ended))

    def turn(self) -> Turn:
        """Begin a turn of a coroutine that does many small things in a row."""
        return Turn(self)

    def _drop(self, waiting: _Waiting[Any]) -> None:
        if not waiting.dropped:
            waiting.dropped = True
            if not waiting.work.gi_running:
                waiting.work.close()

    def _wait(self, waiting: _Waiting[Any], future: asyncio.Future[Any] | None) -> None:
        if future is None:
            self._make_ready(waiting)
        else:
            future.add_done_callback(lambda _: self._make_ready(waiting))

    def _make_ready(self, waiting: _Waiting[Any]) -> None:
        self._ready.append(waiting)
        self._schedule()

    def _schedule(self) -> None:
        if self._ready and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_next)

    def _run_next(self) -> None:
        self._scheduled = False
        if self._forgets is not None:
            # A pass has begun, and what is used from here on must not be forgotten in the middle of it.
            self._forgets.cancel()
            self._forget()
        waiting = self._ready.popleft()
        since_s = self.now()
        try:
            if not waiting.dropped:
                self._run_slice_of(waiting)
        finally:
            self.note(since_s)
            self._schedule()

    def _run_slice_of(self, waiting: _Waiting[Any]) -> None:
        # It may be dropped by what it does itself: it closes the connection for which it is done, say.
        try:
            result = run_slice(waiting.work, self.now)
        except NotFinished as unfinished:
            if waiting.dropped:
                waiting.work.close()
            else:
                self._wait(waiting, unfinished.future)
        except Exception as error:
            if waiting.dropped:
                raise
            waiting.done(None, error)
        else:
            if not waiting.dropped:
                waiting.done(result, None)


class NextTurn:
    """The turn of a caller whose pass may have no time left, such as a connection. It waits in the queue at most once.
    If it is served before its turn comes, the turn does nothing."""

    __slots__ = ("_callback", "_is_queued", "_slices")

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        # What is called when the turn comes; None when the caller was served meanwhile and does not wait again.
        self._callback: Callable[[], None] | None = None
        self._is_queued = False

    def is_now(self, otherwise: Callable[[], None]) -> bool:
        """Return whether this pass has time left. If it has none, ``otherwise`` is called in turn.

        It is given each time, and held only while it waits: else a connection would be part of a cycle for its life.
        """
        if self._slices.is_spent:
            self.ask(otherwise)
            return False
        self._callback = None
        return True

    def ask(self, callback: Callable[[], None]) -> None:
        """Call back when the turn comes, unless :meth:`is_now` returns True before."""
        self._callback = callback
        if not self._is_queued:
            # Queue a caller once only: one that is served before its turn, again and again, would fill the queue and
            # delay all others in it.
            self._is_queued = True
            self._slices.call_in_turn(self._come)

    def _come(self) -> None:
        self._is_queued = False
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Turn:
    """What a coroutine with a long loop awaits between its steps, when it cannot be work that yields."""

    __slots__ = ("_slices", "_until_s")

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._until_s = slices.now() + SLICE_S

    async def pause(self) -> None:
        """Let others have their turn if this one has lasted a slice."""
        if self._slices.now() >= self._until_s:
            await self._slices.next_turn()
            self._until_s = self._slices.now() + SLICE_S


def _nothing() -> Work[None]:
    yield from ()


def _calling(callback: Callable[[], None]) -> Work[None]:
    callback()
    yield from ()


def _call_has_ended(_: None, error: BaseException | None) -> None:
    if error is not None:
        raise error


def _setter(outcome: asyncio.Future[T]) -> Callable[[T | None, BaseException | None], None]:
    def done(result: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    return done
