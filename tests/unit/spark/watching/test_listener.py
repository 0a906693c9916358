"""The listener's bookkeeping, with events and a session that are plain objects."""

import json
import logging
import queue
import socket
import tempfile
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.watching import lag_endpoint
from spark_kafkalite.spark.watching import listener as listener_module
from spark_kafkalite.spark.watching.listener import KafkaliteListener, _Source, install_listener
from spark_kafkalite.spark.watching.post_box import PostBox, PostedWarning, post
from spark_kafkalite.spark.watching.query_figures import FiguresOfQueries
from spark_kafkalite.spark.watching.query_lag import QueryPartitionLag, RecordTimes
from tests.patience import PATIENCE_S

T0 = TopicPartition("t", 0)
DESCRIPTION = "PythonMicroBatchStream@1"


class Session:
    """A session in which every query is active, until the test says otherwise."""

    def __init__(self) -> None:
        self.active = True
        self.asked: list[str] = []
        self.streams = self
        self.sparkContext = SimpleNamespace(_jsc="the JVM's")

    def get(self, query_id: str):
        self.asked.append(query_id)
        return SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: "execution")) if self.active else None


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def committed(monkeypatch):
    """What the listener would commit, query by query."""
    commits = []
    monkeypatch.setattr(listener_module, "_commit", lambda source: commits.append(source.done))
    return commits


@pytest.fixture
def watching(session, committed, monkeypatch):
    options = reader_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "groupId": 'g"1'})
    monkeypatch.setattr(listener_module, "_sources_of", lambda execution: {DESCRIPTION: _Source(options)})
    monkeypatch.setattr(listener_module, "_FIGURES", FiguresOfQueries())
    listener = KafkaliteListener(session)
    # No broker is asked: the logs end where the last report said.
    monkeypatch.setattr(listener_module, "log_ends_of", lambda options, known, deadline: dict(known))
    listener._times = RecordTimes(lambda options, offsets, deadline: {})
    return listener


def started(number=1, name=None):
    return SimpleNamespace(runId=f"run-{number}", id=f"query-{number}", name=name)


def progress(end, latest, number=1, description=DESCRIPTION, name=None, rows=0):
    source = SimpleNamespace(description=description, endOffset=end, latestOffset=latest, numInputRows=rows)
    return SimpleNamespace(progress=SimpleNamespace(
        runId=f"run-{number}", id=f"query-{number}", name=name, sources=[source]
    ))  # fmt: skip


def offsets(**by_partition):
    return json.dumps({"t": {name.removeprefix("p"): offset for name, offset in by_partition.items()}})


def test_the_lag_is_that_of_the_last_report(watching, caplog):
    caplog.set_level(logging.INFO)
    watching.onQueryStarted(started(name="q"))
    # Batch 0's offset carries more than where it ends, and a partition may be too new to be in it.
    first = json.dumps({"$initial": {"t": {"0": 0}}, "t": {"0": 5}})
    watching.onQueryProgress(progress(first, offsets(p0=9, p1=2), name="q"))
    assert watching.lag == [
        QueryPartitionLag("query-1", "q", 'g"1', "t", 0, 5, 9),
        QueryPartitionLag("query-1", "q", 'g"1', "t", 1, 0, 2),
    ]
    assert [each.lag for each in watching.lag] == [4, 2]
    assert "query q is 6 records behind: t-0 4, t-1 2" in caplog.text
    watching.onQueryProgress(progress(offsets(p0=9, p1=2), offsets(p0=9, p1=2), name="q"))
    assert [each.lag for each in watching.lag] == [0, 0]


def test_what_arrives_while_a_batch_hangs_is_lag_at_the_next_look(watching, monkeypatch):
    watching.onQueryStarted(started(name="q"))
    watching.onQueryProgress(progress(offsets(p0=9), offsets(p0=9), name="q"))
    assert [each.lag for each in watching.measure()] == [0]
    monkeypatch.setattr(listener_module, "log_ends_of", lambda options, known, deadline: {T0: known[T0] + 3})
    watching._times = RecordTimes(lambda options, asked, deadline: {T0: 1_000} if asked == {T0: 9} else {})
    (behind,) = watching.measure()
    assert (behind.offset, behind.end_offset, behind.lag) == (9, 12, 3)
    assert behind.seconds is not None and behind.seconds > 1_000_000_000
    # What the last report said is still there.
    assert [each.lag for each in watching.lag] == [0]


