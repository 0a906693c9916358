"""The demo's topics: publish flights into one, and read back what a topic holds."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from flights_demo.flights import PARTITIONS, Flights
from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.model import TopicPartition

BATCH_ROWS = 5_000


def create_topic(bootstrap: str, topic: str) -> None:
    """Create a topic of the demo: the flights are of 2013, so nothing of it may expire."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, configs={"retention.ms": "-1"})


def publish(
    bootstrap: str, topic: str, flights: Flights, progress: Callable[[int], None] | None = None, pause_s: float = 0.0
) -> float:
    """Send the flights in order with an idempotent producer and return the seconds until all were acknowledged.

    ``progress`` is called with the number sent so far; ``pause_s`` is waited after every batch of rows.
    """
    started = time.monotonic()
    sent = 0
    deliveries = []
    with Producer(bootstrap_servers=bootstrap, compression_type="lz4", delivery_timeout_ms=120_000) as producer:
        for events in flights.events(BATCH_ROWS):
            deliveries.append(producer.send_batch(topic, events))
            sent += events.num_rows
            if progress is not None:
                progress(sent)
            if pause_s:
                producer.flush(120)
                time.sleep(pause_s)
        producer.flush(120)
        for delivery in deliveries:
            delivery.result(120)
    return time.monotonic() - started


def rows_by_partition(bootstrap: str, topic: str) -> list[list[int]]:
    """Return the ``row`` of every event that a topic holds, by partition, in log order."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    rows: list[list[int]] = [[] for _ in partitions]
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            columns = consumer.poll_columns(timeout_ms=1_000)
            if columns is None:
                continue
            numbers = row_numbers(columns["value"])
            for number in range(PARTITIONS):
                rows[number] += numbers.filter(pc.equal(columns["partition"], number)).to_pylist()
    return rows


def row_numbers(values: pa.Array) -> pa.Array:
    """Return the ``row`` of each JSON event."""
    found = pc.extract_regex(values.cast(pa.string()), pattern=r'"row": ?(?P<row>\d+)')
    return pc.struct_field(found, "row").cast(pa.int64())
