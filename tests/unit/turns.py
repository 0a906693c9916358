"""How much an event loop does at a time, and a loop whose garbage is collected as a broker's is; for unit tests."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from types import FrameType, TracebackType
from typing import Any

from spark_kafkalite.collector import Collector


class Turns:
    """Counts the Python calls that a loop makes from one look at its sockets to the next, that is, in one turn.

    A resumed generator counts as a call. So does each element of a loop that calls anything for it. Unlike time, the
    count does not depend on the host. Give the slices a clock whose every reading takes a slice
    (``slice_clock.SliceClock``): a turn is then what the product does between two yields.

    Counts inside a ``with``, in the thread that runs the loop.
    """

    def __init__(self, loop: Any) -> None:
        self.most_calls = 0
        self._calls = 0
        self._select = loop._selector.select
        loop._selector.select = self._look

    def __enter__(self) -> Turns:
        self.most_calls = self._calls = 0
        sys.settrace(self._called)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        sys.settrace(None)
        self.most_calls = max(self.most_calls, self._calls)

    def _called(self, _: FrameType, __: str, ___: object) -> None:
        self._calls += 1

    def _look(self, timeout: float | None = None) -> Any:
        self.most_calls = max(self.most_calls, self._calls)
        events = self._select(timeout)
        self._calls = 0
        return events


def run_collected(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in a loop with a broker's collector; what other tests have left is frozen meanwhile."""

    async def main() -> None:
        collector = Collector(asyncio.get_running_loop())
        collector.start()
        try:
            await scenario()
        finally:
            collector.stop()

    try:
        with asyncio.Runner(debug=False) as runner:
            runner.run(main())
    finally:
        gc.unfreeze()
