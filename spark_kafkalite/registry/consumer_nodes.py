"""Paths and payloads of consumers that coordinate through the registry. Pure: text and bytes in, values out.

==================================  ==========  ========================================================================
path                                kind        data
==================================  ==========  ========================================================================
/consumers/G/ids/ID                 ephemeral   version 1: subscription (key -> streams), pattern, timestamp
/consumers/G/owners/T/P             ephemeral   id of the consumer thread that reads the partition, ``ID-n``
/consumers/G/offsets/T/P            persistent  decimal number: the next offset that the group has not processed
==================================  ==========  ========================================================================

``pattern`` is the kind of the keys of ``subscription``: topics (``static``), or the one regular expression of a topic
filter (``white_list``, ``black_list``). Timestamps are milliseconds, written as text. Payloads are those of Apache
Kafka 0.8 to 1.x byte for byte, so its consumers and tools understand ours.

A payload that cannot be read, or holds a number out of its range, raises MalformedNode naming the path.
Source: kafka.consumer.TopicCount and kafka.utils.ZkUtils of Apache Kafka 0.8.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.registry.node_json import MAX_INT64, decode_object, encode_object, number, reading, text

CONSUMERS: Final = "/consumers"
_VERSION: Final = 1
# Every member makes a name for each stream of all others at each rebalance: a number beyond sense would stop them all.
MAX_STREAMS: Final = 10_000


# Paths --------------------------------------------------------------------------------------------------------------


def group_path(group: str) -> str:
    return f"{CONSUMERS}/{group}"


def consumer_ids_path(group: str) -> str:
    return f"{CONSUMERS}/{group}/ids"


def consumer_id_path(group: str, consumer_id: str) -> str:
    return f"{CONSUMERS}/{group}/ids/{consumer_id}"


def owners_path(group: str) -> str:
    return f"{CONSUMERS}/{group}/owners"


def topic_owners_path(group: str, topic: str) -> str:
    return f"{CONSUMERS}/{group}/owners/{topic}"


def owner_path(group: str, topic: str, partition: int) -> str:
    return f"{CONSUMERS}/{group}/owners/{topic}/{partition}"


def offsets_path(group: str) -> str:
    return f"{CONSUMERS}/{group}/offsets"


def topic_offsets_path(group: str, topic: str) -> str:
    return f"{CONSUMERS}/{group}/offsets/{topic}"


def offset_path(group: str, topic: str, partition: int) -> str:
    return f"{CONSUMERS}/{group}/offsets/{topic}/{partition}"


def check_name(setting: str, name: str) -> None:
    """Raise ConfigError unless ``name`` can be a group or a consumer id: one legal part of a path."""
    if not name or name in (".", "..") or "/" in name or any(ord(each) < 0x20 or ord(each) == 0x7F for each in name):
        raise ConfigError(f"{setting}={name!r}: must be text without '/' and control characters, and not '.' or '..'")


# Payloads -----------------------------------------------------------------------------------------------------------


class SubscriptionPattern(Enum):
    """What the keys of a subscription are; the values are those in the registry."""

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


@dataclass(frozen=True, slots=True)
class ConsumerRegistration:
    """/consumers/G/ids/ID: what a consumer reads, and in how many streams (threads) each."""

    subscription: Mapping[str, int]
    pattern: SubscriptionPattern = SubscriptionPattern.STATIC
    timestamp_ms: int = 0

    def encode(self) -> bytes:
        return encode_object(
            {
                "version": _VERSION,
                "subscription": dict(self.subscription),
                "pattern": self.pattern.value,
                "timestamp": str(self.timestamp_ms),
            }
        )

    @classmethod
    def decode(cls, group: str, consumer_id: str, data: bytes) -> ConsumerRegistration:
        path = consumer_id_path(group, consumer_id)
        fields = decode_object(path, data)
        with reading(path, data):
            subscription = {
                text(key): number(streams, 1, MAX_STREAMS) for key, streams in fields["subscription"].items()
            }
            pattern = SubscriptionPattern(fields["pattern"])
            if pattern is not SubscriptionPattern.STATIC and len(subscription) != 1:
                raise ValueError(f"{len(subscription)} patterns instead of 1")
            return cls(subscription, pattern, number(fields.get("timestamp", 0), -1, MAX_INT64))


def thread_id(consumer_id: str, number: int) -> str:
    """Return the name of a consumer's thread, numbered from 0: the value of the owner nodes."""
    return f"{consumer_id}-{number}"


def consumer_of(thread: str) -> str:
    """Return the consumer that a thread id belongs to."""
    return thread.rpartition("-")[0]


def encode_owner(thread: str) -> bytes:
    return thread.encode("utf-8")


def decode_owner(group: str, topic: str, partition: int, data: bytes) -> str:
    with reading(owner_path(group, topic, partition), data):
        return data.decode("utf-8")


def encode_offset(offset: int) -> bytes:
    return str(offset).encode("ascii")


def decode_offset(group: str, topic: str, partition: int, data: bytes) -> int:
    with reading(offset_path(group, topic, partition), data):
        return number(data.decode("ascii"), 0, MAX_INT64)
