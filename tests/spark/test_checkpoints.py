"""``kafkalite offsets ... --checkpoint`` on checkpoints that Spark has written, and what queries do afterwards."""

import json
import os
import time
from pathlib import Path

import pytest

from spark_kafkalite.cli.main import run
from spark_kafkalite.manifests.files import LocalFiles, files_for

from .topics import Topics, await_end, let_look_quiet, started

pytestmark = pytest.mark.spark

COMPACT_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"


class Killed(BaseException):
    """Nothing catches this."""


@pytest.fixture
def kafkalite(topics, capsys):
    def kafkalite(*arguments: str, code: int = 0, at: str | None = topics.bootstrap) -> tuple[str, str]:
        capsys.readouterr()
        ended = run(["offsets", *arguments, *(("--bootstrap-server", at) if at is not None else ())])
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return out, err

    return kafkalite


def rewind(kafkalite, checkpoint: str, *arguments: str) -> tuple[str, str]:
    let_look_quiet(checkpoint)
    return kafkalite("rewind", "--checkpoint", checkpoint, *arguments, "--execute")


def to_files(topics: Topics, topic: str, checkpoint: str, destination: str) -> None:
    """Run a query into Spark's file sink, which passes over batches whose numbers it knows."""
    values = topics.stream(topic).selectExpr("cast(value AS string) AS value")
    query = values.writeStream.format("parquet").option("path", destination).option("checkpointLocation", checkpoint)
    await_end(started(query))


@pytest.mark.versions
def test_a_file_sink_gets_the_rows_again_and_its_log_has_no_gap(kafkalite, topics, checkpoint, tmp_path, request):
    # So soon it puts its log of batches together, for which it needs every one.
    topics.spark.conf.set(COMPACT_INTERVAL, "3")
    request.addfinalizer(lambda: topics.spark.conf.unset(COMPACT_INTERVAL))
    topic, destination = topics.new(2), str(tmp_path / "files")
    topics.fill(topic, ["a"], 0)
    topics.fill(topic, ["b"], 1)
    to_files(topics, topic, checkpoint, destination)
    out, _ = rewind(kafkalite, checkpoint, "--topic", f"{topic}:0", "--to-earliest", "--json")
    told = json.loads(out)
    assert (told["empty_batch"], [each["new_offset"] for each in told["offsets"]]) == (1, [0])
    assert sorted(path.name for path in Path(told["copy"].removeprefix("file://"), "offsets").iterdir()) == ["0"]
    topics.fill(topic, ["c"], 1)
    to_files(topics, topic, checkpoint, destination)
    assert os.path.exists(f"{destination}/_spark_metadata/2.compact")
    assert sorted(row.value for row in topics.spark.read.parquet(destination).collect()) == ["a", "a", "b", "c"]


@pytest.mark.any_spark
def test_a_sink_that_remembers_batches_gets_no_number_twice(kafkalite, topics, checkpoint):
    topic = topics.new()
    batches: dict[int, list[str]] = {}

    def remember(batch_id, rows):
        assert batch_id not in batches
        batches[batch_id] = [row.value.decode() for row in rows]

    def go_on():
        query, _ = topics.collect(topics.stream(topic, maxOffsetsPerTrigger=2), checkpoint, each=remember)
        await_end(query)

    topics.fill(topic, range(4))
    go_on()
    rewind(kafkalite, checkpoint, "--all-topics", "--to-offset", "1")
    go_on()
    assert batches == {0: ["0", "1"], 1: ["2", "3"], 2: [], 3: ["1", "2"], 4: ["3"]}
    # Forward only when that is asked for.
    topics.fill(topic, range(4, 8))
    _, err = rewind(kafkalite, checkpoint, "--all-topics", "--to-offset", "6")
    assert "1 offset of source 0 would not go back: left alone" in err
    assert "nothing was changed" in err
    rewind(kafkalite, checkpoint, "--all-topics", "--to-offset", "6", "--forward")
    go_on()
    assert {number: batches[number] for number in (5, 6)} == {5: [], 6: ["6", "7"]}
    exported, _ = kafkalite("export", "--checkpoint", checkpoint, "--batch", "3", at=None)
    assert json.loads(exported) == {topic: {"0": 3}}
    assert topics.values(topic, startingOffsets=exported.strip()) == ["3", "4", "5", "6", "7"]


def test_a_running_query_fails_and_goes_on_where_it_was_taken(kafkalite, topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, range(3))
    query, values = topics.collect(topics.stream(topic), checkpoint, {"processingTime": "0 seconds"})
    query.processAllAvailable()
    _, err = kafkalite("rewind", "--checkpoint", checkpoint, "--all-topics", "--to-earliest", "--execute", code=1)
    assert "so its query may be running; stop the query" in err
    # It is idle, so that nothing shows that it runs.
    rewind(kafkalite, checkpoint, "--all-topics", "--to-offset", "1")
    topics.fill(topic, [3])
    with pytest.raises(Exception, match="CONCURRENT_STREAM_LOG_UPDATE"):
        await_end(query)
    assert values == ["0", "1", "2"]
    assert topics.run(topics.stream(topic), checkpoint) == ["1", "2", "3"]


