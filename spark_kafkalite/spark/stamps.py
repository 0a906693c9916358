"""The sink's option ``stampHeaders``: headers that name each record's place in the write that made it.

A batch that Spark repeats writes its records again. Their stamps are the same as before, so whoever reads can drop what
has come already. The stamp is (query, batch, partition, row): the id of the streaming query, which its checkpoint
keeps, the number of the micro-batch, that of Spark's partition within it, and the place of the row in the partition,
from 0. Each is UTF-8 text. A batch write outside of ``foreachBatch`` has no query: an id of its own stands for it,
which repeated tasks share and a repeated write does not, and its batch is 0.

The stamps repeat only where a repeated batch has the same rows in the same partitions and order: what the plan of the
query decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

STAMP_NAMES: Final = ("kafkalite-query", "kafkalite-batch", "kafkalite-partition", "kafkalite-row")

# Local properties that Spark sets for the tasks of a micro-batch. Source: StreamExecution.QUERY_ID_KEY,
# MicroBatchExecution.BATCH_ID_KEY.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_PAIRS: Final = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])


class HeaderStamps:
    """Stamps the rows of one task, batch by batch in their order."""

    def __init__(self, query: str, batch: str, partition: int) -> None:
        self._place = (query.encode(), batch.encode(), str(partition).encode())
        self._next_row = 0

    @classmethod
    def of_task(cls, write_id: str) -> HeaderStamps:
        """Return those of the Spark task that runs here; ``write_id`` stands for the query where there is none."""
        task = TaskContext.get()
        if task is None:
            return cls(write_id, "0", 0)
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            query, batch = write_id, "0"
        return cls(query, batch, task.partitionId())

    def stamp(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the stamp behind the headers that each has; ``headers`` may be absent and null."""
        count = batch.num_rows
        rows = pc.add(_from_zero(count), self._next_row)
        self._next_row += count
        values: list[pa.Array] = [pa.repeat(pa.scalar(value, pa.binary()), count) for value in self._place]
        values.append(rows.cast(pa.string()).cast(pa.binary()))
        return with_headers(batch, dict(zip(STAMP_NAMES, values, strict=True)))


def with_headers(batch: pa.RecordBatch, added: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return the rows with headers behind those that each has: by name, a binary column of their values.

    ``headers`` may be absent and null.
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
