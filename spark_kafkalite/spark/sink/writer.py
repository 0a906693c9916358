"""The sink: Arrow record batches from Spark's tasks into topics, at least once.

The plan-time half checks options and column types, so that a mistake is an error of the plan and not of a task. The
task half hands whole columns to a producer that the Python worker keeps, and returns its commit message only when every
record is acknowledged: what Spark believes written is in the log. The producer is idempotent, so its own retries make
no duplicates; a task that Spark repeats does (at-least-once), which :mod:`.stamps` makes visible when asked.

Columns, by exact name: ``value`` (required), ``topic`` (required unless the option is given, which wins), ``key``,
``headers``, ``partition``, and ``timestamp`` (timestamp, or long milliseconds); others are ignored, as in the JVM
connector. With ``kafkalite_origin``, or the option ``quarantineTopic``, records that are refused for themselves are
found: :mod:`.refused_records`. Nothing here can take back what was written: ``commit`` only reports, ``abort`` does
nothing.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_kafkalite.errors import (
    InvalidRecord,
    InvalidTimestamp,
    KafkaliteError,
    MessageTooLarge,
    RecordListTooLarge,
    SerializationError,
    UnknownTopicOrPartition,
)
from spark_kafkalite.redaction import ShownSettings
from spark_kafkalite.spark.cluster_errors import refusal
from spark_kafkalite.spark.conditions import (
    INVALID_SCHEMA,
    NULL_TOPIC,
    TOPIC_NOT_FOUND,
    WRITE_FAILED,
    SparkConditionError,
)
from spark_kafkalite.spark.options.options import WriterOptions
from spark_kafkalite.spark.pyspark_versions import DataSourceStreamArrowWriter
from spark_kafkalite.spark.sink.origin import ORIGIN, ORIGIN_TYPE
from spark_kafkalite.spark.tracebacks import without_frames
from spark_kafkalite.spark.watching.post_box import TaskFigures, post
from spark_kafkalite.spark.workers.connections import admin_settings, drop_producer, producer_for, writing_config
from spark_kafkalite.spark.workers.early_ack import EarlyAck
from spark_kafkalite.spark.workers.task_report import log_line, milliseconds, task_place
from spark_kafkalite.spark.workers.task_tokens import token_for_tasks
from spark_kafkalite.spark.workers.worker_log import SINK, speak_of
from spark_kafkalite.spark.workers.worker_memory import settle_worker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_kafkalite.client.produce.delivery import BatchDelivery
    from spark_kafkalite.client.produce.producer import Producer
    from spark_kafkalite.spark.sink.refused_records import CarefulSending
    from spark_kafkalite.spark.sink.stamps import HeaderStamps

_LOG = logging.getLogger("spark_kafkalite.spark")

# The types that a column may have, by Spark's short names, and what to do about another one.
_ALLOWED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "topic": (("string",), "cast it to string"),
    "key": (("binary", "string"), "cast it to binary or string"),
    "value": (("binary", "string"), "cast it to binary or string (to_json() makes a string of a struct)"),
    "partition": (("int",), "cast it to int"),
    "headers": (("array<struct<key:string,value:binary>>",), "build it as array<struct<key:string,value:binary>>"),
    "timestamp": (("timestamp", "bigint"), "cast it to timestamp, or to bigint milliseconds"),
    ORIGIN: ((ORIGIN_TYPE,), f"build it as {ORIGIN_TYPE}"),
}
# Deliveries that a task holds before it looks at the oldest: keeps the memory of handles bounded, and errors early.
_MAX_UNCHECKED: Final = 256
_ZERO: Final = pa.scalar(0, pa.int64())
# What the same records meet again.
_PERMANENT: Final = (InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge, SerializationError)
# Topics that this driver has been warned of: a stream writes to the same ones with every batch.
_TOLD_REPLACED: Final[set[str]] = set()


def check_schema(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Return the names of the columns that are written. Raises SparkConditionError for missing ones and wrong types."""
    types = {each.name: each.dataType.simpleString() for each in schema}
    if "value" not in types:
        raise SparkConditionError(
            INVALID_SCHEMA,
            f"column value=(missing): the data has {', '.join(types) or 'no column'}; add a column named value of type "
            "binary or string",
        )
    if topic is None and "topic" not in types:
        raise SparkConditionError(
            INVALID_SCHEMA,
            "column topic=(missing): the target is not set; set the option topic, or add a string column topic",
        )
    written = []
    for name, (allowed, advice) in _ALLOWED.items():
        if name not in types or (name == "topic" and topic is not None):
            continue
        if types[name] not in allowed:
            raise SparkConditionError(
                INVALID_SCHEMA, f"column {name}={types[name]}: must be {' or '.join(allowed)}; {advice}"
            )
        written.append(name)
    return tuple(written)


