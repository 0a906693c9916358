"""What a partition remembers of idempotent producers: the sequence numbers of their last batches.

Per producer id: its epoch and its last five batches. A leader asks ``check`` before it gives offsets to a batch, and
calls ``update`` afterwards; followers and recovery only ``update``. The rules (``check``):

=====================================  ==============================================================================
batch                                  answer
=====================================  ==============================================================================
producer id not known                  taken, with any sequence (retention may have removed what came before)
the same, and ids have been forgotten  taken if it starts at sequence 0, else UnknownProducerId (59)
epoch below the known one              InvalidProducerEpoch (47)
equal to one of the last five          duplicate: the batch that is in the log already
new epoch                              taken if it starts at sequence 0, else OutOfOrderSequenceNumber (45)
same epoch, follows the last sequence  taken; sequences go from 2^31-1 on to 0
same epoch, anything else              OutOfOrderSequenceNumber (45), also for a duplicate older than the last five
=====================================  ==============================================================================

Every client may ask for ids, so their number is bounded (``max.producer.ids.per.partition``). Above it the longest idle
are forgotten, never one with an open transaction. A batch of such a producer may be in the log already, and the broker
could not recognise it. So while ids that were forgotten would not have expired by themselves (``forgotten_seen_ms``,
which snapshots keep), an unknown id may only begin. Its client understands the error and begins again with another
epoch. Three cases stay open. A producer that was forgotten and sends its first batch again has it written twice. So is
a batch that its client sends again under the new epoch, when its first answer was lost. An old instance of a forgotten
producer is not fenced.

Most ids of many are idle. The 1,024 that were seen last are objects, the others are packed, in the order in which they
were seen; so a hundred thousand take about 20 MB, and a snapshot of them some milliseconds.

A producer's time is the wall clock at its last append, not its batch's, which differs from Kafka. A producer that sends
old records (a load of last year's data) would otherwise be taken for one that fell silent, and its next retry for a new
batch. The snapshot file is ``producer_snapshot``'s.
Source: org.apache.kafka.storage.internals.log.ProducerStateManager and ProducerAppendInfo.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from itertools import islice
from typing import Final, NamedTuple

from spark_kafkalite.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
    UnknownProducerId,
)
from spark_kafkalite.model import NO_SEQUENCE
from spark_kafkalite.records.control import Marker
from spark_kafkalite.records.layout import MAX_INT32, BatchHeader

BATCHES_KEPT: Final = 5
# A producer's entry as snapshots have it: see producer_snapshot.
ENTRY: Final = struct.Struct(">qhiqiqiq")
_LAST_OFFSET_POSITION: Final = 14
_LAST_SEEN_POSITION: Final = 26
_TIME: Final = struct.Struct(">q")
# Behind it in memory: each of the batches, the latest one too. Nothing is there of what a snapshot has brought.
_BATCH: Final = struct.Struct(">iiqiq")
# How many producers are held as objects, and how many are packed at once when there are more.
_HELD: Final = 1024
_PACKED_AT_ONCE: Final = 32
# Forgetting one at a time would look through the gaps that the ones before have left: it takes this share at once.
_FORGOTTEN_SHARE: Final = 400
# How many more it looks at, because of open transactions.
_PASSED_OVER: Final = 16
# How many producers expire before others get their turn: some hundred microseconds.
_EXPIRED_AT_ONCE: Final = 500


class ProducerIdLimits:
    """How many producer ids a partition keeps, and how long a silent one. One object for all logs of a broker, so that
    changed settings hold at once."""

    __slots__ = ("expiration_ms", "max_ids")

    def __init__(self, max_ids: int = 100_000, expiration_ms: int = 86_400_000) -> None:
        self.max_ids = max_ids
        self.expiration_ms = expiration_ms


class BatchMetadata(NamedTuple):
    """One batch of a producer, as far as a duplicate must be recognised and answered."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def base_offset(self) -> int:
        """The offset of the batch's first record."""
        return self.last_offset - self.offset_delta


