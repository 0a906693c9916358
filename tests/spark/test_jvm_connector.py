"""Side by side with Spark's own JVM connector: the same rows, batches and tasks, checkpoints that move either way.

Only collected on the PySpark that the connector's jars are of; see conftest. On our broker the tests are in the suite
spark42, on Apache Kafka in the suite jvm, which ``make soak`` runs.
"""

import json

import pytest

from spark_kafkalite.cli.main import run
from spark_kafkalite.functions import from_registry, split_registry_frame, to_registry

from .stub_registry import StubRegistry
from .topics import let_look_quiet, logged_offsets

pytestmark = [pytest.mark.spark, pytest.mark.versions]


def stream_of(topics, source, topic, **given):
    options = topics.options({"subscribe": topic, "startingOffsets": "earliest", **given})
    return topics.spark.readStream.format(source).options(**options).load()


def test_the_same_rows_and_the_same_schema(topics_anywhere):
    topics = topics_anywhere
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


def test_a_checkpoint_moves_from_the_jvm_connector_to_ours_and_back(topics_anywhere, checkpoint):
    topics = topics_anywhere
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


def test_a_checkpoint_of_ours_moves_from_its_second_batch_on(topics_anywhere, checkpoint):
    topics = topics_anywhere
    topic = topics.new()
    topics.fill(topic, range(2))
    assert topics.run(stream_of(topics, "kafkalite", topic, maxOffsetsPerTrigger=1), checkpoint) == ["0", "1"]
    topics.fill(topic, [2])
    assert topics.run(stream_of(topics, "kafka", topic), checkpoint) == ["2"]


def test_topic_ids_do_not_count_where_the_jvm_source_has_read_since(topics, checkpoint):
    def recreate(values):
        topics.admin.delete_topics([topic])
        topics.admin.create_topic(topic, 1)
        topics.fill(topic, values)

    topic = topics.new()
    topics.fill(topic, range(4))
    ours = stream_of(topics, "kafkalite", topic, maxOffsetsPerTrigger=2, checkpointLocation=checkpoint)
    assert len(topics.run(ours, checkpoint)) == 4
    recreate(range(10, 20))
    # It knows no ids and reads the new topic from the old offset on. That is no news for ours.
    theirs = stream_of(topics, "kafka", topic, checkpointLocation=checkpoint)
    assert topics.run(theirs, checkpoint) == [str(each) for each in range(14, 20)]
    topics.fill(topic, ["new"])
    assert topics.run(ours, checkpoint) == ["new"]
    recreate(range(30, 50))
    with pytest.raises(Exception, match="was deleted and created again"):
        topics.run(ours, checkpoint)


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


def test_keys_go_where_the_jvm_sink_puts_them(topics_anywhere):
    topics = topics_anywhere
    rows = topics.spark.range(300).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
    placed = []
    for sink in ("kafkalite", "kafka"):
        topic = topics.new(5)
        rows.write.format(sink).options(**topics.options({"topic": topic})).mode("append").save()
        placed.append(dict(topics.read(topic).select("key", "partition").collect()))
    assert placed[0] == placed[1]


def test_batches_end_where_the_jvm_source_ends_them(topics_anywhere, tmp_path):
    topics = topics_anywhere
    topic = topics.new(3)
    for partition, count in enumerate((50, 10, 1)):
        topics.fill(topic, range(count), partition)
    ends = {}
    for source in ("kafkalite", "kafka"):
        checkpoint = str(tmp_path / source)
        stream = stream_of(topics, source, topic, maxOffsetsPerTrigger=30, minPartitions=5)
        assert len(topics.run(stream, checkpoint)) == 61
        ends[source] = [offsets[topic] for offsets in logged_offsets(checkpoint)]
    assert ends["kafkalite"] == ends["kafka"]
    assert len(ends["kafka"]) == 3


@pytest.mark.parametrize("split", [{}, {"maxRecordsPerPartition": 30}, {"minPartitions": 7}])
def test_a_read_has_as_many_tasks_as_with_the_jvm_source(topics_anywhere, split):
    topics = topics_anywhere
    topic = topics.new(3)
    for partition, count in enumerate((100, 40, 2)):
        topics.fill(topic, range(count), partition)
    # Not up to "latest": there the JVM source splits nothing.
    given = {"subscribe": topic, "endingOffsets": json.dumps({topic: {"0": 95, "1": 40, "2": 2}}), **split}
    given["startingOffsets"] = json.dumps({topic: {"0": 5, "1": 0, "2": 0}})
    ours, theirs = (
        topics.spark.read.format(source).options(**topics.options(given)).load() for source in ("kafkalite", "kafka")
    )
    assert ours.rdd.getNumPartitions() == theirs.rdd.getNumPartitions()
    assert sorted(ours.collect()) == sorted(theirs.collect())


def test_avro_values_are_read_and_written_as_with_spark_s_own_functions(spark):
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro, to_avro

    schema = json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "note", "type": ["null", "string"], "default": None},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                {"name": "tags", "type": {"type": "map", "values": "int"}},
            ],
        }
    )
    rows = spark.range(3).select(
        F.expr("struct(id, if(id = 1, null, 'n') as note, timestamp_micros(id) as at, map('k', 3) as tags)").alias(
            "order"
        )
    )
    with StubRegistry() as registry:
        number = registry.register("orders-value", schema)
        ours = rows.select(to_registry("order", registry.url, subject="orders-value").alias("value"))
        theirs = rows.select(
            F.concat(F.lit(b"\0" + number.to_bytes(4, "big")), to_avro("order", schema)).alias("value")
        )
        assert ours.collect() == theirs.collect()
        by_ours = theirs.select(from_registry("value", registry.url, subject="orders-value").alias("order"))
        framed = theirs.select(split_registry_frame("value").alias("framed"))
        by_theirs = framed.select(from_avro("framed.payload", schema).alias("order"))
        assert by_ours.collect() == by_theirs.collect() == rows.collect()
        assert by_ours.schema.simpleString() == by_theirs.schema.simpleString()
