"""Which partition a key belongs to, in Python. Part of ``batch_py``."""

from __future__ import annotations

from array import array

from spark_kafkalite.records.buffers import Buffer, as_int32
from spark_kafkalite.records.columns_py import Columns
from spark_kafkalite.records.layout import MAX_INT32


def murmur2(data: Buffer) -> int:
    """Return Kafka's 32-bit hash of a key, unsigned; the partitioner masks it with 0x7fffffff.

    Source: org.apache.kafka.common.utils.Utils.murmur2.
    """
    view = memoryview(data).cast("B")
    length = len(view)
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ length) & mask
    for position in range(0, length - 3, 4):
        k = int.from_bytes(view[position : position + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = view[length & ~3 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_by_key(columns: Columns, partition_count: int) -> array[int]:
    """Return int32[n]: the partition that Kafka's partitioner gives each row's key, -1 where there is no key."""
    if not 1 <= partition_count <= MAX_INT32:
        raise ValueError(f"partition count {partition_count} is not between 1 and {MAX_INT32}")
    partitions = array("i")
    for row in range(columns.count):
        key = columns.key_at(row)
        partitions.append(-1 if key is None else (murmur2(key) & MAX_INT32) % partition_count)
    return partitions


def group_rows(partitions: Buffer, partition_count: int) -> list[array[int]]:
    """Return the int32 numbers of each partition's rows, in order; ``partitions``: int32[n], a number for each row."""
    if not 1 <= partition_count <= MAX_INT32:
        raise ValueError(f"partition count {partition_count} is not between 1 and {MAX_INT32}")
    groups = [array("i") for _ in range(partition_count)]
    for row, partition in enumerate(as_int32(partitions)):
        if not 0 <= partition < partition_count:
            raise ValueError(f"partition {partition} of row {row} is not between 0 and {partition_count - 1}")
        groups[partition].append(row)
    return groups
