"""The settings of ConsumerConnector: the names and defaults of Kafka 0.8's high-level consumer.

Where it has a name for what our clients call otherwise (``socket.timeout.ms``, ``fetch.message.max.bytes``), its
name is the setting's and ours is a synonym. There is no ``bootstrap.servers``: brokers are found through the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_kafkalite.client.config import ConsumerConfig, consumer_config, parse_settings
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import REDACTED
from spark_kafkalite.registry.consumer_nodes import check_name
from spark_kafkalite.registry.zookeeper_address import SASL_MECHANISMS, auth_of, check_sasl
from spark_kafkalite.security.client_security import client_security
from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.settings import Setting, SettingGroup

_MIB: Final = 1024 * 1024
# Stands where consumers must name a server, and is taken out again.
_NO_SERVER: Final = "registry:1"

CONNECTOR_SETTINGS: Final = SettingGroup(
    "consumer connector",
    (
        Setting("group.id", "string", None, "Consumer group; must be set."),
        Setting(
            "zookeeper.connect",
            "string",
            None,
            "Registry: host:port,...[/chroot] of a ZooKeeper ensemble or, on this host, of `kafkalite registry` or of "
            "a broker's registry.listener.",
        ),
        Setting(
            "zookeeper.session.timeout.ms",
            "int",
            6_000,
            "The registry drops a consumer that is silent for this long.",
            "ms",
            1,
        ),
        Setting(
            "zookeeper.digest",
            "password",
            None,
            "user:password with which to authenticate to the registry (scheme digest, or SASL DIGEST-MD5).",
        ),
        Setting(
            "zookeeper.sasl.mechanism",
            "string",
            None,
            "SASL mechanism by which to authenticate to ZooKeeper: DIGEST-MD5 with zookeeper.digest, or GSSAPI with "
            "the host's Kerberos tickets.",
            choices=SASL_MECHANISMS,
        ),
        Setting("zookeeper.connection.timeout.ms", "int", 6_000, "How long a start waits for the registry.", "ms", 1),
        Setting("zookeeper.sync.time.ms", "int", 2_000, "Default of rebalance.backoff.ms.", "ms", 0),
        Setting("consumer.id", "string", None, "Id of this consumer; by default host:uuid. No two may have the same."),
        Setting("client.id", "string", None, "Name in the brokers' logs and quotas; group.id by default."),
        Setting(
            "auto.offset.reset",
            "string",
            "largest",
            "Where to start without an offset, or when it is no longer in the log.",
            choices=("smallest", "largest", "earliest", "latest", "none"),
        ),
        Setting(
            "auto.commit.enable",
            "boolean",
            True,
            "Commit what was processed every auto.commit.interval.ms, when partitions move, and at shutdown.",
            synonyms=("enable.auto.commit",),
        ),
        Setting("auto.commit.interval.ms", "int", 60_000, "Pause between automatic commits.", "ms", 1),
        Setting(
            "offsets.storage",
            "string",
            "zookeeper",
            "Where offsets are kept: in the registry, or with the group's coordinator in __consumer_offsets.",
            choices=("zookeeper", "kafka"),
        ),
        Setting(
            "dual.commit.enabled",
            "boolean",
            None,
            "Commit to both stores, and start from the larger offset of the two; by default true with "
            "offsets.storage=kafka, false with zookeeper.",
        ),
        Setting("offsets.channel.socket.timeout.ms", "int", 10_000, "Bound on one try of a commit or fetch.", "ms", 1),
        Setting("offsets.channel.backoff.ms", "int", 1_000, "Pause between tries of a commit.", "ms", 0),
        Setting("offsets.commit.max.retries", "int", 5, "Tries of a commit after the first one.", minimum=0),
        Setting(
            "rebalance.max.retries",
            "int",
            4,
            "How many pauses of rebalance.backoff.ms a rebalance may take before it counts as failed.",
            minimum=0,
        ),
        Setting("rebalance.backoff.ms", "int", None, "Longest pause before a rebalance is tried again.", "ms", 1),
        Setting(
            "partition.assignment.strategy",
            "string",
            "range",
            "How partitions are assigned to threads.",
            choices=("range",),
        ),
        Setting("exclude.internal.topics", "boolean", True, "Topic filters never let internal topics through."),
        Setting(
            "consumer.timeout.ms",
            "int",
            -1,
            "Raise ConsumerTimeout when nothing comes for this long; -1: wait forever.",
            "ms",
            -1,
        ),
        Setting(
            "fetch.message.max.bytes",
            "int",
            _MIB,
            "Soft bound on what is fetched of a partition at once.",
            "bytes",
            1,
            synonyms=("max.partition.fetch.bytes",),
        ),
        Setting("fetch.min.bytes", "int", 1, "A fetch waits for this much.", "bytes", 0),
        Setting(
            "fetch.wait.max.ms",
            "int",
            100,
            "A fetch waits no longer than this.",
            "ms",
            0,
            synonyms=("fetch.max.wait.ms",),
        ),
        Setting(
            "queued.max.bytes", "long", 64 * _MIB, "Bound on what is fetched and not yet taken by a stream.", "bytes", 1
        ),
        Setting(
            "socket.timeout.ms",
            "int",
            30_000,
            "How long to wait for a broker's answer.",
            "ms",
            1,
            synonyms=("request.timeout.ms",),
        ),
        Setting(
            "socket.receive.buffer.bytes",
            "int",
            -1,
            "SO_RCVBUF; -1 leaves it to the system.",
            "bytes",
            -1,
            synonyms=("receive.buffer.bytes",),
        ),
        Setting(
            "refresh.leader.backoff.ms",
            "int",
            200,
            "Pause before leaders are looked up again; it grows.",
            "ms",
            0,
            synonyms=("retry.backoff.ms",),
        ),
        Setting("check.crcs", "boolean", True, "Check the CRC of every batch fetched."),
        Setting(
            "isolation.level",
            "string",
            "read_uncommitted",
            "Whether records of open and aborted transactions are returned.",
            choices=("read_uncommitted", "read_committed"),
        ),
        *SECURITY_SETTINGS,
    ),
)


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """A connector's settings; ``consumer`` is its part about fetching. Times are milliseconds."""

    consumer: ConsumerConfig
    group_id: str
    zookeeper_connect: str | None
    # The scheme or mechanism, and the credential; None for a session that does not authenticate.
    zookeeper_auth: tuple[str, str] | None = field(repr=False)
    session_timeout_ms: int
    connection_timeout_ms: int
    consumer_id: str | None
    auto_commit: bool
    auto_commit_interval_ms: int
    offsets_storage: str
    dual_commit: bool
    offsets_timeout_ms: int
    offsets_backoff_ms: int
    offsets_max_retries: int
    rebalance_max_retries: int
    rebalance_backoff_ms: int
    exclude_internal: bool
    timeout_ms: int


