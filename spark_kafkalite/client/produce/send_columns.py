"""Encodes many records at once into batches: from Arrow columns, or from Python values and mappings.

Rows are given partitions column by column (the kernel hashes keys and groups rows), and the kernel copies keys and
values into batches. Nothing here runs once per row, except what only Python can do: a user's partitioner function, and
taking apart Python objects. Rows without key go to the sticky partition, which changes with every batch, or round robin
or at random: the producer's ``partitioner`` decides.

A batch may take up to ``max.request.size``; one that its topic finds too large is split by the sender.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.client.arrow import column_or_none, columns_of
from spark_kafkalite.client.config import ProducerConfig
from spark_kafkalite.client.produce.accumulator import PartitionQueue
from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.client.produce.partitioner import TopicPartitioner
from spark_kafkalite.errors import ConfigError, MessageTooLarge, SerializationError, UnknownTopicOrPartition
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.builder import build_batches
from spark_kafkalite.records.columns import columns_from_rows
from spark_kafkalite.records.compression import CODECS
from spark_kafkalite.records.kernel import Columns, group_rows, partition_by_key

Sendable = Iterable["bytes | None"] | Iterable[Mapping[str, Any]]

# Rows that are taken from an iterable before they are encoded.
_ROWS_AT_ONCE = 65_536
_MAX_PARTITION = 2**31 - 1
# With their type, which Arrow would else guess at each use, looking for a module on the disk.
_ZERO = pa.scalar(0, pa.int32())
_NO_PARTITION = pa.scalar(-1, pa.int32())
_FIELDS = frozenset({"key", "value", "headers", "partition", "timestamp", "topic"})

Encoded = tuple[PartitionQueue, ProducerBatch]


class Topics(Protocol):
    """What the encoder asks of its producer."""

    config: ProducerConfig

    def topic_state(self, topic: str, partition: int = 0) -> tuple[TopicPartitioner, list[PartitionQueue]]:
        """Return the partitioner and the queues of a topic; ask the cluster again when this partition is not known."""

    def next_sticky(self, partitioner: TopicPartitioner) -> int:
        """Return the partition that the next batch of records without key goes to, and move on from it."""

    def now_ms(self) -> int:
        """The timestamp of records that bring none."""


def check_rows_are_counted(topic: str | None, records: Any) -> None:
    """Raise ConfigError unless all records come with one count of their rows, by which a rejected one is named."""
    if topic is None or not isinstance(records, pa.RecordBatch):
        given = f"{type(records).__name__}{'' if topic is not None else ' without a topic'}"
        raise ConfigError(
            "send_batch: isolate_refused counts rows within one Arrow record batch for one topic, and was given "
            f"{given}; call it with topic=NAME for each pyarrow.RecordBatch"
        )


def encode_records(producer: Topics, topic: str | None, records: Any) -> Iterator[Encoded]:
    """Yield encoded batches with their queues, in the order in which they must be sent.

    Raises SerializationError for a missing or ill-typed column, ConfigError without any topic.
    """
    if isinstance(records, pa.RecordBatch):
        yield from _encode_arrow(producer, topic, records)
    elif isinstance(records, pa.Table):
        for batch in records.to_batches():
            yield from _encode_arrow(producer, topic, batch)
    elif isinstance(records, (bytes, str, bytearray, memoryview, Mapping)):
        raise SerializationError(f"send_batch takes many records, not one {type(records).__name__}: use send()")
    else:
        rows = iter(records)
        while chunk := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            yield from _encode_rows(producer, topic, chunk)


# Arrow
# ------------------------------------------------------------------------------------------------------------------


def _encode_arrow(producer: Topics, topic: str | None, batch: pa.RecordBatch) -> Iterator[Encoded]:
    if batch.schema.get_field_index("value") < 0:
        raise SerializationError(f"there is no column 'value' among {', '.join(batch.schema.names) or 'no columns'}")
    if topic is not None:
        yield from _encode_topic(producer, topic, batch)
        return
    topics = column_or_none(batch, "topic")
    if topics is None:
        raise ConfigError("send_batch: give a topic, or a column 'topic'")
    if topics.null_count:
        raise ConfigError(f"send_batch: {topics.null_count} rows have no topic: the column 'topic' is null")
    for name in pc.unique(topics).to_pylist():
        part = batch.filter(pc.equal(topics, pa.scalar(name, topics.type))) if len(batch) else batch
        yield from _encode_topic(producer, name, part)


def _encode_topic(producer: Topics, topic: str, batch: pa.RecordBatch) -> Iterator[Encoded]:
    partitions = column_or_none(batch, "partition")
    explicit: array[int] | None = None
    if partitions is not None and partitions.null_count < len(partitions):
        if not pa.types.is_integer(partitions.type):
            raise SerializationError(f"column 'partition' has type {partitions.type}: it must be int")
        most = pc.max(partitions).as_py()
        if most > _MAX_PARTITION:
            raise UnknownTopicOrPartition(f"column 'partition' holds {most}: it must be at most {_MAX_PARTITION}")
        if pc.min(partitions).as_py() < 0:
            raise UnknownTopicOrPartition(
                f"column 'partition' holds {pc.min(partitions).as_py()}: it must be at least 0"
            )
        plain = pc.fill_null(partitions.cast(pa.int32()), _NO_PARTITION)
        explicit = array("i")
        explicit.frombytes(memoryview(plain.buffers()[1])[plain.offset * 4 : (plain.offset + len(plain)) * 4])
    yield from _encode_columns(producer, topic, columns_of(batch, producer.now_ms()), explicit)


# Python objects
# ---------------------------------------------------------------------------------------------------------


def _encode_rows(producer: Topics, topic: str | None, rows: Sequence[Any]) -> Iterator[Encoded]:
    if not any(isinstance(row, Mapping) for row in rows):
        if topic is None:
            raise ConfigError("send_batch: give a topic, or a 'topic' in each record")
        yield from _encode_columns(producer, topic, columns_from_rows(rows), None)
        return
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        fields = row if isinstance(row, Mapping) else {"value": row}
        unknown = fields.keys() - _FIELDS
        if unknown or "value" not in fields:
            raise SerializationError(
                f"send_batch: a record has {', '.join(map(repr, fields)) or 'nothing'}: it must have 'value' and may "
                f"have {', '.join(sorted(_FIELDS - {'value'}))}"
            )
        name = topic if topic is not None else fields.get("topic")
        if name is None:
            raise ConfigError("send_batch: give a topic, or a 'topic' in each record")
        by_topic.setdefault(name, []).append(fields)
    for name, fields_list in by_topic.items():
        times = _column(fields_list, "timestamp")
        now_ms = producer.now_ms()
        columns = columns_from_rows(
            [fields["value"] for fields in fields_list],
            _column(fields_list, "key"),
            None if times is None else [now_ms if time is None else time for time in times],
            _column(fields_list, "headers"),
        )
        numbers = _column(fields_list, "partition")
        for number in numbers or ():
            if number is not None and not 0 <= number <= _MAX_PARTITION:
                raise UnknownTopicOrPartition(
                    f"topic {name}: a record names partition {number}: it must be 0 to {_MAX_PARTITION}"
                )
        explicit = None if numbers is None else array("i", [-1 if number is None else number for number in numbers])
        yield from _encode_columns(producer, name, columns, explicit)


def _column(rows: list[Mapping[str, Any]], name: str) -> list[Any] | None:
    if all(row.get(name) is None for row in rows):
        return None
    return [row.get(name) for row in rows]


# Columns
# ----------------------------------------------------------------------------------------------------------------


def _encode_columns(producer: Topics, topic: str, columns: Columns, explicit: array[int] | None) -> Iterator[Encoded]:
    """Give every row a partition and yield the batches."""
    if not columns.count:
        return
    largest = 0 if explicit is None else max(explicit)
    partitioner, queues = producer.topic_state(topic, largest)
    count = len(queues)
    if largest >= count:
        raise UnknownTopicOrPartition(f"{topic}-{largest}: topic {topic} has partitions 0 to {count - 1}")
    numbers = _partition_numbers(partitioner, columns, count, explicit)
    if numbers is None:
        yield from _encode_sticky(producer, topic, columns, None)
        return
    # One group more than partitions: the rows of the last one go to the sticky partition.
    groups = group_rows(numbers, count + 1)
    for partition, rows in enumerate(groups[:count]):
        if len(rows):
            yield from _encode_group(producer, queues[partition], columns, rows)
    if len(groups[count]):
        yield from _encode_sticky(producer, topic, columns, groups[count])


def _partition_numbers(partitioner: TopicPartitioner, columns: Columns, count: int, explicit: array[int] | None) -> Any:
    """Return int32[n] with ``count`` for rows of the sticky partition, or None when all rows are."""
    if partitioner.mode == "custom":
        chosen = array(
            "i", [partitioner.choose(columns.key_at(row), columns.value_at(row)) for row in range(columns.count)]
        )
        return chosen if explicit is None else _first_of(explicit, chosen)
    by_key = None
    if columns.key_offsets is not None and not partitioner.ignore_keys:
        by_key = _int32(partition_by_key(columns, count))
    if partitioner.mode == "default":
        if by_key is None and explicit is None:
            return None
        keyless: Any = pa.scalar(count, pa.int32())
    else:
        # Whichever rows have no key take the next of these; the others' are not used.
        keyless = _int32(partitioner.draw(columns.count))
    if by_key is None:
        numbers = keyless
    elif columns.key_validity is None:
        numbers = by_key
    else:
        numbers = pc.if_else(pc.less(by_key, _ZERO), keyless, by_key)
    if explicit is not None:
        given = _int32(explicit)
        numbers = pc.if_else(pc.less(given, _ZERO), numbers, given)
    return memoryview(numbers.buffers()[1])[: columns.count * 4]


def _first_of(explicit: array[int], chosen: array[int]) -> array[int]:
    return array("i", [b if a < 0 else a for a, b in zip(explicit, chosen, strict=True)])


def _int32(numbers: Buffer | array[int]) -> pa.Array:
    buffer = pa.py_buffer(numbers)
    return pa.Array.from_buffers(pa.int32(), buffer.size // 4, [None, buffer])


def _row_numbers(rows: Buffer | array[int]) -> Sequence[int]:
    """Return a view of int32 row numbers."""
    return memoryview(rows).cast("B").cast("i")


def _encode_group(
    producer: Topics, queue: PartitionQueue, columns: Columns, rows: Buffer | array[int]
) -> Iterator[Encoded]:
    codec = producer.config.codec_of(queue.topic)
    numbers = _row_numbers(rows)
    for built in build_batches(
        columns,
        max_bytes=producer.config.max_request_size,
        now_ms=_time_of_others(producer, columns),
        rows=memoryview(rows),
        codec=CODECS[codec],
        level=producer.config.levels.get(codec),
        with_crc=not producer.config.idempotent,
    ):
        yield queue, _batch(producer, queue, built.batch, numbers[built.first : built.until])


def _encode_sticky(
    producer: Topics, topic: str, columns: Columns, rows: Buffer | array[int] | None
) -> Iterator[Encoded]:
    """Encode rows without key: every batch goes to the next sticky partition."""
    partitioner, queues = producer.topic_state(topic)
    codec = producer.config.codec_of(topic)
    numbers: Sequence[int] = range(columns.count) if rows is None else _row_numbers(rows)
    for built in build_batches(
        columns,
        max_bytes=producer.config.max_request_size,
        now_ms=_time_of_others(producer, columns),
        rows=None if rows is None else memoryview(rows),
        codec=CODECS[codec],
        level=producer.config.levels.get(codec),
        with_crc=not producer.config.idempotent,
    ):
        queue = queues[producer.next_sticky(partitioner)]
        yield queue, _batch(producer, queue, built.batch, numbers[built.first : built.until])


def _time_of_others(producer: Topics, columns: Columns) -> int:
    """Return the timestamp of records that bring none; -1, which is none, if they were asked one by one."""
    return producer.now_ms() if columns.timestamps is None else -1


def _batch(producer: Topics, queue: PartitionQueue, encoded: bytearray, rows: Sequence[int]) -> ProducerBatch:
    size_bytes = len(encoded)
    if len(rows) == 1 and size_bytes > producer.config.max_request_size:
        raise MessageTooLarge(
            f"a record for topic {queue.topic} takes {size_bytes} bytes as a batch, which is above "
            f"max.request.size={producer.config.max_request_size}: raise it, and the topic's max.message.bytes with it",
            row=rows[0],
        )
    return ProducerBatch(
        queue.topic, queue.partition, 0.0, size_bytes, encoded=encoded, record_count=len(rows), rows=rows
    )
