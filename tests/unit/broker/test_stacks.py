"""The stacks of threads and tasks as lines of the log."""

from __future__ import annotations

import asyncio
import threading

from spark_kafkalite.broker.stacks import task_stacks, thread_stacks


async def outer(gate: asyncio.Event, secret: str) -> None:
    await inner(gate, secret)


async def inner(gate: asyncio.Event, _: str) -> None:
    await gate.wait()


def test_a_task_is_shown_where_it_waits_with_all_that_it_awaits() -> None:
    async def play() -> list[str]:
        gate = asyncio.Event()
        waiting = [asyncio.ensure_future(outer(gate, "hidden")) for _ in range(2)]
        await asyncio.sleep(0)
        found = list(task_stacks(asyncio.get_running_loop()))
        gate.set()
        await asyncio.gather(*waiting)
        return found

    found = [line for line in asyncio.run(play()) if "outer" in line]
    assert len(found) == 2 and found[0] == found[1]
    names = [call.split(" (")[0] for call in found[0].split(" < ")]
    assert names == ["Event.wait", "inner", "outer"]
    assert "(broker/test_stacks.py:" in found[0] and "hidden" not in found[0]


def test_a_thread_is_shown_with_its_name() -> None:
    begun, gate = threading.Event(), threading.Event()

    def wait_in_thread() -> None:
        begun.set()
        gate.wait()

    thread = threading.Thread(target=wait_in_thread, name="waits-for-a-test")
    thread.start()
    begun.wait()
    try:
        (found,) = (line for line in thread_stacks() if line.startswith("waits-for-a-test: "))
        assert "wait_in_thread (broker/test_stacks.py:" in found
    finally:
        gate.set()
        thread.join()
