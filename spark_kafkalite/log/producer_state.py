"""What a partition knows of idempotent producers: the sequence numbers of their last batches.

Per producer id: its epoch and its last five batches. A leader asks ``check`` before it gives offsets to a batch, and
tells ``update`` afterwards; followers and recovery only ``update``. The rules (``check``):

=====================================  ==============================================================================
batch                                  answer
=====================================  ==============================================================================
producer id not known                  taken, with any sequence (retention may have removed what came before)
epoch below the known one              InvalidProducerEpoch (47)
equal to one of the last five          duplicate: the batch that is in the log already
new epoch                              taken if it starts at sequence 0, else OutOfOrderSequenceNumber (45)
same epoch, follows the last sequence  taken; sequences go from 2^31-1 on to 0
same epoch, anything else              OutOfOrderSequenceNumber (45), also for a duplicate older than the last five
=====================================  ==============================================================================

Snapshot file ``<offset, 20 digits>.snapshot`` (the state as of that offset), written when a segment rolls and at a
clean stop; big endian:

=====  ==========================================================================
bytes  field
=====  ==========================================================================
2      version 1
4      CRC-32C of everything after this field
4      number of producers, and for each of them:
8      producer id
2      producer epoch
4      last sequence
8      last offset
4      last offset - first offset of that batch
8      when that batch was appended
4      coordinator epoch (-1 without transactions)
8      first offset of the open transaction (-1 when none is open)
=====  ==========================================================================

Only the last batch of a producer is in it. The others are looked up in the log (``recall``) before a batch is refused,
so that a producer whose answers were lost in a clean restart may repeat all that it had in flight. The timestamp is
where we differ from Kafka: it is the wall clock at the append, not the batch's. A producer that sends old records (a
load of last year's data) would otherwise be taken for one that fell silent, and its next retry for a new batch.
Source: org.apache.kafka.storage.internals.log.ProducerStateManager and ProducerAppendInfo.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from spark_kafkalite.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from spark_kafkalite.log.checkpoint import CheckpointError
from spark_kafkalite.log.fs import Fs, read_whole, replace_file
from spark_kafkalite.model import NO_SEQUENCE
from spark_kafkalite.records.layout import MAX_INT32, BatchHeader

BATCHES_KEPT = 5
SNAPSHOT_SUFFIX = ".snapshot"
_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class ProducerBatch(NamedTuple):
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
        self.batches: list[ProducerBatch] = []
        self.last_seen_ms = -1
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1
        # Only the last batch is known, because the state came from a snapshot; the log knows the others.
        self.from_snapshot = False

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 when only markers are known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("map_end_offset", "producers", "snapshot_offset")

    def __init__(self) -> None:
        self.producers: dict[int, ProducerEntry] = {}
        # The state holds everything below this offset.
        self.map_end_offset = 0
        # The newest snapshot on disk, -1 when there is none.
        self.snapshot_offset = -1

    def check(self, header: BatchHeader) -> ProducerBatch | None:
        """Return the batch in the log that ``header`` repeats, None when it is new and in order.

        Raises InvalidProducerEpoch (47) and OutOfOrderSequenceNumber (45).
        """
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return None
        first_sequence, epoch = header.base_sequence, header.producer_epoch
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
            raise InvalidProducerEpoch(
                f"producer {header.producer_id}: epoch {epoch} is older than {entry.producer_epoch}, "
                "which another instance of this producer uses"
            )
        if first_sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id}: its new epoch {epoch} must start at sequence 0, not {first_sequence}"
            )
        return None

    def forgot_batches(self, producer_id: int) -> bool:
        """Return, once, whether a producer's earlier batches have to be looked up in the log before it is refused."""
        entry = self.producers.get(producer_id)
        if entry is None or not entry.from_snapshot:
            return False
        entry.from_snapshot = False
        return True

    def recall(self, producer_id: int, batches: Iterable[tuple[int, BatchHeader]]) -> None:
        """Take up a producer's earlier batches, (base offset, header) in the order of the log."""
        entry = self.producers[producer_id]
        known = {batch.last_offset for batch in entry.batches}
        earlier = [
            _batch(header, base_offset)
            for base_offset, header in batches
            if header.producer_epoch == entry.producer_epoch
            and header.last_offset not in known
            and header.base_sequence >= 0
        ]
        entry.batches = [*earlier, *entry.batches][-BATCHES_KEPT:]

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Take up a batch with a producer id that is in the log at ``base_offset``."""
        entry = self.producers.get(header.producer_id)
        epoch = header.producer_epoch
        if entry is None:
            entry = self.producers[header.producer_id] = ProducerEntry(epoch)
        elif epoch != entry.producer_epoch:
            entry.producer_epoch = epoch
            entry.batches.clear()
        entry.last_seen_ms = now_ms
        if header.attributes & 0x20:
            # A marker ends the transaction; it has no sequence.
            entry.transaction_first_offset = -1
            return
        batches = entry.batches
        if len(batches) >= BATCHES_KEPT:
            del batches[0]
        batches.append(_batch(header, base_offset))
        if header.attributes & 0x10 and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = base_offset

    def first_open_transaction_offset(self) -> int | None:
        """Return where the oldest open transaction starts, None when none is open."""
        return min(
            (
                entry.transaction_first_offset
                for entry in self.producers.values()
                if entry.transaction_first_offset >= 0
            ),
            default=None,
        )

    def expire(self, before_ms: int) -> int:
        """Forget producers silent since before ``before_ms`` that have no open transaction; return how many."""
        gone = [
            producer_id
            for producer_id, entry in self.producers.items()
            if entry.last_seen_ms < before_ms and entry.transaction_first_offset < 0
        ]
        for producer_id in gone:
            del self.producers[producer_id]
        return len(gone)

    def clear(self) -> None:
        """Forget every producer."""
        self.producers.clear()
        self.map_end_offset = 0

    # Snapshots ------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return a snapshot of the state."""
        body = [_COUNT.pack(len(self.producers))]
        for producer_id, entry in self.producers.items():
            last = entry.batches[-1] if entry.batches else ProducerBatch(-1, NO_SEQUENCE, -1, 0, -1)
            body.append(
                _ENTRY.pack(
                    producer_id,
                    entry.producer_epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    entry.last_seen_ms,
                    entry.coordinator_epoch,
                    entry.transaction_first_offset,
                )
            )
        payload = b"".join(body)
        return _HEAD.pack(_VERSION, crc32c(payload)) + payload

    def load(self, data: bytes, offset: int, where: str) -> None:
        """Replace the state by a snapshot taken at ``offset``. Raises CheckpointError when it is damaged."""
        if len(data) < _HEAD.size + _COUNT.size:
            raise CheckpointError(f"{where}: a producer snapshot of {len(data)} bytes")
        version, crc = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise CheckpointError(f"{where}: producer snapshot version {version} is not known, only {_VERSION} is")
        payload = memoryview(data)[_HEAD.size :]
        if crc32c(payload) != crc:
            raise CheckpointError(f"{where}: the producer snapshot fails its CRC")
        (count,) = _COUNT.unpack_from(payload)
        if len(payload) != _COUNT.size + count * _ENTRY.size:
            raise CheckpointError(f"{where}: {count} producers do not fit a snapshot of {len(data)} bytes")
        self.producers.clear()
        for values in _ENTRY.iter_unpack(payload[_COUNT.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = values
            entry = self.producers[producer_id] = ProducerEntry(epoch)
            entry.last_seen_ms = timestamp
            entry.from_snapshot = True
            entry.coordinator_epoch = coordinator_epoch
            entry.transaction_first_offset = first_offset
            if last_offset >= 0 and last_sequence >= 0:
                first_sequence = last_sequence - delta
                if first_sequence < 0:
                    first_sequence += MAX_INT32 + 1
                entry.batches.append(ProducerBatch(first_sequence, last_sequence, last_offset, delta, timestamp))
        self.map_end_offset = offset
        self.snapshot_offset = offset

    def write_snapshot(self, fs: Fs, directory: str) -> str | None:
        """Write a snapshot at the end of the state and return its path; None when there is one already.

        Not synced: the flush that moves the recovery point past it does that.
        """
        if self.map_end_offset <= self.snapshot_offset:
            return None
        path = snapshot_path(directory, self.map_end_offset)
        replace_file(fs, path, self.encode(), sync=False)
        self.snapshot_offset = self.map_end_offset
        return path


def _batch(header: BatchHeader, base_offset: int) -> ProducerBatch:
    delta = header.last_offset_delta
    return ProducerBatch(header.base_sequence, header.last_sequence, base_offset + delta, delta, header.max_timestamp)


def snapshot_path(directory: str, offset: int) -> str:
    """Return the name of the snapshot at ``offset``."""
    return f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}"


def load_newest_snapshot(fs: Fs, directory: str, offsets: list[int], at_most: int) -> ProducerState:
    """Return the state of the newest readable snapshot at or below ``at_most``; an empty state when there is none.

    Snapshots above it, and damaged ones, are removed: what they say is not in the log, or cannot be trusted.
    """
    state = ProducerState()
    for offset in sorted(offsets, reverse=True):
        path = snapshot_path(directory, offset)
        if offset <= at_most:
            try:
                state.load(read_whole(fs, path), offset, path)
                return state
            except CheckpointError:
                pass
        fs.unlink(path)
    return state
