"""What PySpark 4.0 and 4.1 lack, on whatever version the tests run: the engine's calls come in the order seen there."""

import json
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql.types import BinaryType, StructType

from spark_kafkalite.spark import pyspark_versions
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.pyspark_versions import (
    OwnStartReader,
    ReadMaxRows,
    arrow_schema,
    engine_reader,
    one_batch_notes,
    register_source,
    start_available_now,
)
from tests.patience import PATIENCE_S

READ = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


class Log:
    """A stream reader over a log whose offsets are ``{"at": N}``, at most ``limit`` a batch."""

    def __init__(self, limit: int = 300) -> None:
        self.end = 1000
        self.first = 0
        self.limit = ReadMaxRows(limit)
        self.starts: list[dict[str, int]] = []
        self.planned: list[tuple[int, int]] = []

    def getDefaultReadLimit(self):  # noqa: N802
        return self.limit

    def initialOffset(self):  # noqa: N802
        return {"at": self.first}

    def latestOffset(self, start, limit):  # noqa: N802
        self.starts.append(start)
        return {"at": min(start["at"] + limit.max_rows, self.end)}

    def partitions(self, start, end):
        self.planned.append((start["at"], end["at"]))
        return ["task"]


def in_json(offset):
    """Return an offset as the engine gives it back."""
    return json.loads(json.dumps(offset))


def test_a_new_query_goes_from_batch_to_batch_under_its_limit():
    log = Log()
    reader = OwnStartReader(log)
    end = in_json(reader.latestOffset())
    assert reader.partitions(in_json(reader.initialOffset()), end) == ["task"]
    for _ in range(3):
        before, end = end, in_json(reader.latestOffset())
        assert reader.partitions(before, end) == ["task"]
    assert log.planned == [(0, 300), (300, 600), (600, 900), (900, 1000)]
    # An offset that does not move is the same in the engine's eyes, and comes back so as long as nothing is new.
    assert reader.latestOffset() == reader.latestOffset() == end
    log.end = 1001
    assert reader.latestOffset() == {"at": 1001}


def test_after_a_restart_the_checkpoint_says_where_to_go_on():
    log = Log()
    log.first = 5
    reader = OwnStartReader(log)
    assert reader.partitions({"at": 600}, {"at": 600}) == []
    # Nothing was planned, so nothing counts as lost, and the start says that all up to there is done.
    assert log.planned == []
    assert reader.latestOffset() == {"at": 900}
    assert log.starts == [{"at": 600}]


def test_a_batch_that_was_planned_before_a_restart_is_planned_again_and_its_end_is_the_next_start():
    log = Log()
    reader = OwnStartReader(log)
    assert reader.partitions({"at": 600}, {"at": 600}) == []
    assert reader.partitions({"at": 300}, {"at": 600}) == ["task"]
    assert reader.latestOffset() == {"at": 900}
    assert log.planned == [(300, 600)]
    assert log.starts == [{"at": 600}]


def test_a_batch_whose_tasks_nobody_asked_for_counts_as_read():
    log = Log()
    reader = OwnStartReader(log)
    # As of a query whose filter takes nothing.
    assert [reader.latestOffset()["at"] for _ in range(4)] == [300, 600, 900, 1000]


