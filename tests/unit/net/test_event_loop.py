"""The end of a pass of the broker's loop."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from spark_kafkalite.net.event_loop import BrokerLoop, end_of_pass, last_in_pass, run
from tests.patience import PATIENCE_S


def run_bounded(main: Coroutine[Any, Any, None]) -> None:
    """A loop that waits where it should not fails the test."""
    run(asyncio.wait_for(main, PATIENCE_S))


def test_it_comes_after_all_that_the_pass_was_to_do_and_before_the_next_pass() -> None:
    async def main() -> None:
        loop, order = asyncio.get_running_loop(), []
        done = asyncio.Event()

        def first() -> None:
            end_of_pass(loop)(lambda: order.append("end"))
            loop.call_soon(lambda: (order.append("next pass"), done.set()))
            order.append("first")

        loop.call_soon(first)
        loop.call_soon(lambda: order.append("second"))
        await done.wait()
        assert order == ["first", "second", "end", "next pass"]

    run_bounded(main())


def test_passes_are_counted_each_with_its_end() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, BrokerLoop)
        counts: list[int] = []
        done = asyncio.Event()

        def count() -> None:
            counts.append(loop.pass_count)

        def last() -> None:
            count()
            loop.call_soon(lambda: (count(), done.set()))

        def first() -> None:
            count()
            loop.call_at_end_of_pass(count)
            loop.call_last(last)

        loop.call_soon(first)
        loop.call_soon(count)
        await done.wait()
        began = counts[0]
        assert counts == [began, began, began, began, began + 1]

    run_bounded(main())


def test_what_the_end_asks_for_comes_right_after_and_what_that_asks_for_a_pass_later() -> None:
    async def main() -> None:
        loop, order = asyncio.get_running_loop(), []
        at_end = end_of_pass(loop)
        done = asyncio.Event()

        def check() -> None:
            order.append("check")
            loop.call_soon(lambda: order.append("next pass"))
            at_end(flush)

        def flush() -> None:
            order.append("flush")
            at_end(lambda: (order.append("next end"), done.set()))

        at_end(check)
        await done.wait()
        assert order == ["check", "flush", "next pass", "next end"]

    run_bounded(main())


def test_the_loop_does_not_wait_for_what_the_end_has_asked_for() -> None:
    """How long to wait was reckoned before: the loop would wait for the socket, which says nothing."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair()
        loop.add_reader(one, lambda: None)
        try:
            for ask in (loop.call_soon, lambda callback: loop.call_later(0.001, callback), end_of_pass(loop)):
                done = asyncio.Event()
                end_of_pass(loop)(lambda ask=ask, done=done: ask(done.set))
                await done.wait()
        finally:
            loop.remove_reader(one)
            one.close()
            other.close()

    # Without a timer: it would wake a loop that waits.
    run(main())


def test_no_other_pass_follows_when_the_end_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    select = selectors.DefaultSelector.select

    wake: list[Callable[[], object]] = []

    def noted(selector: selectors.DefaultSelector, timeout: float | None = None) -> Any:
        waits.append(timeout)
        if timeout != 0 and wake:
            wake.pop()()
        return select(selector, timeout)

    async def main() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def last() -> None:
            waits.clear()
            wake.append(lambda: loop.call_soon_threadsafe(done.set))

        end_of_pass(loop)(lambda: end_of_pass(loop)(last))
        await done.wait()
        assert 0 not in waits[:1]

    monkeypatch.setattr(selectors.DefaultSelector, "select", noted)
    run_bounded(main())


def test_what_is_last_comes_after_what_the_next_pass_has_and_is_put_off_once() -> None:
    async def main() -> None:
        loop, order = asyncio.get_running_loop(), []
        assert isinstance(loop, BrokerLoop)
        one, other = socket.socketpair()
        done = asyncio.Event()

        def readable() -> None:
            # What is there stays there, so every pass has something to do.
            order.append("readable")

        def last() -> None:
            order.append("last")
            end_of_pass(loop)(lambda: order.append("end"))
            done.set()

        loop.call_last(last)
        other.send(b"x")
        loop.add_reader(one, readable)
        try:
            await done.wait()
        finally:
            loop.remove_reader(one)
            one.close()
            other.close()
        assert order[:3] == ["readable", "last", "end"]

    run_bounded(main())


def test_what_is_last_comes_before_the_loop_waits() -> None:
    async def main() -> None:
        loop, order = asyncio.get_running_loop(), []
        assert isinstance(loop, BrokerLoop)
        done = asyncio.Event()
        loop.call_later(PATIENCE_S / 2, lambda: (order.append("it has waited"), done.set()))
        loop.call_last(lambda: order.append("last"))
        end_of_pass(loop)(lambda: (order.append("end"), end_of_pass(loop)(lambda: order.append("what that asks for"))))
        loop.call_last(lambda: loop.call_soon(done.set))
        await done.wait()
        assert order == ["end", "what that asks for", "last"]

    run_bounded(main())


def test_an_error_is_told_of_and_takes_nobody_down() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: told.append(context))
        done = asyncio.Event()

        def fail() -> None:
            raise ValueError("wrong")

        end_of_pass(loop)(fail)
        end_of_pass(loop)(done.set)
        await done.wait()
        assert [str(each["exception"]) for each in told] == ["wrong"]

    run_bounded(main())


def test_on_any_other_loop_it_is_the_next_pass() -> None:
    async def main() -> None:
        done = asyncio.Event()
        end_of_pass(asyncio.get_running_loop())(done.set)
        await done.wait()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_run_returns_the_result_in_the_brokers_loop() -> None:
    async def main() -> bool:
        return isinstance(asyncio.get_running_loop(), BrokerLoop)

    assert run(main())


def test_run_raises_what_is_raised() -> None:
    async def main() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run(main())


def test_what_comes_last_may_cause_something_that_comes_last() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        # What the loop would wait for otherwise.
        loop.call_later(2 * PATIENCE_S, lambda: None)
        last_in_pass(loop)(lambda: end_of_pass(loop)(lambda: last_in_pass(loop)(done.set)))
        await done.wait()

    run_bounded(main())
