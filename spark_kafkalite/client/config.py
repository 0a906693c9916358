"""The settings of our producers and consumers, under Kafka's names, and the frozen objects that hold their values.

Owns two groups, :data:`PRODUCER_SETTINGS` and :data:`CONSUMER_SETTINGS`. Defaults are the mission's (``batch.size``
64 KiB, ``linger.ms`` 10), then Apache Kafka 4.3's (``acks=all``, idempotence on). One default differs from Kafka's on
purpose: the socket buffers are left to the system, which tunes them, because Kafka's 64 and 128 KiB cap the throughput
of a connection. Two settings that contradict each other raise ConfigError.

What all clients have in common is in :mod:`.client_config`; its names are also here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.client.client_config import (
    ADMIN_SETTINGS,
    COMMON_SETTINGS,
    ClientConfig,
    admin_config,
    client_config,
    is_jvm_only,
    parse_address,
    parse_settings,
)
from spark_kafkalite.client.group.settings import GROUP_SETTINGS, GroupConfig, group_config
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import IsolationLevel
from spark_kafkalite.settings import Setting, SettingGroup, property_name

__all__ = [
    "ADMIN_SETTINGS",
    "CODEC_NAMES",
    "CONSUMER_SETTINGS",
    "LEVEL_CODECS",
    "PRODUCER_SETTINGS",
    "ClientConfig",
    "ConsumerConfig",
    "ProducerConfig",
    "admin_config",
    "client_config",
    "consumer_config",
    "is_jvm_only",
    "parse_address",
    "parse_settings",
    "producer_config",
]

_INT_MAX: Final = 2**31 - 1
_MIB: Final = 1024 * 1024
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LEVEL_CODECS: Final = ("gzip", "lz4", "zstd")

PRODUCER_SETTINGS: Final = SettingGroup(
    "producer",
    (
        *COMMON_SETTINGS,
        Setting(
            "acks",
            "string",
            "all",
            "Which replicas must have a batch before it is acknowledged.",
            choices=("0", "1", "all"),
        ),
        Setting("enable.idempotence", "boolean", None, "No duplicates and no reordering under retries (default true)."),
        Setting("transactional.id", "string", None, "Name of a transactional producer; not supported yet."),
        Setting(
            "max.in.flight.requests.per.connection",
            "int",
            5,
            "Unanswered requests per broker; without idempotence, more than 1 may reorder batches that are retried.",
            minimum=1,
        ),
        Setting("retries", "int", _INT_MAX, "Retries of a batch within delivery.timeout.ms.", minimum=0),
        Setting(
            "delivery.timeout.ms", "int", 120_000, "Upper bound from send() to success or error.", unit="ms", minimum=0
        ),
        Setting("batch.size", "int", 65_536, "Uncompressed size at which a batch is sent.", unit="bytes", minimum=0),
        Setting("linger.ms", "long", 10, "How long a batch waits for more records.", unit="ms", minimum=0),
        Setting("buffer.memory", "long", 32 * _MIB, "Bound on records not yet acknowledged.", unit="bytes", minimum=0),
        Setting("max.block.ms", "long", 60_000, "How long send() waits for memory or metadata.", unit="ms", minimum=0),
        Setting("max.request.size", "int", _MIB, "Largest record, and largest produce request.", "bytes", 1),
        Setting("compression.type", "string", "none", "Codec of batches.", choices=CODEC_NAMES),
        Setting("compression.codec", "string", None, "Older name of compression.type.", choices=CODEC_NAMES),
        Setting("compressed.topics", "list", (), "With a codec: compress these topics only; empty: all topics."),
        Setting("compression.gzip.level", "int", None, "Level of gzip.", minimum=-1, maximum=9),
        Setting(
            "compression.lz4.level",
            "int",
            None,
            "Level of lz4. 9 means the fast compressor, as in Kafka; 2 to 8 and 10 to 12 take longer and give smaller "
            "batches.",
            minimum=1,
            maximum=17,
        ),
        Setting("compression.zstd.level", "int", None, "Level of zstd.", minimum=-131_072, maximum=22),
        Setting(
            "partitioner",
            "string",
            "default",
            "Chooses the partition of records without a key; a key's hash decides for others. In Python also a "
            "callable.",
            choices=("default", "round_robin", "random"),
        ),
        Setting("partitioner.ignore.keys", "boolean", False, "Treat records with a key like those without."),
        Setting(
            "producer.type",
            "string",
            "async",
            "sync: send() returns when the record is acknowledged.",
            choices=("async", "sync"),
        ),
        Setting("metadata.max.idle.ms", "long", 300_000, "Topics unused for this long are not refreshed.", "ms", 0),
    ),
)

CONSUMER_SETTINGS: Final = SettingGroup(
    "consumer",
    (
        *COMMON_SETTINGS,
        *GROUP_SETTINGS,
        Setting(
            "auto.offset.reset",
            "string",
            "latest",
            "Where to start without a position, or when the log no longer holds it.",
            choices=("earliest", "latest", "none", "smallest", "largest"),
        ),
        Setting("fetch.min.bytes", "int", 1, "A fetch waits for this much.", unit="bytes", minimum=0),
        Setting("fetch.max.wait.ms", "int", 500, "A fetch waits no longer than this.", unit="ms", minimum=0),
        Setting("fetch.max.bytes", "int", 50 * _MIB, "Soft bound on one fetch's answer.", "bytes", 0),
        Setting("max.partition.fetch.bytes", "int", _MIB, "Soft bound per partition of one fetch.", "bytes", 0),
        Setting("max.poll.records", "int", 500, "Default of poll()'s max_records.", minimum=1),
        Setting("check.crcs", "boolean", True, "Check the CRC of every batch fetched."),
        Setting(
            "isolation.level",
            "string",
            "read_uncommitted",
            "Whether records of open and aborted transactions are returned.",
            choices=("read_uncommitted", "read_committed"),
        ),
        Setting("client.rack", "string", "", "Rack or zone of this client, for brokers that use it."),
        Setting("default.api.timeout.ms", "int", 60_000, "Bound on calls without a timeout of their own.", "ms", 0),
        Setting("allow.auto.create.topics", "boolean", True, "Let the broker create topics that are asked for."),
        Setting(
            "queued.max.bytes",
            "long",
            64 * _MIB,
            "Read-ahead: bound on fetched bytes that poll() has not returned.",
            "bytes",
            minimum=1,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """A producer's settings; ``levels`` is codec name to level, ``acks`` is the protocol's number."""

    client: ClientConfig
    acks: int
    idempotent: bool
    max_in_flight: int
    retries: int
    delivery_timeout_ms: int
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    compression_type: str
    compressed_topics: frozenset[str]
    levels: Mapping[str, int]
    partitioner: str | Callable[[str, bytes | None, bytes | None, int], int]
    ignore_keys: bool
    sync: bool

    def codec_of(self, topic: str) -> str:
        """Return the codec's name for batches of a topic."""
        if self.compressed_topics and topic not in self.compressed_topics:
            return "none"
        return self.compression_type


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """A consumer's settings; ``offset_reset`` is earliest, latest or none."""

    client: ClientConfig
    group: GroupConfig | None
    offset_reset: str
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    check_crcs: bool
    isolation: IsolationLevel
    client_rack: str
    allow_auto_create: bool
    queued_max_bytes: int

    @property
    def group_id(self) -> str | None:
        """The group's name, None without one."""
        return None if self.group is None else self.group.group_id


