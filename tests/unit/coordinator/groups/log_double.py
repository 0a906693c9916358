"""``__consumer_offsets`` as shards see it: a list of batches that are committed when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from spark_kafkalite.coordinator.groups.records import RecordKey, RecordValue, decode_key, decode_value
from spark_kafkalite.errors import FencedLeaderEpoch, KafkaError
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import BatchHeader


class LogDouble:
    """One partition; ``held`` keeps appends uncommitted until :meth:`release`."""

    def __init__(self) -> None:
        self.leader_epoch = 1
        self.batches: list[bytes] = []
        self.held = False
        self.error: KafkaError | None = None
        self.largest_batch = 1 << 30
        self.too_large: KafkaError | None = None
        self._open: list[asyncio.Future[int]] = []
        self.gate: asyncio.Event | None = None

    def append_committed(
        self, partition: int, batch: bytearray, expected_leader_epoch: int, timeout_s: float
    ) -> asyncio.Future[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if expected_leader_epoch != self.leader_epoch:
            done.set_exception(FencedLeaderEpoch(f"{expected_leader_epoch} is over"))
        elif self.error is not None:
            done.set_exception(self.error)
        elif self.too_large is not None and len(batch) > self.largest_batch:
            done.set_exception(self.too_large)
        else:
            self.batches.append(bytes(batch))
            if self.held:
                self._open.append(done)
            else:
                done.set_result(len(self.batches) - 1)
        return done

    def release(self, error: KafkaError | None = None) -> None:
        """Commit what is held, or have it fail."""
        held, self._open = self._open, []
        for number, done in enumerate(held):
            if error is None:
                done.set_result(number)
            else:
                done.set_exception(error)

    async def read_committed_log(self, partition: int) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        for batch in list(self.batches):
            if self.gate is not None:
                await self.gate.wait()
            yield kernel.read_header(batch), memoryview(batch)

    def records(self) -> list[list[tuple[RecordKey, RecordValue | None]]]:
        """Return what was written, by batch."""
        found = []
        for batch in self.batches:
            builder = kernel.ColumnBuilder(False)
            builder.add_batch(batch, 0, kernel.read_header(batch), None)
            columns = builder.finish()
            rows = []
            for row in range(columns.count):
                key = decode_key(columns.key_at(row))
                rows.append((key, decode_value(key, columns.value_at(row))))
            found.append(rows)
        return found
