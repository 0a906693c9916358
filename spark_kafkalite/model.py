"""Values that every part of the system shares: topic-partitions, records and the numbers of the protocol.

Owns names and shapes only; nothing here does I/O, knows a file format or a wire format, or imports our other modules.

A word on the numbers. An *offset* counts records and never changes once given; a *position* counts bytes in a file or
buffer. ``last_`` is inclusive, ``end_``, ``next_`` and ``until_`` are exclusive. All timestamps are milliseconds since
the epoch, UTC, unless a name states another unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, NewType, Protocol

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
ControllerEpoch = NewType("ControllerEpoch", int)
# One run of a broker's process: a random number that it draws when it starts, and keeps in all its registry sessions.
# Kafka's broker epoch, the creation zxid of a registration, orders registrations and is another one in each session.
Incarnation = NewType("Incarnation", int)
ProducerId = NewType("ProducerId", int)

NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1
# Where a node does not say which incarnation wrote it; real ones are from 1 to 2^63 - 1.
UNKNOWN_INCARNATION: Final = Incarnation(-1)
# Timestamps that name places in a log, in ListOffsets: its end, its start, its record with the largest timestamp, the
# first that is on the broker's own disk, the last that is in tiered storage only. Source:
# org.apache.kafka.common.requests.ListOffsetsRequest.
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL_TIMESTAMP: Final = -4
LATEST_TIERED_TIMESTAMP: Final = -5
# Who asks a broker for the log that it has itself, and not as a follower. Source: FetchRequest.DEBUGGING_CONSUMER_ID.
DEBUGGING_REPLICA_ID: Final = -2
# A rate in bytes a second that holds nothing up: Kafka's default of throttles. Source:
# org.apache.kafka.server.config.QuotaConfig.QUOTA_BYTES_PER_SECOND_DEFAULT.
UNLIMITED_RATE: Final = 2**63 - 1
# The offset that stands for the end that consumers see, in DeleteRecords. Source:
# org.apache.kafka.common.requests.DeleteRecordsRequest.
HIGH_WATERMARK: Final = -1
# Registries number their transactions from 1 on, and none will come this far. There is room above: one that is made
# anew goes on from the largest that is known.
MAX_REGISTRY_ZXID: Final = 2**62

# Kafka's limits on names: org.apache.kafka.common.internals.Topic.
MAX_TOPIC_NAME_LENGTH: Final = 249
_INVALID_NAME = "Topic name is invalid:"
_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
# Where group coordinators keep groups and committed offsets.
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
# Topics that clients hide from users: org.apache.kafka.common.internals.Topic.INTERNAL_TOPICS.
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})
# The states of classic groups, then those that groups of newer kinds have besides. Source:
# org.apache.kafka.common.GroupState.
GROUP_STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
    "NotReady",
)


class TimestampType(IntEnum):
    """What set a record's timestamp, the producer or the broker; the values are those of the Spark source's
    ``timestampType`` column."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class IsolationLevel(IntEnum):
    """What a reader may see of open transactions; the values are the protocol's."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class TopicPartition(NamedTuple):
    """One partition of one topic; orders by topic, then number. A tuple: it is the key of every hot dictionary."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class CommittedOffset(NamedTuple):
    """What a group stored for a partition: ``offset`` is the next one to read, ``metadata`` a text of the committer's.

    ``leader_epoch`` is that of the last record read, -1 when it is not known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


CommittedOffsets = Mapping[TopicPartition, CommittedOffset]


class LogBounds(NamedTuple):
    """What a partition's log holds: its first offset, and the next one that will be written."""

    start_offset: int
    end_offset: int


Headers = list[tuple[str, bytes | None]]


class RecordColumns(Protocol):
    """What a :class:`Record` needs of the decoded columns that it is a row of (see ``records.columns.Columns``)."""

    def offset_at(self, row: int) -> int: ...
    def timestamp_at(self, row: int) -> int: ...
    def timestamp_type_at(self, row: int) -> int: ...
    def key_at(self, row: int) -> bytes | None: ...
    def value_at(self, row: int) -> bytes | None: ...
    def headers_at(self, row: int) -> Headers: ...


class Record:
    """One record as a consumer sees it: a row of decoded columns, whose key and value are made when they are asked for.

    Not a dataclass: making a frozen one costs more than decoding the record. It keeps its whole batch of columns alive;
    keep ``value``, not the record, to hold on to little.
    """

    __slots__ = ("_columns", "_row", "partition", "topic")

    def __init__(self, columns: RecordColumns, row: int, topic: str, partition: int) -> None:
        self._columns = columns
        self._row = row
        self.topic = topic
        self.partition = partition

    @property
    def offset(self) -> int:
        """The record's place in its partition's log."""
        return self._columns.offset_at(self._row)

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, UTC; -1 when the producer gave none."""
        return self._columns.timestamp_at(self._row)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker gave the timestamp."""
        return TimestampType(self._columns.timestamp_type_at(self._row))

    @property
    def key(self) -> bytes | None:
        """The key, None when there is none."""
        return self._columns.key_at(self._row)

    @property
    def value(self) -> bytes | None:
        """The value, None for a tombstone."""
        return self._columns.value_at(self._row)

    @property
    def headers(self) -> Headers:
        """The headers in the order they were sent, duplicates kept; empty when there are none."""
        return self._columns.headers_at(self._row)

    def _fields(self) -> tuple[Any, ...]:
        return (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp,
            self.timestamp_type,
            self.key,
            self.value,
            self.headers,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={_shortened(self.value)}, headers={self.headers!r})"
        )


def _shortened(value: bytes | None) -> str:
    if value is None or len(value) <= 64:
        return repr(value)
    return f"{value[:61]!r}... ({len(value)} bytes)"


def topic_name_problem(name: str) -> str | None:
    """Return, in Kafka's words, what is wrong with a topic name; None when it is legal.

    Source: org.apache.kafka.common.internals.Topic.validate.
    """
    if not name:
        return f"{_INVALID_NAME} the empty string is not allowed"
    if name in (".", ".."):
        return f"{_INVALID_NAME} '{name}' is not allowed"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"{_INVALID_NAME} the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    if not _LEGAL_TOPIC_NAME.fullmatch(name):
        return (
            f"{_INVALID_NAME} '{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def whole_number(text: str) -> int | None:
    """Return the number that ``text`` is, as Java's Integer.parseInt takes it, None when it is none."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,10}", text) else None


def metric_name(topic: str) -> str:
    """Return the topic's name as metrics show it; two topics that fall together there must not both exist.

    Source: org.apache.kafka.common.internals.Topic.unifyCollisionChars.
    """
    return topic.replace(".", "_")