def producer_config(settings: Mapping[str, object] | None, keywords: Mapping[str, object]) -> ProducerConfig:
    """Return a producer's settings. Raises ConfigError for bad values and for settings that contradict each other."""
    given = {**(settings or {}), **{property_name(name): value for name, value in keywords.items()}}
    partitioner = given.get("partitioner")
    if callable(partitioner):
        settings = {name: value for name, value in (settings or {}).items() if name != "partitioner"}
        keywords = {name: value for name, value in keywords.items() if name != "partitioner"}
    settings = _acks_as_text(settings or {})
    keywords = _acks_as_text(keywords)
    values = parse_settings(PRODUCER_SETTINGS, settings, keywords)
    if values["transactional.id"]:
        raise ConfigError(
            f"transactional.id={values['transactional.id']}: transactional producers come in a later version; "
            "leave it out (the producer is idempotent without it)"
        )
    acks = -1 if values["acks"] == "all" else int(values["acks"])
    sync = values["producer.type"] == "sync"
    linger_ms = 0 if sync and "linger.ms" not in given and "linger_ms" not in given else values["linger.ms"]
    request_timeout_ms = values["request.timeout.ms"]
    delivery_timeout_ms = values["delivery.timeout.ms"]
    if delivery_timeout_ms < linger_ms + request_timeout_ms:
        if "delivery.timeout.ms" in given:
            raise ConfigError(
                f"delivery.timeout.ms={delivery_timeout_ms}: must be at least linger.ms + request.timeout.ms = "
                f"{linger_ms + request_timeout_ms}"
            )
        delivery_timeout_ms = linger_ms + request_timeout_ms
    codec = values["compression.type"]
    if values["compression.codec"] is not None:
        if "compression.type" in given and codec != values["compression.codec"]:
            raise ConfigError(
                f"compression.type={codec} and compression.codec={values['compression.codec']} contradict each other: "
                "give one of them"
            )
        codec = values["compression.codec"]
    levels = {name: values[f"compression.{name}.level"] for name in LEVEL_CODECS}
    return ProducerConfig(
        client=client_config(values),
        acks=acks,
        idempotent=_idempotence(values, acks),
        max_in_flight=values["max.in.flight.requests.per.connection"],
        retries=values["retries"],
        delivery_timeout_ms=delivery_timeout_ms,
        batch_size=values["batch.size"],
        linger_ms=linger_ms,
        buffer_memory=values["buffer.memory"],
        max_block_ms=values["max.block.ms"],
        max_request_size=values["max.request.size"],
        compression_type=codec,
        compressed_topics=frozenset(values["compressed.topics"]),
        levels={name: level for name, level in levels.items() if level is not None},
        partitioner=partitioner if callable(partitioner) else values["partitioner"],
        ignore_keys=values["partitioner.ignore.keys"],
        sync=sync,
    )


