"""Iterating over a consumer, and leaving it by an exception: what counts as processed, and what comes again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from spark_kafkalite import Consumer, Producer
from spark_kafkalite.model import TopicPartition

_numbers = itertools.count()
RECORDS = 100


@pytest.fixture
def filled(bootstrap: str, topic: str) -> TopicPartition:
    """A partition of RECORDS records."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, partition=0)
    return TopicPartition(topic, 0)


@pytest.fixture
def reader(bootstrap: str, filled: TopicPartition) -> Callable[..., Consumer]:
    """Makes consumers of one group that read the partition from where the group is."""
    group = f"iterating-{next(_numbers)}"

    def make(**settings: object) -> Consumer:
        consumer = Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", **settings)
        consumer.assign([filled])
        return consumer

    return make


def committed(reader: Callable[..., Consumer], partition: TopicPartition) -> int | None:
    with reader(enable_auto_commit=False) as consumer:
        found = consumer.committed([partition])[partition]
        return None if found is None else found.offset


def test_what_was_not_yielded_is_not_committed(reader: Callable[..., Consumer], filled: TopicPartition) -> None:
    with reader() as consumer:
        for record in consumer:
            assert consumer.position(filled) == record.offset + 1
            if record.offset == 3:
                break
    assert committed(reader, filled) == 4
    with reader() as consumer:
        assert [record.offset for record in itertools.islice(consumer, RECORDS - 4)] == list(range(4, RECORDS))
    assert committed(reader, filled) == RECORDS


def test_a_commit_within_an_iteration_is_up_to_the_record_in_hand(
    reader: Callable[..., Consumer], filled: TopicPartition
) -> None:
    with reader(enable_auto_commit=False) as consumer:
        for record in consumer:
            consumer.commit()
            found = consumer.committed([filled])[filled]
            assert found is not None and (found.offset, found.leader_epoch) == (record.offset + 1, 0)
            if record.offset == 2:
                break


def test_an_iteration_follows_seeks_pauses_and_polls(reader: Callable[..., Consumer], filled: TopicPartition) -> None:
    with reader() as consumer:
        records = iter(consumer)
        assert next(records).offset == 0
        consumer.seek(filled, 50)
        assert next(records).offset == 50
        assert [record.offset for record in consumer.poll(60_000, max_records=3)] == [51, 52, 53]
        assert next(records).offset == 54
        consumer.pause([filled])
        assert consumer.poll(0) == []
        consumer.resume([filled])
        assert next(records).offset == 55
        consumer.close()
        assert list(records) == []
    assert committed(reader, filled) == 56


def test_a_slow_iteration_commits_what_is_done_meanwhile(
    reader: Callable[..., Consumer], filled: TopicPartition
) -> None:
    with reader(auto_commit_interval_ms=50) as consumer:
        for record in consumer:
            found = consumer.committed([filled])[filled]
            if found is not None:
                assert found.offset <= record.offset, "the record in hand is not done"
                break
            assert record.offset < RECORDS - 1
            time.sleep(0.05)  # what the program does with a record


@pytest.mark.parametrize("columns", [False, True])
def test_what_an_exception_interrupts_comes_again(
    reader: Callable[..., Consumer], filled: TopicPartition, columns: bool
) -> None:
    with pytest.raises(ZeroDivisionError), reader() as consumer:
        assert [record.offset for record in consumer.poll(60_000, max_records=10)] == list(range(10))
        # Asking for more says that those before are done.
        if columns:
            batch = consumer.poll_columns(60_000, max_rows=5)
            assert batch is not None and batch.num_rows == 5
        else:
            assert len(consumer.poll(60_000, max_records=5)) == 5
        raise ZeroDivisionError
    assert committed(reader, filled) == 10
    with pytest.raises(KeyboardInterrupt), reader() as consumer:
        for record in consumer:
            if record.offset == 20:
                raise KeyboardInterrupt
    assert committed(reader, filled) == 20
    consumer = reader()
    with pytest.raises(ZeroDivisionError):
        try:
            assert len(consumer.poll(60_000, max_records=5)) == 5
            raise ZeroDivisionError
        finally:
            consumer.close()
    assert committed(reader, filled) == 20


@pytest.mark.parametrize(("explicit", "kept"), [(None, 10), (7, 7)])
def test_an_exception_takes_no_commit_back(
    reader: Callable[..., Consumer], filled: TopicPartition, explicit: int | None, kept: int
) -> None:
    with pytest.raises(ZeroDivisionError), reader() as consumer:
        assert len(consumer.poll(60_000, max_records=10)) == 10
        consumer.commit(None if explicit is None else {filled: explicit})
        raise ZeroDivisionError
    assert committed(reader, filled) == kept


def test_an_exception_takes_no_commit_of_an_iteration_back(
    reader: Callable[..., Consumer], filled: TopicPartition
) -> None:
    with pytest.raises(ZeroDivisionError), reader() as consumer:
        for record in consumer:
            if record.offset == 5:
                consumer.commit()
                raise ZeroDivisionError
    assert committed(reader, filled) == 6
