"""One task of a read: ranges of partitions in, Arrow record batches out. Runs in Spark's Python workers.

A thread fetches ahead (:class:`~spark_kafkalite.client.consume.range_fetcher.RangeFetcher`) while Spark takes what was
decoded before. Many log batches become one record batch of up to 64 k rows, because each costs a round through Spark.
Brokers that go away are waited for inside, up to ``kafkaConsumer.pollTimeoutMs`` without progress; then the task fails
and Spark repeats it.

Offsets of the range that are not in the log any more are data loss: an error that names the range, or, with
``failOnDataLoss=false``, a warning with the number of offsets skipped, and what is left of the range. Offsets that were
compacted away, markers of transactions and aborted records are no loss: the fetcher passes them. A topic that the
brokers have not known for ten seconds was deleted, which is a loss of all that is left of the range.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_kafkalite.client.arrow import TIMESTAMP_LIMIT_MS, RecordBatchMaker
from spark_kafkalite.client.config import ConsumerConfig
from spark_kafkalite.client.consume.passed_offsets import PassedOffsets
from spark_kafkalite.client.consume.range_fetcher import FetchedBatches, RangeFetcher, RangeNotInLog, columns_from
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.errors import CorruptMessage, InvalidRecord, KafkaliteError, LogTruncated, UnknownTopicOrPartition
from spark_kafkalite.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafkalite.spark.cluster_errors import refusal
from spark_kafkalite.spark.conditions import LOSS_COULD_NOT_READ, READ_FAILED, SparkConditionError, listed
from spark_kafkalite.spark.reading.data_loss import DataLoss, LossCause
from spark_kafkalite.spark.reading.offset_ranges import UNKNOWN_GRACE_S, OffsetRange
from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask
from spark_kafkalite.spark.watching.post_box import TaskFigures
from spark_kafkalite.spark.workers.connections import cluster_for, reading_config
from spark_kafkalite.spark.workers.task_report import milliseconds, report, task_place
from spark_kafkalite.spark.workers.worker_log import SOURCE, speak_of
from spark_kafkalite.spark.workers.worker_memory import settle_worker

_LOG = logging.getLogger("spark_kafkalite.spark")

# Of one record batch: beyond 64 k rows nothing gets faster, and bytes bound what a task holds of large values.
MAX_ROWS: Final = 65_536
MAX_BYTES: Final = 16 * 1024 * 1024
_READ_AHEAD: Final = 2
# A small range does not need a buffer of the full fetch size.
_SMALL_FETCH_BYTES: Final = 1024 * 1024
_SMALL_RANGE_OFFSETS: Final = 1_000


def read_task(plan: ReadPlan, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's ranges. Raises SparkConditionError for lost data and when nothing comes any more."""
    for _, batches in read_ranges(plan, task):
        yield from batches


def read_ranges(
    plan: ReadPlan,
    task: InputPartition,
    passed: PassedOffsets | None = None,
    beyond: dict[int, int] | None = None,
) -> Iterator[tuple[OffsetRange, Iterator[pa.RecordBatch]]]:
    """Yield each range of a task with its rows, which are to be taken before the next range is asked for.

    ``passed`` gets the counts of all that is decoded, see :mod:`~spark_kafkalite.client.consume.passed_offsets`.
    ``beyond`` gets the timestamps in ms, by offset, that microseconds cannot hold; these are null in the rows. Without
    it they are errors.
    """
    # Spark makes a partition of its own, without ranges, when there is nothing to read.
    if not isinstance(task, ReadTask) or not task.ranges:
        return
    speak_of(SOURCE, plan.subject)
    settle_worker()
    config = reading_config(plan.client, task.token)
    cluster = cluster_for(config.client, plan.client)
    tally = _Tally()
    for each in task.ranges:
        yield each, _read_range(plan, config, cluster, each, tally, passed, beyond)
    _report(plan, task, tally)


@dataclass(slots=True)
class _Tally:
    """What a task has read so far."""

    records: int = 0
    bytes: int = 0
    fetch_s: float = 0.0
    wait_s: float = 0.0

    def add(self, fetcher: RangeFetcher) -> None:
        self.bytes += fetcher.fetched_bytes
        self.fetch_s += fetcher.fetch_s
        self.wait_s += fetcher.wait_s


def _report(plan: ReadPlan, task: ReadTask, tally: _Tally) -> None:
    place, fetch_ms, wait_ms = task_place(), milliseconds(tally.fetch_s), milliseconds(tally.wait_s)
    text = (
        f"{tally.records} records of {tally.bytes} bytes read, {fetch_ms} ms in fetches, {wait_ms} ms waiting for "
        f"fetches: {listed(task.ranges)}"
    )
    report(
        TaskFigures(
            SOURCE, plan.subject, place.query_id, place.batch_id, f"{place.stage_id}.{place.partition_id}", 1,
            tally.records, tally.bytes, fetch_ms, wait_ms, text,
        ),
        plan.application,
    )  # fmt: skip


