"""Which rows are in a range of timestamps."""

import pyarrow as pa
import pytest

from spark_kafkalite.jobs.load.time_range import TimeRange

LAST_MS = 9_223_372_036_854_775


def batch(*timestamps_ms: int) -> pa.RecordBatch:
    micros = pa.array([each * 1000 for each in timestamps_ms], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch({"timestamp": micros, "offset": pa.array(range(len(timestamps_ms)))})


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        (TimeRange(10, 20), [1, 2]),
        (TimeRange(10, None), [1, 2, 3, 5]),
        (TimeRange(None, 20), [0, 1, 2, 6]),
        (TimeRange(-5, 10), [0]),  # A record without a timestamp, -1 ms, is in no range.
        (TimeRange(0, 2**63 - 1), [0, 1, 2, 3, 5]),
        (TimeRange(-(2**62), None), [0, 1, 2, 3, 5, 6]),
        (TimeRange(30, 40), []),
    ],
)
def test_rows_of_a_range(times: TimeRange, kept: list[int]) -> None:
    rows = batch(9, 10, 19, 20, -1, LAST_MS, -7)
    assert times.within(rows).column("offset").to_pylist() == kept
    # As copies read them: milliseconds.
    in_ms = rows.set_column(0, "timestamp", pa.array([9, 10, 19, 20, -1, LAST_MS, -7], pa.int64()))
    assert times.within(in_ms).column("offset").to_pylist() == kept


def test_a_time_that_no_column_holds_is_in_no_range() -> None:
    micros = pa.array([15_000, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"timestamp": micros, "offset": pa.array([0, 1])})
    assert TimeRange(10, 20).within(rows).column("offset").to_pylist() == [0]


def test_a_batch_that_is_in_the_range_as_a_whole_is_not_copied() -> None:
    rows = batch(10, 19)
    assert TimeRange(10, 20).within(rows) is rows
    assert TimeRange(10, 20).rows_in(batch().column("timestamp")) is None
