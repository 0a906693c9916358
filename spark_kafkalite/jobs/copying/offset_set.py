"""Sets of offsets as stretches: what a target holds of a replay, found out and looked up column by column.

A set costs 16 bytes for each stretch without a gap, however many offsets that has. Pure: Arrow and no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc


def _none() -> pa.Array:
    return pa.array([], pa.int64())


@dataclass(frozen=True, slots=True)
class OffsetSet:
    """Offsets of one partition: stretches in order, none touching the next, each from a start until before an end."""

    starts: pa.Array = field(default_factory=_none)
    ends: pa.Array = field(default_factory=_none)

    @classmethod
    def of(cls, offsets: pa.Array) -> OffsetSet:
        """Return the set of these offsets, an int64 array in any order, in which one may stand more than once."""
        return cls._merged(offsets, pc.add(offsets, 1))

    @classmethod
    def union(cls, sets: Iterable[OffsetSet]) -> OffsetSet:
        """Return what is in any of the sets."""
        given = list(sets)
        if not given:
            return cls()
        return cls._merged(
            pa.concat_arrays([each.starts for each in given]), pa.concat_arrays([each.ends for each in given])
        )

    @classmethod
    def _merged(cls, starts: pa.Array, ends: pa.Array) -> OffsetSet:
        if not len(starts):
            return cls()
        order = pc.sort_indices(starts)
        starts, reached = starts.take(order), pc.cumulative_max(ends.take(order))
        # A stretch begins where everything before it has ended.
        is_first = pc.greater(starts.slice(1), reached.slice(0, len(reached) - 1))
        first = pc.indices_nonzero(pa.concat_arrays([pa.array([True]), is_first])).cast(pa.int64())
        last = pa.concat_arrays([pc.subtract(first.slice(1), 1), pa.array([len(starts) - 1], pa.int64())])
        return cls(starts.take(first), reached.take(last))

    @property
    def count(self) -> int:
        """How many offsets are in the set."""
        return int(pc.sum(pc.subtract(self.ends, self.starts), min_count=0).as_py())

    def first_missing(self, offset: int) -> int:
        """Return the first offset from this one on that is not in the set."""
        index = bisect_right(self.ends, offset, key=_value)
        if index < len(self.starts) and self.starts[index].as_py() <= offset:
            return int(self.ends[index].as_py())
        return offset

    def missing_rows(self, offsets: pa.Array) -> pa.Array | None:
        """Return a mask of the rows whose offsets are not in the set; None when that is all of them.

        ``offsets`` is an int64 array in ascending order.
        """
        if not len(offsets):
            return None
        index = bisect_right(self.ends, offsets[0].as_py(), key=_value)
        last = offsets[-1].as_py()
        mask: bytearray | None = None
        while index < len(self.starts) and (start := self.starts[index].as_py()) <= last:
            if mask is None:
                mask = bytearray(b"\x01") * len(offsets)
            first_row = bisect_left(offsets, start, key=_value)
            end_row = bisect_left(offsets, self.ends[index].as_py(), key=_value)
            mask[first_row:end_row] = bytes(end_row - first_row)
            index += 1
        if mask is None:
            return None
        return pa.Array.from_buffers(pa.uint8(), len(mask), [None, pa.py_buffer(mask)]).cast(pa.bool_())


def _value(scalar: pa.Scalar) -> int:
    value: int = scalar.as_py()
    return value
