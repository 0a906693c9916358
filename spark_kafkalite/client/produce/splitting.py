"""Cuts a batch that a broker found too large into halves, without losing order, timestamps or headers.

The batch is decoded to columns and encoded again, which is slow and rare: it happens when a topic's
``max.message.bytes`` is below the producer's ``batch.size``, or when records compress worse than hoped.
"""

from __future__ import annotations

from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.records.builder import build_batches
from spark_kafkalite.records.columns import ColumnBuilder, add_batch
from spark_kafkalite.records.kernel import read_header
from spark_kafkalite.records.layout import MAX_INT32


def split_batch(batch: ProducerBatch, codec: int, level: int | None) -> list[tuple[int, ProducerBatch]]:
    """Return (index of the first record, part) of two parts of an encoded batch with at least two records."""
    assert batch.encoded is not None and batch.record_count > 1
    builder = ColumnBuilder(True)
    header = read_header(batch.encoded, 0)
    add_batch(builder, batch.encoded, 0, header, verify_crc=False)
    columns = builder.finish()
    middle = columns.count // 2
    parts: list[tuple[int, ProducerBatch]] = []
    for first, until in ((0, middle), (middle, columns.count)):
        built = next(
            build_batches(columns, max_bytes=MAX_INT32, now_ms=-1, first=first, until=until, codec=codec, level=level)
        )
        part = ProducerBatch(
            batch.topic, batch.partition, batch.created_s, 0, encoded=built.batch, record_count=until - first
        )
        parts.append((first, part))
    return parts
