"""One log as it is compared with that of another broker: what a thread reads of it, and whether that counts.

Both the follower, which asks (``comparison``), and its leader, which answers (``requests.handlers.compare_replicas``),
use it. A log may be cut, cleaned or moved on by retention while a thread reads it: then :class:`LogChanged` comes out,
and nothing was found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from spark_kafkalite.broker.replication.rules.comparing import UNREADABLE, Side
from spark_kafkalite.errors import CorruptMessage, OffsetNotAvailable
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.range_check import Snapshot, faults_of, is_damage, next_range, snapshot, sum_of
from spark_kafkalite.net.io_threads import IoThreads

T = TypeVar("T")

# Of one request, whatever the settings of the other side allow.
MOST_BYTES: Final = 1024 * 1024


class LogChanged(OffsetNotAvailable):
    """The log is not any more what it was when the work began, or cannot be read at present."""


class ComparedLog:
    """See the module's text. Lives in the event loop."""

    def __init__(self, log: PartitionLog, io: IoThreads) -> None:
        self._log = log
        self._io = io

    @property
    def first_offset(self) -> int:
        """Below it records may have been removed, by retention or compaction."""
        return max(int(self._log.log_start_offset), self._log.cleaned_until_offset)

    async def next_range(self, start_offset: int, until_offset: int, max_bytes: int) -> tuple[int, Side]:
        """Return where the next range from an offset on ends, and its sum. Where headers cannot be followed it reaches
        to the segment's end, and is UNREADABLE."""
        until_offset = min(until_offset, int(self._log.log_end_offset))
        if start_offset >= until_offset:
            return start_offset, Side(0)

        def read(found: Snapshot) -> tuple[int, Side]:
            try:
                end_offset = next_range(found, start_offset, until_offset, min(max_bytes, MOST_BYTES))
            except (CorruptMessage, OSError) as error:
                if not is_damage(error):
                    raise
                return found.end_of_first(until_offset), Side(UNREADABLE)
            return end_offset, _side(found, start_offset, end_offset)

        return await self._read(start_offset, until_offset, read)

    async def sum_of(self, start_offset: int, end_offset: int) -> Side:
        """Return the sum of a range."""
        return await self._read(start_offset, end_offset, lambda found: _side(found, start_offset, end_offset))

    async def faults_of(self, start_offset: int, end_offset: int) -> tuple[Side, tuple[int, int]]:
        """Return the sum of a range with what is wrong with it, and the lowest and highest leader epoch in it."""

        def read(found: Snapshot) -> tuple[Side, tuple[int, int]]:
            size_bytes, checksum, *_ = _side(found, start_offset, end_offset)
            faults = faults_of(found, start_offset, end_offset)
            return Side(size_bytes, checksum, faults.damaged, faults.missing, faults.is_compacted), faults.epochs

        return await self._read(start_offset, end_offset, read)

    async def _read(self, start_offset: int, until_offset: int, read: Callable[[Snapshot], T]) -> T:
        log = self._log
        self._check(start_offset, log.local.generation)
        found, generation = snapshot(log, start_offset, until_offset), log.local.generation
        try:
            result = await self._io.run(lambda: read(found))
        except OSError as error:
            raise LogChanged(f"{log.topic_partition}: {error.strerror or error}; try again") from error
        self._check(start_offset, generation)
        return result

    def _check(self, start_offset: int, generation: int) -> None:
        local = self._log.local
        if not local.is_ready or local.generation != generation or start_offset < self.first_offset:
            raise LogChanged(f"{self._log.topic_partition}: offset {start_offset} is not compared at present")


def _side(found: Snapshot, start_offset: int, end_offset: int) -> Side:
    try:
        return Side(*sum_of(found, start_offset, end_offset))
    except (CorruptMessage, OSError) as error:
        if not is_damage(error):
            raise
        return Side(UNREADABLE)
