"""Compaction of records, in Python: the last offset of each key, and what that leaves of a batch. Part of ``batch_py``.

The key map is one flat buffer of slots: 16 bytes of BLAKE2b of the key, then the key's last offset plus one, so that
zeros are an empty slot. A key is its hash here, as in Kafka (which takes MD5): 128 bits of a strong hash do not collide
in practice, also not for keys chosen to. Each map draws a new salt, so that a client cannot choose keys that all fall
into one slot. A key whose slot is taken goes to the next one.
Source: org.apache.kafka.storage.internals.log.SkimpyOffsetMap, MemoryRecords.filterTo and Cleaner.shouldRetainRecord.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Final

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.records import layout
from spark_kafkalite.records.assemble import RetainedRecords
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.encode_py import put_varint
from spark_kafkalite.records.layout import HEADER_BYTES, MAX_INT32, MAX_INT64, MIN_INT64, BatchHeader
from spark_kafkalite.records.section_py import Section

_HASH_BYTES: Final = 16
_SLOT_BYTES: Final = 24
_EMPTY: Final = bytes(8)


class KeyMap:
    """The last offset of each key, in bounded memory. One thread at a time."""

    __slots__ = ("_buffer", "_salt", "_slots", "capacity", "count")

    def __init__(self, buffer_bytes: int, salt: bytes | None = None) -> None:
        """``buffer_bytes``: 24 for each slot, of which nine in ten are used. ``salt``: 16 bytes, for tests.

        Raises ValueError when that is not enough for one key.
        """
        slots = buffer_bytes // _SLOT_BYTES
        if slots < 2:
            raise ValueError(f"a key map of {buffer_bytes} bytes holds no key: it takes at least {2 * _SLOT_BYTES}")
        salt = os.urandom(_HASH_BYTES) if salt is None else bytes(salt)
        if len(salt) != _HASH_BYTES:
            raise ValueError(f"the salt has {len(salt)} bytes, not {_HASH_BYTES}")
        self._buffer = bytearray(slots * _SLOT_BYTES)
        self._salt = salt
        self._slots = slots
        # How many keys there is room for, and how many there are.
        self.capacity = slots * 9 // 10
        self.count = 0

    def digest(self, key: Buffer) -> bytes:
        """Return what stands for a key in this map."""
        return blake2b(key, digest_size=_HASH_BYTES, salt=self._salt).digest()

    def offset_of(self, key: Buffer) -> int:
        """Return a key's last offset, -1 when the map does not have it."""
        at = self._find(self.digest(key))
        return int.from_bytes(self._buffer[at + _HASH_BYTES : at + _SLOT_BYTES], "little") - 1

    def put_records(self, payload: Buffer, header: BatchHeader, first_offset: int = 0) -> int:
        """Note the keys of a batch's records from ``first_offset`` on; return the first offset that is not in the map.

        That is the one after the batch, or that of the record whose key found no room. ``payload`` is the uncompressed
        records section. Records without a key are passed over.
        Raises InvalidRecord (87) or CorruptMessage (2); some of the batch's keys may be in the map then.
        """
        _check_base_offset(header)
        section = Section(memoryview(payload).cast("B"), header)
        for _ in range(section.count):
            record = section.next_record(False)
            offset = header.base_offset + record.offset_delta
            if record.key is None or offset < first_offset:
                continue
            digest = self.digest(section.view[record.key[0] : record.key[1]])
            at = self._find(digest)
            if self._buffer[at + _HASH_BYTES : at + _SLOT_BYTES] == _EMPTY:
                if self.count == self.capacity:
                    return offset
                self._buffer[at : at + _HASH_BYTES] = digest
                self.count += 1
            self._buffer[at + _HASH_BYTES : at + _SLOT_BYTES] = (offset + 1).to_bytes(8, "little")
        section.check_end()
        return header.base_offset + header.last_offset_delta + 1

    def _find(self, digest: bytes) -> int:
        """Return where the slot of a key begins: its own, or the empty one where it belongs."""
        slot = int.from_bytes(digest[:8], "little") % self._slots
        while True:
            at = slot * _SLOT_BYTES
            found = self._buffer[at : at + _SLOT_BYTES]
            if found[_HASH_BYTES:] == _EMPTY or found[:_HASH_BYTES] == digest:
                return at
            slot = (slot + 1) % self._slots

    def filter_records(
        self,
        payload: Buffer,
        header: BatchHeader,
        first_offset: int = 0,
        until_offset: int = MAX_INT64,
        *,
        tombstones_until_offset: int = 0,
        delete_horizon_ms: int = -1,
    ) -> RetainedRecords:
        """Return what stays of a batch's records: those that have a key, and no later offset of it in the map.

        Records before ``first_offset`` go, those from ``until_offset`` on stay, whatever they are. Tombstones before
        ``tombstones_until_offset`` go.
        With a ``delete_horizon_ms``, and a tombstone among what stays, the records are written for that as their base
        timestamp (KIP-534); unless one of their timestamps is too far from it, then the tombstones just stay.
        ``payload`` is the uncompressed records section.
        Raises InvalidRecord (87) or CorruptMessage (2).
        """
        _check_base_offset(header)
        section = Section(memoryview(payload).cast("B"), header)
        kept: list[tuple[int, int, int]] = []
        tombstones, earliest, largest = 0, MAX_INT64, -1
        for _ in range(section.count):
            start = section.position
            record = section.next_record(False)
            offset = header.base_offset + record.offset_delta
            if offset < first_offset:
                continue
            if offset < until_offset:
                if record.key is None:
                    continue
                if self.offset_of(section.view[record.key[0] : record.key[1]]) > offset:
                    continue
                if record.value is None and offset < tombstones_until_offset:
                    continue
            largest = max(largest, record.timestamp) if kept else record.timestamp
            earliest = min(earliest, record.timestamp)
            tombstones += record.key is not None and record.value is None
            kept.append((start, section.position, record.timestamp))
        section.check_end()
        has_horizon = delete_horizon_ms >= 0 and tombstones > 0 and earliest >= MIN_INT64 + delete_horizon_ms
        if len(kept) == section.count and not has_horizon:
            return RetainedRecords(len(kept), tombstones, largest, False, None)
        out = bytearray(HEADER_BYTES)
        for start, end, timestamp in kept:
            if has_horizon:
                _put_with_delta(out, section.view[start:end], timestamp - delete_horizon_ms)
            else:
                out += section.view[start:end]
        if len(out) > layout.MAX_BATCH_BYTES:
            raise layout.too_large(len(out))
        return RetainedRecords(len(kept), tombstones, largest, has_horizon, out)


def _put_with_delta(out: bytearray, record: memoryview, delta: int) -> None:
    """Append a record, which has been checked, with another timestamp delta."""
    position = _after_varint(record, 0)
    rest = record[_after_varint(record, position + 1) :]
    number = bytearray()
    put_varint(number, delta)
    put_varint(out, 1 + len(number) + len(rest))
    out.append(record[position])
    out += number
    out += rest


def _after_varint(view: memoryview, position: int) -> int:
    while view[position] >= 0x80:
        position += 1
    return position + 1


def _check_base_offset(header: BatchHeader) -> None:
    if not 0 <= header.base_offset <= MAX_INT64 - MAX_INT32 - 1:
        raise CorruptMessage(f"record batch: base offset {header.base_offset} is not an offset of a log")
