"""The options of format("kafkalite"), declared: names, kinds, defaults, bounds, and the texts of the documentation.

Names, defaults and meaning are those of Spark's JVM connector where it has the option.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.settings import Setting, SettingGroup
from spark_kafkalite.spark.options.commit_options import COMMIT_SETTINGS
from spark_kafkalite.spark.reading.data_loss import LossCause

UNREACHABLE_TIMEOUT: Final = "brokersUnreachableTimeout"
# What Kafka's clients take as a time: almost 25 days.
LONGEST_TIMEOUT_MS: Final = 2**31 - 1
TOKEN_FILE: Final = "sasl.token.file"
TOKEN_FILE_OPTION: Final = Setting(
    "tokenFile",
    "string",
    None,
    "File that holds a delegation token (TOKENID:HMAC) or, with OAUTHBEARER, a JWT; read again before each connection. "
    "The same as kafka.sasl.token.file. It must be there on the driver; an executor without it takes the file of that "
    "name that --files shipped.",
)

_LOSS_CAUSES: Final = {
    LossCause.AGED_OUT: "retention or a deletion of records was faster than the read",
    LossCause.RECREATED: "a topic was deleted and created again",
    LossCause.DELETED: "a topic was deleted",
    LossCause.PARTITION_GONE: "partitions of a topic are gone",
    LossCause.UNSUBSCRIBED: "a stream's checkpoint has topics or partitions that subscribe, subscribePattern or assign "
    "does not name; where it names none of them, failOnDataLoss=false fails, too",
    LossCause.END_WENT_BACK: "a log ends below what was read from it, as after an unclean election",
}

READER_OPTIONS: Final = SettingGroup(
    "Spark source",
    (
        Setting("subscribe", "list", None, "Topics to read, with commas. One of subscribe, subscribePattern, assign."),
        Setting("subscribePattern", "string", None, "Regular expression; a topic is read when it matches anywhere."),
        Setting("assign", "string", None, 'Partitions to read, as JSON: {"topic":[0,1]}.'),
        Setting(
            "startingOffsets",
            "string",
            None,
            "earliest, latest, last:N (the last N offsets of each partition), committed (what the group groupId has "
            'committed), or JSON by topic and partition, {"a":{"0":23,"*":-2},"b":"latest","*":"last:1000"}, in which '
            "-2 is earliest and -1 latest. Default: latest for a stream, earliest for a batch. A stream with a "
            "checkpoint goes on from there instead.",
        ),
        Setting("endingOffsets", "string", None, "Batch only: latest (default), or JSON, exclusive."),
        Setting(
            "startingTimestamp",
            "string",
            None,
            "Start at the first record at or after this time: ms since 1970, ISO 8601 (UTC without a zone), or how "
            "long before the read begins, such as -10m.",
        ),
        Setting("endingTimestamp", "string", None, "Batch only: end before the first record at or after this time."),
        Setting(
            "startingOffsetsByTimestamp",
            "string",
            None,
            'Like startingTimestamp, as JSON by topic and partition: {"a":{"0":1767225600000,"*":"-1h"},"b":"-10m"}.',
        ),
        Setting("endingOffsetsByTimestamp", "string", None, "Batch only: like endingTimestamp, as such JSON."),
        Setting(
            "startingOffsetsByTimestampStrategy",
            "string",
            "error",
            "What to do when a starting time is later than every record of a partition.",
            choices=("error", "latest"),
        ),
        Setting(
            "failOnDataLoss",
            "boolean",
            True,
            "Fail when records that should be read are lost, their topic was deleted, or a start is outside the log; "
            "with false, warn, skip them, and start at the nearest end.",
        ),
        *(
            Setting(cause.option, "string", None, f"failOnDataLoss for one cause: {what}.", choices=("fail", "warn"))
            for cause, what in _LOSS_CAUSES.items()
        ),
        Setting(
            "newPartitionStart",
            "string",
            "earliest",
            "Streams: where partitions that come while the query exists are begun: earliest, latest, or a time as in "
            "startingTimestamp.",
        ),
        Setting(
            "missingTopic",
            "string",
            "fail",
            "What to do when a read begins and a topic that it names is not there: fail, wait until it is, or ignore "
            "it (a stream reads it once it exists).",
            choices=("fail", "wait", "ignore"),
        ),
        Setting("maxOffsetsPerTrigger", "long", None, "Streams: at most about this many offsets a batch.", minimum=1),
        Setting(
            "maxBytesPerTrigger",
            "string",
            None,
            "Streams: at most about this many bytes of the log a batch, such as 512m; with maxOffsetsPerTrigger, what "
            "is reached first.",
        ),
        Setting("minOffsetsPerTrigger", "long", None, "Streams: wait for this many offsets.", minimum=1),
        Setting(
            "availableNow",
            "boolean",
            False,
            "Streams: read no further than the ends of the logs when the query begins, as with Trigger.AvailableNow, "
            "under whatever trigger. For PySpark 4.0 and 4.1, see spark.md.",
        ),
        Setting("maxTriggerDelay", "string", "15m", "Streams: wait no longer than this for minOffsetsPerTrigger."),
        Setting("minPartitions", "int", None, "At least about this many Spark partitions.", minimum=1),
        Setting("maxRecordsPerPartition", "long", None, "Most offsets in one Spark partition.", minimum=1),
        Setting(
            "maxBytesPerPartition",
            "string",
            None,
            "Most bytes of the log in one Spark partition, about; such as 128m.",
        ),
        Setting("includeHeaders", "boolean", False, "Add the column headers."),
        Setting(
            "fetchOffset.numRetries",
            "int",
            3,
            "While no broker answers, the driver tries for this many times kafka.default.api.timeout.ms. It looks up "
            "a log end that is lower than before again, this many times.",
            minimum=1,
        ),
        Setting("fetchOffset.retryIntervalMs", "long", 1_000, "Pause between two attempts.", "ms", 0),
        Setting(
            "kafkaConsumer.pollTimeoutMs", "long", 120_000, "A task that gets no record for this long fails.", "ms", 1
        ),
        Setting(
            UNREACHABLE_TIMEOUT,
            "string",
            None,
            "How long a query goes on trying while no broker answers, such as 10m; then it ends. Of a task it is the "
            "default of kafkaConsumer.pollTimeoutMs. Default: fetchOffset.numRetries times "
            "kafka.default.api.timeout.ms, which is 3m.",
        ),
        *COMMIT_SETTINGS,
        Setting(
            "checkpointLocation",
            "string",
            None,
            "Streams: the checkpointLocation of the query's writeStream, a directory of the driver's host. The source "
            "keeps the ids of the topics there. After install_listener it is not needed.",
        ),
        TOKEN_FILE_OPTION,
    ),
)

WRITER_OPTIONS: Final = SettingGroup(
    "Spark sink",
    (
        Setting("topic", "string", None, "Topic to write to; overrides a column topic."),
        Setting(
            UNREACHABLE_TIMEOUT,
            "string",
            None,
            "How long a write goes on trying while no broker answers, such as 10m; then it fails. The same as "
            "kafka.max.block.ms, and kafka.delivery.timeout.ms where that is longer. Default: their values.",
        ),
        Setting(
            "stampHeaders",
            "boolean",
            False,
            "Add the headers kafkalite-query, -batch, -partition and -row, which mark records that a repeated batch "
            "wrote again; see spark.md.",
        ),
        Setting(
            "quarantineTopic",
            "string",
            None,
            "Topic for records that their topic refuses for themselves, with headers that name the reason; without it "
            "the write fails. See spark.md.",
        ),
        TOKEN_FILE_OPTION,
    ),
)
