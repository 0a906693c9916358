"""Jute, the encoding of ZooKeeper's protocol: primitives with bounds, headers, stats. Pure.

Everything is big-endian. A string or buffer is an int32 length (-1: null) and its bytes, a vector an int32 count (-1:
null) and its elements, a boolean one byte. Memory for a length or count is allocated only when its bytes have arrived,
so a false one costs its reader nothing. Frames are those of Kafka's protocol (``wire.frame``).
Source: org.apache.jute.BinaryInputArchive, zookeeper.jute.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from spark_kafkalite.errors import FrameError
from spark_kafkalite.registry import store
from spark_kafkalite.registry.store import Stat, WatchEvent
from spark_kafkalite.registry.tree.acl import Acl, AclEntry
from spark_kafkalite.wire.frame import LENGTH

T = TypeVar("T")

# ZooKeeper's default jute.maxbuffer, and room for paths and headers around a node's largest data.
MAX_FRAME_BYTES: Final = store.MAX_FRAME_BYTES + 64 * 1024

_INT: Final = struct.Struct("!i")
_LONG: Final = struct.Struct("!q")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_REPLY_HEADER: Final = struct.Struct("!iqi")
_MULTI_HEADER: Final = struct.Struct("!i?i")


class RequestReader:
    """Reads values off the front of a request. Every method raises FrameError when the bytes end too early."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def int32(self) -> int:
        position = self._position
        if position + 4 > len(self._data):
            self._take(4)
        self._position = position + 4
        value: int = _INT.unpack_from(self._data, position)[0]
        return value

    def int64(self) -> int:
        return int(_LONG.unpack(self._take(8))[0])

    def boolean(self) -> bool:
        return self._take(1) != b"\0"

    def buffer(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self._take(length)

    def optional_string(self) -> str | None:
        raw = self.buffer()
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise FrameError(f"a string at byte {self._position - len(raw)} is not UTF-8") from None

    def string(self) -> str:
        text = self.optional_string()
        if text is None:
            raise FrameError(f"a string at byte {self._position - 4} is null")
        return text

    def vector(self, read: Callable[[RequestReader], T]) -> list[T]:
        """Read a count and as many elements, each of which takes a byte at least; null is empty."""
        count = self.int32()
        if count > self.remaining:
            raise FrameError(f"a vector of {count} elements in {self.remaining} bytes")
        return [read(self) for _ in range(count)]

    def acl(self) -> list[AclEntry]:
        return self.vector(
            lambda reader: AclEntry(reader.int32(), reader.optional_string() or "", reader.optional_string() or "")
        )

    def multi_header(self) -> tuple[int, bool]:
        """Read the header of one operation of a multi: its type, and whether the end is reached instead."""
        operation, done, _ = _MULTI_HEADER.unpack(self._take(_MULTI_HEADER.size))
        return operation, done

    def _take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise FrameError(f"{count} bytes wanted at byte {self._position} of {len(self._data)}")
        taken = self._data[self._position : end]
        self._position = end
        return taken


_EVENT_XID: Final = -1
# KeeperState.SyncConnected
_CONNECTED: Final = 3


def event_frame(event: WatchEvent) -> bytes:
    """Return the frame that carries an event to a client."""
    return reply(_EVENT_XID, -1, 0, write_int(event.type.value) + write_int(_CONNECTED) + write_string(event.path))


def write_int(value: int) -> bytes:
    return _INT.pack(value)


def write_long(value: int) -> bytes:
    return _LONG.pack(value)


def write_buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def write_string(value: str) -> bytes:
    return write_buffer(value.encode())


def write_strings(values: Iterable[str]) -> bytes:
    encoded = [write_string(value) for value in values]
    return b"".join((_INT.pack(len(encoded)), *encoded))


def write_stat(stat: Stat) -> bytes:
    return _STAT.pack(*stat)


def write_acl(acl: Acl) -> bytes:
    entries = (_INT.pack(entry.permissions) + write_string(entry.scheme) + write_string(entry.id) for entry in acl)
    return b"".join((_INT.pack(len(acl)), *entries))


def write_multi_header(operation: int, done: bool, error: int) -> bytes:
    return _MULTI_HEADER.pack(operation, done, error)


def reply(xid: int, zxid: int, error: int, body: bytes = b"") -> bytes:
    """Return the frame of an answer; an event is one with xid and zxid -1."""
    return b"".join((LENGTH.pack(_REPLY_HEADER.size + len(body)), _REPLY_HEADER.pack(xid, zxid, error), body))
