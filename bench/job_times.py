"""Seconds of a job from start to end, as a user waits for it: topic to Parquet, in a process of its own.

Ours is ``kafkalite jobs run hadoop_load``; the peer is a program with the JVM connector that reads the same columns and
writes them by day. Both start their Python, their JVM and their Spark, read one topic of 100 B values, and end. Each
runs on our broker and on Apache Kafka 4.3. A part of ``spark_latency.py``; one size alone:

    .venv-spark42/bin/python -m bench.job_times --rows 1000000 --rounds 1 --broker kafkalite
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pyarrow.dataset as ds

from bench.measurement import Row, warm_page_cache
from bench.spark_read_write import JVM, fill
from bench.spark_work import QUERY_BY_HAND, program_seconds
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab import jars
from tests.lab.apache_kafka import ApacheKafka

SIZES: Final = (1_000_000, 10_000_000, 100_000_000)
QUICK_SIZES: Final = (1_000_000,)
VALUE_BYTES: Final = 100
BROKERS: Final = ("kafkalite", "Apache Kafka")
# In each broker's log, in what ours writes and in what the peer writes; with room for both rounds' leftovers.
_BYTES_OF_A_ROW: Final = 6 * (VALUE_BYTES + 20)


def rows(quick: bool) -> Iterator[Row]:
    """Measure the sizes for which the disk has room."""
    with tempfile.TemporaryDirectory() as directory:
        for count in QUICK_SIZES if quick else SIZES:
            free_bytes = shutil.disk_usage(directory).free
            if free_bytes < count * _BYTES_OF_A_ROW:
                print(f"job of {count:,} rows left out: it needs {count * _BYTES_OF_A_ROW >> 30} GiB of disk")
                continue
            # The largest one takes minutes.
            yield from times(Path(directory), count, 1 if quick or count == SIZES[-1] else 3)


def times(directory: Path, count: int, rounds: int, names: Sequence[str] = BROKERS) -> Iterator[Row]:
    """Measure one size on the brokers of these names; ``directory`` is where everything lies meanwhile."""
    connector = jars.class_path(jars.fetch(jars.SPARK_KAFKA_CONNECTOR))
    place = directory / f"jobs-{count}"
    warm_page_cache(min(count * VALUE_BYTES, 1 << 30))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        for broker in names:
            running = _broker(broker, place)
            stack.enter_context(running)
            bootstrap = running.bootstrap
            fill(bootstrap, "rows", count, VALUE_BYTES, "none")
            load = ["-m", "spark_kafkalite.cli", "jobs", "run", "hadoop_load", "--bootstrap-server", bootstrap]
            ours: list[float] = []
            theirs: list[float] = []
            for number in range(rounds):
                destination = place / f"{broker}-{number}"
                given = ["--topic", "rows", "--destination", str(destination)]
                ours.append(_seconds([*load, *given], count, destination, connector))
                by_hand = ["-c", QUERY_BY_HAND, "kafka", bootstrap, "rows", str(destination)]
                theirs.append(_seconds(by_hand, count, destination, connector))
            yield Row(
                f"job, {count:,} rows of {VALUE_BYTES} B to Parquet, {broker}", "s", ours, theirs,
                f"a query by hand on {JVM}", higher_is_better=False,
            )  # fmt: skip


def _broker(name: str, place: Path) -> BrokerProcess | ApacheKafka:
    if name == BROKERS[0]:
        return BrokerProcess(place / "kafkalite")
    return ApacheKafka(place / "kafka", heap_mb=1024, jvm_options=("-XX:+UseG1GC",))


def _seconds(command: list[str], count: int, destination: Path, connector: str) -> float:
    """Run a program to its end, check what it wrote, and remove that."""
    settings = f"--master local[2] --driver-memory 3g --conf spark.driver.extraClassPath={connector} pyspark-shell"
    seconds = program_seconds(command, PYSPARK_SUBMIT_ARGS=settings)
    found = ds.dataset(sorted(map(str, destination.glob("*/*/*.parquet")))).count_rows()
    assert found == count, f"{found} of {count} rows were written"
    shutil.rmtree(destination)
    return seconds


def main() -> None:
    """Measure one size and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=SIZES[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--broker", choices=BROKERS, action="append")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for row in times(Path(directory), arguments.rows, arguments.rounds, arguments.broker or BROKERS):
            print(
                f"{row.what}: {row.our_median:.1f} s, {row.peer_name}: {row.peer_median:.1f} s, {row.ratio:.2f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
