"""Topics that are deleted and created again while a query does not run, and whose new log is the longer one.

Offsets do not show that. The ids in the checkpoint do, where the source or the application reaches it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_kafkalite.manifests.files import files_for
from spark_kafkalite.processes.child_process import ChildProcess
from spark_kafkalite.spark import install_listener
from spark_kafkalite.spark.checkpoints import checkpoint_ids, checkpoint_service
from spark_kafkalite.spark.reading.topic_id import topic_id_text
from tests.lab.hdfs import MiniHdfs
from tests.patience import wait_until

from .class_archive import java_options
from .job_processes import JOB_PATIENCE_S
from .topics import Topics, last_line

pytestmark = pytest.mark.any_spark

ACCEPT = {"dataLoss.recreated": "warn"}
# How a source reaches the checkpoint: by its own option, or through the listener.
Reach = Callable[[str], Mapping[str, str]]


@pytest.fixture(params=["option", "listener"])
def reach(request: pytest.FixtureRequest, spark: SparkSession) -> Reach:
    if request.param == "option":
        return lambda checkpoint: {"checkpointLocation": checkpoint}
    serve(spark)
    return lambda checkpoint: {}


def serve(spark: SparkSession) -> None:
    """Install the listener, and wait until its service listens."""
    install_listener(spark)
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    wait_until(checkpoint_service.socket_path(pid).exists, "the listener's service")


def recreate(topics: Topics, topic: str, values: range) -> None:
    topics.admin.delete_topics([topic])
    topics.admin.create_topic(topic, 1)
    topics.fill(topic, values)


def id_of(topics: Topics, topic: str) -> str | None:
    return topic_id_text(topics.admin.describe_topics([topic])[topic].topic_id)


def remembered(checkpoint: str) -> list[dict[str, str]]:
    directory = Path(checkpoint, "_kafkalite", "source_topic_ids")
    return [json.loads(path.read_text())["topics"] for path in sorted(directory.glob("[0-9a-f]*"))]


def test_a_longer_topic_is_refused_until_it_is_accepted_once(topics: Topics, checkpoint: str, reach: Reach) -> None:
    topic = topics.new()
    topics.fill(topic, range(5))
    options = reach(checkpoint)
    assert topics.run(topics.stream(topic, **options), checkpoint) == list("01234")
    topics.fill(topic, [5])
    assert topics.run(topics.stream(topic, **options), checkpoint) == ["5"]
    was = id_of(topics, topic)
    assert remembered(checkpoint) == [{topic: was}]
    recreate(topics, topic, range(100, 120))
    now = id_of(topics, topic)
    for _ in range(2):
        with pytest.raises(StreamingQueryException) as refused:
            topics.run(topics.stream(topic, **options), checkpoint)
        assert last_line(refused.value) == (
            f"[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] failOnDataLoss=true: the topic {topic} was deleted and "
            f"created again: the query has read the topic with id {was}, and its id now is {now}; to accept the new "
            "topic and read it from its first offset, set failOnDataLoss=false (or dataLoss.recreated=warn); it may be "
            "removed after one batch"
        )
    assert topics.run(topics.stream(topic, **options, **ACCEPT), checkpoint) == [str(each) for each in range(100, 120)]
    assert remembered(checkpoint) == [{topic: now}]
    topics.fill(topic, ["more"])
    assert topics.run(topics.stream(topic, **options), checkpoint) == ["more"]


def test_a_query_that_was_killed_knows_its_topics(topics: Topics, tmp_path: Path, checkpoint: str) -> None:
    topic = topics.new()
    topics.fill(topic, range(5))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    submitted = " ".join(f"'--conf' '{name}={value}'" for name, value in settings(tmp_path).items())
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{submitted} pyspark-shell"}
    command = [sys.executable, str(program), topics.bootstrap, topic, checkpoint]
    process = ChildProcess(command, tmp_path, "query", environment=environment)
    try:
        process.wait_until(Path(checkpoint, "commits", "0").exists, JOB_PATIENCE_S, "the first batch")
    finally:
        process.kill()
    recreate(topics, topic, range(100, 120))
    options = {"checkpointLocation": checkpoint}
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        topics.run(topics.stream(topic, **options), checkpoint)
    assert len(topics.run(topics.stream(topic, **options, **ACCEPT), checkpoint)) == 20


def settings(directory: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.local.dir": str(directory / "local"),
    }


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from spark_kafkalite.spark import install_listener

bootstrap, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
install_listener(spark)
reader = spark.readStream.format("kafkalite").option("kafka.bootstrap.servers", bootstrap)
stream = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start().awaitTermination()
"""


