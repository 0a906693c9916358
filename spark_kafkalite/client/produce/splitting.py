"""Cuts a batch that a broker refused into parts, without losing order, timestamps or headers.

One that is too large is cut into halves, one with records that are refused for themselves around these. The batch is
decoded to columns and encoded again, which is slow and rare: it happens when a topic's ``max.message.bytes`` is below
the producer's ``batch.size``, when records compress worse than hoped, or when a topic has rules for records.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_kafkalite.client.produce.delivery import ProducerBatch
from spark_kafkalite.records.builder import build_batches
from spark_kafkalite.records.columns import ColumnBuilder, add_batch
from spark_kafkalite.records.kernel import read_header
from spark_kafkalite.records.layout import MAX_INT32


def split_batch(batch: ProducerBatch, codec: int, level: int | None) -> list[tuple[int, ProducerBatch]]:
    """Return (index of the first record, part) of two parts of an encoded batch with at least two records."""
    assert batch.record_count > 1
    middle = batch.record_count // 2
    return _parts(batch, [(0, middle), (middle, batch.record_count)], codec, level)


def split_around(
    batch: ProducerBatch, refused: Collection[int], codec: int, level: int | None
) -> list[tuple[int, ProducerBatch]]:
    """Return the parts of an encoded batch as :func:`split_batch` does: the records at the indexes ``refused``, each a
    part of its own, and what is before, between and behind them.
    """
    ranges = []
    first = 0
    for index in sorted(refused):
        ranges += [(first, index), (index, index + 1)]
        first = index + 1
    ranges.append((first, batch.record_count))
    return _parts(batch, [each for each in ranges if each[0] < each[1]], codec, level)


def _parts(
    batch: ProducerBatch, ranges: list[tuple[int, int]], codec: int, level: int | None
) -> list[tuple[int, ProducerBatch]]:
    assert batch.encoded is not None
    builder = ColumnBuilder(True)
    header = read_header(batch.encoded, 0)
    add_batch(builder, batch.encoded, 0, header, verify_crc=False)
    columns = builder.finish()
    parts: list[tuple[int, ProducerBatch]] = []
    for first, until in ranges:
        built = next(
            build_batches(columns, max_bytes=MAX_INT32, now_ms=-1, first=first, until=until, codec=codec, level=level)
        )
        part = ProducerBatch(
            batch.topic, batch.partition, batch.created_s, 0, encoded=built.batch, record_count=until - first
        )
        parts.append((first, part))
    return parts
