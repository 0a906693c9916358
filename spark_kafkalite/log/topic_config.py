"""Declares the settings of a topic and their defaults: Kafka 4.3's, and two of this broker.

Owns the declarations (``TOPIC_SETTINGS``), the broker-wide settings that give them their defaults
(``BROKER_LOG_SETTINGS``: ``log.retention.hours`` for ``retention.ms``, and so on) and the frozen :class:`TopicConfig`
that the log and the broker read. Where values come from, and which of them is in force, is ``config_sources.py``'s.

Always build a TopicConfig from overrides and broker settings together, never by changing one that exists: a changed
broker default must not undo a topic's override, nor the other way round (KAFKA-9254).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import TimestampType
from spark_kafkalite.settings import Setting, SettingGroup

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_DAY_MS = 24 * _HOUR_MS

_GZIP_LEVELS = (r"-1|[1-9]", "between 1 and 9 or equal to -1")
_THROTTLED_REPLICAS = (
    r"\*|([0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?",
    "the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
)

# The lists that a TopicConfig has as sets.
_SETS = ("follower_replication_throttled_replicas", "leader_replication_throttled_replicas")

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

# Of unclean.recovery.strategy: the best log leads by itself where nothing is lost by that.
BALANCED = "Balanced"

TOPIC_SETTINGS = SettingGroup(
    "topic",
    (
        Setting(
            "cleanup.policy",
            "list",
            ("delete",),
            "What happens to old data: 'delete' removes whole segments by age and size, 'compact' keeps the last value "
            "of each key; the two can be combined.",
            choices=("compact", "delete"),
        ),
        Setting(
            "compression.gzip.level", "int", -1, "Level at which the broker compresses with gzip; -1 is the library's.",
            form=_GZIP_LEVELS,
        ),
        Setting(
            "compression.lz4.level", "int", 9,
            "Level at which the broker compresses with lz4. 9 means the fast compressor, as in Kafka; 2 to 8 and 10 to "
            "12 take longer and give smaller batches; above 12 is the same as 12.",
            minimum=1, maximum=17,
        ),
        Setting(
            "compression.type",
            "string",
            "producer",
            "Codec in which the log is kept. 'producer' keeps each batch as it arrived; with any other value the "
            "broker recompresses batches that arrive in another codec.",
            choices=COMPRESSION_TYPES,
        ),
        Setting(
            "compression.zstd.level", "int", 3, "Level at which the broker compresses with zstd.",
            minimum=-131072, maximum=22,
        ),
        Setting(
            "delete.retention.ms", "long", _DAY_MS,
            "How long a compacted topic keeps tombstones; a reader that gets from the start to the end within this "
            "time sees every deletion.",
            unit="ms", minimum=0,
        ),
        Setting(
            "file.delete.delay.ms", "long", 60_000, "How long files of removed segments and topics stay on the disk.",
            unit="ms", minimum=0,
        ),
        Setting(
            "flush.before.ack", "boolean", False,
            "Whether a produce request is answered only after its records are on the disk. Requests that wait at the "
            "same time share one flush.",
        ),
        Setting(
            "flush.messages", "long", _LONG_MAX, "Flush to the disk after this many records.",
            unit="records", minimum=1,
        ),
        Setting(
            "flush.ms", "long", _LONG_MAX, "Flush to the disk when the oldest unflushed record is this old.",
            unit="ms", minimum=0,
        ),
        Setting(
            "follower.replication.throttled.replicas", "list", (),
            "Replicas (partition:broker, or *) whose copying from the leader is bounded by the broker's "
            "follower.replication.throttled.rate, as long as they are not in sync.",
            form=_THROTTLED_REPLICAS,
        ),
        Setting(
            "index.interval.bytes", "int", 4096, "Bytes of log between two index entries.",
            unit="bytes", minimum=0,
        ),
        Setting(
            "leader.replication.throttled.replicas", "list", (),
            "Replicas (partition:broker, or *) from which followers that are not in sync copy only as fast as the "
            "leading broker's leader.replication.throttled.rate allows.",
            form=_THROTTLED_REPLICAS,
        ),
        Setting(
            "local.retention.bytes", "long", -2,
            "Bytes kept on the local disk with tiered storage; -2 takes retention.bytes. Tiered storage is not built.",
            unit="bytes", minimum=-2,
        ),
        Setting(
            "local.retention.ms", "long", -2,
            "Time kept on the local disk with tiered storage; -2 takes retention.ms. Tiered storage is not built.",
            unit="ms", minimum=-2,
        ),
        Setting(
            "max.compaction.lag.ms", "long", _LONG_MAX, "Longest time that a record may stay uncompacted.",
            unit="ms", minimum=1,
        ),
        Setting(
            "max.message.bytes", "int", 1_048_588,
            "Largest record batch, with its header: as it arrives, and as it is stored (compression.type).",
            unit="bytes", minimum=0,
        ),
        Setting(
            "message.timestamp.after.max.ms", "long", _HOUR_MS,
            "How far a record's timestamp may be ahead of the broker's clock (CreateTime only).",
            unit="ms", minimum=0,
        ),
        Setting(
            "message.timestamp.before.max.ms", "long", _LONG_MAX,
            "How far a record's timestamp may be behind the broker's clock (CreateTime only).",
            unit="ms", minimum=0,
        ),
        Setting(
            "message.timestamp.type", "string", "CreateTime",
            "Whose clock gives records their timestamp: the producer's (CreateTime) or the broker's (LogAppendTime). "
            "Records written while that clock is wrong keep wrong timestamps.",
            choices=("CreateTime", "LogAppendTime"),
        ),
        Setting(
            "min.cleanable.dirty.ratio", "double", 0.5,
            "Share of a compacted log that must be uncompacted before it is compacted again.",
            minimum=0, maximum=1,
        ),
        Setting(
            "min.compaction.lag.ms", "long", 0, "Shortest time that a record stays uncompacted.", unit="ms", minimum=0
        ),
        Setting(
            "min.insync.replicas", "int", 1,
            "How many replicas must be in sync for a produce request with acks=all, and for records to be committed; "
            "where a topic has fewer, all of them. With zookeeper.connect the default is 2 from the third broker on.",
            minimum=1,
        ),
        Setting(
            "preallocate", "boolean", False,
            "Whether a new segment allocates its blocks on the disk at once, so that they are contiguous. The file's "
            "length stays that of its records; unused blocks are freed when the segment rolls.",
        ),
        Setting(
            "remote.log.copy.disable", "boolean", False,
            "Whether tiered storage stops taking new segments. Tiered storage is not built.",
        ),
        Setting(
            "remote.log.delete.on.disable", "boolean", False,
            "Whether tiered data is deleted when tiered storage is turned off. Tiered storage is not built.",
        ),
        Setting(
            "remote.storage.enable", "boolean", False,
            "Whether the topic uses tiered storage. Tiered storage is not built: only false is taken.",
        ),
        Setting(
            "retention.bytes", "long", -1,
            "Size of a partition above which its oldest segments are removed (cleanup.policy delete); -1 is no limit.",
            unit="bytes", minimum=-1,
        ),
        Setting(
            "retention.ms", "long", 7 * _DAY_MS,
            "Age at which segments are removed (cleanup.policy delete); -1 is no limit.",
            unit="ms", minimum=-1,
        ),
        Setting(
            "segment.bytes", "int", 2**30,
            "Size at which a new segment begins; retention and compaction work on whole segments.",
            unit="bytes", minimum=14,
        ),
        Setting(
            "segment.index.bytes", "int", 10 * 2**20, "Largest index file; a fuller one begins a new segment.",
            unit="bytes", minimum=4,
        ),
        Setting(
            "segment.jitter.ms", "long", 0, "Largest random time by which a segment rolls before segment.ms.",
            unit="ms", minimum=0,
        ),
        Setting(
            "segment.ms", "long", 7 * _DAY_MS, "Age at which a new segment begins even if the last one is not full.",
            unit="ms", minimum=1,
        ),
        Setting(
            "unclean.leader.election.enable", "boolean", False,
            "Whether a replica that is not in sync may become leader when no other is left, losing records.",
        ),
        Setting(
            "unclean.recovery.strategy", "string", BALANCED,
            "Whether a replica leads without a command where none has proven its log, as after a power loss of all "
            "hosts. 'Balanced': the best log does, when all replicas have reported theirs and it contains all others. "
            "'None': never.",
            choices=("None", BALANCED),
        ),
        Setting(
            "visibility.policy", "string", "committed",
            "When consumers see a record: 'committed', when all in-sync replicas have it; 'flushed', when it is also "
            "on the leader's disk (after flush.messages or flush.ms; with neither set, it is flushed at once).",
            choices=("committed", "flushed"),
        ),
    ),
)  # fmt: skip


class Synonym(NamedTuple):
    """A broker setting that gives a topic setting its default, and what to multiply its value with."""

    name: str
    factor: int = 1


# In order of precedence. Source: org.apache.kafka.server.config.ServerTopicConfigSynonyms.
BROKER_SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.before.ack": (Synonym("log.flush.before.ack"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", _MINUTE_MS),
        Synonym("log.retention.hours", _HOUR_MS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
    "unclean.recovery.strategy": (Synonym("unclean.recovery.strategy"),),
    "visibility.policy": (Synonym("log.visibility.policy"),),
}

_UNITS = {_MINUTE_MS: "minutes", _HOUR_MS: "hours"}


def _broker_setting(topic_setting: Setting, synonym: Synonym, first: bool) -> Setting:
    """Declare a broker setting after the topic setting that it gives a default to; unset unless the user sets it."""
    scaled = synonym.factor != 1
    text = f"Default of the topic setting {topic_setting.name}"
    return Setting(
        synonym.name,
        "int" if scaled else topic_setting.kind,
        None,
        f"{text}. {topic_setting.doc}" if first else f"{text}, used when the finer setting is not given.",
        unit=_UNITS.get(synonym.factor, topic_setting.unit),
        minimum=(-1 if topic_setting.minimum == -1 else 0 if topic_setting.minimum == 0 else 1)
        if scaled
        else topic_setting.minimum,
        maximum=None if scaled else topic_setting.maximum,
        choices=topic_setting.choices,
        form=topic_setting.form,
        # As in Kafka: what has a finer synonym is read at the start only.
        dynamic=first,
    )


BROKER_LOG_SETTINGS: tuple[Setting, ...] = tuple(
    _broker_setting(TOPIC_SETTINGS[name], synonym, number == 0)
    for name, synonyms in BROKER_SYNONYMS.items()
    for number, synonym in enumerate(synonyms)
)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic that are in force. Fields are the setting's name with underscores."""

    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_before_ack: bool
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: frozenset[str]
    index_interval_bytes: int
    leader_replication_throttled_replicas: frozenset[str]
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    unclean_recovery_strategy: str
    visibility_policy: str

    @classmethod
    def from_properties(
        cls, overrides: Mapping[str, object] | None = None, defaults: Mapping[str, Any] | None = None
    ) -> TopicConfig:
        """Build the configuration of a topic from its overrides and the broker's defaults (``broker_defaults``).

        Raises ConfigError for an unknown name, a bad value, or values that contradict each other.
        """
        values = dict(TOPIC_SETTINGS.defaults() if defaults is None else defaults)
        if overrides:
            values.update(TOPIC_SETTINGS.parse(overrides))
        if values["remote.storage.enable"]:
            raise ConfigError(
                "remote.storage.enable=true: tiered storage is not supported",
                "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
                "storage.",
            )
        if values["min.compaction.lag.ms"] > values["max.compaction.lag.ms"]:
            shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
            raise ConfigError(
                f"min.compaction.lag.ms={shortest}: must not be above max.compaction.lag.ms={longest}",
                f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})",
            )
        return cls._of(values)

    @classmethod
    def in_force(cls, overrides: Mapping[str, object], defaults: Mapping[str, Any]) -> tuple[TopicConfig, list[str]]:
        """Build the configuration of a topic that exists and must be served; also give what is wrong with overrides.

        Each wrong override is left out and the others hold. Where the compaction lags contradict each other, as they do
        when a broker's default was changed after the topic's own, the shortest counts: nothing goes too early.
        """
        parsed, problems = TOPIC_SETTINGS.parse_usable(overrides)
        values = {**defaults, **parsed}
        values["max.compaction.lag.ms"] = max(values["max.compaction.lag.ms"], values["min.compaction.lag.ms"])
        return cls._of(values), problems

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> TopicConfig:
        fields = {field: values[field.replace("_", ".")] for field in cls.__slots__}
        # Each partition looks itself up in lists that may name thousands.
        for field in _SETS:
            fields[field] = frozenset(fields[field])
        return cls(**fields)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whose clock gives records their timestamp."""
        if self.message_timestamp_type == "LogAppendTime":
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_compacted(self) -> bool:
        """Whether records without a key are refused and old values of a key removed."""
        return "compact" in self.cleanup_policy