def connector_config(settings: Mapping[str, object] | None, keywords: Mapping[str, object]) -> ConnectorConfig:
    """Return a connector's settings. Raises ConfigError."""
    values = parse_settings(CONNECTOR_SETTINGS, settings, keywords)
    group_id, consumer_id = values["group.id"], values["consumer.id"]
    if not group_id:
        raise ConfigError("group.id is not set: name the consumer group")
    check_name("group.id", group_id)
    if consumer_id is not None:
        check_name("consumer.id", consumer_id)
    digest = values["zookeeper.digest"]
    if digest is not None and ":" not in digest:
        raise ConfigError(f"zookeeper.digest={REDACTED}: must be user:password")
    check_sasl(values["zookeeper.sasl.mechanism"], digest)
    storage, dual = values["offsets.storage"], values["dual.commit.enabled"]
    backoff_ms = values["rebalance.backoff.ms"]
    return ConnectorConfig(
        consumer=_consumer_config(values, group_id),
        group_id=group_id,
        zookeeper_connect=values["zookeeper.connect"],
        zookeeper_auth=auth_of(values["zookeeper.sasl.mechanism"], digest),
        session_timeout_ms=values["zookeeper.session.timeout.ms"],
        connection_timeout_ms=values["zookeeper.connection.timeout.ms"],
        consumer_id=consumer_id,
        auto_commit=values["auto.commit.enable"],
        auto_commit_interval_ms=values["auto.commit.interval.ms"],
        offsets_storage=storage,
        dual_commit=storage == "kafka" if dual is None else dual,
        offsets_timeout_ms=values["offsets.channel.socket.timeout.ms"],
        offsets_backoff_ms=values["offsets.channel.backoff.ms"],
        offsets_max_retries=values["offsets.commit.max.retries"],
        rebalance_max_retries=values["rebalance.max.retries"],
        rebalance_backoff_ms=max(1, values["zookeeper.sync.time.ms"]) if backoff_ms is None else backoff_ms,
        exclude_internal=values["exclude.internal.topics"],
        timeout_ms=values["consumer.timeout.ms"],
    )


def _consumer_config(values: Mapping[str, Any], group_id: str) -> ConsumerConfig:
    """Fetching is that of our Consumer, with its settings."""
    backoff_ms = values["refresh.leader.backoff.ms"]
    config = consumer_config(
        {
            "bootstrap.servers": _NO_SERVER,
            "client.id": values["client.id"] or group_id,
            "group.id": group_id,
            "request.timeout.ms": values["socket.timeout.ms"],
            "retry.backoff.ms": backoff_ms,
            "retry.backoff.max.ms": max(1_000, backoff_ms),
            "receive.buffer.bytes": values["socket.receive.buffer.bytes"],
            "auto.offset.reset": values["auto.offset.reset"],
            "fetch.min.bytes": values["fetch.min.bytes"],
            "fetch.max.wait.ms": values["fetch.wait.max.ms"],
            "max.partition.fetch.bytes": values["fetch.message.max.bytes"],
            "check.crcs": values["check.crcs"],
            "isolation.level": values["isolation.level"],
            "allow.auto.create.topics": False,
            "queued.max.bytes": values["queued.max.bytes"],
        },
        {},
    )
    client = replace(config.client, bootstrap_servers=(), security=client_security(values))
    return replace(config, client=client)
