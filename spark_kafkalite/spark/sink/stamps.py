"""The sink's option ``stampHeaders``: headers that name each record's position in the write that produced it.

When Spark repeats a batch, the sink writes its records again, with the same stamps as before. So a reader can drop
records that it has already received. The stamp has four headers, each UTF-8 text:

- query: the id of the streaming query, which its checkpoint stores.
- batch: the number of the micro-batch.
- partition: the number of Spark's partition in the batch.
- row: the position of the row in the partition, from 0.

A batch write outside of ``foreachBatch`` has no query and the batch 0. Instead of the query it has an id of the write:
repeated tasks have the same id, a repeated write has another one.

A repeated batch has the same stamps only if it has the same rows in the same partitions and order. The plan of the
query decides that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.spark.workers.task_report import task_place

STAMP_NAMES: Final = ("kafkalite-query", "kafkalite-batch", "kafkalite-partition", "kafkalite-row")

_PAIRS: Final = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])


class HeaderStamps:
    """Stamps the rows of one task, one batch after the other."""

    def __init__(self, query: str, batch: str, partition: int) -> None:
        self._place = (query.encode(), batch.encode(), str(partition).encode())
        self._next_row = 0

    @classmethod
    def of_task(cls, write_id: str) -> HeaderStamps:
        """Return the stamps of the current Spark task. ``write_id`` replaces the query's id if there is no query."""
        place = task_place()
        partition = max(0, place.partition_id)
        if not place.query_id:
            return cls(write_id, "0", partition)
        return cls(place.query_id, str(place.batch_id), partition)

    def stamp(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the stamp after each row's own headers. ``headers`` may be absent or null."""
        count = batch.num_rows
        rows = pc.add(_from_zero(count), self._next_row)
        self._next_row += count
        values: list[pa.Array] = [pa.repeat(pa.scalar(value, pa.binary()), count) for value in self._place]
        values.append(rows.cast(pa.string()).cast(pa.binary()))
        return with_headers(batch, dict(zip(STAMP_NAMES, values, strict=True)))


def with_headers(batch: pa.RecordBatch, added: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return the rows with further headers after each row's own. ``added``: a binary column of values by header name.

    The column ``headers`` may be absent or contain nulls.
    """
    count = batch.num_rows
    places = _from_zero(count)
    names: list[Any] = [pa.repeat(pa.scalar(name), count) for name in added]
    values: list[Any] = list(added.values())
    parents = [places] * len(added)
    lengths = pa.repeat(pa.scalar(len(added), pa.int32()), count)
    index = batch.schema.get_field_index("headers")
    if index >= 0:
        own = batch.column(index)
        own_names, own_values = pc.list_flatten(own).flatten()
        names.insert(0, own_names)
        values.insert(0, own_values)
        parents.insert(0, pc.list_parent_indices(own).cast(pa.int64()))
        lengths = pc.add(lengths, pc.fill_null(pc.list_value_length(own), 0))
    # Stable, so that within each row the headers keep the order of the lists above.
    order = pc.array_sort_indices(pa.concat_arrays(parents))
    pairs = pa.StructArray.from_arrays(
        [pa.concat_arrays(names).take(order), pa.concat_arrays(values).take(order)], fields=list(_PAIRS)
    )
    ends = pc.cumulative_sum(lengths)
    headers = pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), pairs)
    if index >= 0:
        return batch.set_column(index, "headers", headers)
    return batch.append_column("headers", headers)


def _from_zero(count: int) -> pa.Array:
    """Return int64 0, 1, ... count - 1."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)
