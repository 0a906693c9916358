"""The figures of queries: what counts once, what is kept, and what tasks on other hosts leave out."""

import os
import tempfile
from pathlib import Path

import pytest

from spark_kafkalite.spark.watching import query_figures
from spark_kafkalite.spark.watching.post_box import PostBox, TaskFigures, listening_jvm, post
from spark_kafkalite.spark.watching.query_figures import SINK_SIDE, SOURCE_SIDE, Figures, FiguresOfQueries
from spark_kafkalite.spark.watching.query_pages import as_json, as_prometheus

TASK = TaskFigures("KafkaliteSource", "subscribe=t", "q", 0, "4.0", 1, 10, 500, 7, 3, "text")
NAMES: dict[str, str | None] = {"q": 'a "name"'}


def test_a_repeated_task_counts_once_and_batches_add_up() -> None:
    figures = FiguresOfQueries()
    figures.take(SOURCE_SIDE, TASK)
    figures.take(SOURCE_SIDE, TASK._replace(busy_ms=9))
    figures.take(SOURCE_SIDE, TASK._replace(place="4.1"))
    (found,) = figures.figures(NAMES)
    assert (found.batch_id, found.batch) == (0, Figures(2, 20, 1000, 16, 6))
    figures.take(SOURCE_SIDE, TASK._replace(batch_id=1, records=1))
    # A task that was given up in the batch before.
    figures.take(SOURCE_SIDE, TASK._replace(place="3.7"))
    figures.take(SINK_SIDE, TASK._replace(subject="topic=o"))
    source, sink = sorted(figures.figures(NAMES), key=lambda each: each.side, reverse=True)
    assert (source.batch_id, source.batch.records, source.total.records) == (1, 1, 31)
    assert (sink.side, sink.total.records) == ("sink", 10)
    # No query, and one that is not asked for.
    figures.take(SOURCE_SIDE, TASK._replace(query_id=""))
    figures.take(SOURCE_SIDE, TASK._replace(query_id="other"))
    assert len(figures.figures(NAMES)) == 2


def test_records_that_no_task_has_reported_are_unseen() -> None:
    figures = FiguresOfQueries()
    figures.reported("q", 25)
    figures.take(SOURCE_SIDE, TASK)
    figures.take(SINK_SIDE, TASK._replace(records=99))
    assert (figures.input_rows(NAMES), figures.unseen(NAMES)) == ({"q": 25}, {"q": 15})
    shown = figures.figures(NAMES), figures.input_rows(NAMES), figures.unseen(NAMES)
    page = as_prometheus([], *shown)
    labels = 'query="a \\"name\\"",query_id="q"'
    assert f"kafkalite_query_unseen_records{{{labels}}} 15\n" in page
    assert f'kafkalite_query_fetch_seconds_total{{{labels},side="source",subject="subscribe=t"}} 0.007\n' in page
    assert 'send_seconds_total{query="a \\"name\\"",query_id="q",side="source"' not in page
    assert f"kafkalite_query_input_rows_total{{{labels}}} 25\n" in page
    assert '"input_rows": 25, "unseen_records": 15' in as_json([], *shown)
    figures.take(SOURCE_SIDE, TASK._replace(place="4.1", records=90))
    assert figures.unseen(NAMES) == {"q": 0}


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_figures, "_MOST_QUERIES", 2)
    monkeypatch.setattr(query_figures, "_MOST_SUBJECTS", 2)
    figures = FiguresOfQueries()
    for query in ("a", "b", "a", "c"):
        for subject in "123":
            figures.take(SOURCE_SIDE, TASK._replace(query_id=query, subject=subject))
    found = figures.figures(dict.fromkeys("abc"))
    assert [(each.query_id, each.subject) for each in found] == [("a", "1"), ("a", "2"), ("c", "1"), ("c", "2")]


def test_figures_are_posted_to_the_application_that_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert listening_jvm() == 0
    box = PostBox(os.getppid())
    assert listening_jvm() == os.getppid()
    post(TASK, (listening_jvm(),))
    assert box.next(60) == TASK
    box.close()
