"""What a consumer says to calls that cannot be meant, before it talks to anybody."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_kafkalite import Consumer, TopicPartition
from spark_kafkalite.errors import ClosedError, ConfigError


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    with Consumer(bootstrap_servers="127.0.0.1:1") as made:
        yield made


READS: list[Callable[[Consumer], object]] = [
    lambda consumer: consumer.poll(60_000),
    lambda consumer: consumer.poll_columns(60_000),
    lambda consumer: next(iter(consumer)),
]


@pytest.mark.parametrize("read", READS, ids=["poll", "poll_columns", "iteration"])
@pytest.mark.parametrize(
    ("group_id", "remedy"),
    [(None, "call assign(), or set group.id and call subscribe()"), ("g", "call subscribe() or assign()")],
)
def test_reading_nothing_is_refused_at_once(
    read: Callable[[Consumer], object], group_id: str | None, remedy: str
) -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id=group_id)
    with pytest.raises(ConfigError) as refused:
        read(consumer)
    consumer.close()
    said = "Consumer is not subscribed to any topics or assigned any partitions; "
    assert str(refused.value) == said + remedy


def test_a_closed_consumer_says_that_it_is_closed(consumer: Consumer) -> None:
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll(60_000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("events", "'events' is not a list of partitions: give one, such as [TopicPartition('events', 0)]"),
        (
            TopicPartition("t", 0),
            "TopicPartition(topic='t', partition=0) is not a list of partitions: give one, such as ",
        ),
        (["ab"], "'ab' is not a partition: give one such as TopicPartition('events', 0)"),
        ([("t", "0")], "('t', '0') is not a partition: "),
    ],
)
def test_what_is_no_partition_is_named(consumer: Consumer, given: Any, said: str) -> None:
    for call in (consumer.assign, consumer.pause, consumer.seek_to_end, consumer.end_offsets):
        with pytest.raises(ConfigError) as refused:
            call(given)
        assert str(refused.value).startswith(said)


def test_a_timeout_that_is_no_number_is_named(consumer: Consumer) -> None:
    with pytest.raises(ConfigError, match="timeout '1': must be a number of milliseconds"):
        consumer.poll("1")  # type: ignore[arg-type]
