from dataclasses import dataclass, field

import pytest

from spark_kafkalite.model import (
    Headers,
    IsolationLevel,
    Record,
    TimestampType,
    TopicPartition,
    metric_name,
    topic_name_problem,
)


@dataclass
class Columns:
    """Rows that count how often a value is made."""

    values: list[bytes | None]
    headers: Headers = field(default_factory=list)
    made: int = 0

    def offset_at(self, row: int) -> int:
        return 100 + row

    def timestamp_at(self, row: int) -> int:
        return 1_700_000_000_000 + row

    def timestamp_type_at(self, row: int) -> int:
        return 1

    def key_at(self, row: int) -> bytes | None:
        return None

    def value_at(self, row: int) -> bytes | None:
        self.made += 1
        return self.values[row]

    def headers_at(self, row: int) -> Headers:
        return self.headers


def test_a_record_is_a_row_of_its_columns() -> None:
    record = Record(Columns([b"a", b"b"], headers=[("h", b"1"), ("h", None)]), 1, "orders", 3)
    assert (record.topic, record.partition, record.offset) == ("orders", 3, 101)
    assert record.timestamp == 1_700_000_000_001
    assert record.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (record.key, record.value) == (None, b"b")
    assert record.headers == [("h", b"1"), ("h", None)]


def test_a_record_makes_its_value_only_when_asked() -> None:
    columns = Columns([b"a"])
    record = Record(columns, 0, "orders", 3)
    assert columns.made == 0
    assert record.value == b"a"
    assert columns.made == 1


def test_records_are_equal_when_all_their_fields_are() -> None:
    record = Record(Columns([b"a", b"a"]), 0, "orders", 3)
    same = Record(Columns([b"a"]), 0, "orders", 3)
    assert record == same
    assert hash(record) == hash(same)
    assert record != Record(Columns([b"z"]), 0, "orders", 3)
    assert record != Record(Columns([b"a"]), 0, "orders", 4)
    assert record != Record(Columns([b"a", b"a"]), 1, "orders", 3)
    assert record != "a record"


def test_a_records_text_shortens_a_long_value() -> None:
    assert "value=b'short'" in repr(Record(Columns([b"short"]), 0, "orders", 3))
    assert "value=None" in repr(Record(Columns([None]), 0, "orders", 3))
    long = repr(Record(Columns([b"x" * 1_000_000]), 0, "orders", 3))
    assert "(1000000 bytes)" in long
    assert len(long) < 300


def test_topic_partitions_read_as_kafka_writes_them_and_sort_by_number() -> None:
    assert str(TopicPartition("my-topic", 10)) == "my-topic-10"
    assert sorted([TopicPartition("t", 10), TopicPartition("t", 9), TopicPartition("s", 11)]) == [
        ("s", 11),
        ("t", 9),
        ("t", 10),
    ]


def test_the_protocols_numbers() -> None:
    assert [level.value for level in IsolationLevel] == [0, 1]
    assert [kind.value for kind in TimestampType] == [-1, 0, 1]


@pytest.mark.parametrize("name", ["t", "a.b_c-D9", "__consumer_offsets", "...", "x" * 249])
def test_legal_topic_names(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must not be empty"),
        (".", "must not be named '.'"),
        ("..", "must not be named '..'"),
        ("x" * 250, "at most 249 characters, this one has 250"),
        ("a/b", "'a/b' holds a character other than"),
        ("a b", "holds a character"),
        ("a\n", "holds a character"),
        ("é", "holds a character"),
        ("$initial", "holds a character"),
    ],
)
def test_illegal_topic_names(name: str, problem: str) -> None:
    assert problem in (topic_name_problem(name) or "")


@pytest.mark.parametrize(
    ("name", "other", "collide"),
    [("a.b", "a_b", True), ("a.b_c", "a_b.c", True), ("a.b", "ab", False), ("a.b", "a-b", False), ("ab", "a_b", False)],
)
def test_topics_whose_metric_names_would_be_one(name: str, other: str, collide: bool) -> None:
    assert (metric_name(name) == metric_name(other)) == collide
