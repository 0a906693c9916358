"""An internal topic as its shards see it: a list of batches that are committed when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from spark_kafkalite.coordinator.internal_topic import InternalTopic
from spark_kafkalite.coordinator.open_transactions import ProducerIdAndEpoch
from spark_kafkalite.errors import FencedLeaderEpoch, KafkaError
from spark_kafkalite.records import kernel
from spark_kafkalite.records.control import Marker, build_marker
from spark_kafkalite.records.layout import BatchHeader


class HostDouble:
    """One partition's log, whichever is asked for; ``held`` keeps appends uncommitted until :meth:`release`."""

    def __init__(
        self, name: str = "__consumer_offsets", kind: str = "group", *, partitions: int = 1, timeout_ms: int = 5_000
    ) -> None:
        self.topic = InternalTopic(name, kind, partitions, 1, 1 << 20, "replicas", timeout_ms, "commit.timeout.ms")
        self.partitions = partitions
        self.leader_epoch = 1
        self.batches: list[bytes] = []
        self.end_offset = 0
        self.held = False
        self.error: BaseException | None = None
        self.largest_batch = 1 << 30
        self.too_large: KafkaError | None = None
        self.open: list[asyncio.Future[int]] = []
        self._offsets: dict[asyncio.Future[int], int] = {}
        self.gate: asyncio.Event | None = None

    def partition_count(self) -> int:
        return self.partitions

    def append_committed(self, partition: int, batch: bytearray, leader_epoch: int) -> int | asyncio.Future[int]:
        if leader_epoch != self.leader_epoch:
            raise FencedLeaderEpoch(f"{leader_epoch} is over")
        if self.error is not None:
            raise self.error
        if self.too_large is not None and len(batch) > self.largest_batch:
            raise self.too_large
        base_offset = self.store(batch)
        if not self.held:
            return base_offset
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.open.append(done)
        self._offsets[done] = base_offset
        return done

    def store(self, batch: bytearray) -> int:
        """Append a batch, and return its base offset."""
        base_offset = self.end_offset
        kernel.stamp(batch, 0, base_offset, self.leader_epoch)
        self.batches.append(bytes(batch))
        self.end_offset = kernel.read_header(batch).next_offset
        return base_offset

    def commit(self, done: asyncio.Future[int]) -> None:
        """Commit one append that is held."""
        self.open.remove(done)
        done.set_result(self._offsets[done])

    def release(self, error: KafkaError | None = None) -> None:
        """Commit what is held, or have it fail."""
        held, self.open = self.open, []
        for done in held:
            if error is None:
                done.set_result(self._offsets[done])
            else:
                done.set_exception(error)

    async def read_replicated(self, partition: int) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        for batch in list(self.batches):
            if self.gate is not None:
                await self.gate.wait()
            yield kernel.read_header(batch), memoryview(batch)

    def add(self, *records: tuple[bytes | None, bytes | None], producer: ProducerIdAndEpoch | None = None) -> None:
        """Put a batch into the log that another broker wrote, perhaps in a transaction."""
        batch = kernel.OpenBatch(1 << 20)
        for key, value in records:
            batch.append(1, key, value)
        if producer is None:
            self.store(bytearray(batch.build()))
        else:
            producer_id, epoch = producer
            built = batch.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
            self.store(bytearray(built))

    def end(self, producer: ProducerIdAndEpoch, marker: Marker) -> None:
        """Put a marker into the log that another broker wrote."""
        self.store(build_marker(producer.producer_id, producer.producer_epoch, marker, 1))

    def raw_records(self) -> list[list[tuple[bytes | None, bytes | None]]]:
        """Return keys and values of what was written, by batch."""
        found = []
        for batch in self.batches:
            builder = kernel.ColumnBuilder(False)
            builder.add_batch(batch, 0, kernel.read_header(batch), None)
            columns = builder.finish()
            found.append([(columns.key_at(row), columns.value_at(row)) for row in range(columns.count)])
        return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other tasks bring about in a bounded number of passes of the loop."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


def with_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in a loop of its own."""

    def run() -> None:
        work: Any = test()
        asyncio.run(work)

    run.__name__ = test.__name__
    return run