@pytest.mark.any_spark
def test_a_planned_batch_is_dropped_and_its_rows_come_in_another(kafkalite, topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, range(2))
    assert topics.run(topics.stream(topic), checkpoint) == ["0", "1"]
    topics.fill(topic, range(2, 4))

    def fail(batch_id, rows):
        raise RuntimeError("on purpose")

    query, _ = topics.collect(topics.stream(topic), checkpoint, each=fail)
    with pytest.raises(Exception, match="on purpose"):
        await_end(query)
    _, err = kafkalite("rewind", "--checkpoint", checkpoint, "--all-topics", "--to-earliest", code=1)
    assert "batch 1 is planned and not finished" in err
    rewind(kafkalite, checkpoint, "--drop-planned")
    batches: dict[int, list[str]] = {}

    def remember(batch_id, rows):
        batches[batch_id] = [row.value.decode() for row in rows]

    query, _ = topics.collect(topics.stream(topic), checkpoint, each=remember)
    await_end(query)
    assert batches == {1: [], 2: ["2", "3"]}


@pytest.mark.any_spark
def test_a_query_does_not_pass_a_rewind_that_was_interrupted(kafkalite, topics, checkpoint, monkeypatch):
    topic = topics.new()
    topics.fill(topic, range(3))
    assert topics.run(topics.stream(topic), checkpoint) == ["0", "1", "2"]

    def interrupt(files, path, text):
        raise Killed

    back = ("--all-topics", "--to-offset", "1")
    with monkeypatch.context() as patch:
        # The second of its two writes; tests/unit/spark/checkpoints/test_interrupted_moves.py stops it everywhere.
        patch.setattr(LocalFiles, "replace", interrupt)
        with pytest.raises(Killed):
            rewind(kafkalite, checkpoint, *back)
    query, values = topics.collect(topics.stream(topic), checkpoint)
    with pytest.raises(Exception, match="KAFKA_DATA_LOSS"):
        await_end(query)
    assert values == []
    let_look_quiet(checkpoint)
    _, err = kafkalite("rewind", "--checkpoint", checkpoint, *back, "--execute", code=1)
    assert "repeat that rewind with --drop-planned" in err
    rewind(kafkalite, checkpoint, *back, "--drop-planned")
    assert topics.run(topics.stream(topic), checkpoint) == ["1", "2"]


@pytest.mark.any_spark
def test_several_sources_and_one_that_is_not_kafkas(kafkalite, topics, checkpoint, tmp_path):
    first, second = topics.new(), topics.new()
    topics.fill(first, range(3))
    topics.fill(second, range(10, 13))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one").write_text("text")

    def go_on() -> list[str]:
        texts = (
            topics.spark.readStream.format("text").load(str(tmp_path / "texts")).selectExpr("binary(value) AS value")
        )
        both = topics.stream(first).union(topics.stream(second)).select("value").union(texts)
        return topics.run(both, checkpoint)

    assert go_on() == ["0", "1", "10", "11", "12", "2", "text"]
    out, _ = kafkalite("show", "--checkpoint", checkpoint, "--json")
    shown = json.loads(out)
    assert [(each["source"], each["topic"], each["committed_offset"], each["lag"]) for each in shown["offsets"]] == [
        (0, first, 3, 0),
        (1, second, 3, 0),
    ]
    assert [each["source"] for each in shown["other_sources"]] == [2]
    _, err = rewind(kafkalite, checkpoint, "--topic", second, "--to-offset", "2")
    assert 'source 2 is not Kafka\'s and is left alone; its offset is {"logOffset":0}' in err
    assert go_on() == ["12"]


@pytest.mark.hdfs
def test_a_checkpoint_in_hdfs(kafkalite, topics, hdfs):
    topic = topics.new()
    topics.fill(topic, range(3))
    checkpoint = f"{hdfs.uri}/checkpoints/{topic}"
    files = files_for(topics.spark, checkpoint)
    files.write_new(
        "offsets/0", 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n' + json.dumps({topic: {"0": 3}})
    )
    files.write_new("commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
    back = ("rewind", "--checkpoint", checkpoint, "--all-topics", "--to-offset", "1", "--execute")
    _, err = kafkalite(*back, code=1)
    assert "so its query may be running" in err
    hadoop = topics.spark._jvm.org.apache.hadoop.fs
    connection = hadoop.FileSystem.get(
        hadoop.Path(checkpoint).toUri(), topics.spark.sparkContext._jsc.hadoopConfiguration()
    )
    for log in ("offsets", "commits"):
        connection.setTimes(hadoop.Path(f"{checkpoint}/{log}/0"), int(time.time() - 3600) * 1000, -1)
    _, err = kafkalite(*back)
    assert f"are in {checkpoint}.copy-" in err
    out, _ = kafkalite("show", "--checkpoint", checkpoint, "--json")
    assert [(each["committed_offset"], each["planned_offset"], each["lag"]) for each in json.loads(out)["offsets"]] == [
        (1, 1, 2)
    ]
    _, err = kafkalite("show", "--checkpoint", "nothing-here://host/checkpoint", code=1)
    assert "--checkpoint nothing-here://host/checkpoint:" in err
    assert "check the scheme, or add the jars of its file system" in err
