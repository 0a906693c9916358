"""One partition of an internal topic in one leader epoch: loaded, served, given up.

A :class:`Shard` is made when the broker begins to lead the partition, reads the log, serves, and is thrown away when
leadership goes; a later epoch gets a new one. So a write that was begun under one epoch can never change what another
epoch has read, and a broker that leads no longer can write nothing: every append names the epoch and fails when it is
over.

::

    LOADING    reads the log from its start; requests get COORDINATOR_LOAD_IN_PROGRESS and clients ask again
    ACTIVE     serves
    RESIGNED   over; whatever still waits gets NOT_COORDINATOR and clients look for the new coordinator

``state`` changes only by :meth:`StateMachine.apply` and :meth:`StateMachine.ended`: until records are committed, it
shows what was before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.internal_topic import LoggedBatches, TopicHost
from spark_kafkalite.coordinator.loading import RecordReplay
from spark_kafkalite.coordinator.open_transactions import ProducerIdAndEpoch
from spark_kafkalite.coordinator.record_writer import OnDone, RecordWriter
from spark_kafkalite.coordinator.state_machine import Entry, OpenKeys, StateMachine, UnreadableRecord
from spark_kafkalite.errors import CoordinatorLoadInProgress, KafkaError, NotCoordinator
from spark_kafkalite.records.control import Marker

logger = logging.getLogger(__name__)

State = TypeVar("State", bound=StateMachine)

# Records that are applied in one piece of work of the loop: about two milliseconds.
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

    def append(self, entries: Sequence[Entry], producer: ProducerIdAndEpoch | None = None) -> asyncio.Future[None]:
        """Write records, all or none, perhaps in a producer's transaction; the future is done when they are committed
        and applied.

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

        self.write(entries, tell, producer)
        return done

    def write(self, entries: Sequence[Entry], on_done: OnDone, producer: ProducerIdAndEpoch | None = None) -> None:
        """As :meth:`append`, for thousands of callers: ``on_done`` gets None or the error."""
        if self._writer is not None:
            self._writer.append(entries, on_done, producer)
        else:
            on_done(self.unavailable())

    def end_transaction(self, producer: ProducerIdAndEpoch, marker: Marker, on_done: OnDone) -> None:
        """Write a marker behind what was written before; ``on_done`` gets None when the state has it, or the error."""
        if self._writer is not None:
            self._writer.end_transaction(producer, marker, on_done)
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
        replay = RecordReplay(state.canonical_key)
        async for header, batch in batches:
            # Many small batches, or one large one.
            if replay.add(header, batch):
                for _ in replay.take():
                    await asyncio.sleep(0)
                if self.phase is not ShardPhase.LOADING:
                    return False
        for _ in replay.take():
            await asyncio.sleep(0)
        await _apply_all(state, replay)
        if self.phase is not ShardPhase.LOADING:
            return False
        for problem, count in replay.skipped.items():
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


async def _apply_all(state: StateMachine, replay: RecordReplay) -> None:
    """Apply the records that count."""
    for producer, records in replay.left(_APPLIED_AT_ONCE):
        entries: list[Entry] = []
        offsets: list[int] = []
        for key, value, offset in records:
            try:
                entries.append(state.decode(key, value))
                offsets.append(offset)
            except UnreadableRecord as error:
                replay.skipped[str(error)] += 1
        state.apply(entries, offsets, producer)
        await asyncio.sleep(0)
