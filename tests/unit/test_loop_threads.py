"""A test fails when a thread schedules something on a loop of another one."""

from __future__ import annotations

import asyncio

import pytest


@pytest.mark.parametrize("call", ["call_soon", "call_later", "call_at", "create_task"])
def test_another_thread_must_not_schedule_on_a_loop(call: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        work = asyncio.sleep(0)
        arguments = {"call_soon": (int,), "create_task": (work,)}.get(call, (0, int))
        with pytest.raises(RuntimeError, match="call_soon_threadsafe"):
            await asyncio.to_thread(getattr(loop, call), *arguments)
        work.close()
        # Its own thread may, and others by the call that is theirs.
        loop.call_soon(int)
        await asyncio.to_thread(loop.call_soon_threadsafe, int)

    asyncio.run(main())
