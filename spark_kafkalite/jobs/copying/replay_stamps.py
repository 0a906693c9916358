"""The headers that a replay with a run id puts on its records, and what a target holds of such a replay.

``kafkalite-replay`` is the run id, ``kafkalite-replay-topic``, ``-partition`` and ``-offset`` are where the record was
read; each is UTF-8 text. They stand behind all other headers, those of an earlier replay among them: so the last four
of a record are those of the replay that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafkalite.jobs.copying.offset_set import OffsetSet
from spark_kafkalite.spark.sink.stamps import with_headers

REPLAY_STAMP_NAMES: Final = (
    "kafkalite-replay",
    "kafkalite-replay-topic",
    "kafkalite-replay-partition",
    "kafkalite-replay-offset",
)
# Of offsets found in one partition; as stretches they take less memory, unless none touches another.
_FOLD_AT: Final = 64


def stamped(batch: pa.RecordBatch, run_id: str, topic: str, partition: int) -> pa.RecordBatch:
    """Return the rows, which have the column ``offset`` and are of one partition, with the stamps of a run."""
    same = (run_id.encode(), topic.encode(), str(partition).encode())
    values = [pa.repeat(pa.scalar(value, pa.binary()), batch.num_rows) for value in same]
    values.append(batch.column("offset").cast(pa.string()).cast(pa.binary()))
    return with_headers(batch, dict(zip(REPLAY_STAMP_NAMES, values, strict=True)))


def stamped_offsets(headers: pa.Array, run_id: str, topic: str) -> dict[int, pa.Array]:
    """Return, for each partition of ``topic``, the offsets of the records that a run has written, as int64 arrays.

    ``headers`` is the column of that name of the target.
    """
    count = len(REPLAY_STAMP_NAMES)
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    firsts = pc.subtract(pc.cumulative_sum(lengths), count).filter(pc.greater_equal(lengths, count))
    names, values = pc.list_flatten(headers).flatten()
    found = pa.repeat(pa.scalar(True), len(firsts))
    wanted = (run_id.encode(), topic.encode())
    for place, name in enumerate(REPLAY_STAMP_NAMES):
        at = pc.add(firsts, place)
        found = pc.and_(found, pc.equal(names.take(at), name))
        if place < len(wanted):
            is_ours = pc.equal(values.take(at), pa.scalar(wanted[place], pa.binary()))
            found = pc.and_(found, pc.fill_null(is_ours, False))
    firsts = firsts.filter(found)
    if not len(firsts):
        return {}
    partitions = _numbers(values.take(pc.add(firsts, 2)))
    offsets = _numbers(values.take(pc.add(firsts, 3)))
    return {number: offsets.filter(pc.equal(partitions, number)) for number in pc.unique(partitions).to_pylist()}


def _numbers(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string()).cast(pa.int64())


def present_in(batches: Iterable[pa.RecordBatch], run_id: str, topic: str) -> dict[int, OffsetSet]:
    """Return what the batches, which have the column ``headers``, hold of a run, for each partition of ``topic``."""
    found: dict[int, list[OffsetSet]] = {}
    for batch in batches:
        for partition, offsets in stamped_offsets(batch.column("headers"), run_id, topic).items():
            sets = found.setdefault(partition, [])
            sets.append(OffsetSet.of(offsets))
            if len(sets) >= _FOLD_AT:
                sets[:] = [OffsetSet.union(sets)]
    return {partition: OffsetSet.union(sets) for partition, sets in found.items()}


def united(found: Iterable[Mapping[int, OffsetSet]]) -> dict[int, OffsetSet]:
    """Return, for each partition, what is in any of the sets that were found of it."""
    sets: dict[int, list[OffsetSet]] = {}
    for each in found:
        for partition, offsets in each.items():
            sets.setdefault(partition, []).append(offsets)
    return {partition: OffsetSet.union(of_one) for partition, of_one in sets.items()}