_NO_BATCH: Final = BatchMetadata(NO_SEQUENCE, NO_SEQUENCE, -1, 0, -1)


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "from_snapshot",
        "last_seen_ms",
        "producer_epoch",
        "transaction_first_offset",
    )

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.batches: list[BatchMetadata] = []
        self.last_seen_ms = -1
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1
        # Only the last batch is known, because the state came from a snapshot; the log knows the others.
        self.from_snapshot = False

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 when only markers are known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def pack(self, producer_id: int) -> bytes:
        """Return the entry as a snapshot has it."""
        last = self.batches[-1] if self.batches else _NO_BATCH
        return ENTRY.pack(
            producer_id,
            self.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            self.last_seen_ms,
            self.coordinator_epoch,
            self.transaction_first_offset,
        )

    def pack_all(self, producer_id: int) -> bytes:
        """Return the entry with everything that is known, for ``unpack``."""
        packed = self.pack(producer_id)
        return packed if self.from_snapshot else b"".join((packed, *(_BATCH.pack(*batch) for batch in self.batches)))

    @classmethod
    def unpack(cls, packed: bytes) -> ProducerEntry:
        """Return the entry that was packed, by ``pack_all`` or into a snapshot."""
        _, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = ENTRY.unpack_from(
            packed
        )
        entry = cls(epoch)
        entry.last_seen_ms = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_first_offset = first_offset
        if len(packed) > ENTRY.size:
            entry.batches = [BatchMetadata(*each) for each in _BATCH.iter_unpack(memoryview(packed)[ENTRY.size :])]
            return entry
        entry.from_snapshot = True
        if last_offset >= 0 and last_sequence >= 0:
            first_sequence = last_sequence - delta
            if first_sequence < 0:
                first_sequence += MAX_INT32 + 1
            entry.batches.append(BatchMetadata(first_sequence, last_sequence, last_offset, delta, timestamp))
        return entry


