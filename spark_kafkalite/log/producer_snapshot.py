"""The file format of a snapshot of a partition's producers.

``<offset, 20 digits>.snapshot`` holds the state as of that offset. It is written when a segment rolls and at a clean
stop; big endian:

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

Producer id -1 stands for all that were forgotten for want of room, and its time is that of the latest of them: ids are
never negative, and Kafka lets such an entry expire like any other.

Only the last batch of a producer is in it. The others are looked up in the log (``ProducerStateManager.recall``) before
a batch is refused, so that a producer whose answers were lost in a clean restart may repeat all that it had in flight.

A log keeps the snapshot of each of its segments, as Kafka does, but of large ones the newest few.
Source: org.apache.kafka.storage.internals.log.ProducerStateManager.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from spark_kafkalite.log.files.fs import Fs, read_whole, replace_file
from spark_kafkalite.log.files.small_files import CheckpointError
from spark_kafkalite.log.producer_state import ENTRY, ProducerEntry, ProducerIdLimits, ProducerStateManager

SNAPSHOT_SUFFIX: Final = ".snapshot"
# Of snapshots above this size a log keeps the newest few, of others one for each segment.
LARGE_SNAPSHOT_BYTES: Final = 64 * 1024
LARGE_SNAPSHOTS_KEPT: Final = 3
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_FORGOTTEN_ID: Final = -1
_ID: Final = struct.Struct(">q")


def encode(state: ProducerStateManager) -> bytes:
    """Return a snapshot of the state."""
    entries = state.entries()
    if state.forgotten_seen_ms >= 0:
        forgotten = ProducerEntry(-1)
        forgotten.last_seen_ms = state.forgotten_seen_ms
        entries.append(forgotten.pack(_FORGOTTEN_ID))
    payload = b"".join((_COUNT.pack(len(entries)), *entries))
    return _HEAD.pack(_VERSION, crc32c(payload)) + payload


def load(state: ProducerStateManager, data: bytes, offset: int, where: str) -> None:
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
    if len(payload) != _COUNT.size + count * ENTRY.size:
        raise CheckpointError(f"{where}: {count} producers do not fit a snapshot of {len(data)} bytes")
    entries: list[bytes] = []
    forgotten_seen_ms = -1
    for position in range(_COUNT.size, len(payload), ENTRY.size):
        packed = bytes(payload[position : position + ENTRY.size])
        if _ID.unpack_from(packed)[0] == _FORGOTTEN_ID:
            forgotten_seen_ms = ProducerEntry.unpack(packed).last_seen_ms
        else:
            entries.append(packed)
    state.take_up_entries(entries, forgotten_seen_ms)
    state.map_end_offset = state.snapshot_offset = offset


def write_snapshot(state: ProducerStateManager, fs: Fs, directory: str) -> str | None:
    """Write a snapshot at the end of the state and return its path; None when there is one already.

    Not synced: the flush that moves the recovery point past it does that.
    """
    if state.map_end_offset <= state.snapshot_offset:
        return None
    path = snapshot_path(directory, state.map_end_offset)
    replace_file(fs, path, encode(state), sync=False)
    state.snapshot_offset = state.map_end_offset
    return path


def snapshot_path(directory: str, offset: int) -> str:
    """Return the name of the snapshot at ``offset``."""
    return f"{directory}/{offset:020d}{SNAPSHOT_SUFFIX}"


def load_newest_snapshot(
    fs: Fs, directory: str, offsets: Iterable[int], at_most: int, limits: ProducerIdLimits | None = None
) -> ProducerStateManager:
    """Return the state of the newest readable snapshot at or below ``at_most``; an empty state when there is none.

    Snapshots above it, and damaged ones, are removed: their state is not in the log, or cannot be trusted.
    """
    state = ProducerStateManager(limits)
    for offset in sorted(offsets, reverse=True):
        path = snapshot_path(directory, offset)
        if offset <= at_most:
            try:
                load(state, read_whole(fs, path), offset, path)
                return state
            except CheckpointError:
                pass
        fs.unlink(path)
    return state
