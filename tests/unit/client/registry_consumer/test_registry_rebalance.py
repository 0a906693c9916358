import random

import pytest

from spark_kafkalite.client.registry_consumer.rebalance import (
    assignment,
    assignment_of,
    range_assignment,
    sorted_partitions,
    streams_of,
)
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration, SubscriptionPattern, consumer_of
from tests.seeds import SEED, SOAK

WHITE, BLACK = SubscriptionPattern.WHITE_LIST, SubscriptionPattern.BLACK_LIST


def test_the_first_threads_take_the_remainder() -> None:
    # The paper's formula as printed would leave partitions 9 and 10 to nobody.
    assigned = range_assignment(range(11), ["a", "b", "c"])
    assert [[each for each, thread in assigned.items() if thread == name] for name in "abc"] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]


def test_more_threads_than_partitions_leave_some_without() -> None:
    assert range_assignment([0, 1], ["a", "b", "c"]) == {0: "a", 1: "b"}
    assert range_assignment([], ["a"]) == {}
    assert range_assignment([0], []) == {}


def test_partitions_of_one_broker_lie_together() -> None:
    partitions = {0: (1, 2), 1: (2, 1), 2: (1,), 3: (2,), 10: (), 4: (1,)}
    assert sorted_partitions(partitions) == [10, 0, 2, 4, 1, 3]
    assigned = assignment({"c": ConsumerRegistration({"t": 2})}, {"t": {n: (n % 2,) for n in range(4)}})
    assert assigned == {
        TopicPartition("t", 0): "c-0",
        TopicPartition("t", 2): "c-0",
        TopicPartition("t", 1): "c-1",
        TopicPartition("t", 3): "c-1",
    }


def test_threads_are_sorted_as_text() -> None:
    # As in Kafka: thread 10 comes before thread 2.
    assigned = assignment({"c": ConsumerRegistration({"t": 11})}, {"t": dict.fromkeys(range(11), (1,))})
    assert [assigned["t", number] for number in (0, 1, 2, 3)] == ["c-0", "c-1", "c-10", "c-2"]


def test_only_consumers_of_a_topic_share_it() -> None:
    consumers = {
        "a": ConsumerRegistration({"t": 1, "u": 1}),
        "b": ConsumerRegistration({"t": 1}),
        "f": ConsumerRegistration({"u|v": 1}, WHITE),
        "g": ConsumerRegistration({"t|u": 1}, BLACK),
    }
    topics = {name: {0: (1,), 1: (1,)} for name in ("t", "u", "v", "__consumer_offsets")}
    assigned = assignment(consumers, topics)
    assert {each.topic for each in assigned} == {"t", "u", "v"}
    readers = {topic: {consumer_of(assigned[topic, number]) for number in (0, 1)} for topic in "tuv"}
    assert readers == {"t": {"a", "b"}, "u": {"a", "f"}, "v": {"f", "g"}}


def test_internal_topics_are_for_those_who_name_them() -> None:
    anything = ConsumerRegistration({".*": 1}, WHITE)
    assert streams_of(anything, "__consumer_offsets") == 0
    assert streams_of(anything, "__consumer_offsets", exclude_internal=False) == 1
    assert streams_of(ConsumerRegistration({"__consumer_offsets": 2}), "__consumer_offsets") == 2


def test_a_filter_that_cannot_be_evaluated_reads_nothing() -> None:
    assert streams_of(ConsumerRegistration({r"\p{Alpha}+": 1}, WHITE), "t") == 0


@pytest.mark.parametrize("number", range(1_000 if SOAK else 20))
def test_everybody_computes_the_same_and_every_partition_has_one_reader(number: int) -> None:
    random_source = random.Random(SEED + number)
    topics = {
        f"t{number}": {
            partition: tuple(random_source.sample(range(4), 2)) for partition in range(random_source.randrange(1, 12))
        }
        for number in range(3)
    }
    consumers = {}
    for number in range(random_source.randrange(1, 8)):
        if random_source.random() < 0.3:
            consumers[f"c{number}"] = ConsumerRegistration({"t[01]": random_source.randrange(1, 4)}, WHITE)
        else:
            chosen = random_source.sample(sorted(topics), random_source.randrange(1, 4))
            consumers[f"c{number}"] = ConsumerRegistration({each: random_source.randrange(1, 4) for each in chosen})
    whole = assignment(consumers, topics)
    parts = [assignment_of(consumer, consumers, topics) for consumer in consumers]
    assert sum(map(len, parts)) == len(whole)
    assert {each: thread for part in parts for each, thread in part.items()} == whole
    for topic, partitions in topics.items():
        threads = sum(streams_of(registration, topic) for registration in consumers.values())
        read = [whole[topic, number] for number in partitions if (topic, number) in whole]
        assert len(read) == (len(partitions) if threads else 0)
        counts = [read.count(thread) for thread in set(read)]
        if threads:
            assert max(counts) <= -(-len(partitions) // threads)
            assert len(counts) == min(threads, len(partitions))


def test_a_consumer_that_is_not_registered_has_nothing() -> None:
    assert assignment_of("x", {"c": ConsumerRegistration({"t": 1})}, {"t": {0: (1,)}}) == {}