@dataclass(frozen=True)
class WrittenMessage(WriterCommitMessage):
    """What one task wrote. ``expired``: records per topic whose timestamps were already past the topic's retention;
    ``replaced``: topics that do not keep the timestamps of records; ``quarantined``: records per topic that refused
    them, which are in the quarantine topic and not among ``records``. ``figures`` are those of the task's log line."""

    records: int
    expired: Mapping[str, int] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    quarantined: Mapping[str, int] = field(default_factory=dict)
    figures: TaskFigures | None = None


class _Sink(EarlyAck):
    """What the batch and the streaming writer have in common; pickled to the tasks."""

    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        self._client: dict[str, str] = ShownSettings(options.client)
        self._topic = options.topic
        self._target = options.target
        self._columns = check_schema(schema, options.topic)
        self._quarantine_topic = options.quarantine_topic
        self._write_id = str(uuid.uuid4()) if options.stamp_headers else None
        # A writer is made for each write, and for each batch of a stream.
        self._token = token_for_tasks(writing_config(self._client).client, self._client, options.target)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows and return when all of them are acknowledged; runs in a Python worker.

        Raises SparkConditionError for a null topic and for anything that the brokers refuse.
        """
        speak_of(SINK, self._target)
        settle_worker()
        producer = producer_for(self._client, self._token)
        expiry = _Expiry(self._client) if "timestamp" in self._columns else None
        stamps = None if self._write_id is None else _stamps_of_task(self._write_id)
        sending = self._sending(producer)
        records, send_s, bytes_before = 0, 0.0, _sent_bytes(producer)
        try:
            for batch in iterator:
                if not batch.num_rows:
                    continue
                began_s = time.monotonic()
                self._send(sending, batch, expiry, stamps)
                send_s += time.monotonic() - began_s
                records += batch.num_rows
            began_s = time.monotonic()
            sending.finish()
            wait_s = time.monotonic() - began_s
        except SparkConditionError:
            # Of a record, not of the producer: what is on its way besides gets where it should.
            raise
        except KafkaliteError as error:
            # Its sequence numbers are in doubt; Spark repeats the task with a new one.
            drop_producer(self._client)
            raise self._explained(error) from error
        records -= sum(sending.quarantined.values())
        figures = self._figures(records, _sent_bytes(producer) - bytes_before, send_s, wait_s)
        # Its figures go with the commit, which only this host's tasks could post.
        log_line(figures.text)
        if expiry is None:
            return WrittenMessage(records, quarantined=sending.quarantined, figures=figures)
        return WrittenMessage(records, expiry.counts, expiry.replaced, sending.quarantined, figures)

    def _figures(self, records: int, size_bytes: int, send_s: float, wait_s: float) -> TaskFigures:
        place, send_ms, wait_ms = task_place(), milliseconds(send_s), milliseconds(wait_s)
        return TaskFigures(
            SINK, self._target, place.query_id, place.batch_id, str(place.stage_id), 1, records, size_bytes, send_ms,
            wait_ms, f"{_written(records, size_bytes, send_ms, wait_ms)}, by partition {place.partition_id}",
        )  # fmt: skip

    @property
    def _is_careful(self) -> bool:
        return self._quarantine_topic is not None or ORIGIN in self._columns

    def _sending(self, producer: Producer) -> _Sending | CarefulSending:
        if not self._is_careful:
            return _Sending(producer)
        # Loaded by tasks that look for refused records alone.
        from spark_kafkalite.spark.sink.refused_records import CarefulSending

        return CarefulSending(producer, [name for name in self._columns if name != ORIGIN], self._quarantine_topic)

    def _send(
        self,
        sending: _Sending | CarefulSending,
        batch: pa.RecordBatch,
        expiry: _Expiry | None,
        stamps: HeaderStamps | None,
    ) -> None:
        batch = batch.select(list(self._columns))
        if stamps is not None:
            batch = stamps.stamp(batch)
        if self._topic is not None:
            groups = [(self._topic, batch)]
        else:
            groups = list(_by_topic(batch))
        for topic, rows in groups:
            if expiry is not None:
                expiry.count(topic, rows.column("timestamp"))
            sending.send(topic, rows)

    def _explained(self, error: KafkaliteError) -> SparkConditionError:
        where = self._target
        refused = refusal(error, self._client, where)
        if refused is not None:
            return refused
        if isinstance(error, UnknownTopicOrPartition):
            advice = "create the topic, or correct its name"
            if "partition" in self._columns:
                advice = (
                    "correct the column partition, or leave it out to have keys decide; a missing topic must be created"
                )
            return SparkConditionError(TOPIC_NOT_FOUND, f"{where}: {error}; {advice}")
        advice = "; what was acknowledged before is written"
        if not isinstance(error, _PERMANENT):
            advice += ": run it again (at-least-once)"
        return SparkConditionError(WRITE_FAILED, f"{where}: {error}{advice}")

    def _report(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report the figures of all tasks, and warn on the driver of timestamps that are not kept, and of records that
        retention will delete at once."""
        speak_of(SINK, self._target)
        _report_figures([each.figures for each in messages if isinstance(each, WrittenMessage) and each.figures])
        expired: Counter[str] = Counter()
        replaced: set[str] = set()
        quarantined: Counter[str] = Counter()
        for message in messages:
            if isinstance(message, WrittenMessage):
                replaced |= message.replaced
                expired.update(message.expired)
                quarantined.update(message.quarantined)
        for topic, count in sorted(quarantined.items()):
            _LOG.warning(
                "%d records that topic %s refused are in topic %s; the reasons are in their headers "
                "kafkalite-quarantine-message",
                count,
                topic,
                self._quarantine_topic,
            )
        for topic in sorted(replaced - _TOLD_REPLACED):
            _TOLD_REPLACED.add(topic)
            _LOG.warning(
                "the column timestamp has no effect on topic %s: it has message.timestamp.type=LogAppendTime, so the "
                "broker writes its own time into each record; leave the column out, or set CreateTime",
                topic,
            )
        if expired:
            # For the question about retention, which this process asks only now.
            writing_config(self._client, self._token)
        for topic, count in sorted(expired.items()):
            _LOG.warning(
                "%d records written to topic %s have timestamps already past its retention.ms=%d: the broker may "
                "delete them at any time; raise retention.ms (-1 keeps everything), or write newer timestamps",
                count,
                topic,
                timestamp_rules(self._client, topic).retention_ms,
            )


