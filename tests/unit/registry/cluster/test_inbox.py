"""What the store's thread hands over: in order, in slices, none lost."""

import asyncio
import threading

from spark_kafkalite.registry.cluster.inbox import Inbox
from spark_kafkalite.slices import SLICE_S, Slices, Work
from tests.patience import PATIENCE_S
from tests.unit.slice_clock import SliceClock


def nothing() -> Work[None]:
    return
    yield None


def test_everything_is_taken_in_order_whatever_is_long_and_whoever_puts_it() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        inbox = Inbox(loop, Slices(loop, SliceClock()), nothing)
        taken: list[int] = []
        complete = asyncio.Event()

        def take(number: int) -> Work[None] | None:
            if number % 7:
                taken.append(number)
                return None

            def long() -> Work[None]:
                for _ in range(3):
                    yield None
                taken.append(number)
                if number == 4200:
                    complete.set()

            return long()

        thread = threading.Thread(target=lambda: [inbox.put(take, number) for number in range(1, 4201)])
        thread.start()
        await asyncio.wait_for(complete.wait(), PATIENCE_S)
        thread.join()
        assert taken == list(range(1, 4201))

    asyncio.run(work())


def test_a_call_that_fails_does_not_stop_those_behind_it() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        inbox = Inbox(loop, Slices(loop, SliceClock()), nothing)
        complete = asyncio.Event()

        def fail() -> None:
            raise RuntimeError("broken")

        inbox.put(fail)
        inbox.put(complete.set)
        await asyncio.wait_for(complete.wait(), PATIENCE_S)

    asyncio.run(work())


def test_others_have_their_turn_between_thousands_of_calls() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        clock = SliceClock()
        inbox = Inbox(loop, Slices(loop, clock), nothing)
        complete = asyncio.Event()
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1
            if not complete.is_set():
                loop.call_soon(count)

        loop.call_soon(count)
        for _ in range(100):
            inbox.put(clock.take, SLICE_S / 2)
        inbox.put(complete.set)
        await asyncio.wait_for(complete.wait(), PATIENCE_S)
        # Two calls take a slice.
        assert turns >= 50

    asyncio.run(work())


def test_nothing_is_taken_after_the_end() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        inbox = Inbox(loop, Slices(loop, SliceClock()), nothing)
        taken: list[int] = []
        inbox.put(taken.append, 1)
        inbox.close()
        inbox.put(taken.append, 2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert taken == []

    asyncio.run(work())
