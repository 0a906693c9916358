"""Looks through all that a coordinator knows, a little at a time, and writes what is due: expiry above all.

A sweep is work in slices (``slices.py``): between two steps others have their turn, so a step relies on nothing that
the one before it saw. What a step finds is handed to the shard at once, before anything else can happen: a tombstone
that waited might come behind a record that was written meanwhile, and delete it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from spark_kafkalite.coordinator.shard import ShardPhase, State
from spark_kafkalite.coordinator.shards import Shards
from spark_kafkalite.coordinator.state_machine import Entry
from spark_kafkalite.errors import KafkaError
from spark_kafkalite.slices import Work

logger = logging.getLogger(__name__)

# With as many records on their way, a sweep waits for them.
_MOST_OPEN: Final = 1000


def sweep(shards: Shards[State], steps: Callable[[State], Iterator[Sequence[Entry]]]) -> Work[int]:
    """Write what the steps over each shard's state give; return how many records were committed.

    A step gives all that it found, often nothing. Records that could not be written are left to the next sweep.
    """
    count = _Count()
    for shard in shards:
        for entries in steps(shard.state):
            if entries:
                shard.write(entries, count.add(shard.label, len(entries)))
            yield count.wait() if count.open >= _MOST_OPEN else None
            if shard.phase is not ShardPhase.ACTIVE:
                break
    if count.open:
        yield count.wait()
    return count.committed


class _Count:
    """Of one sweep: records that are on their way, and those that are committed."""

    def __init__(self) -> None:
        self.open = 0
        self.committed = 0
        self._none_open: asyncio.Future[None] | None = None

    def add(self, label: str, records: int) -> Callable[[KafkaError | None], None]:
        """Count records that are handed over now; what is returned is to be called with their outcome."""
        self.open += records

        def told(error: KafkaError | None) -> None:
            self.open -= records
            if error is None:
                self.committed += records
            else:
                logger.debug("%d records for %s failed: %s", records, label, error)
            if not self.open and self._none_open is not None:
                self._none_open.set_result(None)
                self._none_open = None

        return told

    def wait(self) -> asyncio.Future[None]:
        """Return a future that is done when none is on its way; some are now."""
        self._none_open = asyncio.get_running_loop().create_future()
        return self._none_open