class _Sending:
    """Sends a task's rows, of which none may fail."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._unchecked: list[BatchDelivery] = []
        self.quarantined: dict[str, int] = {}

    def send(self, topic: str, rows: pa.RecordBatch) -> None:
        """Send rows to a topic. Raises KafkaliteError for some that failed before."""
        self._unchecked.append(self._producer.send_batch(topic, rows))
        while len(self._unchecked) > _MAX_UNCHECKED:
            self._unchecked.pop(0).result()

    def finish(self) -> None:
        """Wait until all is acknowledged. Raises KafkaliteError for what failed."""
        self._producer.flush()
        for delivery in self._unchecked:
            delivery.result()


@without_frames
class KafkaliteBatchWriter(_Sink, DataSourceArrowWriter):
    """What Spark asks of ``df.write``."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is written already; warn where that was in vain."""
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back: some of the rows may be in the topic."""
        _warn_aborted(self._target, messages)


@without_frames
class KafkaliteStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """What Spark asks of ``df.writeStream``; a new one for each batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Everything is written already; warn where that was in vain."""
        self._report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be taken back: the batch is repeated when the query starts again."""
        _warn_aborted(self._target, messages)


def _sent_bytes(producer: Producer) -> int:
    """Return the bytes of the record batches that the producer has sent; each time that it sent one counts."""
    prefix = "producer-topic-metrics."
    return sum(int(each["byte-total"]) for group, each in producer.metrics().items() if group.startswith(prefix))


def _written(records: int, size_bytes: int, send_ms: int, wait_ms: int) -> str:
    return (
        f"{records} records of {size_bytes} bytes written, {send_ms} ms to encode and send, {wait_ms} ms waiting for "
        "acknowledgements"
    )


def _report_figures(tasks: list[TaskFigures]) -> None:
    if not tasks:
        return
    records, size_bytes, send_ms, wait_ms = map(
        sum, zip(*((each.records, each.bytes, each.busy_ms, each.wait_ms) for each in tasks), strict=True)
    )
    text = f"{_written(records, size_bytes, send_ms, wait_ms)}, by {len(tasks)} tasks"
    post(
        tasks[0]._replace(
            tasks=len(tasks), records=records, bytes=size_bytes, busy_ms=send_ms, wait_ms=wait_ms, text=text
        )
    )


