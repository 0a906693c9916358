"""The records of ``__consumer_offsets``: keys and values, byte for byte as Apache Kafka writes them.

Pure: bytes in, values out. It owns the formats and nothing else; ``groups_state.py`` keeps the contents of the records.
Apache Kafka's tools read what this writes, and this reads what Apache Kafka wrote, so that a log directory can move in
either direction.

All integers are big endian. Each key and each value begins with its own version (int16). A *string* is an int16 length
(-1: null) and UTF-8; *bytes* are an int32 length and the bytes. A null value is a tombstone: the offset, or the group,
is gone.

===========  =======  ==================================================================================================
record       version  fields after the version
===========  =======  ==================================================================================================
offset key   0, 1     group string, topic string, partition int32 (1 is written)
offset       0        offset int64, metadata string, commit time int64
offset       1        offset, metadata, commit time, expiry time int64 (written when a client named a retention time)
offset       2        as 0
offset       3        offset int64, leader epoch int32, metadata string, commit time int64 (written)
offset       4        as 3, flexible
group key    2        group string
group        0        protocol type string, generation int32, protocol nullable string, leader nullable string, members:
                      member id, client id, client host strings, session timeout int32, subscription bytes, assignment
                      bytes
group        1        in each member a rebalance timeout int32 before the session timeout
group        2        before the members the time of the last change of state int64
group        3        in each member a nullable instance id after the member id (written)
group        4        as 3, flexible
===========  =======  ==================================================================================================

Flexible means compact lengths (varint of the length plus one, 0 is null) and tagged fields at the end of each struct;
tags are skipped. Times are milliseconds since the epoch, -1 when unknown. Keys of other versions belong to coordinators
that do not exist here (KIP-848 and later). Reading one raises :class:`UnreadableRecord`, and the load skips it with a
warning: an unreadable record must not keep a broker from serving all others.

Source: OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue of Apache Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from spark_kafkalite.coordinator.state_machine import UnreadableRecord
from spark_kafkalite.model import NO_LEADER_EPOCH

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")

NO_TIME: Final = -1
# Of strings, as on the wire.
MAX_STRING_BYTES: Final = 32767

_OFFSET_KEY_VERSIONS: Final = (0, 1)
# Longer group ids are encoded anew each time: a few thousand of 32767 bytes would take too much memory.
_REMEMBERED_CHARS: Final = 255
_OFFSET_KEY_PREFIX: Final = b"\0\1"
_OLDEST_OFFSET_KEY_PREFIX: Final = b"\0\0"
_GROUP_KEY_VERSION: Final = 2
_OFFSET_VERSION: Final = 3
_OFFSET_VERSION_WITH_EXPIRY: Final = 1
_GROUP_VERSION: Final = 3
_FLEXIBLE_VERSION: Final = 4
# A member takes at least this many bytes in every version: six lengths and two timeouts, compact.
_MIN_MEMBER_BYTES: Final = 14

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TIMEOUTS_AND_LENGTH: Final = struct.Struct(">iii")
_OFFSET_HEAD: Final = struct.Struct(">hqih")
# An offset without metadata and expiry: the whole value.
_PLAIN_OFFSET: Final = struct.Struct(">hqihq")


class OffsetKey(NamedTuple):
    """Whose committed offset of what."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Which group's metadata."""

    group: str


class OffsetValue(NamedTuple):
    """A committed offset: the next one to read. ``expire_timestamp_ms`` is -1 unless the client named a retention."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIME
    expire_timestamp_ms: int = NO_TIME


class MemberMetadata(NamedTuple):
    """One member as the log keeps it. ``subscription`` and ``assignment`` are the client's bytes, not looked into."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A group as it was when a generation was agreed upon; without members it is empty."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[MemberMetadata, ...] = ()


RecordKey = OffsetKey | GroupKey
RecordValue = OffsetValue | GroupMetadata
# None is a tombstone.
RecordEntry = tuple[RecordKey, RecordValue | None]


# Writing ------------------------------------------------------------------------------------------------------------


def encode_key(key: RecordKey) -> bytes:
    """Return a record's key. Raises ValueError for a string of more than 32767 bytes."""
    if isinstance(key, OffsetKey):
        beginning = _offset_key_beginning if len(key.group) <= _REMEMBERED_CHARS else _new_offset_key_beginning
        return beginning(key.group, key.topic) + _INT32.pack(key.partition)
    return _INT16.pack(_GROUP_KEY_VERSION) + _string(key.group)