def test_a_running_query_has_the_time_of_its_last_report(watching):
    def page():
        return [line for line in watching.prometheus().splitlines() if line.startswith("kafkalite_query_report_")]

    assert page() == []
    watching.onQueryStarted(started(name="q"))
    # A query whose first batch hangs has nothing else.
    (query,) = watching._running.values()
    for event, kind in (
        (None, None),
        (watching.onQueryProgress, progress(offsets(p0=5), offsets(p0=9), name="q")),
        (watching.onQueryIdle, SimpleNamespace(runId="run-1", id="query-1")),
    ):
        if event is not None:
            query.reported_s = 1.5
            assert page() == ['kafkalite_query_report_timestamp_seconds{query="q",query_id="query-1"} 1.5']
            event(kind)
        assert query.reported_s > 1_000_000_000
        (shown,) = json.loads(watching.json())["queries"]
        assert (shown["query"], shown["report_timestamp"]) == ("q", round(query.reported_s, 3))
    watching.onQueryIdle(SimpleNamespace(runId="run-of-no-query", id="query-2"))
    watching.onQueryTerminated(started())
    assert page() == []


def test_rows_that_no_task_has_reported_are_unseen(watching):
    watching.onQueryStarted(started())
    watching.onQueryProgress(progress(offsets(p0=5), offsets(p0=9), rows=25))
    watching.onQueryProgress(progress(offsets(p0=5), offsets(p0=9), rows=7, description="RateStream"))
    assert watching.input_rows == watching.unseen_records == {"query-1": 25}
    assert 'kafkalite_query_input_rows_total{query="query-1",query_id="query-1"} 25\n' in watching.prometheus()
    assert 'kafkalite_query_unseen_records{query="query-1",query_id="query-1"} 25\n' in watching.prometheus()


def test_prometheus_reads_it(watching):
    watching.onQueryStarted(started())
    watching.onQueryProgress(progress(offsets(p0=5), offsets(p0=9)))
    labels = '{query="query-1",query_id="query-1",consumergroup="g\\"1",topic="t",partition="0"}'
    assert watching.prometheus().partition("# HELP kafkalite_query_report")[0] == (
        "# HELP kafkalite_query_lag Offsets that a streaming query has not read yet.\n"
        "# TYPE kafkalite_query_lag gauge\n"
        f"kafkalite_query_lag{labels} 4\n"
        "# HELP kafkalite_query_lag_seconds Age of the record that a streaming query reads next.\n"
        "# TYPE kafkalite_query_lag_seconds gauge\n"
        "# HELP kafkalite_query_offset The next offset that a streaming query will read.\n"
        "# TYPE kafkalite_query_offset gauge\n"
        f"kafkalite_query_offset{labels} 5\n"
    )


def test_the_age_of_the_next_record_is_asked_for_where_something_waits(watching):
    asked = []

    def ask(options, offsets, deadline):
        asked.append({str(tp): offset for tp, offset in offsets.items()})
        return {tp: int(time.time() * 1000) - 60_000 for tp in offsets}

    watching._times = RecordTimes(ask)
    watching.onQueryStarted(started())
    watching.onQueryProgress(progress(offsets(p0=5, p1=7), offsets(p0=9, p1=7)))
    assert [each.seconds for each in watching.lag] == [None, None]
    behind, done = watching.measure()
    assert 60 <= behind.seconds < 600
    assert done.seconds == 0
    assert asked == [{"t-0": 5}]
    shown = json.loads(watching.json())["queries"][0]
    assert (shown["query_id"], shown["lag"]) == ("query-1", 4)
    assert 60 <= shown["lag_seconds"] < 600
    assert [each["lag_seconds"] == 0 for each in shown["partitions"]] == [False, True]
    # Once it has ended nobody asks for it.
    watching.onQueryTerminated(started())
    assert [each.seconds for each in watching.measure()] == [None, 0]
    assert len(asked) == 1