def test_a_batch_that_was_planned_before_the_topic_was_made_again_is_not_read_from_the_new_one(
    topics: Topics, checkpoint: str, reach: Reach
) -> None:
    topic = topics.new()
    topics.fill(topic, range(5))
    options = reach(checkpoint)

    def fail(number: int, rows: list[object]) -> None:
        raise RuntimeError("the sink is down")

    query, _ = topics.collect(topics.stream(topic, **options), checkpoint, {"availableNow": True}, fail)
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        query.awaitTermination()
    recreate(topics, topic, range(100, 120))
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        topics.run(topics.stream(topic, **options), checkpoint)
    assert topics.run(topics.stream(topic, **options, **ACCEPT), checkpoint) == [str(each) for each in range(100, 120)]


def test_two_sources_of_a_query_and_a_topic_that_it_did_not_read(topics: Topics, checkpoint: str, reach: Reach) -> None:
    one, other, third = topics.new(), topics.new(), topics.new()
    for topic in (one, other, third):
        topics.fill(topic, range(5))
    options = reach(checkpoint)
    both = topics.stream(one, **options).union(topics.stream(other, **options))
    assert len(topics.run(both, checkpoint)) == 10
    assert sorted(each for ids in remembered(checkpoint) for each in ids) == sorted([one, other])
    # A topic that comes to a source's options is read from its first offset, whatever its id was.
    recreate(topics, third, range(7))
    both = topics.stream(one, **options).union(topics.stream(f"{other},{third}", **options))
    assert len(topics.run(both, checkpoint)) == 7
    recreate(topics, other, range(8))
    with pytest.raises(StreamingQueryException, match=f"topic {other} was deleted and created again"):
        both = topics.stream(one, **options).union(topics.stream(f"{other},{third}", **options))
        topics.run(both, checkpoint)


def test_the_checkpoint_of_another_query_is_refused(topics: Topics, checkpoint: str, tmp_path: Path) -> None:
    topic = topics.new()
    another = str(tmp_path / "another")
    for path, count in ((another, 3), (checkpoint, 2)):
        topics.fill(topic, range(count))
        topics.run(topics.stream(topic), path)
    topics.fill(topic, ["new"])
    with pytest.raises(StreamingQueryException) as refused:
        topics.run(topics.stream(topic, checkpointLocation=another), checkpoint)
    assert "none of its newest batches ends where this query goes on" in last_line(refused.value)
    assert topics.run(topics.stream(topic, checkpointLocation=checkpoint), checkpoint) == ["new"]


@pytest.mark.hdfs
def test_the_listener_reaches_a_checkpoint_in_hdfs(topics: Topics, spark: SparkSession, hdfs: MiniHdfs) -> None:
    serve(spark)
    topic = topics.new()
    checkpoint = f"{hdfs.uri}/checkpoints/{topic}"
    topics.fill(topic, range(5))
    assert len(topics.run(topics.stream(topic), checkpoint)) == 5
    files = files_for(spark, checkpoint)
    (name,) = files.names(checkpoint_ids.DIRECTORY)
    assert checkpoint_ids.ids_in(files, name) == {topic: id_of(topics, topic)}
    recreate(topics, topic, range(100, 120))
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        topics.run(topics.stream(topic), checkpoint)
    assert len(topics.run(topics.stream(topic, **ACCEPT), checkpoint)) == 20
    assert topics.run(topics.stream(topic), checkpoint) == []
