"""Megabytes a second of a load into Parquet, beside the same query by hand on the JVM connector; a small run's time.

Both in one session of PySpark 4.2.0, as `spark_read_write` does: ours with our broker, the query with Apache Kafka. The
query reads the same columns, adds the day, and writes by topic and day; it plans, checks and publishes nothing. Figures
are medians of rounds taken in turn after one that does not count, in megabytes of values. The small run is a process of
its own, as an hourly one is: 1,000 new records; beside it a process that starts the same Spark and stops it.

    .venv-spark42/bin/python -m bench.hadoop_load --rows 1000000 --bytes 1000 --rounds 2
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measurement import Row, warm_page_cache
from bench.spark_read_write import JVM, ROOT, Bench, fill
from spark_kafkalite import Admin, Producer
from spark_kafkalite.spark.jobs.destination import publish
from spark_kafkalite.spark.jobs.destination.files import files_for
from spark_kafkalite.spark.jobs.load.load_options import LoadOptions
from spark_kafkalite.spark.jobs.load.load_run import run_load, summary_of
from spark_kafkalite.testing.cluster import BrokerProcess

SMALL_RUN_RECORDS = 1_000
_NAMES = itertools.count()
_ONLY_SPARK = """
from pyspark.sql import SparkSession
SparkSession.builder.appName("nothing").getOrCreate().stop()
"""


def rows(quick: bool) -> Iterator[Row]:
    """Measure loads of a gigabyte of small and of larger values, and a small run."""
    rounds = 2 if quick else 3
    with Bench(rounds) as bench:
        yield loads(bench, 600_000 if quick else 10_000_000, 100)
        yield loads(bench, 60_000 if quick else 1_000_000, 1_000)
    yield small_run(rounds)


def loads(bench: Bench, count: int, value_bytes: int) -> Row:
    """Return the row of one size."""
    warm_page_cache(2 * count * (value_bytes + 20))
    topic = f"load-{next(_NAMES)}"
    for bootstrap in (bench.ours, bench.theirs):
        fill(bootstrap, topic, count, value_bytes, "none")
    ours, theirs = bench.in_turn(
        lambda: _load(bench, topic, count),
        lambda: _by_hand(bench, topic, count),
    )
    megabytes = count * value_bytes / 1e6
    return Row(
        f"load into Parquet, {megabytes:,.0f} MB of {value_bytes} B values",
        "MB/s",
        [megabytes / each for each in ours],
        [megabytes / each for each in theirs],
        f"the query by hand on {JVM}",
        target=1.5,
        note="ours counts every offset, reads the files' facts back and publishes by manifest; the query does not",
    )


def _load(bench: Bench, topic: str, count: int) -> float:
    destination = bench.directory / f"loaded-{next(_NAMES)}"
    started = time.monotonic()
    files = files_for(bench.spark, str(destination))
    recovery = publish.recover(files)
    summary = summary_of(files, recovery)
    run_load(bench.spark, files, LoadOptions(bench.ours, (topic,)), publish.new_run(), recovery.newest, summary)
    seconds = time.monotonic() - started
    assert summary["records"] == count, f"{summary['records']} of {count} records were loaded"
    shutil.rmtree(destination)
    return seconds


def _by_hand(bench: Bench, topic: str, count: int) -> float:
    destination = bench.directory / f"written-{next(_NAMES)}"
    started = time.monotonic()
    (
        bench.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bench.theirs)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
        .selectExpr("*", "date_format(timestamp, 'yyyy-MM-dd') AS day")
        .write.partitionBy("topic", "day")
        .parquet(str(destination))
    )
    seconds = time.monotonic() - started
    found = bench.spark.read.parquet(str(destination)).count()
    assert found == count, f"{found} of {count} records were written"
    shutil.rmtree(destination)
    return seconds


def small_run(rounds: int) -> Row:
    """Return the row of a run with few records: what it takes beyond a Spark that only starts and stops."""
    import tempfile

    loads_s, spark_s = [], []
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "broker") as broker:
        settings = {"bootstrap.servers": broker.bootstrap}
        with Admin(settings) as admin, Producer(settings) as producer:
            admin.create_topic("hourly", 4)
            job = ["-m", "spark_kafkalite.cli", "jobs", "run", "hadoop_load", "--bootstrap-server"]
            job += [broker.bootstrap, "--topic", "hourly", "--destination", str(Path(directory) / "loaded")]
            for _ in range(rounds + 1):
                for number in range(SMALL_RUN_RECORDS):
                    producer.send("hourly", b"x" * 100, partition=number % 4)
                producer.flush(30)
                loads_s.append(_process_s(job))
                spark_s.append(_process_s(["-c", _ONLY_SPARK]))
    beyond = [load - alone for load, alone in zip(loads_s[1:], spark_s[1:], strict=True)]
    return Row(
        f"a run with {SMALL_RUN_RECORDS} new records, beyond Spark's own start",
        "s",
        beyond,
        spark_s[1:],
        "a process that starts Spark and stops it",
        higher_is_better=False,
        at_most=3.0,
    )


def _process_s(arguments: list[str]) -> float:
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    started = time.monotonic()
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - started


def main() -> None:
    """Measure one size, or the small run, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="only the small run")
    arguments = parser.parse_args()
    if arguments.small:
        found = small_run(arguments.rounds)
    else:
        with Bench(arguments.rounds) as bench:
            found = loads(bench, arguments.rows, arguments.bytes)
    print(f"{found.what}: {found.ours} {found.unit}, {found.peer_name}: {found.peer}, ratio {found.ratio}", flush=True)


if __name__ == "__main__":
    main()
