"""One partition of an internal topic in one leader epoch: loaded, served, given up.

A :class:`Shard` is made when the broker begins to lead the partition, reads the log, serves, and is thrown away when
leadership goes; a later epoch gets a new one. So a write that was begun under one epoch can never change what another
epoch has read, and a broker that leads no longer can write nothing: every append names the epoch and fails when it is
over.

::

    LOADING    reads the log from its start; requests get COORDINATOR_LOAD_IN_PROGRESS and clients ask again
    ACTIVE     serves
    RESIGNED   over; whatever still waits gets NOT_COORDINATOR and clients look for the new coordinator

``state`` changes only by :meth:`StateMachine.apply`: until records are committed, it shows what was before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.internal_topic import LoggedBatches, TopicHost
from spark_kafkalite.coordinator.record_writer import OnDone, RecordWriter
from spark_kafkalite.coordinator.state_machine import Entry, OpenKeys, StateMachine, UnreadableRecord
from spark_kafkalite.errors import CoordinatorLoadInProgress, KafkaError, NotCoordinator
from spark_kafkalite.records.columns import add_batch
from spark_kafkalite.records.kernel import ColumnBuilder, Columns

logger = logging.getLogger(__name__)

State = TypeVar("State", bound=StateMachine)

# Records that are read, and of those that count applied, in one piece of work of the loop: about two milliseconds.
_READ_AT_ONCE: Final = 1000
_APPLIED_AT_ONCE: Final = 250


class ShardPhase(Enum):
    """What a shard can do; see the module's text."""

    LOADING = "loading"
    ACTIVE = "active"
    RESIGNED = "resigned"


class Shard(Generic[State]):
    """One partition of an internal topic under one leader epoch, and the state that its records make."""

    def __init__(
        self,
        host: TopicHost,
        partition: int,
        leader_epoch: int,
        new_state: Callable[[OpenKeys], State],
        clock: Clock,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.phase = ShardPhase.LOADING
        self._host = host
        self._new_state = new_state
        self._clock = clock
        self.state = new_state(self.open_keys)
        # There while it serves.
        self._writer: RecordWriter | None = None

    @property
    def label(self) -> str:
        """The partition, as texts have it."""
        return f"{self._host.topic.name}-{self.partition}"

    # Writing --------------------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> asyncio.Future[None]:
        """Write records, all or none; the future is done when they are committed and applied.

        It raises the error for clients, as :meth:`StateMachine.told` returns it: NotCoordinator (16),
        CoordinatorNotAvailable (15), RequestTimedOut (7) when the records may or may not be committed later, ...
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: KafkaError | None) -> None:
            if done.done():
                # Whoever waited has gone.
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.write(entries, tell)
        return done

    def write(self, entries: Sequence[Entry], on_done: OnDone) -> None:
        """As :meth:`append`, for thousands of callers: ``on_done`` gets None or the error."""
        if self._writer is not None:
            self._writer.append(entries, on_done)
        else:
            on_done(self.unavailable())

    def open_keys(self) -> Iterator[Any]:
        """Give the keys of records that are being written."""
        return self._writer.open_keys() if self._writer is not None else iter(())

    # Phases ---------------------------------------------------------------------------------------------------------

    def unavailable(self) -> KafkaError:
        """Return what a request gets while the shard does not serve."""
        kind = self._host.topic.kind
        if self.phase is ShardPhase.LOADING:
            return CoordinatorLoadInProgress(f"the {kind}s of {self.label} are being loaded")
        return NotCoordinator(f"this broker does not coordinate the {kind}s of {self.label}")

    async def load(self, batches: LoggedBatches) -> bool:
        """Read the log into memory and begin to serve; return False when the shard resigned meanwhile.

        Raises KafkaliteError when the log cannot be read: serving what has been read so far would take back the rest.
        """
        state = self._new_state(self.open_keys)
        skipped: Counter[str] = Counter()
        # The last value of each key: most records are overtaken by later ones, and need not be decoded.
        last: dict[bytes, bytes] = {}
        builder = ColumnBuilder(False)
        async for header, batch in batches:
            if header.is_transactional:
                skipped["it belongs to a transaction, and transactions are not served"] += header.record_count
                continue
            add_batch(builder, batch, 0, header)
            # Many small batches, or one large one.
            if builder.count >= _READ_AT_ONCE:
                await _take_last(state, builder.finish(), last)
                if self.phase is not ShardPhase.LOADING:
                    return False
        await _take_last(state, builder.finish(), last)
        await _apply_all(state, last, skipped)
        if self.phase is not ShardPhase.LOADING:
            return False
        for problem, count in skipped.items():
            logger.warning("%s: skipped %d records: %s", self.label, count, problem)
        self.state = state
        self._writer = RecordWriter(self._host, self.partition, self.leader_epoch, state, self._clock)
        self.phase = ShardPhase.ACTIVE
        return True

    def resign(self) -> None:
        """Serve no more; callers that wait for an append receive NotCoordinator."""
        self.phase = ShardPhase.RESIGNED
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(self.unavailable())

    def __repr__(self) -> str:
        return f"<Shard {self.label} epoch={self.leader_epoch} {self.phase.value}: {self.state.summary()}>"


async def _take_last(state: StateMachine, columns: Columns, last: dict[bytes, bytes]) -> None:
    """Keep the last value of each key; tombstones remove a key, and a record without a key is skipped."""
    canonical_key = state.canonical_key
    for first in range(0, columns.count, _READ_AT_ONCE):
        for row in range(first, min(first + _READ_AT_ONCE, columns.count)):
            key, value = columns.key_at(row), columns.value_at(row)
            if key is None:
                continue
            key = canonical_key(key)
            if value is None:
                last.pop(key, None)
            else:
                last[key] = value
        await asyncio.sleep(0)


async def _apply_all(state: StateMachine, last: dict[bytes, bytes], skipped: Counter[str]) -> None:
    """Apply the records that count."""
    entries: list[Entry] = []
    for number, (key, value) in enumerate(last.items(), 1):
        try:
            entries.append(state.decode(key, value))
        except UnreadableRecord as error:
            skipped[str(error)] += 1
        if number % _APPLIED_AT_ONCE == 0:
            state.apply(entries)
            entries = []
            await asyncio.sleep(0)
    state.apply(entries)
