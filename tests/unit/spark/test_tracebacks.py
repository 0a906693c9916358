"""Which errors leave Spark's processes without stack frames."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from spark_kafkalite.spark.conditions import INVALID_OPTION, SparkConditionError
from spark_kafkalite.spark.tracebacks import HIDE, without_frames
from spark_kafkalite.spark.workers import worker_log

ERROR = SparkConditionError(INVALID_OPTION, "x=1: wrong; do this")


class Base:
    def write(self, rows: list[int]) -> int:
        return len(rows)

    def abort(self) -> None:
        raise ValueError("a fault of the program")


# As if a module of the package had it.
Base.write.__module__ = Base.abort.__module__ = "spark_kafkalite.spark.sink.writer"


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(worker_log, "is_sparks_own", lambda: True)
    monkeypatch.delenv(HIDE, raising=False)

    class Reader(Base):
        def partitions(self) -> list[int]:
            raise ERROR

        def read(self, count: int) -> Iterator[int]:
            """Rows, and then an error."""
            yield from range(count)
            raise ERROR

        def helper(self) -> None:
            raise ERROR

    for name in ("partitions", "read", "helper"):
        getattr(Reader, name).__module__ = "spark_kafkalite.spark.reading.batch_reader"
    return without_frames(Reader)()


@pytest.fixture(autouse=True)
def environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    # Put back at the end, also what a test adds by itself.
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_an_error_of_ours_hides_them(reader) -> None:
    with pytest.raises(SparkConditionError):
        reader.partitions()
    assert os.environ[HIDE] == "1"


def test_an_error_after_rows_hides_them(reader) -> None:
    rows = reader.read(2)
    assert [next(rows), next(rows)] == [0, 1]
    assert HIDE not in os.environ
    with pytest.raises(SparkConditionError):
        next(rows)
    assert os.environ[HIDE] == "1"


def test_what_spark_does_not_call_and_other_errors_change_nothing(reader) -> None:
    assert reader.write([1]) == 1
    with pytest.raises(SparkConditionError):
        reader.helper()
    with pytest.raises(ValueError, match="fault"):
        reader.abort()
    assert HIDE not in os.environ


def test_a_choice_of_the_user_stays(reader) -> None:
    os.environ[HIDE] = ""
    with pytest.raises(SparkConditionError):
        reader.partitions()
    assert os.environ[HIDE] == ""


def test_an_application_keeps_its_environment(reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_log, "is_sparks_own", lambda: False)
    with pytest.raises(SparkConditionError):
        reader.partitions()
    assert HIDE not in os.environ
