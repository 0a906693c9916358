"""Rejected records: which record the broker rejected, and the topic that takes it instead.

The broker rejects a record that is too large, whose timestamp is outside the topic's bounds, or that lacks a key in a
compacted topic. It rejects such a record each time. A task either stops at the first one and names it, or writes it to
the quarantine topic and continues. It writes the other records of the batch once and in their order.

The column ``kafkalite_origin`` has topic, partition and offset of where a record was read. Without it, only the topic
that refused the record is named. In the quarantine topic a record has its key, its value, its headers, and behind these
the headers below, as UTF-8 text. Its timestamp is the time at which the task put it there, because its own may be
the reason.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_kafkalite.client.produce.delivery import RefusedRecord
from spark_kafkalite.errors import MessageTooLarge
from spark_kafkalite.spark.conditions import WRITE_FAILED, SparkConditionError
from spark_kafkalite.spark.sink.origin import ORIGIN
from spark_kafkalite.spark.sink.stamps import with_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafkalite.client.produce.delivery import BatchDelivery
    from spark_kafkalite.client.produce.producer import Producer

# Where the record was read: null without the column.
TOPIC_HEADER: Final = "kafkalite-quarantine-topic"
PARTITION_HEADER: Final = "kafkalite-quarantine-partition"
OFFSET_HEADER: Final = "kafkalite-quarantine-offset"
# Its own timestamp, milliseconds since the epoch: null without one.
TIMESTAMP_HEADER: Final = "kafkalite-quarantine-timestamp"
# The topic that refused it, Kafka's name of the error, and the broker's words.
TARGET_HEADER: Final = "kafkalite-quarantine-target"
ERROR_HEADER: Final = "kafkalite-quarantine-error"
MESSAGE_HEADER: Final = "kafkalite-quarantine-message"

# What a task holds of rows that have no outcome yet, at least one batch.
_MAX_HELD_BYTES: Final = 32 * 1024 * 1024
_MAX_HELD: Final = 256
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class _RowsSent:
    topic: str
    rows: pa.RecordBatch
    delivery: BatchDelivery


class CarefulSending:
    """Sends a task's rows, and finds those that are refused for themselves.

    ``columns`` are written; the rows may have the column of the origin besides. ``quarantine_topic`` None stops the
    task at the first record that is refused. ``quarantined`` counts, by the topic that refused them.
    """

    def __init__(self, producer: Producer, columns: Sequence[str], quarantine_topic: str | None) -> None:
        self._producer = producer
        self._columns = columns
        self._quarantine_topic = quarantine_topic
        self._sent: deque[_RowsSent] = deque()
        self._held_bytes = 0
        self._in_quarantine: deque[_RowsSent] = deque()
        self.quarantined: dict[str, int] = {}

    def send(self, topic: str, rows: pa.RecordBatch) -> None:
        """Send rows to a topic. Raises SparkConditionError for a record that is refused and has no other place."""
        written = rows.select([name for name in rows.schema.names if name in self._columns])
        try:
            delivery = self._producer.send_batch(topic, written, isolate_refused=True)
        except MessageTooLarge as error:
            if error.row < 0:
                raise
            raise SparkConditionError(
                WRITE_FAILED, f"topic={topic}: {_named(rows, error.row)} cannot be sent: {error}"
            ) from error
        self._sent.append(_RowsSent(topic, rows, delivery))
        self._held_bytes += rows.nbytes
        while len(self._sent) > 1 and (len(self._sent) > _MAX_HELD or self._held_bytes > _MAX_HELD_BYTES):
            self._settle_oldest()

    def finish(self) -> None:
        """Wait until all has its outcome. Raises as :meth:`send` does."""
        while self._sent:
            self._settle_oldest()
        while self._in_quarantine:
            self._settle_quarantined()

    def _settle_oldest(self) -> None:
        sent = self._sent[0]
        refused: list[RefusedRecord] = []
        for each in sent.delivery.refused():
            if self._quarantine_topic is None:
                advice = (
                    "change the topic's settings, or have such records written to a topic of their own "
                    "(--quarantine-topic of a job, quarantineTopic of the sink)"
                )
                raise SparkConditionError(
                    WRITE_FAILED,
                    f"topic={sent.topic}: {_named(sent.rows, each.row)} is rejected: {each.error}; {advice}",
                ) from each.error
            refused.append(each)
        if refused:
            self._quarantine(sent, refused)
        self._sent.popleft()
        self._held_bytes -= sent.rows.nbytes

    def _quarantine(self, sent: _RowsSent, refused: list[RefusedRecord]) -> None:
        assert self._quarantine_topic is not None
        rows = sent.rows.take(pa.array([each.row for each in refused], pa.int64()))
        kept = rows.select([name for name in ("key", "value", "headers") if name in rows.schema.names])
        stamped = with_headers(kept, _headers(sent.topic, rows, refused))
        delivery = self._producer.send_batch(self._quarantine_topic, stamped, isolate_refused=True)
        self._in_quarantine.append(_RowsSent(sent.topic, rows, delivery))
        self.quarantined[sent.topic] = self.quarantined.get(sent.topic, 0) + len(refused)
        while len(self._in_quarantine) > _MAX_HELD:
            self._settle_quarantined()

    def _settle_quarantined(self) -> None:
        sent = self._in_quarantine.popleft()
        for each in sent.delivery.refused():
            raise SparkConditionError(
                WRITE_FAILED,
                f"quarantineTopic={self._quarantine_topic}: it refuses {_named(sent.rows, each.row)}, too, which topic "
                f"{sent.topic} has refused: {each.error}; change the settings of {self._quarantine_topic} so that "
                "it takes every record",
            ) from each.error


def _named(rows: pa.RecordBatch, row: int) -> str:
    """Return the words for one record: where it was read, if that is known."""
    index = rows.schema.get_field_index(ORIGIN)
    if index < 0:
        return "a record"
    origin = rows.column(index)[row].as_py() or {}
    return f"the record at offset {origin.get('offset')} of {origin.get('topic')}-{origin.get('partition')}"


def _headers(topic: str, rows: pa.RecordBatch, refused: list[RefusedRecord]) -> dict[str, pa.Array]:
    """Return what the quarantine topic has of each row besides the record, a value for each row."""
    index = rows.schema.get_field_index(ORIGIN)
    found: list[dict[str, object] | None] = [None] * rows.num_rows if index < 0 else rows.column(index).to_pylist()
    origins = [each or {} for each in found]
    texts: dict[str, list[object]] = {
        TOPIC_HEADER: [each.get("topic") for each in origins],
        PARTITION_HEADER: [each.get("partition") for each in origins],
        OFFSET_HEADER: [each.get("offset") for each in origins],
        TIMESTAMP_HEADER: _milliseconds(rows),
        TARGET_HEADER: [topic] * rows.num_rows,
        ERROR_HEADER: [each.error_name for each in refused],
        MESSAGE_HEADER: [str(each.error) for each in refused],
    }
    return {
        name: pa.array([None if text is None else str(text).encode() for text in column], pa.binary())
        for name, column in texts.items()
    }


def _milliseconds(rows: pa.RecordBatch) -> list[object]:
    index = rows.schema.get_field_index("timestamp")
    if index < 0:
        return [None] * rows.num_rows
    times = rows.column(index)
    if pa.types.is_integer(times.type):
        return list(times.to_pylist())
    # Not as objects, which have no place for years beyond 9999.
    microseconds = times.cast(_MICROSECONDS).view(pa.int64()).to_pylist()
    return [None if each is None else each // 1000 for each in microseconds]
