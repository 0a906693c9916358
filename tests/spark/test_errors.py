"""The text that a user sees, in Spark and not only in our functions."""

import pytest

from .topics import await_end, last_line

pytestmark = pytest.mark.spark


def load_error(spark, options) -> str:
    with pytest.raises(Exception, match="KAFKA") as caught:
        spark.read.format("kafkalite").options(**options).load()
    return last_line(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {},
            "[KAFKALITE_INVALID_OPTION] subscribe=(not set): all missing; set exactly one of subscribe, subscribePattern",  # noqa: E501
        ),
        (
            {"subscribe": "t", "startingOffset": "x"},
            "[KAFKALITE_UNKNOWN_OPTION] startingoffset=x: there is no such option",
        ),
        ({"subscribe": "t", "exactlyOnce": "true"}, "[KAFKALITE_UNSUPPORTED_OPTION] exactlyOnce=true: "),
        (
            {"subscribe": "t", "startingOffsets": "committed"},
            "[KAFKALITE_INVALID_OPTION] groupId=(not set): startingOffsets=committed needs the group",
        ),
        ({"subscribe": "t", "minPartitions": "0"}, "[KAFKALITE_INVALID_OPTION] minPartitions=0: must be at least 1"),
        (
            {"subscribe": "t", "kafka.auto.offset.reset": "latest"},
            "[KAFKALITE_INVALID_OPTION] kafka.auto.offset.reset=",
        ),
        ({"subscribe": "t", "kafka.fetch.min.bytes": "x"}, "[KAFKALITE_INVALID_OPTION] kafka.fetch.min.bytes=x: "),
        (
            {"subscribe": "t", "kafka.ssl.key.pasword": "hunter2"},
            "[KAFKALITE_UNKNOWN_OPTION] kafka.ssl.key.pasword=*********(redacted): there is no such setting of "
            "clients; did you mean kafka.ssl.key.password?",
        ),
        pytest.param(
            {"subscribe": "no-such"},
            "[KAFKALITE_TOPIC_NOT_FOUND] subscribe=no-such: topic 'no-such': it does not exist",
            marks=pytest.mark.versions,
        ),
        ({"assign": '{"no-such":[0]}'}, "[KAFKALITE_TOPIC_NOT_FOUND] assign=no-such-0: "),
    ],
)
def test_errors_at_load(topics, spark, given, expected):
    text = load_error(spark, topics.options(given))
    assert text.startswith(expected)
    assert "hunter2" not in text


def test_no_servers(spark):
    assert load_error(spark, {"subscribe": "t"}).startswith(
        "[KAFKALITE_INVALID_OPTION] kafka.bootstrap.servers=(not set): name at least one broker"
    )


def test_no_broker(spark, unused_address):
    options = {"kafka.bootstrap.servers": unused_address, "subscribe": "t", "kafka.default.api.timeout.ms": "1000"}
    text = load_error(spark, options)
    assert text.startswith(f"[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers={unused_address}: no broker answers")
    assert text.endswith("; start the broker, or correct the address")


def test_a_bad_address(spark):
    text = load_error(spark, {"kafka.bootstrap.servers": "nonsense", "subscribe": "t"})
    assert text.startswith("[KAFKALITE_INVALID_OPTION] kafka.bootstrap.servers=nonsense: ")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "latest"}, "[KAFKALITE_INVALID_OPTION] startingOffsets=latest: a batch cannot start at the end"),  # noqa: E501
        ({"startingOffsets": '{"TOPIC":{"0":0}}'}, "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] startingOffsets="),
        ({"startingOffsets": '{"TOPIC":{"0":0,"1":0,"7":0}}'}, "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] startingOffsets="),  # noqa: E501
        ({"startingOffsetsByTimestamp": '{"TOPIC":{"0":0}}'}, "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED] startingOffsetsByTimestamp="),  # noqa: E501
        ({"startingTimestamp": "99999999999999"}, "[KAFKALITE_INVALID_OPTION] startingTimestamp=99999999999999: no record at or after"),  # noqa: E501
        ({"startingOffsets": '{"TOPIC":{"0":0,"1":0}}', "endingOffsets": '{"TOPIC":{"0":0}}'}, "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] "),  # noqa: E501
        ({"startingOffsets": '{"TOPIC":{"0":5,"1":0}}', "endingOffsets": '{"TOPIC":{"0":4,"1":0}}'}, "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] "),  # noqa: E501
        ({"endingOffsets": '{"TOPIC":{"0":9,"1":-1}}'}, '[KAFKALITE_INVALID_OPTION] endingOffsets={"TOPIC":{"0":9,"1":-1}}: TOPIC-0 ends at 1, below 9; lower the offset'),  # noqa: E501
        pytest.param(
            {"startingOffsets": '{"TOPIC":{"0":5,"1":0}}'},
            '[KAFKA_DATA_LOSS.START_OFFSET_RESET] startingOffsets={"TOPIC":{"0":5,"1":0}}: failOnDataLoss=true: TOPIC-0 starts at 5, but its log holds [0, 1)',  # noqa: E501
            marks=pytest.mark.versions,
        ),
    ],
)  # fmt: skip
def test_errors_of_a_batch(topics, given, expected):
    topic = topics.new(2)
    topics.fill(topic, ["x"])
    frame = topics.read(topic, **{name: value.replace("TOPIC", topic) for name, value in given.items()})
    with pytest.raises(Exception, match=r"KAFKA|OFFSET") as caught:
        frame.count()
    text = str(caught.value)
    expected = expected.replace('"TOPIC"', f'"{topic}"').replace("TOPIC-", f"{topic}-")
    assert any(line.strip().startswith(expected) for line in text.splitlines()), text


