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
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.empty_source import EmptySource
from bench.measurement import Row, warm_page_cache
from spark_kafkalite import Admin, Producer
from spark_kafkalite.testing import jars
from spark_kafkalite.testing.apache_kafka import ApacheKafka
from spark_kafkalite.testing.cluster import BrokerProcess

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 4
_NAMES = itertools.count()
JVM = "Spark's JVM connector 4.2.0"
EMPTY_SOURCE = "an empty Arrow source"
EMPTY_SINK = "an empty Arrow sink"
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
        if quick:
            return
        yield from bench.writes(200_000, 10_000, target=1.0)
        yield from bench.writes(5_000_000, 100, codec="zstd", target=1.0)
        yield from bench.reads(5_000_000, 100, codec="zstd", read=1.0)
        yield from bench.reads(200_000, 10_000, read=1.0)
        yield from bench.reads(2_000_000, 1_000, read=1.5)
        yield from bench.writes(2_000_000, 1_000)


class Bench:
    """Both brokers and a session."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._stack = ExitStack()
        # Spark starts python3 from the PATH otherwise, and its workers import this package's sources.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))

    def __enter__(self) -> Bench:
        connector = jars.class_path(jars.fetch(jars.SPARK_KAFKA_CONNECTOR))
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = ApacheKafka(
            self._directory / "kafka", heap_mb=1024, jvm_options=("-XX:+UseG1GC",), overrides=REMOVED_AT_ONCE
        )
        ours = BrokerProcess(self._directory / "kafkalite", overrides=REMOVED_AT_ONCE)
        self._theirs = self._stack.enter_context(kafka).bootstrap
        self._ours = self._stack.enter_context(ours).bootstrap
        builder = SparkSession.builder.master("local[2]").appName("bench")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "3g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraClassPath": connector,
            "spark.sql.shuffle.partitions": "2",
        }.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        self._stack.callback(self._spark.stop)
        self._spark.sparkContext.setLogLevel("ERROR")
        self._spark.dataSource.register(EmptySource)
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
        for bootstrap in (self._ours, self._theirs):
            _fill(bootstrap, topic, count, value_bytes, codec)
        seconds = self._in_turn(
            lambda: self._read("kafkalite", self._ours, topic, count),
            lambda: self._read("kafka", self._theirs, topic, count),
            lambda: self._read_empty(count, value_bytes),
        )
        of_empty = 0.75 if value_bytes == 100 and codec == "none" else None
        yield from _beside(f"Spark batch read, {what}", count, seconds, (read, of_empty), EMPTY_SOURCE)
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        seconds = self._in_turn(
            lambda: self._stream("kafkalite", {"kafka.bootstrap.servers": self._ours, **options}, count),
            lambda: self._stream("kafka", {"kafka.bootstrap.servers": self._theirs, **options}, count),
            lambda: self._stream("empty_arrow", _empty_options(count, value_bytes), count),
        )
        yield from _beside(f"Spark AvailableNow stream into noop, {what}", count, seconds, (stream, None), EMPTY_SOURCE)

    def writes(
        self, count: int, value_bytes: int, *, codec: str = "none", target: float | None = None
    ) -> Iterator[Row]:
        """Measure writing one size of records; the target is a ratio to the JVM connector."""
        count = min(count, WRITTEN_BYTES // (value_bytes + 20))
        warm_page_cache(2 * WRITTEN_BYTES)
        seconds = self._in_turn(
            lambda: self._write("kafkalite", self._ours, count, value_bytes, codec),
            lambda: self._write("kafka", self._theirs, count, value_bytes, codec),
            lambda: self._write_nowhere(count, value_bytes, codec),
        )
        yield from _beside(
            f"Spark batch write, {_what(value_bytes, codec)}", count, seconds, (target, None), EMPTY_SINK
        )

    def _in_turn(self, *measured: Callable[[], float]) -> list[list[float]]:
        """Return each one's seconds in every round but the first."""
        rounds = [[measure() for measure in measured] for _ in range(1 + self._rounds)][1:]
        return [list(seconds) for seconds in zip(*rounds, strict=True)]

    def _read(self, source: str, bootstrap: str, topic: str, count: int) -> float:
        started = time.monotonic()
        frame = self._spark.read.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        _check(frame.load(), count)
        return time.monotonic() - started

    def _read_empty(self, count: int, value_bytes: int) -> float:
        started = time.monotonic()
        _check(self._spark.read.format("empty_arrow").options(**_empty_options(count, value_bytes)).load(), count)
        return time.monotonic() - started

    def _stream(self, source: str, options: dict[str, str], count: int) -> float:
        checkpoint = self._directory / f"checkpoint-{next(_NAMES)}"
        started = time.monotonic()
        query = (
            self._spark.readStream.format(source)
            .options(**options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.monotonic() - started
        read = sum(progress.numInputRows for progress in query.recentProgress)
        assert read == count, f"{source} streamed {read} of {count} rows"
        shutil.rmtree(checkpoint)
        return seconds

    def _write(self, sink: str, bootstrap: str, count: int, value_bytes: int, codec: str) -> float:
        topic = f"write-{next(_NAMES)}"
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topic(topic, PARTITIONS)
            frame = self._values(count, value_bytes, codec)
            started = time.monotonic()
            options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
            frame.write.format(sink).options(**options).mode("append").save()
            seconds = time.monotonic() - started
            admin.delete_topics([topic])
        return seconds

    def _write_nowhere(self, count: int, value_bytes: int, codec: str) -> float:
        frame = self._values(count, value_bytes, codec)
        started = time.monotonic()
        frame.write.format("empty_arrow").mode("append").save()
        return time.monotonic() - started

    def _values(self, count: int, value_bytes: int, codec: str) -> DataFrame:
        """Return rows to write: the cheapest that Spark can make or, for a codec, such as compress like those read."""
        value = f"repeat('x', {value_bytes})"
        if codec != "none":
            hashes = ", ".join(f"hex(xxhash64(id, {number}))" for number in range(value_bytes // 32))
            value = f"rpad(concat({hashes}), {value_bytes}, 'x')"
        return self._spark.range(0, count, 1, PARTITIONS).selectExpr(f"cast({value} AS binary) AS value")


def _check(frame: DataFrame, count: int) -> None:
    found = frame.selectExpr("count(*)", "sum(length(value))").first()
    assert found[0] == count, f"{found[0]} of {count} rows were read"


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


def _empty_options(count: int, value_bytes: int) -> dict[str, str]:
    return {"rows": str(count), "partitions": str(PARTITIONS), "bytes": str(value_bytes)}


def _what(value_bytes: int, codec: str) -> str:
    return f"{_size(value_bytes)} values" + (f", {codec}" if codec != "none" else "")


def _rate(count: int, seconds: list[float]) -> list[float]:
    return [count / each for each in seconds]


def _size(value_bytes: int) -> str:
    return f"{value_bytes} B" if value_bytes < 1000 else f"{value_bytes // 1000} KB"


def _fill(bootstrap: str, topic: str, count: int, value_bytes: int, codec: str) -> None:
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
    arguments = parser.parse_args()
    with Bench(arguments.rounds) as bench:
        for row in itertools.chain(
            bench.reads(arguments.rows, arguments.bytes, codec=arguments.codec),
            bench.writes(arguments.rows, arguments.bytes, codec=arguments.codec),
        ):
            print(
                f"{row.what}: {row.our_median:,.0f} {row.unit}, {row.peer_name}: {row.peer_median:,.0f}, "
                f"ratio {row.ratio:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