def _read_range(
    plan: ReadPlan,
    config: ConsumerConfig,
    cluster: ClusterClient,
    whole: OffsetRange,
    tally: _Tally,
    passed: PassedOffsets | None,
    beyond: dict[int, int] | None,
) -> Iterator[pa.RecordBatch]:
    tp = whole.topic_partition
    maker = RecordBatchMaker(
        plan.schema, tp.topic, tp.partition, (lambda found: _refuse(tp, found)) if beyond is None else beyond.update
    )
    with_headers = "headers" in plan.schema.names
    position, epoch = whole.start_offset, whole.start_epoch
    max_bytes = config.max_partition_fetch_bytes
    if whole.size < _SMALL_RANGE_OFFSETS:
        max_bytes = min(max_bytes, _SMALL_FETCH_BYTES)
    while position < whole.end_offset:
        lost: list[RangeNotInLog | LogTruncated] = []
        with RangeFetcher(
            cluster,
            tp,
            position,
            whole.end_offset,
            isolation=config.isolation,
            max_bytes=max_bytes,
            read_ahead=_READ_AHEAD,
            timeout_ms=plan.read_timeout_ms,
            check_crcs=config.check_crcs,
            unknown_timeout_ms=int(UNKNOWN_GRACE_S * 1000),
            start_epoch=epoch,
            passed=passed,
        ) as fetcher:
            pieces = _until_lost(fetcher, lost)
            try:
                for columns in columns_from(pieces, with_headers=with_headers, max_rows=MAX_ROWS, max_bytes=MAX_BYTES):
                    batch = maker.batch(columns)
                    tally.records += batch.num_rows
                    yield batch
            except SparkConditionError:
                raise
            except KafkaliteError as error:
                refused = refusal(error, plan.client, f"reading {whole}")
                if refused is not None:
                    raise refused from error
                advice = "check the brokers"
                if isinstance(error, (CorruptMessage, InvalidRecord)):
                    advice = (
                        "take the bytes unchecked with kafka.check.crcs=false, or read up to the batch, and from "
                        "behind it on with startingOffsets"
                    )
                raise SparkConditionError(
                    READ_FAILED, f"{whole}: {error}; when a repeat does not help, {advice}"
                ) from error
        tally.add(fetcher)
        if not lost:
            return
        # What is lost is reported once: from here on the log is taken as it is.
        position, epoch = _after_loss(plan, whole, lost[0]), NO_LEADER_EPOCH


def _refuse(tp: TopicPartition, found: list[tuple[int, int]]) -> NoReturn:
    offset, timestamp_ms = found[0]
    raise SparkConditionError(
        READ_FAILED,
        f"{tp}: the record at offset {offset} has the timestamp {timestamp_ms} ms, which no timestamp of Spark can be "
        f"(at most {TIMESTAMP_LIMIT_MS} ms); its producer may have given another unit, such as nanoseconds. Read "
        "milliseconds with .schema('..., timestamp BIGINT'), leave the column out of .schema(), or read up to the "
        "record, and from behind it on with startingOffsets",
    )


def _until_lost(fetcher: RangeFetcher, lost: list[RangeNotInLog | LogTruncated]) -> Iterator[FetchedBatches]:
    """Yield the pieces; a position that is not in the log ends them, so that the rows before it still go out."""
    try:
        yield from fetcher
    except (RangeNotInLog, LogTruncated) as error:
        lost.append(error)
    except UnknownTopicOrPartition:
        lost.append(RangeNotInLog(fetcher.topic_partition, fetcher.position, -1, -1))


def _after_loss(plan: ReadPlan, whole: OffsetRange, error: RangeNotInLog | LogTruncated) -> int:
    """Return where to go on after offsets that are gone, or raise. Source:
    KafkaDataConsumer.getEarliestAvailableOffset.
    """
    if isinstance(error, LogTruncated):
        return _after_truncation(plan, whole, error)
    if error.log_start_offset < 0 or error.log_end_offset <= error.offset or error.log_start_offset >= whole.end_offset:
        resume = whole.end_offset
    else:
        # At least the lost offset itself, which may be the log's start again by now: then it is simply read.
        resume = max(error.log_start_offset, error.offset)
    held = f"which holds [{error.log_start_offset}, {error.log_end_offset})"
    if error.log_start_offset < 0:
        held = "which the brokers do not know; was the topic deleted?"
    if error.log_start_offset < 0:
        cause = LossCause.DELETED
    else:
        cause = LossCause.END_WENT_BACK if error.offset > error.log_end_offset else LossCause.AGED_OUT
    loss = DataLoss(
        LOSS_COULD_NOT_READ,
        cause,
        f"{whole}: offset {error.offset} is not in the log, {held}; {resume - error.offset} offsets are skipped",
    )
    plan.losses.meet(loss)
    return resume


def _after_truncation(plan: ReadPlan, whole: OffsetRange, error: LogTruncated) -> int:
    """Return where to go on in a log that was cut below what was read, or raise. Rows that went out stay."""
    loss = DataLoss(
        LOSS_COULD_NOT_READ,
        LossCause.END_WENT_BACK,
        f"{whole}: the log was truncated to offset {error.divergent_offset} while it was read up to offset "
        f"{error.offset}; reading goes on there, and the {error.offset - error.divergent_offset} offsets in between "
        "are kept as they were read",
    )
    plan.losses.meet(loss)
    return error.offset
