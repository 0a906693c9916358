from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.manual_loop import ManualLoop, ManualThreads


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def loop(clock: ManualClock) -> Iterator[ManualLoop]:
    loop = ManualLoop(clock)
    yield loop
    loop.close()


def test_time_passes_only_where_everything_waits_and_timers_come_in_order(loop: ManualLoop, clock: ManualClock) -> None:
    began_s, seen = loop.time(), []
    for delay_s in (3600.0, 0.25, 7.5):
        loop.call_later(delay_s, lambda delay_s=delay_s: seen.append((delay_s, loop.time() - began_s)))
    loop.run_until_complete(asyncio.sleep(0))
    assert clock.monotonic_s() == began_s
    loop.run_for(10)
    assert [delay_s for delay_s, _ in seen] == [0.25, 7.5]
    loop.run_for(3590)
    assert [delay_s for delay_s, _ in seen] == [0.25, 7.5, 3600.0]
    assert all(0 <= after_s - delay_s < 0.002 for delay_s, after_s in seen)


def test_waiting_for_what_never_comes_is_an_error(loop: ManualLoop) -> None:
    never = loop.create_future()
    with pytest.raises(RuntimeError, match="would wait for ever"):
        loop.run_until_complete(never)


def test_threads_work_when_they_are_told_to() -> None:
    threads, seen = ManualThreads(), []

    def fail() -> int:
        raise OSError("no")

    threads.submit(lambda: 1, lambda result: threads.submit(lambda: 2, seen.append, seen.append), seen.append)
    threads.submit(fail, seen.append, lambda error: seen.append(str(error)))
    assert seen == []
    threads.run_all()
    assert seen == ["no"]
    threads.run_one()
    assert (seen, len(threads.work)) == (["no", 2], 0)


def test_threads_of_a_loop_work_in_its_next_pass_unless_they_are_held(loop: ManualLoop) -> None:
    threads, seen = ManualThreads(loop), []
    threads.submit(lambda: 1, seen.append, seen.append)
    assert seen == []
    loop.run_until_complete(asyncio.sleep(0))
    threads.held = True
    threads.submit(lambda: 2, seen.append, seen.append)
    loop.run_for(1)
    assert seen == [1]
    threads.run_all()
    assert seen == [1, 2]
    assert loop.run_until_complete(threads.run(lambda: 3)) == 3
