"""Outcomes of records: handles, callbacks, and batches that were split."""

from __future__ import annotations

import threading

import pytest

from spark_kafkalite.client.produce.delivery import BatchDelivery, Delivery, ProducerBatch, RecordMetadata
from spark_kafkalite.client.produce.outcomes import split_batch
from spark_kafkalite.errors import MessageTooLarge
from spark_kafkalite.records.kernel import ColumnBuilder, OpenBatch, read_header
from tests.patience import PATIENCE_S


def made(count: int) -> ProducerBatch:
    builder = OpenBatch(100_000)
    for number in range(count):
        builder.append(1_000 + number, b"k%d" % number, b"v%d" % number, [("h", b"%d" % number)])
    return ProducerBatch("t", 3, 0.0, 0, records=builder)


def test_a_handle_tells_where_its_record_is() -> None:
    batch = made(3)
    delivery = Delivery(batch, 2, 1_002)
    assert not delivery.done()
    with pytest.raises(TimeoutError, match="still on its way"):
        delivery.result(0)
    batch.settle(40, -1, None)
    assert delivery.done()
    assert delivery.result(0) == RecordMetadata("t", 3, 42, 1_002)


def test_the_brokers_timestamp_wins() -> None:
    batch = made(1)
    batch.settle(0, 777, None)
    assert Delivery(batch, 0, 5).result(0).timestamp == 777


def test_an_unknown_offset_stays_unknown() -> None:
    batch = made(3)
    batch.settle(-1, -1, None)
    assert Delivery(batch, 2, 5).result(0).offset == -1


def test_an_error_is_raised_for_every_record() -> None:
    batch = made(2)
    batch.settle(-1, -1, MessageTooLarge("no"))
    for index in range(2):
        with pytest.raises(MessageTooLarge):
            Delivery(batch, index, 0).result(0)


def test_all_waiting_threads_wake() -> None:
    batch = made(2)
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda index=index: results.append(Delivery(batch, index, 0).result(PATIENCE_S).offset))
        for index in (0, 1, 0, 1)
    ]
    for thread in threads:
        thread.start()
    batch.settle(10, -1, None)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(results) == [10, 10, 11, 11]


def test_callbacks_get_their_own_record_and_may_fail() -> None:
    batch = made(3)
    seen: list[object] = []
    reported: list[Exception] = []

    def broken(metadata: RecordMetadata | None, error: Exception | None) -> None:
        raise ValueError("broken")

    batch.callbacks = [(0, 5, broken), (2, 7, lambda metadata, error: seen.append((metadata, error)))]
    batch.settle(10, -1, None)
    batch.run_callbacks(reported.append)
    assert seen == [(RecordMetadata("t", 3, 12, 7), None)]
    assert [str(error) for error in reported] == ["broken"]


def split(batch: ProducerBatch) -> list[ProducerBatch]:
    batch.encode(0, None)
    parts = split_batch(batch, 0, None)
    batch.settle_as_parts(parts)
    return [part for _, part in parts]


def test_a_split_batch_keeps_its_records_in_order() -> None:
    batch = made(5)
    parts = split(batch)
    assert [part.record_count for part in parts] == [2, 3]
    number = 0
    for part in parts:
        encoded = part.encode(0, None)
        builder = ColumnBuilder(True)
        builder.add_batch(encoded, 0, read_header(encoded), None)
        columns = builder.finish()
        for row in range(columns.count):
            assert columns.value_at(row) == b"v%d" % number
            assert columns.key_at(row) == b"k%d" % number
            assert columns.timestamp_at(row) == 1_000 + number
            assert columns.headers_at(row) == [("h", b"%d" % number)]
            number += 1
    assert number == 5


def test_handles_and_callbacks_follow_the_parts_of_parts() -> None:
    batch = made(7)
    seen: dict[int, int] = {}
    batch.callbacks = [
        (index, 0, lambda metadata, error, index=index: seen.update({index: metadata.offset})) for index in range(7)
    ]
    deliveries = [Delivery(batch, index, 0) for index in range(7)]
    first, second = split(batch)
    later = split(second)
    assert not any(delivery.done() for delivery in deliveries)
    for part, offset in ((first, 100), (later[0], 200), (later[1], 300)):
        part.settle(offset, -1, None)
        part.run_callbacks(pytest.fail)
    offsets = [100, 101, 102, 200, 201, 300, 301]
    assert [delivery.result(0).offset for delivery in deliveries] == offsets
    assert [seen[index] for index in range(7)] == offsets


def test_one_handle_for_many_batches() -> None:
    calls: list[BatchDelivery] = []
    delivery = BatchDelivery(calls.append)
    batches = [made(4), made(2)]
    for batch in batches:
        delivery.add(batch)
    parts = split(batches[0])
    parts[0].settle(10, -1, None)
    parts[0].run_callbacks(pytest.fail)
    batches[1].settle(50, -1, None)
    batches[1].run_callbacks(pytest.fail)
    delivery.complete()
    assert not delivery.done() and not calls
    with pytest.raises(TimeoutError):
        delivery.result(0)
    parts[1].settle(12, -1, None)
    parts[1].run_callbacks(pytest.fail)
    assert delivery.done() and calls == [delivery]
    assert [(each.base_offset, each.record_count) for each in delivery.result(0)] == [(10, 2), (12, 2), (50, 2)]
    assert "6 records" in repr(delivery)


def test_one_handle_raises_the_first_error() -> None:
    delivery = BatchDelivery()
    batches = [made(1), made(1)]
    for batch in batches:
        delivery.add(batch)
    delivery.complete()
    batches[0].settle(0, -1, None)
    batches[1].settle(-1, -1, MessageTooLarge("no"))
    with pytest.raises(MessageTooLarge):
        delivery.result(0)
    assert [str(error) for error in delivery.errors()] == ["no"]