def encode_records(entries: Iterable[RecordEntry]) -> list[tuple[bytes, bytes | None]]:
    """Return the keys and values of records; a value of None is a tombstone. Raises ValueError as the two above.

    Made for commits: what a partition's key has in common with the one before it is not encoded again.
    """
    encoded: list[tuple[bytes, bytes | None]] = []
    last_group = last_topic = None
    beginning = b""
    pack_partition, pack_plain = _INT32.pack, _PLAIN_OFFSET.pack
    for key, value in entries:
        if isinstance(key, OffsetKey):
            group, topic, partition = key
            if group is not last_group or topic is not last_topic:
                remember = len(group) <= _REMEMBERED_CHARS
                beginning = (_offset_key_beginning if remember else _new_offset_key_beginning)(group, topic)
                last_group, last_topic = group, topic
            raw_key = beginning + pack_partition(partition)
        else:
            raw_key = encode_key(key)
        raw_value = None
        if type(value) is OffsetValue and not value[2] and value[4] == NO_TIME:
            # Nearly all of them.
            raw_value = pack_plain(_OFFSET_VERSION, value[0], value[1], 0, value[3])
        elif value is not None:
            raw_value = encode_value(value)
        encoded.append((raw_key, raw_value))
    return encoded


def _new_offset_key_beginning(group: str, topic: str) -> bytes:
    return _OFFSET_KEY_PREFIX + _string(group) + _string(topic)


_offset_key_beginning = lru_cache(maxsize=4096)(_new_offset_key_beginning)


def encode_value(value: RecordValue) -> bytes:
    """Return a record's value, which is not null. Raises ValueError for a string of more than 32767 bytes."""
    if not isinstance(value, OffsetValue):
        return _encode_group(value)
    offset, leader_epoch, text, commit_timestamp_ms, expire_timestamp_ms = value
    metadata = text.encode()
    _check_string(len(metadata))
    if expire_timestamp_ms != NO_TIME:
        # The only version that has room for it; its leader epoch is lost, as in Kafka.
        head = struct.pack(">hqh", _OFFSET_VERSION_WITH_EXPIRY, offset, len(metadata))
        return head + metadata + struct.pack(">qq", commit_timestamp_ms, expire_timestamp_ms)
    head = _OFFSET_HEAD.pack(_OFFSET_VERSION, offset, leader_epoch, len(metadata))
    return head + metadata + _INT64.pack(commit_timestamp_ms)


def _encode_group(value: GroupMetadata) -> bytes:
    parts = [
        _INT16.pack(_GROUP_VERSION),
        _string(value.protocol_type),
        _INT32.pack(value.generation),
        _string(value.protocol),
        _string(value.leader),
        _INT64.pack(value.current_state_timestamp_ms),
        _INT32.pack(len(value.members)),
    ]
    # Thousands of members may share what is not their own.
    shared: dict[str | None, bytes] = {}
    for member_id, instance_id, client_id, host, rebalance_ms, session_ms, subscription, assignment in value.members:
        parts.append(_string(member_id))
        for text in (instance_id, client_id, host):
            data = shared.get(text)
            if data is None:
                data = shared[text] = _string(text)
            parts.append(data)
        parts += (
            _TIMEOUTS_AND_LENGTH.pack(rebalance_ms, session_ms, len(subscription)),
            subscription,
            _INT32.pack(len(assignment)),
            assignment,
        )
    return b"".join(parts)


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    _check_string(len(data))
    return _INT16.pack(len(data)) + data


def _check_string(length: int) -> None:
    if length > MAX_STRING_BYTES:
        raise ValueError(f"a string has {length} bytes in UTF-8, records of groups hold at most {MAX_STRING_BYTES}")


# Reading ------------------------------------------------------------------------------------------------------------


def canonical_key(data: bytes) -> bytes:
    """Return the key as it is written now: the two versions of an offset's key are the same key."""
    return _OFFSET_KEY_PREFIX + data[2:] if data.startswith(_OLDEST_OFFSET_KEY_PREFIX) else data


