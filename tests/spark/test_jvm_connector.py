"""Side by side with Spark's own JVM connector: the same columns, and checkpoints that move from one to the other.

Only collected on the PySpark that the connector's jars are of; see conftest.
"""

import itertools
import json

import pytest

from spark_kafkalite.cli.main import run

from .topics import Topics, let_look_quiet, logged_offsets

pytestmark = pytest.mark.spark

_COUNTER = itertools.count()


@pytest.fixture
def both(apache_kafka, spark):
    with Topics(apache_kafka.bootstrap, spark, f"jvm{next(_COUNTER)}") as made:
        yield made


def stream_of(topics, source, topic, **given):
    options = topics.options({"subscribe": topic, "startingOffsets": "earliest", **given})
    return topics.spark.readStream.format(source).options(**options).load()


@pytest.mark.kafka
def test_the_same_rows_and_the_same_schema(both):
    topics = both
    topic = topics.new(2)
    topics.producer.send(
        topic, b"v", b"k", partition=0, timestamp_ms=1_357_034_400_123, headers=[("h", b"1"), ("h", None)]
    )
    topics.producer.send(topic, None, None, partition=0, timestamp_ms=5)
    topics.producer.send(topic, b"", b"", partition=1)
    topics.producer.flush(30)
    frames = [
        topics.spark.read.format(source)
        .options(**topics.options({"subscribe": topic, "includeHeaders": "true"}))
        .load()
        for source in ("kafkalite", "kafka")
    ]
    assert frames[0].schema.simpleString() == frames[1].schema.simpleString()
    ours, theirs = (frame.orderBy("partition", "offset").collect() for frame in frames)
    assert ours == theirs


@pytest.mark.kafka
def test_a_checkpoint_moves_from_the_jvm_connector_to_ours_and_back(both, checkpoint):
    topics = both
    topic = topics.new()
    topics.fill(topic, range(5))
    assert topics.run(stream_of(topics, "kafka", topic), checkpoint) == list("01234")
    topics.fill(topic, [5])
    assert topics.run(stream_of(topics, "kafkalite", topic), checkpoint) == ["5"]
    topics.fill(topic, [6])
    assert topics.run(stream_of(topics, "kafka", topic), checkpoint) == ["6"]
    topics.fill(topic, [7])
    assert topics.run(stream_of(topics, "kafkalite", topic), checkpoint) == ["7"]
    assert [offsets[topic]["0"] for offsets in logged_offsets(checkpoint)] == [5, 6, 7, 8]


@pytest.mark.kafka
def test_a_checkpoint_of_ours_moves_from_its_second_batch_on(both, checkpoint):
    topics = both
    topic = topics.new()
    topics.fill(topic, range(2))
    assert topics.run(stream_of(topics, "kafkalite", topic, maxOffsetsPerTrigger=1), checkpoint) == ["0", "1"]
    topics.fill(topic, [2])
    assert topics.run(stream_of(topics, "kafka", topic), checkpoint) == ["2"]


def test_a_checkpoint_of_a_single_batch_moves_once_it_is_exported(topics, checkpoint, capsys):
    topic = topics.new()
    topics.fill(topic, range(3))
    assert topics.run(stream_of(topics, "kafkalite", topic), checkpoint) == ["0", "1", "2"]
    topics.fill(topic, range(3, 5))
    with pytest.raises(Exception, match="initial"):
        topics.run(stream_of(topics, "kafka", topic), checkpoint)
    export = ["offsets", "export", "--checkpoint", checkpoint, "--to-kafka"]
    # That query has planned nothing: it failed before.
    let_look_quiet(checkpoint)
    assert run([*export, "--execute"]) == 0
    assert json.loads(capsys.readouterr().out) == {topic: {"0": 3}}
    # From here on it is like one of Spark's own source, which can be rewound, too.
    rewind = ["offsets", "rewind", "--checkpoint", checkpoint, "--all-topics", "--bootstrap-server", topics.bootstrap]
    let_look_quiet(checkpoint)
    assert run([*rewind, "--to-offset", "2", "--execute"]) == 0
    assert topics.run(stream_of(topics, "kafka", topic), checkpoint) == ["2", "3", "4"]


@pytest.mark.kafka
def test_keys_go_where_the_jvm_sink_puts_them(both):
    topics = both
    rows = topics.spark.range(300).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
    placed = []
    for sink in ("kafkalite", "kafka"):
        topic = topics.new(5)
        rows.write.format(sink).options(**topics.options({"topic": topic})).mode("append").save()
        placed.append(dict(topics.read(topic).select("key", "partition").collect()))
    assert placed[0] == placed[1]
