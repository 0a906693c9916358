"""The subscriptions and assignments that members exchange through the coordinator, and their encoding.

A member's *subscription* goes to the group's leader with JoinGroup, the leader's *assignment* to each member with
SyncGroup. Both begin with a version; a reader that knows less reads the fields it knows and ignores what follows.
Big endian; a string is int16 length and UTF-8 (-1: null), an array is int32 count, bytes are int32 length (-1: null):

    subscription   int16 version, [string topic], bytes user_data,
                   from 1: [string topic, [int32 partition]] owned, from 2: int32 generation, from 3: string rack
    assignment     int16 version, [string topic, [int32 partition]] assigned, bytes user_data

``user_data`` is the assignor's own. Version 3 is written, 0 and newer are read. Bytes that do not follow the format
raise FrameError; no count is believed beyond the bytes there are.

Source: ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json; KIP-429, KIP-792, KIP-881.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.errors import FrameError
from spark_kafkalite.model import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
VERSION: Final = 3
NO_GENERATION: Final = -1

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class Subscription(NamedTuple):
    """What a member wants, and what it has: ``owned`` are the partitions it keeps while it joins (cooperative)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None

    def encode(self, version: int = VERSION) -> bytes:
        """Return the bytes, as Java's clients write them: topics and owned partitions sorted."""
        writer = Writer()
        writer.int16(version)
        writer.int32(len(self.topics))
        for topic in sorted(self.topics):
            writer.string(topic)
        writer.nullable_bytes(self.user_data)
        if version >= 1:
            writer.partitions(sorted(self.owned))
        if version >= 2:
            writer.int32(self.generation)
        if version >= 3:
            writer.nullable_string(self.rack)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Subscription:
        """Read a subscription of any version."""
        reader = FieldReader(data, "a member's subscription")
        version = reader.version()
        topics = tuple(reader.string() for _ in range(reader.count(2)))
        user_data = reader.nullable_bytes()
        owned = reader.partitions() if version >= 1 else ()
        generation = reader.int32() if version >= 2 else NO_GENERATION
        rack = reader.nullable_string() if version >= 3 else None
        return cls(topics, user_data, owned, generation, rack)


class Assignment(NamedTuple):
    """What a member gets."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None

    def encode(self, version: int = VERSION) -> bytes:
        """Return the bytes; partitions of a topic stand together, topics in the order in which they come first."""
        writer = Writer()
        writer.int16(version)
        writer.partitions(self.partitions)
        writer.nullable_bytes(self.user_data)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Assignment:
        """Read an assignment of any version; no bytes at all are what a member that was left out gets: nothing."""
        if not data:
            return cls()
        reader = FieldReader(data, "an assignment")
        reader.version()
        return cls(reader.partitions(), reader.nullable_bytes())


class Writer:
    """Collects the fields of one structure."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def int16(self, value: int) -> None:
        self._pieces.append(_INT16.pack(value))

    def int32(self, value: int) -> None:
        self._pieces.append(_INT32.pack(value))

    def string(self, value: str) -> None:
        data = value.encode()
        self._pieces += (_INT16.pack(len(data)), data)

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.int16(-1)
        else:
            self.string(value)

    def nullable_bytes(self, value: bytes | None) -> None:
        if value is None:
            self.int32(-1)
        else:
            self._pieces += (_INT32.pack(len(value)), value)

    def partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """An array of topics with an array of partitions each."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        self.int32(len(topics))
        for topic, numbers in topics.items():
            self.string(topic)
            self._pieces.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))

    def getvalue(self) -> bytes:
        return b"".join(self._pieces)


class FieldReader:
    """Reads the fields of one structure, called ``what`` in errors."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self._data = bytes(data)
        self._position = 0
        self._what = what

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise FrameError(
                f"{self._what} is cut short: {count} bytes should follow at position {self._position} of "
                f"{len(self._data)}"
            )
        self._position += count
        return self._data[self._position - count : self._position]

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise FrameError(f"{self._what} has version {version}")
        return version

    def count(self, item_bytes: int) -> int:
        """Read an array's length, whose items take at least ``item_bytes`` each."""
        count = self.int32()
        if not 0 <= count <= self.left // item_bytes:
            raise FrameError(f"{self._what} announces {count} items in the {self.left} bytes that are left")
        return count

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise FrameError(f"{self._what} has a null where a text must be")
        return text

    def nullable_string(self) -> str | None:
        length = self.int16()
        if length == -1:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise FrameError(f"{self._what} has a text that is not UTF-8") from None

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length == -1 else self.take(length)

    def partitions(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count(6)):
            topic = self.string()
            numbers: Sequence[int] = struct.unpack(f">{(count := self.count(4))}i", self.take(4 * count))
            found += [TopicPartition(topic, number) for number in numbers]
        return tuple(found)
