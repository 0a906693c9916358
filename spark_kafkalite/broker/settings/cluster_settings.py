"""Declares the broker's settings of the registry, of the wire between brokers, and of replication."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.registry.zookeeper_address import SASL_MECHANISMS
from spark_kafkalite.security.settings import SecurityProtocol
from spark_kafkalite.settings import Setting

MEBIBYTE: Final = 1024 * 1024

REGISTRY_SETTINGS: Final = (
    Setting(
        "zookeeper.connect",
        "string",
        None,
        "Registry of the cluster, HOST:PORT with commas and perhaps /CHROOT: a ZooKeeper ensemble, or kafkalite "
        "registry. When not set, the broker is a cluster by itself, with an embedded registry.",
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        "int",
        18_000,
        "How long the registry keeps a broker that is silent among the live ones; the registry may grant another time.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        "int",
        None,
        "How long a start waits for the registry; when not set, zookeeper.session.timeout.ms.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "zookeeper.digest",
        "password",
        None,
        "USER:PASSWORD with which this broker authenticates to the registry (scheme digest, or SASL DIGEST-MD5). All "
        "brokers need the same.",
    ),
    Setting(
        "zookeeper.sasl.mechanism",
        "string",
        None,
        "SASL mechanism by which this broker authenticates to ZooKeeper: DIGEST-MD5 with zookeeper.digest, or GSSAPI "
        "with the host's Kerberos tickets. Without it, the scheme digest.",
        choices=SASL_MECHANISMS,
    ),
    Setting(
        "zookeeper.set.acl",
        "boolean",
        False,
        "Whether what this broker creates in the registry may be changed only by the user as which it authenticates. "
        "Users, quotas and ACLs that exist become readable for that user only, so set it once all "
        "brokers have their credentials.",
    ),
)

INNER_WIRE_SETTINGS: Final = (
    Setting(
        "inter.broker.listener.name",
        "string",
        None,
        "Listener that the other brokers connect to; when not set, the first one of listeners, which serves clients "
        "as well. One that is named here, of several, serves brokers alone.",
    ),
    Setting(
        "security.inter.broker.protocol",
        "string",
        None,
        "Instead of inter.broker.listener.name: brokers connect to the listener that has the name of this protocol.",
        choices=tuple(protocol.value for protocol in SecurityProtocol),
    ),
    Setting(
        "inter.broker.secret.file",
        "string",
        None,
        "File with the cluster secret, with which brokers authenticate each other: one secret of at least 32 "
        "characters, or two on lines of their own while it is being changed (the first is the one that is used). It is "
        "read again when it changes. Without it the secret is kept in the registry, where zookeeper.digest "
        "protects it.",
    ),
)

REPLICATION_SETTINGS: Final = (
    Setting(
        "replica.lag.time.max.ms",
        "long",
        30_000,
        "A live follower that has not reached the end of its leader's log for this long is not in sync any more.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "replica.fetch.max.bytes",
        "int",
        MEBIBYTE,
        "Bytes of one partition that a follower asks for at a time; the first batch comes whole, however large.",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        "int",
        10 * MEBIBYTE,
        "Bytes of all partitions of one leader that a follower asks for at a time.",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        "int",
        500,
        "How long a leader keeps a follower's fetch when there is nothing new.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "replica.fetch.min.bytes",
        "int",
        1,
        "Bytes that a leader waits for before it answers a follower's fetch.",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "replica.fetch.backoff.ms",
        "int",
        1000,
        "How long a follower leaves a partition, or a leader, alone after an error.",
        unit="ms",
        minimum=0,
    ),
    Setting(
        "replica.socket.timeout.ms",
        "int",
        30_000,
        "How long another broker may take to answer.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "replica.socket.receive.buffer.bytes",
        "int",
        64 * 1024,
        "Receive buffer of the sockets between brokers (SO_RCVBUF); -1 leaves it to the system.",
        unit="bytes",
        minimum=-1,
    ),
    Setting(
        "replica.compare.max.bytes.per.second",
        "int",
        MEBIBYTE,
        "Bytes a second at most that a follower compares with its leader, to find replicas that differ; 0 compares "
        "nothing.",
        unit="bytes",
        minimum=0,
    ),
    Setting(
        "replica.compare.interval.ms",
        "long",
        604_800_000,
        "How long a broker waits between two comparisons of all logs that it follows. After a start that did not "
        "follow a controlled shutdown it begins at once.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        "long",
        5_000,
        "How often high watermarks are written to the disk.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "high.watermark.requires.min.insync",
        "boolean",
        True,
        "Whether the high watermark stands still while fewer than min.insync.replicas are in sync (KIP-966); off, such "
        "records are seen, and are lost with the replicas that have them.",
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        "int",
        1000,
        "Fetch sessions of clients that are kept (KIP-227); those of followers are always kept.",
        minimum=0,
    ),
    Setting(
        "controlled.shutdown.enable",
        "boolean",
        True,
        "Whether a broker that is stopped hands its leaderships over first.",
    ),
    Setting(
        "controlled.shutdown.max.ms",
        "int",
        5_000,
        "How long a stop waits for other brokers to take over.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "stray.log.retention.ms",
        "long",
        604_800_000,
        "How long logs are kept that were set aside while their topic exists, because their partition moved away or "
        "is copied again; -1 keeps them. Logs of topics that are not in the registry stay until you remove them.",
        unit="ms",
        minimum=-1,
    ),
)

CLUSTER_SETTINGS: Final = (*REGISTRY_SETTINGS, *INNER_WIRE_SETTINGS, *REPLICATION_SETTINGS)
