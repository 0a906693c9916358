"""Record batches for tests, made by the kernel: what a producer would send, in one call."""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafkalite.records import kernel
from spark_kafkalite.records.compression import CODECS
from spark_kafkalite.records.layout import BatchHeader


def make_batch(
    values: Sequence[bytes | None] | int = 1,
    *,
    timestamp_ms: int = 1_700_000_000_000,
    timestamps_ms: Sequence[int] | None = None,
    key: bytes | None = None,
    codec: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Return a batch as a producer sends it: base offset 0, no leader epoch, CRC set.

    ``values`` may be a number of records, whose values are then their own numbers. Timestamps are those given, or
    ``timestamp_ms`` for all.
    """
    if isinstance(values, int):
        values = [b"value-%d" % number for number in range(values)]
    batch = kernel.OpenBatch(1 << 28)
    for number, value in enumerate(values):
        batch.append(timestamps_ms[number] if timestamps_ms else timestamp_ms, key, value, [])
    return bytearray(
        batch.build(
            CODECS[codec],
            None,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
    )


def make_stored_batch(base_offset: int, leader_epoch: int, values: Sequence[bytes | None] | int = 1) -> bytearray:
    """Return a batch as a leader's log holds it."""
    batch = make_batch(values)
    kernel.stamp(batch, 0, base_offset, leader_epoch)
    return batch


def values_of(data: bytes | bytearray | memoryview) -> list[tuple[int, bytes | None]]:
    """Return (offset, value) of every record in some whole uncompressed batches."""
    builder = kernel.ColumnBuilder(False)
    position = 0
    for header in kernel.scan_headers(data):
        builder.add_batch(data, position, header, None)
        position += header.size_bytes
    columns = builder.finish()
    return [(columns.offset_at(row), columns.value_at(row)) for row in range(columns.count)]


def end_of(data: bytes | bytearray | memoryview) -> int:
    """Return where a reader of some whole batches goes on: behind the last one, which may hold no records."""
    return int(kernel.scan_headers(data)[-1].next_offset)


def header_of(batch: bytes | bytearray | memoryview) -> BatchHeader:
    """Return a batch's header."""
    return kernel.read_header(batch)