def _acks_as_text(given: Mapping[str, object]) -> dict[str, object]:
    """``acks`` may be a number, and -1 means all."""
    return {name: "all" if name == "acks" and str(value).strip() == "-1" else value for name, value in given.items()}


def _idempotence(values: Mapping[str, Any], acks: int) -> bool:
    """Idempotence is on unless a setting rules it out; asked for by name, such a setting is an error.

    Source: org.apache.kafka.clients.producer.ProducerConfig.postProcessAndValidateIdempotenceConfigs.
    """
    asked = values["enable.idempotence"]
    if asked is False:
        return False
    against = ""
    if acks != -1:
        against = f"acks={acks} (it needs all)"
    elif values["retries"] == 0:
        against = "retries=0 (it needs at least 1)"
    elif values["max.in.flight.requests.per.connection"] > 5:
        in_flight = values["max.in.flight.requests.per.connection"]
        against = f"max.in.flight.requests.per.connection={in_flight} (it needs at most 5)"
    if against and asked:
        raise ConfigError(f"enable.idempotence=true contradicts {against}")
    return not against


def consumer_config(settings: Mapping[str, object] | None, keywords: Mapping[str, object]) -> ConsumerConfig:
    """Return a consumer's settings."""
    values = parse_settings(CONSUMER_SETTINGS, settings, keywords)
    reset = values["auto.offset.reset"]
    isolation = values["isolation.level"]
    return ConsumerConfig(
        client=client_config(values),
        group=group_config(values),
        # The names of 2011 for the same two ends of the log.
        offset_reset={"smallest": "earliest", "largest": "latest"}.get(reset, reset),
        fetch_min_bytes=values["fetch.min.bytes"],
        fetch_max_wait_ms=values["fetch.max.wait.ms"],
        fetch_max_bytes=values["fetch.max.bytes"],
        max_partition_fetch_bytes=values["max.partition.fetch.bytes"],
        max_poll_records=values["max.poll.records"],
        check_crcs=values["check.crcs"],
        isolation=IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED,
        client_rack=values["client.rack"],
        allow_auto_create=values["allow.auto.create.topics"],
        queued_max_bytes=values["queued.max.bytes"],
    )