def test_the_lag_is_served_until_the_session_ends(watching, session, monkeypatch):
    monkeypatch.setattr(lag_endpoint._LagServer, "timeout", 0.01)
    watching.onQueryStarted(started())
    watching.onQueryProgress(progress(offsets(p0=5), offsets(p0=9)))
    host, port = watching.serve()
    assert host == "127.0.0.1"
    assert watching.serve() == watching.serve(port=port) == (host, port)
    with pytest.raises(ConfigError, match=f"served already, at {host}:{port}"):
        watching.serve("0.0.0.0")
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=PATIENCE_S) as answer:
        assert answer.read().decode() == watching.prometheus()
    with urllib.request.urlopen(f"http://{host}:{port}/lag", timeout=PATIENCE_S) as answer:
        assert json.load(answer) == json.loads(watching.json())
    thread = watching._endpoint._thread
    session.sparkContext._jsc = None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    with pytest.raises(OSError):
        socket.create_connection((host, port), timeout=PATIENCE_S).close()


@pytest.fixture
def sparks_log(session):
    """What is put into the log of the session's JVM: logger, level and text."""
    lines: queue.Queue[tuple[str, str, str]] = queue.Queue()

    def logger(name):
        return SimpleNamespace(
            warn=lambda text: lines.put((name, "WARN", text)), error=lambda text: lines.put((name, "ERROR", text))
        )

    factory = SimpleNamespace(getLogger=logger)
    session._jvm = SimpleNamespace(org=SimpleNamespace(slf4j=SimpleNamespace(LoggerFactory=factory)))
    return lines