def _warn_aborted(target: str, messages: list[WriterCommitMessage | None]) -> None:
    speak_of(SINK, target)
    written = sum(message.records for message in messages if isinstance(message, WrittenMessage))
    _LOG.warning("the write failed; at least %d of its records are in the topic and stay there", written)


def _stamps_of_task(write_id: str) -> HeaderStamps:
    # Loaded by tasks that stamp alone.
    from spark_kafkalite.spark.sink.stamps import HeaderStamps

    return HeaderStamps.of_task(write_id)


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic. Raises SparkConditionError for a null topic, before anything is sent."""
    topics = batch.column("topic")
    if topics.null_count:
        raise SparkConditionError(
            NULL_TOPIC,
            f"column topic=null: {topics.null_count} of {len(topics)} rows have no topic; fill the column, or set the "
            "option topic",
        )
    names = pc.unique(topics).to_pylist()
    columns = batch.select([name for name in batch.schema.names if name != "topic"])
    if len(names) == 1:
        yield names[0], columns
        return
    for name in names:
        yield name, columns.filter(pc.equal(topics, pa.scalar(name, topics.type)))


class _Expiry:
    """Counts rows that are past their topic's retention when they are written, and notes topics that replace times."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = client
        self.counts: dict[str, int] = {}
        self.replaced: frozenset[str] = frozenset()

    def count(self, topic: str, timestamps: Any) -> None:
        rules = timestamp_rules(self._client, topic)
        if rules.is_replaced:
            self.replaced |= {topic}
        if rules.is_replaced or rules.retention_ms < 0:
            return
        oldest_ms = int(time.time() * 1000) - rules.retention_ms
        is_long = pa.types.is_integer(timestamps.type)
        cutoff = pa.scalar(oldest_ms if is_long else oldest_ms * 1000, pa.int64())
        numbers = timestamps if is_long else timestamps.view(pa.int64())
        # A record without a timestamp (-1) is as old as the file that it lies in.
        late = pc.sum(pc.and_(pc.less(numbers, cutoff), pc.greater_equal(numbers, _ZERO))).as_py()
        if late:
            self.counts[topic] = self.counts.get(topic, 0) + late


# The settings of a topic for timestamps, as the cluster reports them: for warnings, never for decisions. A process
# asks once a minute for a topic. A cluster that does not answer, or refuses, counts as one that keeps all records.


_LOG = logging.getLogger("spark_kafkalite.spark")
_VALID_S: Final = 60.0
# A warning is not worth a long wait.
_TIMEOUT_MS: Final = 5_000


class TimestampRules(NamedTuple):
    """``retention_ms`` is -1 if the topic keeps everything, is compacted only, or is not known. ``is_replaced``: the
    broker writes its own time into records (``message.timestamp.type=LogAppendTime``)."""

    retention_ms: int = -1
    is_replaced: bool = False


_KNOWN: dict[tuple[str, str], tuple[float, TimestampRules]] = {}


def timestamp_rules(client: Mapping[str, str], topic: str) -> TimestampRules:
    """Return what the topic does with the timestamps of records."""
    key = (client.get("bootstrap.servers", ""), topic)
    known = _KNOWN.get(key)
    if known is None or time.monotonic() - known[0] > _VALID_S:
        known = _KNOWN[key] = (time.monotonic(), _asked(client, topic))
    return known[1]


def _asked(client: Mapping[str, str], topic: str) -> TimestampRules:
    # Imported by every Python worker of Spark, which seldom asks.
    from spark_kafkalite.client.admin.admin import Admin

    try:
        with Admin(admin_settings(client)) as admin:
            entries = admin.describe_configs(topic=topic, timeout_ms=_TIMEOUT_MS)
    except KafkaliteError as error:
        _LOG.debug("cannot ask for the retention of topic %s: %s", topic, error)
        return TimestampRules()
    configs = {name: entry.value for name, entry in entries.items()}
    is_replaced = configs.get("message.timestamp.type") == "LogAppendTime"
    if "delete" not in (configs.get("cleanup.policy") or "delete"):
        return TimestampRules(is_replaced=is_replaced)
    return TimestampRules(int(configs.get("retention.ms") or -1), is_replaced)
