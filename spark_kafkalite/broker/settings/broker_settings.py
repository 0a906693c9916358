"""Declares the broker's settings (:data:`BROKER_SETTINGS`); ``config.py`` reads them.

Names and defaults are Kafka's wherever Kafka has the setting. The defaults of topic settings are broker settings too,
under Kafka's broker-side names (``log.segment.bytes`` for ``segment.bytes``); ``log.topic_config`` declares them with
the topic settings, and ``group_settings.py`` what concerns groups.
"""

from __future__ import annotations

from spark_kafkalite.broker.settings.authorization_settings import AUTHORIZATION_SETTINGS
from spark_kafkalite.broker.settings.cluster_settings import CLUSTER_SETTINGS
from spark_kafkalite.broker.settings.group_settings import GROUP_SETTINGS, OFFSET_SETTINGS
from spark_kafkalite.broker.settings.leader_settings import LEADER_SETTINGS
from spark_kafkalite.broker.settings.listener_settings import LISTENER_SETTINGS, OF_ONE_LISTENER, TLS_SETTINGS
from spark_kafkalite.broker.settings.metrics_settings import METRICS_SETTINGS
from spark_kafkalite.broker.settings.quota_settings import QUOTA_SETTINGS, QUOTAS_WITHOUT_EFFECT
from spark_kafkalite.broker.settings.sasl_settings import SASL_SETTINGS
from spark_kafkalite.log.topic_config import BROKER_LOG_SETTINGS
from spark_kafkalite.registry.znodes import MOST_RACK_CHARS
from spark_kafkalite.security.settings import JVM_ONLY_SETTINGS
from spark_kafkalite.settings import Setting, SettingGroup

MEBIBYTE = 1024 * 1024

_NO_KRAFT = (
    "there is no KRaft here; brokers share a registry, which zookeeper.connect names. Leave out process.roles, "
    "controller.* and the listener CONTROLLER"
)
_NO_TRANSACTIONS = "brokers have no transactions yet; see docs/protocol.md"
_NO_SHARE_GROUPS = "brokers have no share groups; see docs/protocol.md"
_ONE_THREAD = "one thread serves all connections; num.io.threads is for the disks"
_ONE_FORMAT = "brokers of different versions agree by themselves, and batches have one format"
_NO_JVM = "it is about the JVM, and there is none here; leave it out"
_NO_SAMPLES = "metrics are counters; what reads them takes the samples"

