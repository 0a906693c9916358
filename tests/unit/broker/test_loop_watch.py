"""A broker whose event loop hangs gives its session up, and says where it hangs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from spark_kafkalite.broker.loop_watch import Hang, LoopWatch, processor_time_of
from tests.patience import PATIENCE_S


def looks(hang: Hang, times: list[float], turned_s: float) -> list[bool]:
    return [hang.has_begun(now_s, turned_s) for now_s in times]


def test_a_loop_that_has_not_turned_for_the_limit_hangs_once() -> None:
    hang = Hang(4.0, 1.0, 0.0)
    assert looks(hang, [1.0, 2.0, 3.0, 4.0], 0.5) == [False] * 4
    assert looks(hang, [5.0, 6.0, 7.0], 0.5) == [True, False, False]
    # It has turned, and hangs again.
    assert looks(hang, [8.0, 9.0, 10.0, 11.0, 12.0, 13.0], 7.5) == [False] * 4 + [True, False]


def test_a_loop_that_turns_does_not_hang() -> None:
    hang = Hang(4.0, 1.0, 0.0)
    assert not any(hang.has_begun(float(now_s), now_s - 3.0) for now_s in range(1, 100))


def test_a_pause_of_the_process_is_no_hang() -> None:
    hang = Hang(4.0, 1.0, 0.0)
    assert looks(hang, [1.0, 2.0, 60.0, 61.0, 62.0, 63.0], 0.5) == [False] * 6
    assert looks(hang, [64.0], 0.5) == [True]


def test_a_loop_that_computes_gets_longer() -> None:
    """As on a host that is slow; one that waits for a disk has hardly any of the processor."""
    hang = Hang(4.0, 1.0, 0.0)
    hang.has_begun(1.0, 0.5)
    begun = [now_s for now_s in range(2, 40) if hang.has_begun(float(now_s), 0.5, 0.1)]
    assert begun == [22]
    assert [now_s for now_s in range(40, 50) if hang.has_begun(float(now_s), 39.5, 0.001)] == [44]


def test_the_processor_time_of_a_thread_is_its_own() -> None:
    mine = processor_time_of(threading.get_ident())
    before_s, told_s, after_s = time.thread_time(), mine(), time.thread_time()
    assert 0.0 < before_s <= told_s <= after_s
    idle, end = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (idle.set(), end.wait(PATIENCE_S)))
    other.start()
    assert idle.wait(PATIENCE_S)
    assert processor_time_of(other.ident or 0)() < mine()
    end.set()
    other.join()


def test_the_session_is_given_up_while_the_loop_hangs(caplog: pytest.LogCaptureFixture) -> None:
    given_up = threading.Event()

    def hang_here() -> None:
        assert given_up.wait(PATIENCE_S)

    async def run() -> None:
        watch = LoopWatch(asyncio.get_running_loop(), 0.08, given_up.set)
        watch.start()
        hang_here()
        # The thread tells of it afterwards.
        while "has not turned for" not in caplog.text or "turns again" not in caplog.text:
            await asyncio.sleep(0.01)
        watch.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert "hang_here (test_loop_watch.py" in caplog.text or "run (test_loop_watch.py" in caplog.text