def test_a_checkpoint_that_comes_after_the_first_end_is_refused():
    reader = OwnStartReader(Log())
    reader.latestOffset()
    with pytest.raises(SparkConditionError, match=r"triggerAvailableNowWrapper.enabled=true: .* leave it at false"):
        reader.partitions({"at": 600}, {"at": 600})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"maxOffsetsPerTrigger": "9"}, "option maxOffsetsPerTrigger: "),
        ({"maxOffsetsPerTrigger": "9", "maxBytesPerTrigger": "1m"}, "option maxOffsetsPerTrigger and maxBytesPerTrigger: "),  # noqa: E501
        ({"maxOffsetsPerTrigger": "9", "availableNow": "true"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_a_query_with_a_limit_warns_once(given, named, caplog):
    reader = OwnStartReader(Log(), one_batch_notes(reader_options({**READ, **given})))
    assert caplog.messages == []
    reader.latestOffset()
    reader.latestOffset()
    assert [text for text in caplog.messages if named is None or not text.startswith(named)] == []
    assert len(caplog.messages) == (named is not None)


def test_a_reader_that_refuses_does_so_in_the_engines_words(monkeypatch):
    monkeypatch.setattr(pyspark_versions, "_ENGINE_LIMITS", False)
    from spark_kafkalite.spark.reading.refused_stream import RefusedStreamReader

    made = engine_reader(RefusedStreamReader(SparkConditionError("X", "why")))
    reader = pickle.loads(pickle.dumps(made))
    # A query that goes on from its checkpoint.
    assert reader.partitions({"at": 1}, {"at": 1}) == []
    for call in (reader.initialOffset, reader.latestOffset, lambda: reader.partitions({"at": 1}, {"at": 2})):
        with pytest.raises(SparkConditionError, match="why"):
            call()
    reader.stop()


# What newer versions have is hidden, and the names that all modules use are there all the same.
OLD_PYSPARK = """
import sys
import pyspark.sql.datasource
sys.modules["pyspark.sql.streaming.datasource"] = None
pyspark.sql.datasource.__dict__.pop("DataSourceStreamArrowWriter", None)
import pickle
from pyspark.sql.types import StructType
from spark_kafkalite.spark import pyspark_versions, source
from spark_kafkalite.spark.sink import writer
given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
"""


def on_old_pyspark(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OLD_PYSPARK + code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout.strip()


def test_a_stream_is_read_by_an_engine_without_limits():
    assert on_old_pyspark(
        "made = source.KafkaliteDataSource(given).streamReader(StructType().add('value', 'binary'))\n"
        "reader = pickle.loads(pickle.dumps(made))\n"
        "limited = reader._reader.getDefaultReadLimit()\n"
        "print(type(reader).__name__, limited, pyspark_versions.PROGRESS_HAS_LOG_ENDS)"
    ) == "OwnStartReader ReadAllAvailable() False"  # fmt: skip


def test_a_stream_is_written_in_arrow():
    assert on_old_pyspark(
        "from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter\n"
        "bases = DataSourceArrowWriter, DataSourceStreamWriter\n"
        "print(*[issubclass(writer.KafkaliteStreamWriter, each) for each in bases])"
    ) == "True True"  # fmt: skip


def test_an_available_now_run_has_an_option_of_its_own_where_the_engine_says_nothing():
    assert on_old_pyspark("print(dict(pyspark_versions.AVAILABLE_NOW_OPTIONS))") == "{'availableNow': 'true'}"
    given = {**READ, **pyspark_versions.AVAILABLE_NOW_OPTIONS}
    assert reader_options(given).available_now == (not pyspark_versions.PROGRESS_HAS_LOG_ENDS)


class Query:
    """A query that reads until the test says that nothing is left, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.drained = threading.Event()
        self.stopped = threading.Event()
        self._error = error

    def processAllAvailable(self):  # noqa: N802
        self.drained.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error

    def stop(self):
        assert self.drained.is_set()
        self.stopped.set()


def test_an_available_now_run_ends_when_all_is_read(monkeypatch):
    monkeypatch.setattr(pyspark_versions, "_ENGINE_LIMITS", False)
    query = Query()
    assert start_available_now(SimpleNamespace(start=lambda: query)) is query
    assert not query.stopped.is_set()
    query.drained.set()
    assert query.stopped.wait(PATIENCE_S)


def test_what_ends_an_available_now_run_early_is_left_to_whoever_waits_for_it(monkeypatch):
    monkeypatch.setattr(pyspark_versions, "_ENGINE_LIMITS", False)
    query = Query(PySparkRuntimeError("the batch has failed"))
    start_available_now(SimpleNamespace(start=lambda: query))
    query.drained.set()
    for thread in threading.enumerate():
        if thread.name == "kafkalite-available-now":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert not query.stopped.is_set()


def test_the_engine_ends_an_available_now_run_where_it_can(monkeypatch):
    monkeypatch.setattr(pyspark_versions, "_ENGINE_LIMITS", True)
    asked = []
    writer = SimpleNamespace(trigger=lambda **given: asked.append(given) or writer, start=lambda: "query")
    assert start_available_now(writer) == "query"
    assert asked == [{"availableNow": True}]


def session_that_raises(condition: str) -> SimpleNamespace:
    def register(source):
        raise AnalysisException(message="no", errorClass=condition, messageParameters={})

    return SimpleNamespace(dataSource=SimpleNamespace(register=register))


def test_a_source_that_is_discovered_already_may_be_registered():
    register_source(session_that_raises("DATA_SOURCE_ALREADY_EXISTS"), object)
    with pytest.raises(AnalysisException):
        register_source(session_that_raises("DATA_SOURCE_NOT_FOUND"), object)


def test_times_are_in_utc_on_every_version():
    schema = arrow_schema(StructType().add("at", "timestamp").add("value", BinaryType()))
    assert str(schema.field("at").type) == "timestamp[us, tz=UTC]"
