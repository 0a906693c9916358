"""A broker in the test's own process, so that a test can reach its registry and the phases of its start."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from spark_kafkalite.broker.server import Broker
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.registry.cluster.membership import OpenStore
from tests.patience import PATIENCE_S


class RunningBroker:
    """``run`` ends with the exit code; ``bootstrap`` is known once ``ready``."""

    def __init__(self, directory: Path, open_store: OpenStore | None, **overrides: object) -> None:
        settings = {
            "log.dirs": str(directory),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
            **{name.replace("_", "."): str(value) for name, value in overrides.items()},
        }
        self.broker = Broker(BrokerConfig.load(None, settings), open_store=open_store)
        self.ready = asyncio.Event()
        self.bootstrap = ""

    def _on_ready(self, line: str) -> None:
        self.bootstrap = line.splitlines()[0].rpartition(" ")[2]
        self.ready.set()

    async def run(self) -> int:
        """Run the broker. What it does to the process's garbage collector is taken back."""
        try:
            return await self.broker.run(self._on_ready)
        finally:
            gc.unfreeze()
            gc.enable()


@asynccontextmanager
async def running_broker(
    directory: Path, open_store: OpenStore | None = None, **overrides: object
) -> AsyncIterator[RunningBroker]:
    """Run a broker until the end of the block, which must be a clean one."""
    running = RunningBroker(directory, open_store, **overrides)
    ends = asyncio.ensure_future(running.run())
    ready = asyncio.ensure_future(running.ready.wait())
    try:
        await asyncio.wait((ends, ready), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if ends.done():
            raise AssertionError(f"the broker ended: {ends.result()}")
        assert ready.done(), "the broker is not ready in time"
        yield running
    finally:
        ready.cancel()
        running.broker.stop()
        code = await asyncio.wait_for(ends, PATIENCE_S)
    assert code == 0
