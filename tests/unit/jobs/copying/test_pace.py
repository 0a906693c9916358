"""The pace of a task, by a clock that only its own waiting moves."""

import pyarrow as pa
import pytest

from spark_kafkalite.jobs.copying.topic_copy import Pace, counted_bytes


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def rows(count: int, size: int) -> pa.RecordBatch:
    columns = {"value": [b"v" * size] * count, "offset": list(range(count)), "topic": ["t" * 500] * count}
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("rate", [1_000, 50_000, 1_000_000])
def test_no_more_goes_out_than_the_rate_and_a_piece(rate: int) -> None:
    clock = Clock()
    pace = Pace(rate, lambda: clock.now_s, clock.sleep)
    sent, began_s = 0, clock.now_s
    offsets = []
    for batch in [rows(1_000, 100)] * 3:
        for piece in pace.pieces(batch):
            size = counted_bytes(piece)
            # What went out before fits into the time that has passed; a single row may be larger than a piece.
            assert sent <= rate * (clock.now_s - began_s) + 1
            assert size <= max(rate * 0.1 * 1.1, 150)
            sent += size
            offsets += piece.column("offset").to_pylist()
    assert offsets == list(range(1_000)) * 3
    assert clock.now_s - began_s == pytest.approx(sent / rate, rel=0.1)


def test_time_without_rows_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(10_000, lambda: clock.now_s, clock.sleep)
    list(pace.pieces(rows(10, 100)))
    clock.now_s += 3_600
    began_s = clock.now_s
    list(pace.pieces(rows(1_000, 100)))
    assert clock.now_s - began_s > 9


def test_a_row_larger_than_a_second_goes_out_alone() -> None:
    clock = Clock()
    pace = Pace(10, lambda: clock.now_s, clock.sleep)
    assert [piece.num_rows for piece in pace.pieces(rows(3, 1_000))] == [1, 1, 1]
    assert clock.now_s - 100 == pytest.approx(2 * 100, rel=0.05)


def test_nothing_is_paced_of_no_rows() -> None:
    assert list(Pace(1).pieces(rows(0, 1))) == []
