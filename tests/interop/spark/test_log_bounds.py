"""Offsets that options of the Spark source name and that the logs do not hold, on our broker and Apache Kafka.

What Spark itself makes of the error is in tests/spark/test_streaming.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.batch_reader import KafkaliteBatchReader
from spark_kafkalite.spark.reading.stream_reader import KafkaliteStreamReader
from tests.patience import PATIENCE_S

FIRST, END = 3, 9


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "spark_kafkalite.spark")
    return caplog


@pytest.fixture
def bounded(bootstrap: str, topic: str, admin: Admin) -> str:
    """A topic whose first partition holds [3, 9), and its others nothing."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_batch(topic, [{"value": b"x", "partition": 0} for _ in range(END)]).result(PATIENCE_S)
    admin.delete_records({TopicPartition(topic, 0): FIRST})
    return topic


def batch(bootstrap: str, topic: str, **options: str) -> list[str]:
    """Return the ranges that a batch read plans."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **options}
    tasks = KafkaliteBatchReader(reader_options(given), READ_SCHEMA).partitions()
    return [str(each) for task in tasks for each in task.ranges]


def stream(bootstrap: str, topic: str, **options: str) -> list[str]:
    """Return the ranges of a stream's first batch."""
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **options}
    reader = KafkaliteStreamReader(reader_options(given), READ_SCHEMA)
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    return [str(each) for task in tasks for each in task.ranges]


def at(topic: str, offset: int, others: int) -> str:
    return json.dumps({topic: {"0": offset, "1": others, "2": others, "3": others}})


@pytest.mark.parametrize("plan", [batch, stream])
@pytest.mark.parametrize(("offset", "nearest"), [(FIRST - 1, FIRST), (2**63 - 1, END)])
def test_a_start_outside_of_the_log_fails_or_becomes_the_nearest_end(
    plan: Callable[..., list[str]],
    offset: int,
    nearest: int,
    bootstrap: str,
    bounded: str,
    warnings: pytest.LogCaptureFixture,
) -> None:
    given = at(bounded, offset, -2)
    with pytest.raises(SparkConditionError) as refused:
        plan(bootstrap, bounded, startingOffsets=given)
    expected = f"{bounded}-0 starts at {offset}, but its log holds [{FIRST}, {END})"
    last_line = str(refused.value).splitlines()[-1]
    assert last_line.startswith(f"[KAFKA_DATA_LOSS.START_OFFSET_RESET] startingOffsets={given}: ")
    assert f": failOnDataLoss=true: {expected}; give an offset within, " in last_line
    assert expected not in warnings.text
    found = plan(bootstrap, bounded, startingOffsets=given, failOnDataLoss="false")
    assert found == ([f"{bounded}-0[{FIRST}, {END})"] if nearest < END else [])
    assert f"{expected}; starting at the nearest end" in warnings.text


@pytest.mark.parametrize("plan", [batch, stream])
@pytest.mark.parametrize("offset", [FIRST, END - 1, END])
def test_the_ends_of_the_log_are_within(
    plan: Callable[..., list[str]], offset: int, bootstrap: str, bounded: str
) -> None:
    expected = [f"{bounded}-0[{offset}, {END})"] if offset < END else []
    assert plan(bootstrap, bounded, startingOffsets=at(bounded, offset, 0)) == expected


def test_times_start_within_the_log(bootstrap: str, bounded: str) -> None:
    # Before the first record, and after the last one.
    assert stream(bootstrap, bounded, startingTimestamp="1", startingOffsetsByTimestampStrategy="latest") == [
        f"{bounded}-0[{FIRST}, {END})"
    ]
    later = str(2**62)
    assert stream(bootstrap, bounded, startingTimestamp=later, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(SparkConditionError, match="no record at or after that time"):
        stream(bootstrap, bounded, startingTimestamp=later)


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (END + 1, "-0 ends at 9, below 10; lower the offset, use -1"),
        (FIRST - 1, "-0 begins at 3, above 2; give an offset within the log, use -1"),
    ],
)
def test_an_end_outside_of_the_log_fails_or_becomes_the_nearest_end(
    offset: int, said: str, bootstrap: str, bounded: str, warnings: pytest.LogCaptureFixture
) -> None:
    given = at(bounded, offset, -1)
    with pytest.raises(SparkConditionError, match=r"\[KAFKALITE_INVALID_OPTION\] endingOffsets=") as refused:
        batch(bootstrap, bounded, endingOffsets=given)
    assert said in str(refused.value)
    found = batch(bootstrap, bounded, endingOffsets=given, failOnDataLoss="false")
    assert found == ([f"{bounded}-0[{FIRST}, {END})"] if offset > END else [])
    assert "endingOffsets is outside of the log, of which the part within is read" in warnings.text


@pytest.mark.parametrize("plan", [batch, stream])
@pytest.mark.parametrize(
    ("places", "first"),
    [
        ("last:2", END - 2),
        ("last:100", FIRST),
        ('{"TOPIC":"earliest"}', FIRST),
        ('{"TOPIC":{"0":5,"*":-2}}', 5),
        ('{"TOPIC":{"1":0,"*":"last:1"}}', END - 1),
        ('{"*":"last:3"}', END - 3),
    ],
)
def test_places_named_for_many_partitions(
    plan: Callable[..., list[str]], places: str, first: int, bootstrap: str, bounded: str
) -> None:
    found = plan(bootstrap, bounded, startingOffsets=places.replace("TOPIC", bounded))
    assert found == [f"{bounded}-0[{first}, {END})"]


@pytest.mark.parametrize("plan", [batch, stream])
def test_times_in_words(plan: Callable[..., list[str]], bootstrap: str, bounded: str) -> None:
    later = {"startingOffsetsByTimestampStrategy": "latest"}
    whole = [f"{bounded}-0[{FIRST}, {END})"]
    assert plan(bootstrap, bounded, startingTimestamp="-1h", **later) == whole
    assert plan(bootstrap, bounded, startingTimestamp="2001-09-09T01:46:40Z", **later) == whole
    by_topic = json.dumps({bounded: {"0": "-1h", "*": "2001-09-09"}})
    assert plan(bootstrap, bounded, startingOffsetsByTimestamp=by_topic, **later) == whole
    with pytest.raises(SparkConditionError, match="no record at or after that time"):
        plan(bootstrap, bounded, startingTimestamp="2200-01-01")


def test_a_batch_ends_before_a_time_in_words(bootstrap: str, bounded: str) -> None:
    assert batch(bootstrap, bounded, endingTimestamp="-1h") == []
    assert batch(bootstrap, bounded, endingTimestamp="2200-01-01") == [f"{bounded}-0[{FIRST}, {END})"]


@pytest.mark.parametrize("plan", [batch, stream])
@pytest.mark.parametrize(
    ("places", "said"),
    [
        ('{"TOPIC":{"0":5}}', "it lacks TOPIC-1, TOPIC-2, TOPIC-3;"),
        ('{"TOPIC":{"0":5,"4":5,"*":-2}}', "it names TOPIC-4, which are not read;"),
        ('{"TOPIC":"earliest","other":"earliest"}', "it names topic other, which are not read;"),
    ],
)
def test_places_that_do_not_fit_the_partitions(
    plan: Callable[..., list[str]], places: str, said: str, bootstrap: str, bounded: str
) -> None:
    with pytest.raises(SparkConditionError) as refused:
        plan(bootstrap, bounded, startingOffsets=places.replace("TOPIC", bounded))
    assert refused.value.condition == "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"
    assert said.replace("TOPIC", bounded) in refused.value.detail
