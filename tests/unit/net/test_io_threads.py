"""The broker's threads: how many work at a time, also while that is changed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from spark_kafkalite.net.io_threads import IoThreads, Lane
from tests.patience import PATIENCE_S

LANES = [Lane.READ, Lane.CHECK, Lane.FILES]


class Crowd:
    """Works that wait for each other; ``most`` is how many have worked at the same time."""

    def __init__(self) -> None:
        self.most = 0
        self.released = threading.Event()
        self.working = threading.Semaphore(0)
        self._present = 0
        self._lock = threading.Lock()

    def work(self) -> None:
        with self._lock:
            self._present += 1
            self.most = max(self.most, self._present)
        self.working.release()
        assert self.released.wait(PATIENCE_S)
        with self._lock:
            self._present -= 1


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2)])
def test_number_of_threads_changes_while_they_work(lane: Lane, before: int, after: int) -> None:
    async def run() -> None:
        io = IoThreads(asyncio.get_running_loop(), before)
        for count in (before, after):
            io.resize(count)
            works = [asyncio.ensure_future(io.run(crowds[count].work, lane)) for _ in range(count + 2)]
            await asyncio.sleep(0)
            for _ in range(count):
                assert await asyncio.to_thread(crowds[count].working.acquire, timeout=PATIENCE_S)
            if count == before != after:
                io.resize(after)
            crowds[count].released.set()
            await asyncio.gather(*works)
        await io.wait_until_idle()
        io.close()

    crowds = {before: Crowd(), after: Crowd()}
    asyncio.run(run())
    assert {count: crowd.most for count, crowd in crowds.items()} == {before: before, after: after}


def test_threads_that_are_not_wanted_any_more_end() -> None:
    async def run() -> None:
        io = IoThreads(asyncio.get_running_loop(), 2)
        old = await io.run(threading.current_thread, Lane.READ)
        executors = dict(io._executors)
        io.resize(1)
        await asyncio.to_thread(old.join, PATIENCE_S)
        assert not old.is_alive()
        # fsync has more in either case.
        assert [lane for lane in Lane if io._executors[lane] is executors[lane]] == [Lane.SYNC]
        io.close()

    asyncio.run(run())


def test_what_waits_behind_threads_that_hang_is_taken_by_others_and_done_once() -> None:
    async def run() -> None:
        io, crowd, done = IoThreads(asyncio.get_running_loop(), 2), Crowd(), []
        hanging = [asyncio.ensure_future(io.run(crowd.work)) for _ in range(2)]
        waiting = [asyncio.ensure_future(io.run(lambda number=number: done.append(number))) for number in range(50)]  # type: ignore[misc]
        await asyncio.sleep(0)
        for _ in hanging:
            assert await asyncio.to_thread(crowd.working.acquire, timeout=PATIENCE_S)
        assert not done
        io.renew()
        await asyncio.gather(*waiting)
        crowd.released.set()
        await asyncio.gather(*hanging)
        await io.wait_until_idle()
        io.close()
        assert sorted(done) == list(range(50)) and not io._waiting

    asyncio.run(run())
