"""Which partition a record goes to."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from spark_kafkalite.client.produce.partitioner import TopicPartitioner, partition_of_key
from spark_kafkalite.errors import ConfigError


def made(mode: object, count: int = 4, available: list[int] | None = None, **options: object) -> TopicPartitioner:
    partitioner = TopicPartitioner("t", mode, random_source=random.Random(7), **options)  # type: ignore[arg-type]
    partitioner.update(count, list(range(count)) if available is None else available)
    return partitioner


# The hashes are those of Kafka's own test of its murmur2, as signed 32-bit numbers.
@pytest.mark.parametrize(
    ("key", "kafka_hash"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_keys_go_where_other_clients_put_them(key: bytes, kafka_hash: int) -> None:
    expected = (kafka_hash & 0x7FFFFFFF) % 7
    assert partition_of_key(key, 7) == expected
    for mode in ("default", "round_robin", "random"):
        assert made(mode, 7).choose(key, b"v") == expected


def test_the_sticky_partition_stays_until_it_is_left() -> None:
    partitioner = made("default")
    before = partitioner.choose(None, b"v")
    assert {partitioner.choose(None, b"v") for _ in range(100)} == {before}
    partitioner.move_on()
    assert partitioner.choose(None, b"v") != before


def test_the_only_partition_is_kept() -> None:
    partitioner = made("default", 1)
    partitioner.move_on()
    assert partitioner.choose(None, b"v") == 0


def test_partitions_without_a_leader_are_avoided() -> None:
    for mode in ("default", "round_robin", "random"):
        partitioner = made(mode, 4, [1, 3])
        seen = set()
        for _ in range(50):
            seen.add(partitioner.choose(None, b"v"))
            partitioner.move_on()
        assert seen == {1, 3}, mode


def test_a_sticky_partition_that_lost_its_leader_is_left() -> None:
    partitioner = made("default")
    others = [each for each in range(4) if each != partitioner.sticky]
    partitioner.update(4, others)
    assert partitioner.sticky in others


def test_without_any_leader_all_partitions_are_used() -> None:
    assert made("default", 4, []).choose(None, b"v") in range(4)


def test_round_robin_takes_turns() -> None:
    partitioner = made("round_robin")
    assert set(Counter(partitioner.choose(None, b"v") for _ in range(40)).values()) == {10}


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 10])
def test_draw_goes_on_where_choose_would(count: int) -> None:
    one, other = made("round_robin"), made("round_robin")
    assert list(one.draw(count)) == [other.choose(None, None) for _ in range(count)]
    assert one.choose(None, None) == other.choose(None, None)


def test_draw_at_random_stays_among_the_available() -> None:
    assert set(made("random", 4, [0, 2]).draw(200)) == {0, 2}


def test_keys_can_be_ignored() -> None:
    partitioner = made("round_robin", ignore_keys=True)
    assert len({partitioner.choose(b"same", b"v") for _ in range(4)}) == 4


def test_a_function_decides_alone() -> None:
    calls = []

    def choose(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        calls.append((topic, key, value, count))
        return 3

    assert made(choose).choose(b"k", b"v") == 3
    assert calls == [("t", b"k", b"v", 4)]


@pytest.mark.parametrize("answer", [-1, 4, None, "1"])
def test_a_function_must_return_a_partition(answer: object) -> None:
    with pytest.raises(ConfigError, match="must be an int from 0 to 3"):
        made(lambda *_: answer).choose(b"k", b"v")