@pytest.mark.versions
def test_a_stream_with_an_end(topics, checkpoint):
    topic = topics.new()
    with pytest.raises(Exception, match="KAFKALITE") as caught:
        topics.run(topics.stream(topic, endingOffsets="latest"), checkpoint)
    assert last_line(caught.value).startswith("[KAFKALITE_INVALID_OPTION] endingOffsets=latest: a stream has no end")


def test_a_schema_with_a_column_that_is_not_there(topics, spark):
    frame = spark.read.format("kafkalite").schema("value string").options(**topics.options({"subscribe": "t"})).load()
    with pytest.raises(Exception, match="KAFKALITE_INVALID_SCHEMA") as caught:
        frame.count()
    assert last_line(caught.value).startswith("[KAFKALITE_INVALID_SCHEMA] schema=value string: the column is binary")


@pytest.mark.versions
@pytest.mark.parametrize("case", ["load", "plan", "task", "stream", "sink", "written row"])
def test_no_frames_of_ours_are_shown(topics, spark, checkpoint, case):
    """The first line names the condition of Spark and ours, wherever an error comes from."""
    topic = topics.new(message_timestamp_after_max_ms=str(2**63 - 1))
    topics.fill(topic, ["x"])
    rows = spark.sql("SELECT CAST(NULL AS STRING) AS topic, 'v' AS value")
    with pytest.raises(Exception, match="KAFKA") as caught:
        match case:
            case "load":
                topics.read(topic, startingOffset="x")
            case "plan":
                topics.read(topic, startingOffsets="latest").count()
            case "task":
                # A time that Spark's timestamps cannot hold.
                topics.fill(topic, ["late"], timestamp_ms=2**62)
                topics.read(topic).count()
            case "stream":
                topics.run(topics.stream(topic, endingOffsets="latest"), checkpoint)
            case "sink":
                rows.write.format("kafkalite").options(**topics.options({"topic": "a/b"})).mode("append").save()
            case "written row":
                rows.write.format("kafkalite").options(**topics.options({})).mode("append").save()
    text = str(caught.value)
    assert "Traceback (most recent call last)" not in text
    assert "/spark_kafkalite/" not in text
    last_line(caught.value)


@pytest.mark.any_spark
def test_what_spark_itself_refuses_of_a_source_in_python(topics, spark, checkpoint):
    """The engine's own limits, which README and docs/spark_parity.md tell of."""
    topic = topics.new()
    rows = spark.sql("SELECT 'v' AS value")

    def sink():
        return rows.write.format("kafkalite").options(**topics.options({"topic": topic}))

    # The first is what a writer does that says nothing of a mode.
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*\"kafkalite\""):
            sink().mode(mode).save()
    with pytest.raises(Exception, match=r"The provided partitioning .* columns do not match"):
        sink().partitionBy("value").mode("append").save()
    continuous = topics.stream(topic).writeStream.format("noop").option("checkpointLocation", checkpoint)
    with pytest.raises(Exception, match="kafkalite does not support continuous processing"):
        await_end(continuous.trigger(continuous="1 second").start())
    assert topics.values(topic) == []
