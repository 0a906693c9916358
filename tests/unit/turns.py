"""How long an event loop is busy at a time, and a loop whose garbage is collected as a broker's is; for unit tests."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

from spark_kafkalite.collector import Collector


class Turns:
    """Notes how much processor time a loop takes from one look at its sockets to the next, that is, in one turn."""

    def __init__(self, loop: Any) -> None:
        self.longest_ms = 0.0
        self._began_s = time.thread_time()
        self._select = loop._selector.select
        loop._selector.select = self._look

    def _look(self, timeout: float | None = None) -> Any:
        self.longest_ms = max(self.longest_ms, 1000 * (time.thread_time() - self._began_s))
        events = self._select(timeout)
        self._began_s = time.thread_time()
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
