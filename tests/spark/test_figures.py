"""What tasks tell of their work: records, bytes and times of each batch, in the listener and in Spark's log."""

import json
from pathlib import Path

import pytest

from spark_kafkalite.spark import install_listener
from spark_kafkalite.spark.pyspark_versions import AVAILABLE_NOW_OPTIONS
from tests.patience import wait_until

from .topics import Topics, await_end, started

pytestmark = pytest.mark.spark


@pytest.mark.versions
def test_batches_of_a_query_have_figures_and_tasks_have_lines(topics: Topics, checkpoint: str, tmp_path: Path) -> None:
    spark = topics.spark
    listener = install_listener(spark)
    log4j = spark._jvm.org.apache.logging.log4j
    written = spark._jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%p %c{1}: %m%n").build()
    appender = log4j.core.appender.WriterAppender.createAppender(layout, None, written, "figures", False, True)
    appender.start()
    names = [f"spark_kafkalite.{each}" for each in ("KafkaliteSource", "KafkaliteSink")]
    for name in names:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.INFO)
        log4j.LogManager.getLogger(name).addAppender(appender)
    try:
        topic, out = topics.new(2), topics.new()
        topics.fill(topic, range(6), 0)
        topics.fill(topic, range(4), 1)
        stream = topics.stream(topic, maxOffsetsPerTrigger=5, **AVAILABLE_NOW_OPTIONS).select("value")
        options = topics.options({"topic": out, "checkpointLocation": checkpoint})
        query = started(stream.writeStream.format("kafkalite").options(**options).queryName("copied"))
        await_end(query)

        def found() -> dict[str, object]:
            return {each.side: each for each in listener.figures if each.query_id == query.id}

        wait_until(lambda: len(found()) == 2 and found()["sink"].total.records == 10, "the figures of both sides")
        source, sink = found()["source"], found()["sink"]
        assert (source.query_name, source.subject, sink.subject) == ("copied", f"subscribe={topic}", f"topic={out}")
        assert source.batch_id == sink.batch_id == 1
        assert source.total.records == 10
        assert source.batch.records == sink.batch.records == 5
        # Two tasks in each batch: one for each partition.
        assert (source.total.tasks, sink.total.tasks) == (4, 4)
        for side in (source, sink):
            assert 0 < side.batch.bytes < side.total.bytes
            assert side.total.busy_ms >= 0 and side.total.wait_ms >= 0
        wait_until(lambda: query.id in {each.query_id for each in listener.lag}, "Spark's report")
        assert listener.unseen_records[query.id] == 0
        page = listener.prometheus()
        labels = f'query="copied",query_id="{query.id}"'
        assert f'kafkalite_query_records_total{{{labels},side="source",subject="subscribe={topic}"}} 10\n' in page
        assert f'kafkalite_query_records_total{{{labels},side="sink",subject="topic={out}"}} 10\n' in page
        assert f"kafkalite_query_unseen_records{{{labels}}} 0\n" in page
        (shown,) = [each for each in json.loads(listener.json())["queries"] if each["query_id"] == query.id]
        assert [each["total"]["records"] for each in shown["figures"]] == [10, 10]

        def lines(speaker: str) -> list[str]:
            return [each for each in written.toString().splitlines() if f"{speaker}: query {query.id} batch" in each]

        wait_until(lambda: len(lines("KafkaliteSink")) == 2, "the lines of both batches")
        assert len(lines("KafkaliteSource")) == 4
        assert any(" 2 records of " in each and f": {topic}-1[" in each for each in lines("KafkaliteSource"))
        assert all(" 5 records of " in each for each in lines("KafkaliteSink"))
    finally:
        for name in names:
            log4j.LogManager.getLogger(name).removeAppender(appender)
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