class ProducerStateManager:
    """All producers of one partition."""

    __slots__ = (
        "_held",
        "_newest_id",
        "_open_transactions",
        "_packed",
        "forgotten",
        "forgotten_seen_ms",
        "limits",
        "map_end_offset",
        "snapshot_offset",
    )

    def __init__(self, limits: ProducerIdLimits | None = None) -> None:
        self.limits = limits if limits is not None else ProducerIdLimits()
        # Those seen last, the latest at the end, and before them in the same order the others, packed.
        self._held: dict[int, ProducerEntry] = {}
        self._packed: dict[int, bytes] = {}
        self._newest_id = -1
        # First offsets by producer id.
        self._open_transactions: dict[int, int] = {}
        # How many were forgotten for want of room since somebody set this to 0.
        self.forgotten = 0
        # When the latest of these was seen last; -1 when all of them would have expired by now, or there is none.
        self.forgotten_seen_ms = -1
        # The state holds everything below this offset.
        self.map_end_offset = 0
        # The newest snapshot on disk, -1 when there is none.
        self.snapshot_offset = -1

    def __len__(self) -> int:
        return len(self._packed) + len(self._held)

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """Copies of all entries, the longest idle first; for tools and tests."""
        return {key: ProducerEntry.unpack(packed) for key, packed in self._packed.items()} | self._held

    @property
    def highest_id(self) -> int:
        """The largest producer id that is known here, -1 for none."""
        return max(max(self._packed, default=-1), max(self._held, default=-1))

    def last_offsets(self) -> dict[int, int]:
        """Return the last offset of each producer that has written records."""
        found = {key: _TIME.unpack_from(packed, _LAST_OFFSET_POSITION)[0] for key, packed in self._packed.items()}
        found |= {key: entry.batches[-1].last_offset for key, entry in self._held.items() if entry.batches}
        return {key: offset for key, offset in found.items() if offset >= 0} if -1 in found.values() else found

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the batch in the log that ``header`` repeats, None when it is new and in order.

        Raises InvalidProducerEpoch (47), OutOfOrderSequenceNumber (45) and UnknownProducerId (59).
        """
        entry = self._held.get(header.producer_id)
        first_sequence, epoch = header.base_sequence, header.producer_epoch
        if entry is None:
            packed = self._packed.get(header.producer_id)
            if packed is None:
                if first_sequence > 0 and self.forgotten_seen_ms >= 0:
                    raise UnknownProducerId(
                        f"producer {header.producer_id}: sequence {first_sequence} of an id that is not known, or not "
                        "any more: this partition has forgotten idle ones (max.producer.ids.per.partition="
                        f"{self.limits.max_ids}); begin again at sequence 0 with a new epoch or id"
                    )
                return None
            entry = ProducerEntry.unpack(packed)
        if epoch == entry.producer_epoch:
            batches = entry.batches
            if not batches:
                last_sequence = NO_SEQUENCE
            else:
                last_sequence = batches[-1].last_sequence
                if first_sequence == last_sequence + 1:
                    return None
                last = header.last_sequence
                for batch in batches:
                    if batch.first_sequence == first_sequence and batch.last_sequence == last:
                        return batch
            expected = 0 if last_sequence == MAX_INT32 else last_sequence + 1
            if first_sequence == expected:
                return None
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id}: sequence {first_sequence} does not follow {last_sequence} "
                f"(epoch {epoch}); {expected} was expected"
            )
        if epoch < entry.producer_epoch:
            raise _old_epoch(header, entry)
        if first_sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id}: its new epoch {epoch} must start at sequence 0, not {first_sequence}"
            )
        return None

    def forgot_batches(self, producer_id: int) -> bool:
        """Return, once, whether a producer's earlier batches have to be looked up in the log before it is refused."""
        entry = self._hold(producer_id)
        if entry is None or not entry.from_snapshot:
            return False
        entry.from_snapshot = False
        return True

    def recall(self, producer_id: int, batches: Iterable[tuple[int, BatchHeader]]) -> None:
        """Take up a producer's earlier batches, (base offset, header) in the order of the log."""
        entry = self._hold(producer_id)
        if entry is None:
            return
        known = {batch.last_offset for batch in entry.batches}
        earlier = [
            _batch(header, base_offset)
            for base_offset, header in batches
            if header.producer_epoch == entry.producer_epoch
            and header.last_offset not in known
            and header.base_sequence >= 0
        ]
        entry.batches = [*earlier, *entry.batches][-BATCHES_KEPT:]

    def _hold(self, producer_id: int) -> ProducerEntry | None:
        """Return a producer's entry as an object that stays; None when it is not known."""
        entry = self._held.get(producer_id)
        if entry is None and (packed := self._packed.pop(producer_id, None)) is not None:
            entry = self._held[producer_id] = ProducerEntry.unpack(packed)
            self._newest_id = producer_id
            self._pack_idle()
        return entry

    def _pack_idle(self) -> None:
        if len(self._held) >= _HELD + _PACKED_AT_ONCE:
            for producer_id in list(islice(self._held, _PACKED_AT_ONCE)):
                self._packed[producer_id] = self._held[producer_id].pack_all(producer_id)
                del self._held[producer_id]

    def check_own(self, header: BatchHeader, marker: Marker | None) -> None:
        """Check a batch that a coordinator writes for a producer: a marker, or records of a transaction.

        The coordinator has no sequences of the producer, so only epochs count. Raises InvalidProducerEpoch (47), and
        TransactionCoordinatorFenced (52) for a marker of a coordinator that has been replaced.
        Source: ProducerAppendInfo.checkProducerEpoch and checkCoordinatorEpoch.
        """
        producer_id = header.producer_id
        entry = self._held.get(producer_id)
        if entry is None:
            packed = self._packed.get(producer_id)
            if packed is None:
                return
            entry = ProducerEntry.unpack(packed)
        if header.producer_epoch < entry.producer_epoch:
            raise _old_epoch(header, entry)
        if marker is not None and marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {producer_id}: a marker of coordinator epoch {marker.coordinator_epoch}, and one of "
                f"{entry.coordinator_epoch} has been written: another broker coordinates its transactions"
            )

    def update(self, header: BatchHeader, base_offset: int, now_ms: int, marker: Marker | None = None) -> None:
        """Take up a batch with a producer id that is in the log at ``base_offset``; of a control batch with the marker
        in it, None when none can be read."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producer_id == self._newest_id:
            entry = self._held[producer_id]
        else:
            entry = self._make_newest(producer_id, epoch)
        if epoch != entry.producer_epoch:
            entry.producer_epoch = epoch
            entry.batches.clear()
        entry.last_seen_ms = now_ms
        if header.attributes & 0x20:
            # A marker ends the transaction; it has no sequence.
            if marker is not None:
                entry.coordinator_epoch = marker.coordinator_epoch
            entry.transaction_first_offset = -1
            self._open_transactions.pop(producer_id, None)
            return
        batches = entry.batches
        if len(batches) >= BATCHES_KEPT:
            del batches[0]
        batches.append(_batch(header, base_offset))
        if header.attributes & 0x10 and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = base_offset
            self._open_transactions[producer_id] = base_offset

    def _make_newest(self, producer_id: int, epoch: int) -> ProducerEntry:
        entry = self._held.pop(producer_id, None)
        if entry is None:
            packed = self._packed.pop(producer_id, None)
            entry = ProducerEntry(epoch) if packed is None else ProducerEntry.unpack(packed)
        self._held[producer_id] = entry
        self._newest_id = producer_id
        self._pack_idle()
        excess = len(self._packed) + len(self._held) - self.limits.max_ids
        if excess > 0:
            self._forget(min(excess + self.limits.max_ids // _FORGOTTEN_SHARE, _EXPIRED_AT_ONCE))
        return entry

    def _forget(self, count: int) -> None:
        """Forget the longest idle producers, about so many, but for the newest and those with an open transaction."""
        source: dict[int, bytes] | dict[int, ProducerEntry] = self._packed or self._held
        for producer_id in list(islice(source, count + _PASSED_OVER)):
            if producer_id == self._newest_id:
                continue
            if producer_id in self._open_transactions:
                # Its place does not matter before its transaction ends, and then it has been seen again.
                source[producer_id] = source.pop(producer_id)  # type: ignore[assignment]
                continue
            gone = source.pop(producer_id)
            seen_ms = _seen_ms(gone) if isinstance(gone, bytes) else gone.last_seen_ms
            self.forgotten_seen_ms = max(self.forgotten_seen_ms, seen_ms, 0)
            self.forgotten += 1
            count -= 1
            if not count:
                break

    def first_open_transaction_offset(self) -> int | None:
        """Return where the oldest open transaction starts, None when none is open."""
        return min(self._open_transactions.values(), default=None)

    def expire(self, now_ms: int) -> Generator[None, None, int]:
        """Forget producers that have been silent for ``producer.id.expiration.ms`` and have no open transaction; return
        how many. In slices, between which the state may change."""
        before_ms = now_ms - self.limits.expiration_ms
        if self.forgotten_seen_ms > now_ms:
            # Seen by a clock that was ahead.
            self.forgotten_seen_ms = now_ms
        elif self.forgotten_seen_ms < before_ms:
            self.forgotten_seen_ms = -1
        # More than there may be, after the setting has been lowered.
        while (excess := len(self) - self.limits.max_ids) > 0:
            self._forget(min(excess, _EXPIRED_AT_ONCE))
            if len(self) - self.limits.max_ids == excess:
                break
            yield
        count = kept = 0
        while True:
            chunk = list(islice(self._packed.items(), kept, kept + _EXPIRED_AT_ONCE))
            ended = not chunk
            for producer_id, packed in chunk:
                seen_ms = _seen_ms(packed)
                if seen_ms > now_ms:
                    head, tail = packed[:_LAST_SEEN_POSITION], packed[_LAST_SEEN_POSITION + _TIME.size :]
                    self._packed[producer_id] = head + _TIME.pack(now_ms) + tail
                    kept += 1
                elif producer_id in self._open_transactions:
                    kept += 1
                elif seen_ms < before_ms:
                    del self._packed[producer_id]
                    count += 1
                else:
                    ended = True
                    break
            if ended:
                break
            yield
        for producer_id, entry in list(self._held.items()):
            entry.last_seen_ms = min(entry.last_seen_ms, now_ms)
            if entry.last_seen_ms < before_ms and producer_id not in self._open_transactions:
                del self._held[producer_id]
                count += 1
                if producer_id == self._newest_id:
                    self._newest_id = -1
        return count

    def clear(self) -> None:
        """Forget every producer."""
        self._held.clear()
        self._packed.clear()
        self._open_transactions.clear()
        self._newest_id = -1
        self.map_end_offset = 0

    # Snapshots ------------------------------------------------------------------------------------------------------

    def entries(self) -> list[bytes]:
        """Return all entries as snapshots have them, the longest idle first."""
        entries = [packed[: ENTRY.size] for packed in self._packed.values()]
        entries += [entry.pack(producer_id) for producer_id, entry in self._held.items()]
        return entries

    def take_up_entries(self, entries: Iterable[bytes], forgotten_seen_ms: int) -> None:
        """Replace the state by the entries of a snapshot; those beyond the bound are forgotten."""
        offset = self.map_end_offset
        self.clear()
        self.map_end_offset = offset
        self.forgotten_seen_ms = forgotten_seen_ms
        self._packed = {_TIME.unpack_from(packed)[0]: packed for packed in sorted(entries, key=_seen_ms)}
        for producer_id, packed in self._packed.items():
            (first_offset,) = _TIME.unpack_from(packed, ENTRY.size - _TIME.size)
            if first_offset >= 0:
                self._open_transactions[producer_id] = first_offset
        while (excess := len(self) - self.limits.max_ids) > 0:
            before = len(self)
            self._forget(excess)
            if len(self) == before:
                break


def _old_epoch(header: BatchHeader, entry: ProducerEntry) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(
        f"producer {header.producer_id}: epoch {header.producer_epoch} is older than {entry.producer_epoch}, "
        "which another instance of this producer uses"
    )


def _seen_ms(packed: bytes) -> int:
    seen_ms: int = _TIME.unpack_from(packed, _LAST_SEEN_POSITION)[0]
    return seen_ms


def _batch(header: BatchHeader, base_offset: int) -> BatchMetadata:
    delta = header.last_offset_delta
    return BatchMetadata(header.base_sequence, header.last_sequence, base_offset + delta, delta, header.max_timestamp)
