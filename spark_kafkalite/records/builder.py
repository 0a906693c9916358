"""Columns to finished batches: how the producer encodes many records at once.

:func:`build_batches` cuts the rows at a byte limit, compresses each batch, and gives every batch its producer fields;
it touches no record itself (``kernel.encode_columns`` does). Record by record, a producer uses ``kernel.OpenBatch``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from spark_kafkalite.records.assemble import assemble
from spark_kafkalite.records.buffers import Buffer
from spark_kafkalite.records.compression import NONE
from spark_kafkalite.records.kernel import Columns, encode_columns
from spark_kafkalite.records.layout import MAX_INT32


class BuiltBatch(NamedTuple):
    """A finished batch and what it holds: positions ``first`` to before ``until`` of the rows that were asked for."""

    batch: bytearray
    first: int
    until: int
    base_timestamp: int
    max_timestamp: int

    @property
    def record_count(self) -> int:
        """Number of records."""
        return self.until - self.first


def build_batches(
    columns: Columns,
    *,
    max_bytes: int,
    now_ms: int,
    rows: Buffer | None = None,
    first: int = 0,
    until: int | None = None,
    codec: int = NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    with_crc: bool = True,
) -> Iterator[BuiltBatch]:
    """Yield batches of the rows in order, each of at most ``max_bytes`` before compression, header included.

    A row that is larger by itself makes a batch of its own: the broker enforces its limit. ``rows``: int32 row numbers,
    as ``group_rows`` gives for a partition, or None for all; ``first`` and ``until`` are positions in them. Rows
    without a timestamp get ``now_ms``. ``base_sequence`` is the first batch's; the next ones go on from it, past 2^31-1
    at 0. ``with_crc`` False leaves out the CRC: the caller sets it later with the producer fields
    (``restamp_producer``).
    Raises SerializationError when a row cannot be written.
    """
    if until is None:
        until = columns.count if rows is None else memoryview(rows).nbytes // 4
    while first < until:
        buffer, facts, next_row = encode_columns(columns, rows, first, until, max_bytes, now_ms=now_ms)
        batch = assemble(
            buffer,
            facts,
            codec,
            level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            with_crc=with_crc,
        )
        yield BuiltBatch(batch, first, next_row, facts.base_timestamp, facts.max_timestamp)
        if base_sequence >= 0:
            base_sequence = (base_sequence + facts.record_count) & MAX_INT32
        first = next_row