def test_warnings_of_the_source_come_into_sparks_log_with_the_query(
    watching, session, sparks_log, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(listener_module, "_LOOK_S", 0.01)
    box = PostBox(2**31)
    others = set(threading.enumerate())
    watching.pass_warnings_on(box)
    (thread,) = [each for each in threading.enumerate() if each not in others and each.name == "kafkalite-warnings"]
    reading = 'subscribe=t, groupId=g"1'
    post(PostedWarning("KafkaliteSource", reading, "WARN", "before any query"), (2**31,))
    assert sparks_log.get(timeout=PATIENCE_S)[2] == f"[{reading}] before any query"
    watching.onQueryStarted(started(1, name="hourly"))
    watching.onQueryStarted(started(2))
    post(PostedWarning("KafkaliteSource", reading, "WARN", "text"), (2**31,))
    assert sparks_log.get(timeout=PATIENCE_S) == (
        "spark_kafkalite.KafkaliteSource",
        "WARN",
        f"query query-1 (hourly): query query-2: [{reading}] text",
    )
    post(PostedWarning("KafkaliteSink", "topic=out", "ERROR", "text"), (2**31,))
    assert sparks_log.get(timeout=PATIENCE_S) == ("spark_kafkalite.KafkaliteSink", "ERROR", "[topic=out] text")
    post(PostedWarning("KafkaliteClient", "", "WARN", "text"), (2**31,))
    assert sparks_log.get(timeout=PATIENCE_S) == ("spark_kafkalite.KafkaliteClient", "WARN", "text")
    session.sparkContext._jsc = None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert list(next(tmp_path.iterdir()).iterdir()) == []


def test_the_last_report_is_committed_when_the_query_ends(watching, committed):
    watching.onQueryStarted(started())
    watching.onQueryProgress(progress(offsets(p0=5), None))
    watching.onQueryProgress(progress(offsets(p0=7), None))
    assert committed == []
    watching.onQueryTerminated(started())
    watching.onQueryTerminated(started())
    assert [list(done.values()) for done in committed] == [[7]]


def test_a_query_is_taken_hold_of_when_it_starts(watching, session, committed):
    watching.onQueryStarted(started())
    # By the time of its first report a short query is gone.
    session.active = False
    watching.onQueryProgress(progress(offsets(p0=5), offsets(p0=5)))
    watching.onQueryTerminated(started())
    assert session.asked == ["query-1"]
    assert len(committed) == 1
    # One that nobody has seen start is passed over.
    watching.onQueryProgress(progress(offsets(p0=5), offsets(p0=5), number=2))
    assert {each.query_id for each in watching.lag} == {"query-1"}


@pytest.mark.parametrize("end", [None, "null", "not json", '{"a": 1}'])
def test_a_report_that_is_not_ours_changes_nothing(watching, committed, end):
    watching.onQueryStarted(started())
    watching.onQueryProgress(progress(end, offsets(p0=1)))
    watching.onQueryProgress(progress(offsets(p0=1), offsets(p0=1), description="RateStream"))
    watching.onQueryTerminated(started())
    assert watching.lag == []
    assert [done for done in committed if done is not None] == []


def test_a_report_without_the_ends_of_the_logs_counts(watching, committed, caplog):
    watching.onQueryStarted(started())
    # As PySpark writes what the JVM has not got.
    watching.onQueryProgress(progress(offsets(p0=5), "None"))
    watching.onQueryProgress(progress("None", "None"))
    watching.onQueryTerminated(started())
    assert [(each.offset, each.lag) for each in watching.lag] == [(5, 0)]
    assert [list(done.values()) for done in committed] == [[5]]
    assert caplog.text == ""


def test_where_the_progress_has_no_ends_of_the_logs_the_brokers_are_asked(watching, monkeypatch):
    known: list[dict] = []
    answers = [{T0: 9}, {T0: 9}]
    monkeypatch.setattr(listener_module, "PROGRESS_HAS_LOG_ENDS", False)
    monkeypatch.setattr(
        listener_module, "log_ends_of", lambda options, last, deadline: known.append(last) or answers.pop(0)
    )
    # PySpark 4.0 and 4.1 report the end of the batch as the latest offset, the first one with where it began.
    first = json.dumps({"$initial": {"t": {"0": 0}}, "t": {"0": 5}})
    watching.onQueryProgress(progress(first, first))
    assert [(each.offset, each.end_offset) for each in watching.lag] == [(5, 9)]
    watching.onQueryProgress(progress(offsets(p0=7), offsets(p0=7)))
    assert [(each.offset, each.end_offset) for each in watching.lag] == [(7, 9)]
    # What the last answer said stands in for one that does not come.
    assert known == [{T0: 5}, {T0: 9}]


def test_a_report_that_cannot_be_read_says_what_that_means(watching, caplog):
    watching.onQueryStarted(started())
    watching.onQueryProgress(progress("not json", offsets(p0=1)))
    assert "is passed over: Expecting value" in caplog.text
    assert "No record is lost; its lag is that of the report before" in caplog.text


def test_figures_of_ended_queries_are_kept_up_to_a_number(watching, monkeypatch):
    monkeypatch.setattr(listener_module, "_MOST_ENDED", 3)
    watching.onQueryStarted(started(0))
    watching.onQueryProgress(progress(offsets(p0=5), None, number=0))
    for number in range(1, 9):
        watching.onQueryStarted(started(number))
        watching.onQueryProgress(progress(offsets(p0=5), None, number=number))
        watching.onQueryTerminated(started(number))
    # And those of a running one in any case.
    assert [each.query_id for each in watching.lag] == ["query-0", "query-6", "query-7", "query-8"]


def test_a_commit_that_fails_warns(watching, monkeypatch, caplog):
    def fail(source):
        raise ConfigError("on purpose")

    monkeypatch.setattr(listener_module, "_commit", fail)
    watching.onQueryStarted(started())
    watching.onQueryProgress(progress(offsets(p0=5), None))
    watching.onQueryTerminated(started())
    assert "the last batch's offsets are not committed, the next start of the query does: on purpose" in caplog.text


def test_spark_connect_is_refused():
    with pytest.raises(ConfigError, match="install_listener needs classic Spark"):
        install_listener(SimpleNamespace())
