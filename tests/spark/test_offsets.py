"""Offsets beside the checkpoint, as Spark's engine drives the source.

What needs no Spark is in tests/interop/spark/test_offsets.py.
"""

import itertools
import os

import pytest

from spark_kafkalite import Admin, TopicPartition
from spark_kafkalite.spark import install_listener
from tests.patience import wait_until

from .topics import await_end, last_line

pytestmark = pytest.mark.spark

GROUPS_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"spark-group-{next(_numbers)}"


@pytest.fixture
def listener(spark):
    return install_listener(spark)


def described(java_tools, bootstrap: str, group: str) -> dict[str, tuple[int, int, int]]:
    """Return (CURRENT-OFFSET, LOG-END-OFFSET, LAG) of each partition as Kafka's own tool shows them."""
    told = java_tools.run(GROUPS_COMMAND, "--bootstrap-server", bootstrap, "--describe", "--group", group).stdout
    rows = [line.split() for line in told.splitlines() if line.startswith(f"{group} ")]
    return {f"{row[1]}-{row[2]}": (int(row[3]), int(row[4]), int(row[5])) for row in rows}


def committed(topics, group: str) -> dict[str, int]:
    with Admin({"bootstrap.servers": topics.bootstrap}) as admin:
        return {str(tp): each.offset for tp, each in admin.group_offsets(group).items()}


def wait_for_commit(topics, group: str, offsets: dict[str, int]) -> None:
    wait_until(
        lambda: committed(topics, group) == offsets,
        lambda: f"{offsets} committed by {group}, now {committed(topics, group)}",
        poll_s=0.1,
    )


def test_available_now_commits_every_batch_and_a_new_query_takes_over(topics_anywhere, checkpoint, group, tmp_path):
    topics = topics_anywhere
    topic = topics.new(2)
    topics.fill(topic, range(10), 0)
    topics.fill(topic, range(10, 12), 1)
    stream = topics.stream(topic, groupId=group, maxOffsetsPerTrigger=6)
    assert len(topics.run(stream, checkpoint)) == 12
    assert committed(topics, group) == {f"{topic}-0": 10, f"{topic}-1": 2}
    topics.fill(topic, ["new"])
    taken_over = topics.stream(topic, groupId=group, startingOffsets="committed")
    assert topics.run(taken_over, str(tmp_path / "another")) == ["new"]
    assert committed(topics, group) == {f"{topic}-0": 11, f"{topic}-1": 2}
    assert topics.values(topic, groupId=group, startingOffsets="committed") == []


def test_a_start_from_nothing_says_what_is_missing(topics, checkpoint, group):
    topic = topics.new()
    for start in (
        lambda: topics.values(topic, groupId=group, startingOffsets="committed"),
        lambda: topics.run(topics.stream(topic, groupId=group, startingOffsets="committed"), checkpoint),
    ):
        with pytest.raises(Exception) as caught:
            start()
        assert last_line(caught.value).startswith(
            f"[KAFKALITE_INVALID_OPTION] startingOffsets=committed: group '{group}' has no offset of {topic}-0; commit"
        )


@pytest.mark.kafka  # whose tool it is
def test_a_running_query_is_seen_by_kafkas_own_lag_tool(topics_anywhere, checkpoint, group, java_tools):
    topics = topics_anywhere
    topic = topics.new()
    topics.fill(topic, range(7))
    stream = topics.stream(topic, groupId=group, maxOffsetsPerTrigger=7)
    held = []

    def hold(batch_id, rows):
        if batch_id == 1:
            # The first batch is done, and committed; this one is not.
            held.append(described(java_tools, topics.bootstrap, group))

    query, values = topics.collect(stream, checkpoint, {"processingTime": "0 seconds"}, each=hold)
    query.processAllAvailable()
    topics.fill(topic, range(7, 10))
    query.processAllAvailable()
    assert len(values) == 10
    assert held == [{f"{topic}-0": (7, 10, 3)}]
    query.stop()


@pytest.mark.versions
def test_trigger_once_is_committed_by_the_listener(topics_and_in_soak_anywhere, checkpoint, group, listener):
    topics = topics_and_in_soak_anywhere
    first, second = topics.new(), topics.new()
    topics.fill(first, range(5))
    topics.fill(second, range(3))
    # Two sources in one query, each with options of its own.
    both = topics.stream(first, groupId=group).union(topics.stream(second, groupId=f"{group}-2"))
    query, _ = topics.collect(both, checkpoint, {"once": True})
    await_end(query)
    wait_for_commit(topics, group, {f"{first}-0": 5})
    wait_for_commit(topics, f"{group}-2", {f"{second}-0": 3})


def test_a_stopped_query_is_committed_by_the_listener(topics, checkpoint, group, listener):
    topic = topics.new()
    topics.fill(topic, range(5))
    # The next trigger, which would commit, is an hour away.
    query, values = topics.collect(topics.stream(topic, groupId=group), checkpoint, {"processingTime": "1 hour"})
    wait_until(lambda: len(values) == 5 and query.lastProgress is not None, "the first batch and its progress")
    assert committed(topics, group) == {}
    query.stop()
    wait_for_commit(topics, group, {f"{topic}-0": 5})


@pytest.mark.versions
def test_the_listener_shows_the_lag_of_each_partition(topics, checkpoint, listener, spark):
    assert install_listener(spark) is listener
    topic = topics.new(2)
    topics.fill(topic, range(10), 0)
    topics.fill(topic, range(2), 1)

    def shown(query) -> dict[TopicPartition, tuple[int, int, int]]:
        return {
            TopicPartition(each.topic, each.partition): (each.offset, each.end_offset, each.lag)
            for each in listener.lag
            if each.query_id == str(query.id)
        }

    stream = topics.stream(topic, maxOffsetsPerTrigger=6)
    query, _ = topics.collect(stream, checkpoint, {"processingTime": "1 hour"})
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    wait_until(lambda: shown(query) == {zero: (5, 10, 5), one: (1, 2, 1)}, lambda: f"the lag, now {shown(query)}")
    line = f'query_id="{query.id}",consumergroup="",topic="{topic}",partition="0"}} 5\n'
    told = listener.prometheus()
    assert f'kafkalite_query_lag{{query="{query.id}",{line}' in told
    # The age of the record that comes next is asked of the broker, while the query runs.
    seconds = [each for each in told.splitlines() if each.startswith("kafkalite_query_lag_seconds{") and topic in each]
    assert len(seconds) == 2
    assert all(0 <= float(each.rpartition(" ")[2]) < 3_600 for each in seconds)
    query.stop()
    # The last figures stay.
    assert shown(query)[zero] == (5, 10, 5)


def test_a_batch_that_is_run_again_is_reported_like_any_other(topics, checkpoint, group, listener, caplog):
    topic = topics.new()
    topics.fill(topic, range(5))

    def fail(batch_id, rows):
        raise ZeroDivisionError

    stream = topics.stream(topic, groupId=group)
    failing, _ = topics.collect(stream, checkpoint, each=fail)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        await_end(failing)
    # The engine asks for no end before it runs the planned batch again, and reports none.
    query, values = topics.collect(stream, checkpoint, {"once": True})
    await_end(query)
    assert len(values) == 5
    wait_for_commit(topics, group, {f"{topic}-0": 5})
    assert "passed over" not in caplog.text


def test_other_formats_and_queries_without_groups_are_left_alone(spark, checkpoint, listener, tmp_path):
    rate = spark.readStream.format("rate").load()
    query = rate.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(once=True).start()
    await_end(query)
    assert not [each for each in listener.lag if each.query_id == str(query.id)]
    assert os.listdir(checkpoint)
