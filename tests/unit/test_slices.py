"""Work in slices: one slice in a pass of the loop, in turn; errors reach the caller that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

import pytest

from spark_kafkalite.slices import (
    PASS_S,
    SLICE_S,
    NextTurn,
    NotFinished,
    Slices,
    Work,
    counted,
    filled,
    freed,
    run_slice,
    run_whole,
)
from tests.unit.slice_clock import SliceClock


@pytest.fixture
def clock() -> SliceClock:
    return SliceClock()


def counting(steps: int, seen: list[int] | None = None, clock: SliceClock | None = None) -> Generator[None, None, int]:
    """Count the steps. With a clock, each step takes a slice."""
    for step in range(steps):
        if clock is not None:
            clock.take(SLICE_S)
        if seen is not None:
            seen.append(step)
        yield
    return steps


def failing() -> Generator[None, None, int]:
    yield
    raise ValueError("the work failed")


def test_short_work_is_done_at_once(clock: SliceClock) -> None:
    assert run_slice(counting(3), clock) == 3


def test_long_work_is_interrupted_where_it_yields(clock: SliceClock) -> None:
    seen: list[int] = []
    work = counting(10, seen, clock)
    with pytest.raises(NotFinished):
        run_slice(work, clock)
    assert seen == [0]
    assert run_slice(work, clock, 60) == 10


def test_work_takes_a_step_in_each_slice_even_if_the_slice_is_over_at_once() -> None:
    clock, seen = SliceClock(reading_s=10 * SLICE_S), list[int]()
    work = counting(3, seen)
    for step in range(3):
        with pytest.raises(NotFinished):
            run_slice(work, clock)
        assert seen == list(range(step + 1))
    assert run_slice(work, clock) == 3


def test_one_slice_in_a_pass_however_much_work_waits(clock: SliceClock) -> None:
    async def main() -> list[int]:
        slices = Slices(asyncio.get_running_loop(), clock)
        done = []
        seen: list[list[int]] = [[] for _ in range(5)]
        works = [asyncio.ensure_future(slices.run(counting(4, one, clock))) for one in seen]
        await asyncio.sleep(0)
        while not all(work.done() for work in works):
            before = sum(map(len, seen))
            await asyncio.sleep(0)
            done.append(sum(map(len, seen)) - before)
        assert [work.result() for work in works] == [4] * 5
        return done

    assert max(asyncio.run(main())) == 1


def test_what_the_work_raises_reaches_who_waits_at_once_or_later(clock: SliceClock) -> None:
    async def main() -> None:
        slices = Slices(asyncio.get_running_loop(), clock)
        with pytest.raises(ValueError, match="the work failed"):
            await slices.run(failing())

        def late() -> Generator[None, None, int]:
            yield from counting(3, None, clock)
            return (yield from failing())

        with pytest.raises(ValueError, match="the work failed"):
            await slices.run(late())
        assert await slices.run(counting(3, None, clock)) == 3

    asyncio.run(main())


def test_cancelled_work_ends(clock: SliceClock) -> None:
    async def main() -> list[int]:
        slices = Slices(asyncio.get_running_loop(), clock)
        seen: list[int] = []
        task = asyncio.ensure_future(slices.run(counting(1000, seen, clock)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        before = list(seen)
        assert await slices.run(counting(2, None, clock)) == 2
        assert seen == before
        return seen

    assert len(asyncio.run(main())) < 5


def test_work_started_by_work_has_its_turn(clock: SliceClock) -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        slices = Slices(loop, clock)
        order: list[str] = []
        finished = loop.create_future()

        def inner() -> Generator[None, None, None]:
            yield from counting(2, None, clock)
            order.append("inner")

        def outer() -> Generator[None, None, None]:
            yield from counting(1, None, clock)
            slices.start(inner(), lambda *_: finished.set_result(None))
            yield from counting(1, None, clock)
            order.append("outer")

        slices.start(outer(), lambda *_: order.append("done"))
        await finished
        return order

    assert asyncio.run(main()) == ["outer", "done", "inner"]


def test_work_waits_for_a_future_while_others_go_on(clock: SliceClock) -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        slices = Slices(loop, clock)
        awaited: asyncio.Future[str] = loop.create_future()
        order: list[str] = []

        def work() -> Work[str]:
            yield awaited
            order.append("first")
            return awaited.result()

        first = asyncio.ensure_future(slices.run(work()))
        await asyncio.sleep(0)
        assert await slices.run(counting(3, None, clock)) == 3
        order.append("second")
        awaited.set_result("done")
        assert await first == "done"
        return order

    assert asyncio.run(main()) == ["second", "first"]


def test_dropped_work_tells_nobody(clock: SliceClock) -> None:
    async def main() -> None:
        slices = Slices(asyncio.get_running_loop(), clock)
        told: list[object] = []
        drop = slices.start(counting(5, None, clock), lambda *outcome: told.append(outcome))
        assert drop is not None
        drop()
        assert await slices.run(counting(3, None, clock)) == 3
        assert told == []

    asyncio.run(main())


class Passes(SliceClock):
    """A loop's passes, and their clock."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[asyncio.Handle] = []
        # How much was asked for in the pass before each.
        self.asked_counts: list[int] = []

    def slices(self) -> Slices:
        return Slices(self, self)  # type: ignore[arg-type]

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        self._asked.append(asyncio.Handle(callback, (), self))  # type: ignore[arg-type]
        return self._asked[-1]

    def run(self, event: Callable[[], None]) -> float:
        """Run what was asked for in the pass before, then a socket's event; return how long that took."""
        began_s = self.now_s
        self.asked_counts.append(len(self._asked))
        asked, self._asked = self._asked, []
        for handle in asked:
            if not handle.cancelled():
                handle._run()
        event()
        return self.now_s - began_s

    def get_debug(self) -> bool:
        return False

    def work(self, seconds: float) -> Work[None]:
        """Take so long, a millisecond between two yields."""
        for _ in range(round(seconds * 1000)):
            self.take(0.001)
            yield None


