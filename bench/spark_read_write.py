"""Rows a second through Spark: ours against Spark's JVM connector, and against a source and a sink that do nothing.

Both connectors run in one session of PySpark 4.2.0 (the connector's jars are of that version), local[2]: ours with our
broker, the JVM connector with Apache Kafka 4.3. Each figure is the median of rounds taken in turn, after one round that
does not count. `python -m bench spark_read_write`, or this file alone for one size:

    .venv-spark42/bin/python -m bench.spark_read_write --rows 1000000 --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyspark.sql import DataFrame

from bench import spark_work
from bench.empty_source import EmptySource
from bench.measurement import Row, warm_page_cache
from bench.raw_sink import RawSink
from bench.raw_source import RawSource
from bench.spark_work import PARTITIONS, ROOT
from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab import jars
from tests.lab.apache_kafka import ApacheKafka

_NAMES = itertools.count()
JVM = "Spark's JVM connector 4.2.0"
EMPTY_SOURCE = "an empty Arrow source"
EMPTY_SINK = "an empty Arrow sink"
RAW_SOURCE = "a source that takes values from a process that reads them"
RAW_SINK = "a sink that sends values to a process that writes them"
# One round of writing stays in the page cache, and is removed before the kernel writes it out: with more, both brokers
# wait for the disk, which is not the question here.
WRITTEN_BYTES = 256 << 20
REMOVED_AT_ONCE = {"log.segment.delete.delay.ms": "0"}


def rows(quick: bool) -> Iterator[Row]:
    """Measure everything: the sizes that the design names, or the first of them in a quick run."""
    rounds = 3 if quick else 5
    with Bench(rounds) as bench:
        yield from bench.reads(600_000 if quick else 10_000_000, 100, read=3.0, stream=2.5)
        yield from bench.writes(600_000 if quick else 10_000_000, 100, target=4.0)
        yield from bench.writes(600_000 if quick else 10_000_000, 100, keyed=True)
        if quick:
            return
        yield from bench.writes(200_000, 10_000, target=1.0)
        yield from bench.writes(2_000_000, 1_000, keyed=True)
        yield from bench.writes(5_000_000, 100, codec="zstd", target=1.0)
        yield from bench.reads(5_000_000, 100, codec="zstd", read=1.0)
        yield from bench.reads(200_000, 10_000, read=1.0)
        yield from bench.reads(2_000_000, 1_000, read=1.5)
        yield from bench.writes(2_000_000, 1_000)


class Bench:
    """Both brokers and a session, with what ``settings`` say of it."""

    def __init__(self, rounds: int, settings: Mapping[str, str] | None = None) -> None:
        self._rounds = rounds
        self._settings = settings or {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        connector = jars.class_path(jars.fetch(jars.SPARK_KAFKA_CONNECTOR))
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = ApacheKafka(
            self.directory / "kafka", heap_mb=1024, jvm_options=("-XX:+UseG1GC",), overrides=REMOVED_AT_ONCE
        )
        ours = BrokerProcess(self.directory / "kafkalite", overrides=REMOVED_AT_ONCE)
        self.theirs = self._stack.enter_context(kafka).bootstrap
        self.ours = self._stack.enter_context(ours).bootstrap
        session = {"spark.driver.memory": "3g", "spark.driver.extraClassPath": connector, **self._settings}
        self.spark = spark_work.local_session(session)
        self._stack.callback(self.spark.stop)
        self.spark.dataSource.register(EmptySource)
        self.spark.dataSource.register(RawSink)
        self.spark.dataSource.register(RawSource)
        self._raw_port = self._stack.enter_context(_raw_process("bench.raw_sink", self.directory))
        sent = self.directory / "sent"
        with sent.open("wb") as file:
            for _ in range(WRITTEN_BYTES >> 20):
                file.write(b"x" * (1 << 20))
        self._sender_port = self._stack.enter_context(_raw_process("bench.raw_source", sent))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def reads(
        self,
        count: int,
        value_bytes: int,
        *,
        codec: str = "none",
        read: float | None = None,
        stream: float | None = None,
    ) -> Iterator[Row]:
        """Measure reading one size of records; targets are ratios to the JVM connector, None where there is none."""
        warm_page_cache(2 * count * (value_bytes + 20))
        what = _what(value_bytes, codec)
        topic = f"read-{next(_NAMES)}"
        for bootstrap in (self.ours, self.theirs):
            fill(bootstrap, topic, count, value_bytes, codec)
        seconds = self.in_turn(
            lambda: self.read("kafkalite", self.ours, topic, count),
            lambda: self.read("kafka", self.theirs, topic, count),
            lambda: self._read_idle("empty_arrow", count, value_bytes),
            lambda: self._read_idle("raw_socket_source", count, value_bytes),
        )
        of_empty = _of_empty(value_bytes, codec)
        yield from _beside(f"Spark batch read, {what}", count, seconds[:3], (read, of_empty), EMPTY_SOURCE)
        if codec == "none":
            ours, raw = _rate(count, seconds[0]), _rate(count, seconds[3])
            yield Row(f"Spark batch read, {what}", "rows/s", ours, raw, RAW_SOURCE)
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        seconds = self.in_turn(
            lambda: self.stream("kafkalite", {"kafka.bootstrap.servers": self.ours, **options}, count),
            lambda: self.stream("kafka", {"kafka.bootstrap.servers": self.theirs, **options}, count),
            lambda: self.stream("empty_arrow", empty_options(count, value_bytes), count),
        )
        yield from _beside(
            f"Spark AvailableNow stream into noop, {what}", count, seconds, (stream, of_empty), EMPTY_SOURCE
        )

    def writes(
        self, count: int, value_bytes: int, *, codec: str = "none", keyed: bool = False, target: float | None = None
    ) -> Iterator[Row]:
        """Measure writing one size of records; the target is a ratio to the JVM connector.

        ``keyed``: real rows, each with a key of its own, from a frame that Spark holds in memory. Without it Spark
        makes one constant value again and again, and every batch goes to one partition.
        """
        count = min(count, WRITTEN_BYTES // (value_bytes + 20))
        warm_page_cache(2 * WRITTEN_BYTES)
        frame = self.values(count, value_bytes, codec)
        what = _what(value_bytes, codec)
        if keyed:
            what += ", a key each, from a cached frame"
            varied = f"cast(rpad(hex(xxhash64(id, 1)), {value_bytes}, hex(xxhash64(id, 2))) AS binary)"
            frame = self.spark.range(0, count, 1, PARTITIONS).selectExpr(
                "cast(concat('key-', id) AS binary) AS key", f"{varied} AS value"
            )
            frame = frame.persist()
            frame.count()
        seconds = self.in_turn(
            lambda: spark_work.write("kafkalite", self.ours, frame, codec),
            lambda: spark_work.write("kafka", self.theirs, frame, codec),
            lambda: self._write_nowhere(frame),
            lambda: self._write_raw(frame),
        )
        frame.unpersist()
        of_empty = _of_empty(value_bytes, codec)
        yield from _beside(f"Spark batch write, {what}", count, seconds[:3], (target, of_empty), EMPTY_SINK)
        if codec == "none":
            yield Row(
                f"Spark batch write, {what}", "rows/s", _rate(count, seconds[0]), _rate(count, seconds[3]), RAW_SINK
            )

    def in_turn(self, *measured: Callable[[], float]) -> list[list[float]]:
        """Return each one's seconds in every round but the first."""
        rounds = [[measure() for measure in measured] for _ in range(1 + self._rounds)][1:]
        return [list(seconds) for seconds in zip(*rounds, strict=True)]

    def read(self, source: str, bootstrap: str, topic: str, count: int) -> float:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        return spark_work.read(self.spark, source, options, count)

    def _read_idle(self, source: str, count: int, value_bytes: int) -> float:
        options = {**empty_options(count, value_bytes), "port": str(self._sender_port)}
        return spark_work.read(self.spark, source, options, count)

    def stream(self, source: str, options: dict[str, str], count: int) -> float:
        return spark_work.stream(self.spark, source, options, count)

    def _write_nowhere(self, frame: DataFrame) -> float:
        started = time.monotonic()
        frame.write.format("empty_arrow").mode("append").save()
        return time.monotonic() - started

    def _write_raw(self, frame: DataFrame) -> float:
        started = time.monotonic()
        frame.write.format("raw_socket").option("port", self._raw_port).mode("append").save()
        return time.monotonic() - started

    def values(self, count: int, value_bytes: int, codec: str) -> DataFrame:
        """Return rows to write: the cheapest that Spark can make or, for a codec, such as compress like those read."""
        value = f"repeat('x', {value_bytes})"
        if codec != "none":
            hashes = ", ".join(f"hex(xxhash64(id, {number}))" for number in range(value_bytes // 32))
            value = f"rpad(concat({hashes}), {value_bytes}, 'x')"
        return self.spark.range(0, count, 1, PARTITIONS).selectExpr(f"cast({value} AS binary) AS value")


@contextmanager
def _raw_process(module: str, path: Path) -> Iterator[int]:
    """Run the other end of a raw sink or source; give its port."""
    command = [sys.executable, "-m", module, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(10)


def _of_empty(value_bytes: int, codec: str) -> float | None:
    """Return what part of an empty source's or sink's rows is wanted; a codec's work is not Spark's."""
    if codec != "none":
        return None
    return 0.85 if value_bytes == 100 else 0.75


def _beside(
    what: str,
    count: int,
    seconds: list[list[float]],
    targets: tuple[float | None, float | None],
    empty: str,
) -> Iterator[Row]:
    """Yield two rows: ours against the JVM connector, and against what does nothing."""
    ours, peer, nothing = (_rate(count, each) for each in seconds)
    yield Row(what, "rows/s", ours, peer, JVM, target=targets[0])
    yield Row(what, "rows/s", ours, nothing, empty, target=targets[1])


def empty_options(count: int, value_bytes: int) -> dict[str, str]:
    return {"rows": str(count), "partitions": str(PARTITIONS), "bytes": str(value_bytes)}


def _what(value_bytes: int, codec: str) -> str:
    return f"{_size(value_bytes)} values" + (f", {codec}" if codec != "none" else "")


def _rate(count: int, seconds: list[float]) -> list[float]:
    return [count / each for each in seconds]


def _size(value_bytes: int) -> str:
    return f"{value_bytes} B" if value_bytes < 1000 else f"{value_bytes // 1000} KB"


def fill(bootstrap: str, topic: str, count: int, value_bytes: int, codec: str) -> None:
    """Fill a topic with values that compress to about half, a batch to each partition in turn."""
    at_once = max(PARTITIONS, min(count, (32 << 20) // value_bytes))
    values = [os.urandom(value_bytes // 4).hex().encode().ljust(value_bytes, b"x") for _ in range(at_once)]
    batch = pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([n % PARTITIONS for n in range(at_once)], pa.int32()),
        }
    )
    settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "batch.size": 65_536}
    with Admin({"bootstrap.servers": bootstrap}) as admin, Producer(settings) as producer:
        admin.create_topic(topic, PARTITIONS)
        for first in range(0, count, at_once):
            producer.send_batch(topic, batch.slice(0, min(at_once, count - first)))
        producer.flush()


def main() -> None:
    """Measure one size and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--only", choices=["reads", "writes", "keyed"], help="all three when not given")
    arguments = parser.parse_args()
    size = (arguments.rows, arguments.bytes)
    with Bench(arguments.rounds) as bench:
        parts = {
            "reads": bench.reads(*size, codec=arguments.codec),
            "writes": bench.writes(*size, codec=arguments.codec),
            "keyed": bench.writes(*size, codec=arguments.codec, keyed=True),
        }
        chosen = [parts[arguments.only]] if arguments.only else parts.values()
        for row in itertools.chain.from_iterable(chosen):
            print(
                f"{row.what}: {row.our_median:,.0f} {row.unit}, {row.peer_name}: {row.peer_median:,.0f}, "
                f"ratio {row.ratio:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
