"""Spark's latency beside the JVM connector: from a record's send until a micro-batch has it, and many small partitions.

Our producer sends records at random times, a tenth of a second apart on average; their values are the times. A stream
with the default trigger hands each micro-batch to a function in this process, which looks at the clock. Producer,
function and clock are the same for both connectors; ours reads from our broker, the other from Apache Kafka 4.3. The
second question is a batch read of 1,000 partitions with few records each, all of it in one query.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from bench.measurement import Row, percentile
from bench.spark_read_write import JVM, Bench
from spark_kafkalite import Admin, Producer

PARTITIONS = 1_000
RECORDS_PER_PARTITION = 100
_UNCOUNTED = 20
_MEAN_PAUSE_S = 0.1
_WAIT_S = 120.0


def rows(quick: bool) -> Iterator[Row]:
    """Measure both."""
    with LatencyBench(3) as bench:
        yield from bench.latencies(records=100 if quick else 400, rounds=1 if quick else 5)
        yield from bench.many_partitions()


class LatencyBench(Bench):
    """The brokers and one session."""

    def latencies(self, records: int, rounds: int) -> Iterator[Row]:
        """Measure each connector in turn, after a round that does not count; a figure is a round's percentile."""
        found: dict[str, list[list[float]]] = {"kafkalite": [], "kafka": []}
        for number in range(1 + rounds):
            for source, bootstrap in (("kafkalite", self.ours), ("kafka", self.theirs)):
                found[source].append(self._latencies(source, bootstrap, f"latency-{number}", records))
        for fraction in (0.5, 0.99):
            ours, theirs = ([percentile(each, fraction) * 1000 for each in found[source][1:]] for source in found)
            what = f"Spark micro-batch, from send to the batch: p{fraction * 100:.0f}"
            yield Row(what, "ms", ours, theirs, JVM, higher_is_better=False)

    def many_partitions(self) -> Iterator[Row]:
        """Measure a batch read of many small partitions."""
        count = PARTITIONS * RECORDS_PER_PARTITION
        batch = pa.record_batch(
            {
                "value": pa.array([b"x" * 100] * count, pa.binary()),
                "partition": pa.array([number % PARTITIONS for number in range(count)], pa.int32()),
            }
        )
        for bootstrap in (self.ours, self.theirs):
            settings = {"bootstrap.servers": bootstrap}
            with Admin(settings) as admin, Producer(settings) as producer:
                admin.create_topic("many", PARTITIONS)
                producer.send_batch("many", batch)
                producer.flush()
        ours, theirs = self.in_turn(
            lambda: self.read("kafkalite", self.ours, "many", count),
            lambda: self.read("kafka", self.theirs, "many", count),
        )
        yield Row(f"Spark batch read of {PARTITIONS:,} partitions", "s", ours, theirs, JVM, higher_is_better=False)

    def _latencies(self, source: str, bootstrap: str, topic: str, records: int) -> list[float]:
        """Return each record's seconds, without the first ones."""
        wanted = records + _UNCOUNTED
        took: list[float] = []
        has_all = threading.Event()

        def look(frame: DataFrame, _: int) -> None:
            sent = [float(row.value) for row in frame.select("value").collect()]
            now_s = time.monotonic()
            took.extend(now_s - each for each in sent)
            if len(took) >= wanted:
                has_all.set()

        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topic(topic, 1)
        checkpoint = self.directory / f"checkpoint-{source}-{topic}"
        query = (
            self.spark.readStream.format(source)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(look)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        pauses = random.Random(records)
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            for _ in range(wanted):
                producer.send(topic, repr(time.monotonic()).encode()).result()
                time.sleep(pauses.expovariate(1 / _MEAN_PAUSE_S))
        if not has_all.wait(_WAIT_S):
            raise TimeoutError(
                f"{source}: {len(took)} of {wanted} records came within {_WAIT_S} s: {query.exception()}"
            )
        query.stop()
        shutil.rmtree(checkpoint)
        return took[_UNCOUNTED:]
