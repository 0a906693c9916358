"""A range of record timestamps, and the rows of a batch that are in it.

A log is in the order of offsets, not of timestamps. A job that asks for a time range gets exact records only if it
reads every offset that may hold one, and drops the others row by row. Pure: Arrow and no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

# Of a record without a timestamp, in ms; no time range holds it.
_NO_TIMESTAMP_MS: Final = -1
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Timestamps from ``start_ms`` (inclusive) to ``end_ms`` (exclusive), in ms since the epoch; None is no bound."""

    start_ms: int | None = None
    end_ms: int | None = None

    def rows_in(self, timestamps: pa.Array) -> pa.Array | None:
        """Return a mask of the rows whose timestamps are in the range; None if all are.

        ``timestamps`` is timestamp[us], or int64 in ms. A record without a timestamp, or with one that no column of
        microseconds can hold (null), is in no range.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if not len(timestamps):
            return None
        per_ms = 1 if pa.types.is_int64(timestamps.type) else 1000
        values, none = timestamps.view(pa.int64()), _NO_TIMESTAMP_MS * per_ms
        low, high = _bound(self.start_ms, per_ms, _INT64_MIN), _bound(self.end_ms, per_ms, _INT64_MAX)
        span = pc.min_max(values)
        least, most = span["min"].as_py(), span["max"].as_py()
        if not values.null_count and low <= least and most < high and not least <= none <= most:
            return None
        inside = pc.and_(pc.greater_equal(values, low), pc.less(values, high))
        return pc.and_(inside, pc.not_equal(values, none))

    def within(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are in the range of a batch that has the column ``timestamp``."""
        mask = self.rows_in(batch.column("timestamp"))
        return batch if mask is None else batch.filter(mask)


def _bound(bound_ms: int | None, per_ms: int, otherwise: int) -> int:
    return otherwise if bound_ms is None else min(max(bound_ms * per_ms, _INT64_MIN), _INT64_MAX)
