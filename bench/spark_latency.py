"""Spark's latency and a job's wall time, ours and the JVM connector's, on our broker and on Apache Kafka 4.3.

The latency is from a record's send until ``foreachBatch`` has it, with the default trigger. Our producer sends records
at random times, 50 or 5,000 a second; their values are the times. The function that takes each micro-batch runs in the
process of the producer, so one clock gives both times. All that differs between two figures of a row is the connector.
Sessions with TCP and with Unix sockets between Spark and its Python workers take turns; see ``spark_sockets.py``.

The wall times (``job_times.py``) are of processes of their own, from start to end. The last question is a batch read of
1,000 partitions with few records each, all of it in one query. The latencies of one rate and one kind of sockets:

    .venv-spark42/bin/python -m bench.spark_latency --seconds 5 --rounds 1 --rate 50 --sockets unix
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from bench import job_times
from bench.measurement import Row, percentile
from bench.spark_read_write import JVM, Bench
from bench.spark_sockets import SETTING
from spark_kafkalite import Admin, Producer

PARTITIONS = 1_000
RECORDS_PER_PARTITION = 100
RATES: Final = (50, 5_000)
SOCKETS: Final[Mapping[str, bool]] = {"tcp": False, "unix": True}
FRACTIONS: Final = (0.5, 0.95, 0.99)
# What the goals are: a ratio to the JVM connector, with Unix sockets and with TCP.
_TARGETS: Final = {True: 1.0, False: 1.2}
# Of each round: a query's first batches start processes.
_UNCOUNTED_S = 2.0
_WAIT_S = 120.0
_TOPICS = itertools.count()


def rows(quick: bool) -> Iterator[Row]:
    """Measure latencies, then jobs, then many partitions."""
    yield from latencies(seconds=4 if quick else 20, rounds=1 if quick else 3)
    yield from job_times.rows(quick)
    with LatencyBench(3) as bench:
        yield from bench.many_partitions()


def latencies(
    seconds: float, rounds: int, rates: Sequence[int] = RATES, sockets: Sequence[str] = tuple(SOCKETS)
) -> Iterator[Row]:
    """Measure each rate with both kinds of sockets; ``seconds`` is how long a round's counted records are sent."""
    for unix_sockets in (SOCKETS[name] for name in sockets):
        with LatencyBench(rounds, {SETTING: str(unix_sockets).lower()}) as bench:
            for rate in rates:
                yield from bench.latencies(rate, seconds, unix_sockets)


class LatencyBench(Bench):
    """The brokers and one session."""

    def latencies(self, rate: int, seconds: float, unix_sockets: bool) -> Iterator[Row]:
        """Measure both connectors in turn on each broker; a figure is a round's percentile, in ms."""
        sockets = "Unix sockets" if unix_sockets else "TCP"
        for broker, bootstrap in (("kafkalite", self.ours), ("Apache Kafka", self.theirs)):
            found: dict[str, list[list[float]]] = {"kafkalite": [], "kafka": []}
            # The first round does not count.
            for number in range(1 + self._rounds):
                for source in found:
                    took = self._latencies(source, bootstrap, rate, seconds)
                    if number:
                        found[source].append(took)
            for fraction in FRACTIONS:
                ours, theirs = ([percentile(each, fraction) * 1000 for each in found[source]] for source in found)
                what = f"send to foreachBatch, {rate:,} records/s, {broker}, {sockets}: p{fraction * 100:.0f}"
                target = None if fraction > 0.95 else _TARGETS[unix_sockets]
                yield Row(what, "ms", ours, theirs, JVM, higher_is_better=False, target=target)

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

    def _latencies(self, source: str, bootstrap: str, rate: int, seconds: float) -> list[float]:
        """Return the seconds of each record that was sent after the first ``_UNCOUNTED_S``."""
        topic = f"latency-{next(_TOPICS)}"
        took: list[float] = []
        arrived = 0
        lock = threading.Lock()
        first_counted_s = time.monotonic() + _WAIT_S

        def take(frame: DataFrame, _: int) -> None:
            nonlocal arrived
            sent = [float(row.value) for row in frame.select("value").collect()]
            now_s = time.monotonic()
            with lock:
                arrived += len(sent)
                took.extend(now_s - each for each in sent if each >= first_counted_s)

        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topic(topic, 1)
        checkpoint = self.directory / f"checkpoint-{topic}"
        query = (
            self.spark.readStream.format(source)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        with Producer({"bootstrap.servers": bootstrap, "linger.ms": 0}) as producer:
            # A first record starts what the query needs.
            producer.send(topic, b"0").result()
            _await(lambda: arrived > 0, "the first record", query)
            first_counted_s = time.monotonic() + _UNCOUNTED_S
            sent = 1 + _send(producer, topic, rate, _UNCOUNTED_S + seconds)
            producer.flush()
        _await(lambda: arrived >= sent, f"{sent} records", query)
        query.stop()
        shutil.rmtree(checkpoint)
        return took


def _send(producer: Producer, topic: str, rate: int, seconds: float) -> int:
    """Send records at random times, ``rate`` a second on average, for so many seconds; return how many."""
    pauses = random.Random(rate)
    started_s = due_s = time.monotonic()
    sent = 0
    while due_s < started_s + seconds:
        now_s = time.monotonic()
        if due_s > now_s:
            time.sleep(due_s - now_s)
        producer.send(topic, repr(time.monotonic()).encode())
        sent += 1
        due_s += pauses.expovariate(rate)
    return sent


def _await(condition: Callable[[], bool], what: str, query: StreamingQuery) -> None:
    until_s = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > until_s or query.exception() is not None:
            raise TimeoutError(f"{what} did not arrive within {_WAIT_S} s: {query.exception()}")
        time.sleep(0.01)


def main() -> None:
    """Measure the latencies alone and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rate", type=int, choices=RATES, action="append")
    parser.add_argument("--sockets", choices=tuple(SOCKETS), action="append")
    arguments = parser.parse_args()
    rates, sockets = arguments.rate or RATES, arguments.sockets or tuple(SOCKETS)
    for row in latencies(arguments.seconds, arguments.rounds, rates, sockets):
        print(
            f"{row.what}: {row.our_median:,.0f} ms, {row.peer_name}: {row.peer_median:,.0f} ms, {row.ratio:.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