BROKER_SETTINGS = SettingGroup(
    "broker",
    (
        Setting(
            "broker.id",
            "int",
            1,
            "Number of this broker, unique in the cluster; the log directories remember it.",
            minimum=0,
            synonyms=("node.id",),
        ),
        Setting(
            "broker.rack",
            "string",
            None,
            "Rack, or host, of this broker; replicas are spread over racks.",
            form=(f"(?s).{{0,{MOST_RACK_CHARS}}}", f"a text of at most {MOST_RACK_CHARS} characters"),
        ),
        *LISTENER_SETTINGS,
        Setting(
            "log.dirs",
            "list",
            ("./kafkalite-data",),
            "Directories that hold the logs.",
            synonyms=("log.dir",),
        ),
        Setting(
            "log.dirs.lost",
            "list",
            (),
            "Ids of log directories that are lost for good: their directory.id, which a start without them names. The "
            "others forget them, and partitions that only they had start empty. Needed for one start only.",
        ),
        Setting(
            "registry.dir",
            "string",
            None,
            "Directory of the embedded registry; when not set, _registry in the first log directory.",
        ),
        Setting(
            "registry.listener",
            "string",
            None,
            "HOST:PORT on which the embedded registry serves ZooKeeper's client protocol to registry consumers and "
            "tools in other processes of this host. The host is a loopback address. Port 0 picks a free port. When not "
            "set, other processes cannot use it.",
        ),
        Setting(
            "registry.listener.digest",
            "password",
            None,
            "USER:PASSWORD as which every client of registry.listener must authenticate (scheme digest). Until then "
            "only pings are answered, and the session ends after 5 s.",
        ),
        Setting(
            "logging.level",
            "string",
            "INFO",
            "Least severe level that is logged, to standard error. On a running broker Kafka's tools change the levels "
            "of single loggers (entity type broker-loggers).",
            choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        ),
        Setting(
            "log.format",
            "string",
            "text",
            "Form of the lines on standard error. json: one object a line, with the keys ts, level, logger, msg and "
            "broker, and the event's own fields.",
            choices=("text", "json"),
        ),
        Setting(
            "request.log.slow.ms",
            "int",
            -1,
            "Log requests that take at least this many milliseconds, with the time of each phase; -1 logs none. The "
            "time in which a Fetch, JoinGroup or SyncGroup waits does not count. Up to five lines of an API are "
            "written in 10 s; others are counted.",
            minimum=-1,
            maximum=3_600_000,
        ),
        Setting(
            "num.io.threads",
            "int",
            4,
            "Most threads for each kind of blocking work: reads of data that is not in memory, checks of large "
            "compressed batches, removal of files. fsync has 16, or this many if that is more.",
            minimum=1,
            maximum=64,
            dynamic=True,
        ),
        # Sockets
        Setting(
            "socket.request.max.bytes",
            "int",
            100 * MEBIBYTE,
            "Largest request that is read; a larger one closes its connection.",
            unit="bytes",
            minimum=1024,
        ),
        Setting(
            "queued.max.request.bytes",
            "long",
            256 * MEBIBYTE,
            "Memory of all requests that have not fully arrived or wait for their turn; above it reading pauses. "
            "One user, or one address of clients that have not authenticated, gets half of it.",
            unit="bytes",
            minimum=MEBIBYTE,
        ),
        Setting(
            "queued.max.requests.per.connection",
            "int",
            64,
            "Requests of one connection that may be unanswered; above it the connection is not read.",
            minimum=1,
        ),
        Setting(
            "queued.max.response.bytes.per.connection",
            "int",
            4 * MEBIBYTE,
            "Response memory (file ranges sent with sendfile need none) that one connection may have unsent; above it "
            "the connection is not read.",
            unit="bytes",
            minimum=1024,
        ),
        Setting(
            "request.read.timeout.ms",
            "int",
            30_000,
            "A request that has begun to arrive must be complete after this time, plus one second per 64 KiB received; "
            "else its connection is closed.",
            unit="ms",
            minimum=10,
        ),
        Setting(
            "connections.max.idle.ms",
            "long",
            600_000,
            "A connection over which nothing came or went for this long is closed; -1 keeps it open.",
            unit="ms",
            minimum=-1,
        ),
        Setting(
            "max.connections",
            "int",
            2**31 - 1,
            "Connections of clients that may be open; a further one is closed. The limit of open files may leave room "
            "for fewer. Connections at a listener that is for brokers alone are not counted.",
            minimum=1,
            dynamic=True,
        ),
        Setting(
            "max.connections.per.ip",
            "int",
            2**31 - 1,
            "Connections of clients from one address that may be open; a further one is closed. Those at a listener "
            "that is for brokers alone are not counted.",
            minimum=1,
            dynamic=True,
        ),
        Setting(
            "socket.listen.backlog.size",
            "int",
            128,
            "Connections that the kernel may hold before they are accepted.",
            minimum=1,
        ),
        Setting(
            "socket.send.buffer.bytes",
            "int",
            -1,
            "Kernel send buffer of a connection; -1 leaves it to the kernel.",
            unit="bytes",
            minimum=-1,
        ),
        Setting(
            "socket.receive.buffer.bytes",
            "int",
            -1,
            "Kernel receive buffer of a connection; -1 leaves it to the kernel.",
            unit="bytes",
            minimum=-1,
        ),
        # Requests
        Setting(
            "fetch.max.bytes",
            "int",
            55 * MEBIBYTE,
            "Most bytes of records that one fetch response carries (a single larger batch is still sent).",
            unit="bytes",
            minimum=1024,
        ),
        Setting(
            "max.decompressed.batch.bytes",
            "int",
            64 * MEBIBYTE,
            "Largest decompressed size of a batch; a larger one is refused with INVALID_RECORD.",
            unit="bytes",
            minimum=1024,
        ),
        Setting(
            "max.producer.ids.per.partition",
            "int",
            100_000,
            "How many idempotent producers a partition remembers the sequence numbers of. Above it the one that has "
            "been idle longest is forgotten, unless it has an open transaction. When it sends again it gets "
            "UNKNOWN_PRODUCER_ID, and its client starts over with a new epoch or id.",
            minimum=1,
            maximum=10_000_000,
            dynamic=True,
        ),
        Setting(
            "producer.id.expiration.ms",
            "int",
            86_400_000,
            "Sequence numbers of a producer that has been silent for this long are forgotten.",
            unit="ms",
            minimum=1,
            dynamic=True,
        ),
        # Topics
        Setting(
            "auto.create.topics.enable", "boolean", True, "Whether metadata requests create topics that do not exist."
        ),
        Setting("num.partitions", "int", 1, "Partitions of a new topic when the request names no number.", minimum=1),
        Setting(
            "default.replication.factor",
            "int",
            1,
            "Replicas of a new topic when the request names no number. With zookeeper.connect the default is 3 from "
            "the third broker on.",
            minimum=1,
            maximum=32767,
        ),
        Setting("delete.topic.enable", "boolean", True, "Whether topics may be deleted."),
        Setting(
            "max.partitions.per.request",
            "int",
            10_000,
            "Partitions that one CreateTopics, CreatePartitions or (auto-creation) Metadata request may add in total; "
            "a request for more is refused as a policy violation, and none is added.",
            minimum=1,
        ),
        Setting(
            "max.request.partition.size.limit",
            "int",
            2000,
            "Most partitions in one response to DescribeTopicPartitions; a client may ask for fewer, and for the rest "
            "with further requests.",
            minimum=1,
        ),
        # Log upkeep
        Setting(
            "num.recovery.threads.per.data.dir",
            "int",
            1,
            "Threads for each log directory that recover its logs after a crash; a change takes effect at the next "
            "start.",
            minimum=1,
            maximum=64,
            dynamic=True,
        ),
        Setting(
            "log.flush.offset.checkpoint.interval.ms",
            "int",
            60_000,
            "How often recovery points are written to disk.",
            unit="ms",
            minimum=10,
        ),
        Setting(
            "log.retention.check.interval.ms",
            "long",
            300_000,
            "How often logs are checked for segments that retention deletes.",
            unit="ms",
            minimum=1,
        ),
        Setting(
            "log.initial.task.delay.ms",
            "long",
            30_000,
            "How long after the start logs are checked for the first time.",
            unit="ms",
            minimum=0,
        ),
        # Compaction
        Setting("log.cleaner.enable", "boolean", True, "Whether logs with cleanup.policy compact are compacted."),
        Setting(
            "log.cleaner.threads",
            "int",
            1,
            "How many logs are compacted at a time, each by a separate process that ends when it has nothing to do.",
            minimum=0,
            maximum=64,
            dynamic=True,
        ),
        Setting(
            "log.cleaner.dedupe.buffer.size",
            "long",
            128 * MEBIBYTE,
            "Memory for the keys of the logs that are being compacted, 24 bytes a key; taken only while one is. A log "
            "with more keys is compacted in several rounds.",
            unit="bytes",
            minimum=MEBIBYTE,
            dynamic=True,
        ),
        Setting(
            "log.cleaner.io.max.bytes.per.second",
            "double",
            1.7976931348623157e308,
            "How much compaction may read and write in a second, all logs together.",
            unit="bytes per second",
            minimum=1,
            dynamic=True,
        ),
        Setting(
            "log.cleaner.backoff.ms",
            "long",
            15_000,
            "How long compaction waits before it looks again, when no log needed it.",
            unit="ms",
            minimum=0,
            dynamic=True,
        ),
        # Disks
        Setting(
            "log.dir.min.free.bytes",
            "long",
            -1,
            "Free bytes of a log directory's file system below which it takes no records (KAFKA_STORAGE_ERROR). Reads, "
            "checkpoints and the registry still work, and it takes records again without a restart. -1: 64 MiB or 1 % "
            "of the file system, whichever is smaller. 0: no threshold; records are refused when the disk is full.",
            unit="bytes",
            minimum=-1,
        ),
        Setting(
            "log.dir.reserve.bytes",
            "long",
            16 * MEBIBYTE,
            "Size of a reserve file in each log directory. It is released when the disk is full, to leave room for "
            "checkpoints, indexes and the registry's writes; never more than 5 % of the file system. 0: none.",
            unit="bytes",
            minimum=0,
        ),
        *TLS_SETTINGS,
        *SASL_SETTINGS,
        *CLUSTER_SETTINGS,
        *LEADER_SETTINGS,
        *GROUP_SETTINGS,
        *OFFSET_SETTINGS,
        *METRICS_SETTINGS,
        *QUOTA_SETTINGS,
        *AUTHORIZATION_SETTINGS,
        *BROKER_LOG_SETTINGS,
    ),
    instead={
        "process.roles": _NO_KRAFT,
        "controller.quorum.voters": _NO_KRAFT,
        "controller.quorum.bootstrap.servers": _NO_KRAFT,
        "controller.listener.names": _NO_KRAFT,
        "host.name": "listeners=PLAINTEXT://HOST:PORT has it",
        "port": "listeners=PLAINTEXT://HOST:PORT has it",
        "advertised.host.name": "advertised.listeners=PLAINTEXT://HOST:PORT has it",
        "advertised.port": "advertised.listeners=PLAINTEXT://HOST:PORT has it",
        **dict.fromkeys(sorted(JVM_ONLY_SETTINGS), _NO_JVM),
        "ssl.engine.factory.class": _NO_JVM,
        "client.quota.callback.class": "a Java class cannot run here; quotas are set with kafka-configs",
        "metric.reporters": "a Java class cannot run here; metrics.listener serves metrics",
    },
    # What a file for Apache Kafka often has and what changes nothing that its operator could want here.
    without_effect={
        "num.network.threads": _ONE_THREAD,
        "background.threads": _ONE_THREAD,
        "num.replica.fetchers": "a broker has one connection to each leader that it follows",
        "num.replica.alter.log.dirs.threads": "brokers move no logs between directories yet",
        "queued.max.requests": "queued.max.request.bytes bounds the memory of requests",
        "inter.broker.protocol.version": _ONE_FORMAT,
        "log.message.format.version": _ONE_FORMAT,
        "transaction.state.log.replication.factor": _NO_TRANSACTIONS,
        "transaction.state.log.min.isr": _NO_TRANSACTIONS,
        "transaction.state.log.num.partitions": _NO_TRANSACTIONS,
        "transaction.state.log.segment.bytes": _NO_TRANSACTIONS,
        "transaction.max.timeout.ms": _NO_TRANSACTIONS,
        "transactional.id.expiration.ms": _NO_TRANSACTIONS,
        "share.coordinator.state.topic.replication.factor": _NO_SHARE_GROUPS,
        "share.coordinator.state.topic.min.isr": _NO_SHARE_GROUPS,
        "sasl.mechanism.inter.broker.protocol": "brokers authenticate to each other by SCRAM-SHA-256 with the cluster "
        "secret",
        "zookeeper.sync.time.ms": "Kafka does not use it either",
        **QUOTAS_WITHOUT_EFFECT,
        "metrics.num.samples": _NO_SAMPLES,
        "metrics.sample.window.ms": _NO_SAMPLES,
    },
    prefix=OF_ONE_LISTENER,
)
