"""A range of record timestamps, and the rows of a batch that are in it.

A log is in the order of offsets, not of timestamps. A job that asks for a time range gets exact records only if it
reads every offset that may hold one, and drops the others row by row. Pure: Arrow and no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# Of a record without a timestamp, -1 ms; no time range holds it.
_NO_TIMESTAMP_US: Final = -1_000
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Timestamps from ``start_ms`` (inclusive) to ``end_ms`` (exclusive), in ms since the epoch; None is no bound."""

    start_ms: int | None = None
    end_ms: int | None = None

    def rows_in(self, timestamps: pa.Array) -> pa.Array | None:
        """Return a mask of the rows whose timestamps are in the range; None if all are.

        ``timestamps`` is timestamp[us] without nulls. A record without a timestamp is in no range.
        """
        if not len(timestamps):
            return None
        micros = timestamps.view(pa.int64())
        low, high = _bound_us(self.start_ms, _INT64_MIN), _bound_us(self.end_ms, _INT64_MAX)
        span = pc.min_max(micros)
        least, most = span["min"].as_py(), span["max"].as_py()
        if low <= least and most < high and not least <= _NO_TIMESTAMP_US <= most:
            return None
        inside = pc.and_(pc.greater_equal(micros, low), pc.less(micros, high))
        return pc.and_(inside, pc.not_equal(micros, _NO_TIMESTAMP_US))

    def within(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are in the range of a batch that has the column ``timestamp``."""
        mask = self.rows_in(batch.column("timestamp"))
        return batch if mask is None else batch.filter(mask)


def _bound_us(bound_ms: int | None, otherwise: int) -> int:
    return otherwise if bound_ms is None else min(max(bound_ms * 1000, _INT64_MIN), _INT64_MAX)