def decode_key(data: Buffer | None) -> RecordKey:
    """Return what a record's key names. Raises UnreadableRecord."""
    if data is None:
        raise UnreadableRecord("a record of __consumer_offsets has no key")
    return _decoded(data, _read_key)


def decode_value(key: RecordKey, data: Buffer | None) -> RecordValue | None:
    """Return the value of a record with this key, None for a tombstone. Raises UnreadableRecord."""
    if data is None:
        return None
    if isinstance(key, OffsetKey):
        return _decoded(data, _read_offset)
    return _decoded(data, _read_group)


def _decoded(data: Buffer, read: Callable[[_Reader, int], T]) -> T:
    """Read a version and what follows. Bytes after the last field are ignored, as Kafka does."""
    reader = _Reader(data)
    try:
        return read(reader, reader.int16())
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise UnreadableRecord(f"a record of __consumer_offsets is damaged: {error}") from error


def _read_key(reader: _Reader, version: int) -> RecordKey:
    if version in _OFFSET_KEY_VERSIONS:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == _GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    raise UnreadableRecord(f"key version {version} of a record of __consumer_offsets is not known; known are 0 to 2")


def _read_offset(reader: _Reader, version: int) -> OffsetValue:
    _check_version("an offset", version)
    reader.flexible = version >= _FLEXIBLE_VERSION
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= _OFFSET_VERSION else NO_LEADER_EPOCH
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == _OFFSET_VERSION_WITH_EXPIRY else NO_TIME
    return OffsetValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms)


def _read_group(reader: _Reader, version: int) -> GroupMetadata:
    _check_version("a group", version)
    reader.flexible = version >= _FLEXIBLE_VERSION
    protocol_type = reader.string()
    generation = reader.int32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    current_state_timestamp_ms = reader.int64() if version >= 2 else NO_TIME
    members = tuple(_read_member(reader, version) for _ in range(reader.count(_MIN_MEMBER_BYTES)))
    return GroupMetadata(protocol_type, generation, protocol, leader, current_state_timestamp_ms, members)


def _read_member(reader: _Reader, version: int) -> MemberMetadata:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else NO_TIME
    session_timeout_ms = reader.int32()
    if version == 0:
        # Groups of that time had one timeout for both.
        rebalance_timeout_ms = session_timeout_ms
    subscription, assignment = reader.bytes(), reader.bytes()
    reader.skip_tags()
    return MemberMetadata(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _check_version(what: str, version: int) -> None:
    if not 0 <= version <= _FLEXIBLE_VERSION:
        raise UnreadableRecord(
            f"version {version} of {what} in __consumer_offsets is not known; known are 0 to {_FLEXIBLE_VERSION}"
        )


class _Reader:
    """A cursor over one key or value. Raises struct.error or UnreadableRecord where the bytes end too early."""

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self._position = 0
        self.flexible = False

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def _number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self._data, self._position)[0]
        self._position += layout.size
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 28:
                raise UnreadableRecord("a record of __consumer_offsets is damaged: a varint has more than 5 bytes")

    def _length(self, layout: struct.Struct) -> int:
        return self._varint() - 1 if self.flexible else self._number(layout)

    def nullable_string(self) -> str | None:
        length = self._length(_INT16)
        return None if length == -1 else str(self._take(length), "utf-8")

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise UnreadableRecord("a record of __consumer_offsets is damaged: a string is null")
        return text

    def bytes(self) -> bytes:
        return bytes(self._take(self._length(_INT32)))

    def count(self, element_bytes: int) -> int:
        """Read an array's count; the bytes that are left bound it, so that a damaged one cannot take all memory."""
        count = self._length(_INT32)
        left = len(self._data) - self._position
        if not 0 <= count * element_bytes <= left:
            raise UnreadableRecord(
                f"a record of __consumer_offsets is damaged: it claims {count} members in {left} bytes"
            )
        return count

    def skip_tags(self) -> None:
        """Skip a flexible struct's tagged fields; nothing here has any."""
        if not self.flexible:
            return
        for _ in range(self._varint()):
            self._varint()
            self._take(self._varint())

    def _take(self, length: int) -> Buffer:
        end = self._position + length
        if not self._position <= end <= len(self._data):
            raise UnreadableRecord(
                f"a record of __consumer_offsets is damaged: a field claims {length} bytes, "
                f"{len(self._data) - self._position} are left"
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken
