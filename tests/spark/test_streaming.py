from ast import literal_eval
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from spark_kafkalite.functions import write_update
from spark_kafkalite.spark.pyspark_versions import PROGRESS_HAS_LOG_ENDS
from tests.patience import PATIENCE_S, wait_until

from .topics import await_end, last_line, logged_offsets, started

pytestmark = [pytest.mark.spark]


def texts(numbers) -> list[str]:
    return sorted(map(str, numbers))


@pytest.mark.versions
def test_available_now_reads_in_batches_and_goes_on_after_a_restart(topics_anywhere, checkpoint):
    topics = topics_anywhere
    topic = topics.new(2)
    topics.fill(topic, range(50), 0)
    topics.fill(topic, range(50, 60), 1)
    stream = topics.stream(topic, maxOffsetsPerTrigger=30)
    assert sorted(topics.run(stream, checkpoint)) == texts(range(60))
    first = {"0": 0, "1": 0}
    assert logged_offsets(checkpoint) == [
        {"$initial": {topic: first}, topic: {"0": 25, "1": 5}},
        {topic: {"0": 50, "1": 10}},
    ]
    # Nothing new: nothing read, and no batch.
    assert topics.run(stream, checkpoint) == []
    topics.fill(topic, range(60, 65), 1)
    # Where to start is decided once: the option says something else now, and it does not matter.
    assert topics.run(topics.stream(topic, startingOffsets="latest"), checkpoint) == texts(range(60, 65))
    assert logged_offsets(checkpoint)[2:] == [{topic: {"0": 50, "1": 15}}]


def test_batches_are_limited_and_tasks_are_split_by_bytes(topics_and_in_soak_anywhere, checkpoint):
    topics = topics_and_in_soak_anywhere
    topic = topics.new(2)
    for partition, more in enumerate((b"x" * 996, b"x" * 96)):
        records = [{"value": b"%04d" % number + more, "partition": partition} for number in range(50)]
        topics.producer.send_batch(topic, records).result(PATIENCE_S)
    stream = topics.stream(topic, maxBytesPerTrigger="40k").selectExpr("substring(value, 1, 4) AS value")
    assert sorted(topics.run(stream, checkpoint)) == sorted(2 * [f"{n:04d}" for n in range(50)])
    ends = [logged[topic] for logged in logged_offsets(checkpoint)]
    # 56 KB wait, and each partition gives its share of a batch's 40: seven tenths of its records.
    assert 33 <= ends[0]["0"] <= 37
    assert 33 <= ends[0]["1"] <= 37
    assert ends[1:] == [{"0": 50, "1": 50}]
    # Of 51 KB and of 5.
    split = topics.read(topic, maxBytesPerPartition="20k")
    assert split.rdd.getNumPartitions() == 4
    assert split.count() == 100


@pytest.mark.versions
def test_a_running_query_sees_records_and_partitions_as_they_come(topics, checkpoint):
    topic = topics.new()
    query, values = topics.collect(
        topics.stream(topic, startingOffsets="latest"), checkpoint, {"processingTime": "0 seconds"}
    )
    query.processAllAvailable()
    topics.fill(topic, ["a"])
    query.processAllAvailable()
    assert values == ["a"]
    topics.admin.create_partitions({topic: 3})
    topics.producer.partitions_for(topic)
    from spark_kafkalite import Producer

    with Producer({"bootstrap.servers": topics.bootstrap}) as producer:
        producer.send(topic, b"b", partition=2).result(PATIENCE_S)
    # A new partition is read from its first offset.
    query.processAllAvailable()
    assert values == ["a", "b"]
    assert query.exception() is None
    query.stop()
    topics.fill(topic, ["c"])
    assert topics.run(topics.stream(topic), checkpoint) == ["c"]


def test_trigger_once_takes_everything(topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, range(20))
    stream = topics.stream(topic, maxOffsetsPerTrigger=5)
    # On PySpark 4.0 and 4.1 nothing overrules the limit.
    assert topics.run(stream, checkpoint, once=True) == texts(range(20 if PROGRESS_HAS_LOG_ENDS else 5))
    assert len(logged_offsets(checkpoint)) == 1
    topics.fill(topic, range(20, 22))
    assert topics.run(stream, checkpoint, once=True) == (
        texts(range(20, 22)) if PROGRESS_HAS_LOG_ENDS else texts(range(5, 10))
    )


def test_a_batch_that_failed_is_repeated_exactly(topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, range(10))
    stream = topics.stream(topic, maxOffsetsPerTrigger=4)

    def break_second(batch_id, rows):
        if batch_id == 1:
            raise RuntimeError("on purpose")

    query, values = topics.collect(stream, checkpoint, each=break_second)
    with pytest.raises(Exception, match="on purpose"):
        await_end(query)
    assert values == texts(range(4))
    topics.fill(topic, range(10, 12))
    batches = {}
    query, values = topics.collect(stream, checkpoint, each=lambda number, rows: batches.update({number: len(rows)}))
    await_end(query)
    assert sorted(values) == texts(range(4, 12))
    assert batches[1] == 4


def test_a_subscription_by_pattern_picks_up_new_topics(topics, checkpoint):
    first = topics.new(name="picked")
    prefix = first.split("-")[0]
    topics.fill(first, ["a"])
    pattern = {"subscribePattern": f"^{prefix}-.*picked", "startingOffsets": "earliest"}
    assert topics.run(topics.stream(**pattern), checkpoint) == ["a"]
    topics.fill(topics.new(name="picked"), ["b"])
    assert topics.run(topics.stream(**pattern), checkpoint) == ["b"]


def test_the_minimum_waits_but_not_in_an_available_now_run(topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, range(3))
    stream = topics.stream(topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    query, values = topics.collect(stream, checkpoint, {"processingTime": "0 seconds"})
    query.processAllAvailable()
    # The first trigger always fires.
    assert values == texts(range(3))
    topics.fill(topic, range(3, 5))
    query.processAllAvailable()
    assert len(values) == 3
    topics.fill(topic, range(5, 9))
    query.processAllAvailable()
    assert len(values) == 9
    query.stop()
    topics.fill(topic, ["last"])
    assert topics.run(stream, checkpoint) == ["last"]


def test_the_progress_shows_offsets(topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, range(5))
    query, _ = topics.collect(topics.stream(topic, maxOffsetsPerTrigger=3), checkpoint)
    await_end(query)
    source = query.recentProgress[0].sources[0]
    # JSON, and on PySpark 4.0 and 4.1 a dictionary as Python writes it.
    assert literal_eval(source.endOffset)[topic] == {"0": 3}
    # Only the first batch's end also holds its start, which Spark's own connector does not show.
    ends = [literal_eval(each.sources[0].endOffset) for each in query.recentProgress]
    assert [set(end) - {topic} != set() for end in ends] == [True] + [False] * (len(ends) - 1)
    assert literal_eval(source.latestOffset)[topic] == {"0": 5 if PROGRESS_HAS_LOG_ENDS else 3}


@pytest.mark.versions
def test_a_data_loss_ends_the_query_or_is_skipped(topics, checkpoint):
    topic = topics.new()
    topics.fill(topic, range(10))
    stream = topics.stream(topic)
    assert len(topics.run(stream, checkpoint)) == 10
    topics.admin.delete_topics([topic])
    topics.admin.create_topic(topic, 1)
    from spark_kafkalite import Producer

    with Producer({"bootstrap.servers": topics.bootstrap}) as producer:
        producer.send_batch(topic, [b"new0", b"new1"]).result(PATIENCE_S)
    # Where another test of the session has installed the listener, the checkpoint has the topic's id.
    found = r"(.* 10 to 2|the topic \S+ was deleted and created again)"
    with pytest.raises(Exception, match=rf"\[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED\] failOnDataLoss=true: {found}"):
        topics.run(topics.stream(topic, **{"fetchOffset.retryIntervalMs": 10}), checkpoint)
    # The new topic is read from its beginning, where the JVM connector would skip to its end.
    lossy = topics.stream(topic, failOnDataLoss="false", **{"fetchOffset.retryIntervalMs": 10})
    assert topics.run(lossy, checkpoint) == ["new0", "new1"]


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
def test_a_start_outside_of_the_log_fails_before_the_first_batch(topics, checkpoint, trigger):
    topic = topics.new()
    topics.fill(topic, range(4))

    def from_offset(offset):
        return topics.stream(topic, startingOffsets=f'{{"{topic}":{{"0":{offset}}}}}')

    query, values = topics.collect(from_offset(50), checkpoint, trigger)
    with pytest.raises(Exception, match=r"\[KAFKA_DATA_LOSS.START_OFFSET_RESET\] startingOffsets=") as caught:
        await_end(query)
    assert f"{topic}-0 starts at 50, but its log holds [0, 4)" in last_line(caught.value)
    assert not values and not [path for path in Path(checkpoint).glob("*/*") if path.name.isdigit() and path.is_file()]
    # So the option can be corrected on the same checkpoint.
    assert topics.run(from_offset(2), checkpoint) == ["2", "3"]


def test_a_topic_of_a_pattern_that_is_deleted(topics, checkpoint):
    goes, stays = topics.new(name="some-goes"), topics.new(name="some-stays")
    given = {
        "subscribePattern": f"^({goes}|{stays})$",
        "startingOffsets": "earliest",
    }
    for topic in (goes, stays):
        topics.fill(topic, ["before"])
    strict, lost = topics.collect(topics.stream(**given), f"{checkpoint}-strict", {"processingTime": "0 seconds"})
    lossy, found = topics.collect(
        topics.stream(**given, failOnDataLoss="false"), f"{checkpoint}-lossy", {"processingTime": "0 seconds"}
    )
    wait_until(lambda: len(lost) == len(found) == 2, "both records in both queries")
    topics.admin.delete_topics([goes])
    topics.fill(stays, ["after"])
    with pytest.raises(Exception, match=rf"\[KAFKA_DATA_LOSS.PARTITIONS_DELETED\] .* {goes}-0 are gone") as caught:
        await_end(strict)
    assert "create it" not in str(caught.value)
    wait_until(lambda: "after" in found, "the record after the deletion")
    topics.fill(stays, ["still"])
    wait_until(lambda: "still" in found, "the record after the other query's end")
    assert lossy.isActive
    lossy.stop()
    assert found == ["before", "before", "after", "still"]


def test_a_checkpoint_of_other_topics(topics, checkpoint):
    orders, refunds, other = (topics.new(name=name) for name in ("of-orders", "of-refunds", "of-cdc"))
    for topic in (orders, refunds, other):
        topics.fill(topic, [f"before {topic}"])
    assert len(topics.run(topics.stream(f"{orders},{refunds}"), checkpoint)) == 2
    offsets = logged_offsets(checkpoint)
    topics.fill(refunds, ["after"])
    for subscribed, given, said in (
        (other, {"failOnDataLoss": "false"}, f"subscribe={other}: the checkpoint is of {orders}, {refunds}"),
        (refunds, {}, f"subscribe={refunds}: the checkpoint goes on in {orders}, too"),
    ):
        with pytest.raises(Exception, match=r"\[KAFKA_DATA_LOSS.PARTITIONS_DELETED\]") as caught:
            topics.run(topics.stream(subscribed, **given), checkpoint)
        assert said in last_line(caught.value)
    # Nothing was planned, so the option can be corrected on the same checkpoint.
    assert logged_offsets(checkpoint) == offsets
    assert topics.run(topics.stream(refunds, **{"dataLoss.unsubscribed": "warn"}), checkpoint) == ["after"]
    topics.fill(refunds, ["later"])
    assert topics.run(topics.stream(refunds), checkpoint) == ["later"]


@pytest.mark.versions
def test_topic_to_topic_in_append_and_complete_mode(topics, checkpoint, tmp_path):
    source, copy, counts = topics.new(2), topics.new(), topics.new()
    for partition in (0, 1):
        topics.fill(source, range(5), partition)
    out = topics.options({"topic": copy})
    limited = topics.stream(source, maxOffsetsPerTrigger=6).select("key", "value")
    writer = limited.writeStream.format("kafkalite").options(**out).option("checkpointLocation", checkpoint)
    await_end(started(writer))
    assert sorted(topics.values(copy)) == sorted([*texts(range(5)), *texts(range(5))])

    counted = topics.stream(source).groupBy("value").count()
    query = (
        counted.selectExpr("value AS key", "cast(count AS string) AS value").writeStream.format("kafkalite")
        .outputMode("complete").options(**topics.options({"topic": counts}))
        .option("checkpointLocation", str(tmp_path / "complete")).trigger(availableNow=True).start()
    )  # fmt: skip
    await_end(query)
    assert topics.values(counts) == ["2"] * 5


def test_update_mode_goes_through_write_update(topics, checkpoint):
    source, counts = topics.new(), topics.new()
    counted = (
        topics.stream(source).groupBy("value").count().selectExpr("value AS key", "cast(count AS string) AS value")
    )
    for values in (["a", "b"], ["a"]):
        topics.fill(source, values)
        writer = write_update(counted, topics.options({}), topic=counts)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        await_end(query)
    rows = topics.read(counts).orderBy("offset").collect()
    assert sorted((row.key, row.value) for row in rows[:2]) == [(b"a", b"1"), (b"b", b"1")]
    assert [(row.key, row.value) for row in rows[2:]] == [(b"a", b"2")]


def test_a_stateful_stream_with_a_watermark(topics, checkpoint):
    topic = topics.new()
    for minute in range(30):
        topics.fill(topic, [minute], timestamp_ms=1_700_000_400_000 + minute * 60_000)
    windows = (
        topics.stream(topic, maxOffsetsPerTrigger=10)
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "10 minutes"))
        .count()
        .selectExpr("cast(cast(count AS string) AS binary) AS value")
    )
    closed = topics.run(windows, checkpoint)
    # Ten minutes each; the third window is still open.
    assert closed == ["10", "10"]


def test_a_query_that_waits_for_records_can_be_stopped(topics, checkpoint):
    """Spark waits for the source's answer; unit tests bound how long the source waits."""
    query, _ = topics.collect(topics.stream(topics.new()), checkpoint, {"processingTime": "0 seconds"})
    query.processAllAvailable()
    # Raises TimeoutException after the session's stopTimeout.
    query.stop()
    assert not query.isActive