class CountedPasses(Passes):
    """Those of a loop that counts them."""

    pass_count = 0

    def run(self, event: Callable[[], None]) -> float:
        self.pass_count += 1
        return super().run(event)


@pytest.fixture(params=[Passes, CountedPasses])
def passes(request: pytest.FixtureRequest) -> Passes:
    passes: Passes = request.param()
    return passes


def test_what_is_begun_late_in_a_pass_has_what_is_left_of_it(passes: Passes) -> None:
    slices = passes.slices()
    ended: list[object] = []

    def begin() -> None:
        for _ in range(10):
            slices.start(passes.work(0.006), lambda *outcome: ended.append(outcome))

    # A yield comes after a millisecond.
    assert passes.run(begin) <= PASS_S + 0.001
    while len(ended) < 10:
        assert passes.run(lambda: None) <= SLICE_S + 0.001


def test_what_a_pass_has_used_is_not_forgotten_in_the_middle_of_it(passes: Passes) -> None:
    slices = passes.slices()

    def serve() -> None:
        """Serve small requests as long as the pass has time."""
        while not slices.is_spent:
            since_s = passes.now_s
            passes.take(0.003)
            slices.note(since_s)

    # What the first pass has used is forgotten behind the long work's turn, which is asked for before.
    slices.start(passes.work(0.5), lambda *_: None)
    for _ in range(100):
        assert passes.run(serve) <= PASS_S + 0.003


def test_little_passes_use_up_nothing_of_each_other(passes: Passes) -> None:
    slices = passes.slices()

    def serve() -> None:
        assert not slices.is_spent
        since_s = passes.now_s
        passes.take(PASS_S / 4)
        slices.note(since_s)

    for _ in range(100):
        passes.run(serve)
    if isinstance(passes, CountedPasses):
        # Nobody has to be told of a pass, which would be another one.
        assert not any(passes.asked_counts)


def test_a_slice_has_nothing_of_what_the_pass_before_has_used() -> None:
    """Where passes are counted."""
    passes = CountedPasses()
    slices = passes.slices()

    def use() -> None:
        since_s = passes.now_s
        passes.take(PASS_S * 0.9)
        slices.note(since_s)

    ended: list[object] = []

    def begin() -> None:
        slices.start(passes.work(0.002), lambda *outcome: ended.append(outcome))

    passes.run(use)
    passes.run(begin)
    assert ended == [(None, None)]


def test_who_comes_too_late_has_one_turn_and_none_if_he_was_served_before(passes: Passes) -> None:
    slices = passes.slices()
    turn, come = NextTurn(slices), []

    def ask(times: int) -> Callable[[], None]:
        def event() -> None:
            since_s = passes.now_s
            passes.take(2 * PASS_S)
            slices.note(since_s)
            for _ in range(times):
                assert not turn.is_now(lambda: come.append(passes.now_s))

        return event

    for _ in range(3):
        come.clear()
        passes.run(ask(5))
        assert not come
        passes.run(lambda: None)
        assert len(come) == 1

    come.clear()
    turn.ask(lambda: come.append(passes.now_s))
    assert turn.is_now(lambda: None)
    for _ in range(3):
        passes.run(lambda: None)
    assert not come


def test_who_asks_and_is_served_before_his_turn_time_and_again_does_not_fill_the_queue(passes: Passes) -> None:
    slices = passes.slices()
    turns = [NextTurn(slices) for _ in range(10)]

    def serve() -> None:
        """Each comes too late once, and in time when it comes again."""
        for turn in turns:
            turn.ask(lambda: None)
            assert turn.is_now(lambda: None)

    for _ in range(100):
        passes.run(serve)
    ended: list[object] = []
    slices.start(passes.work(SLICE_S * 1.5), lambda *outcome: ended.append(outcome))
    for _ in range(2 * len(turns)):
        passes.run(lambda: None)
    assert ended == [(None, None)]


# Large containers -----------------------------------------------------------------------------------------------------

# More than are moved between two yields.
MANY = 10_000
AT_ONCE = 500


@pytest.mark.parametrize("kind", [list, set, dict])
def test_a_container_is_filled_a_few_elements_at_a_time(kind: type[list | set | dict]) -> None:  # type: ignore[type-arg]
    elements = [(number % (MANY // 2), number) for number in range(MANY)]
    container = kind()
    work = filled(container, (element for element in elements))
    before, steps = 0, 0
    for _ in work:
        assert len(container) - before <= AT_ONCE
        before, steps = len(container), steps + 1
    assert container == kind(elements)
    assert steps >= MANY / AT_ONCE
    again = kind(elements[:3])
    assert run_whole(filled(again, [])) is again


def test_elements_are_counted_a_few_at_a_time() -> None:
    elements = [number % 7 for number in range(MANY)]
    assert sum(1 for _ in counted(elements)) >= MANY / AT_ONCE
    assert run_whole(counted(elements)) == {each: elements.count(each) for each in range(7)}


@pytest.mark.parametrize("kind", [list, set, dict])
def test_a_container_is_emptied_a_few_elements_at_a_time(kind: type[list | set | dict]) -> None:  # type: ignore[type-arg]
    container = kind((number, number) for number in range(MANY))
    before = MANY
    for _ in freed(container):
        assert before - len(container) <= AT_ONCE
        before = len(container)
    assert not container
    run_whole(freed(container))
