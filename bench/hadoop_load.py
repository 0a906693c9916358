"""Megabytes a second of a load into Parquet, beside the same query by hand on the JVM connector; a small run's time.

Both in one session of PySpark 4.2.0, as `spark_read_write` does: ours with our broker, the query with Apache Kafka. The
query reads the same columns, adds the day, and writes by topic and day; it plans, checks and publishes nothing. Figures
are medians of rounds taken in turn after one that does not count, in megabytes of values. The small run is a process of
its own, as an hourly one is: 1,000 new records. Beside it are, each a process of its own, a Spark that only starts and
stops, the same records written to Parquet by a query by hand through our source, and as many rows of Spark's own.

    .venv-spark42/bin/python -m bench.hadoop_load --rows 1000000 --bytes 1000 --rounds 2
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measurement import Row, warm_page_cache
from bench.spark_read_write import JVM, Bench, fill
from bench.spark_work import QUERY_BY_HAND, program_seconds
from spark_kafkalite import Admin, Producer
from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.load.load_options import LoadOptions
from spark_kafkalite.jobs.load.load_run import run_load, summary_of
from spark_kafkalite.jobs.tables.delta_tables import DeltaTables
from spark_kafkalite.manifests.files import files_for
from spark_kafkalite.processes.cluster import BrokerProcess

SMALL_RUN_RECORDS = 1_000
_SMALL_RUN_PARTITIONS = 4
_NAMES = itertools.count()
_ONLY_SPARK = """
from pyspark.sql import SparkSession
SparkSession.builder.appName("nothing").getOrCreate().stop()
"""
_SPARKS_OWN_ROWS = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.appName("own rows").getOrCreate()
spark.range(int(sys.argv[2])).write.parquet(sys.argv[1])
spark.stop()
"""


def rows(quick: bool) -> Iterator[Row]:
    """Measure loads of a gigabyte of small and of larger values, and a small run."""
    rounds = 2 if quick else 3
    with Bench(rounds) as bench:
        yield loads(bench, 600_000 if quick else 10_000_000, 100)
        yield loads(bench, 60_000 if quick else 1_000_000, 1_000)
    yield from small_run(rounds)


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
    # No topic is a table, so no columns are asked for.
    tables = DeltaTables(files, lambda value, value_schema: {})
    options = LoadOptions(bench.ours, (topic,))
    run_load(lambda: bench.spark, files, options, publish.new_run(), recovery.newest, summary, tables)
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


def small_run(rounds: int) -> Iterator[Row]:
    """Yield the rows of a run with few records: what it takes beyond a Spark that only starts and stops."""
    import tempfile

    seconds: dict[str, list[float]] = {name: [] for name in ("load", "spark", "rows", "query")}
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "broker") as broker:
        settings = {"bootstrap.servers": broker.bootstrap}
        with Admin(settings) as admin, Producer(settings) as producer:
            admin.create_topic("hourly", _SMALL_RUN_PARTITIONS)
            job = ["-m", "spark_kafkalite.cli", "jobs", "run", "hadoop_load", "--bootstrap-server"]
            job += [broker.bootstrap, "--topic", "hourly", "--destination", str(Path(directory) / "loaded")]
            of_each = SMALL_RUN_RECORDS // _SMALL_RUN_PARTITIONS
            for number in range(rounds + 1):
                for _ in range(of_each):
                    for partition in range(_SMALL_RUN_PARTITIONS):
                        producer.send("hourly", b"x" * 100, partition=partition)
                producer.flush(30)
                begins = {str(partition): number * of_each for partition in range(_SMALL_RUN_PARTITIONS)}
                query = ["-c", QUERY_BY_HAND, "kafkalite", broker.bootstrap, "hourly"]
                seconds["spark"].append(program_seconds(["-c", _ONLY_SPARK]))
                seconds["load"].append(program_seconds(job))
                written = str(Path(directory) / f"rows-{number}")
                seconds["rows"].append(program_seconds(["-c", _SPARKS_OWN_ROWS, written, str(SMALL_RUN_RECORDS)]))
                query += [f"{written}-query", json.dumps({"hourly": begins})]
                seconds["query"].append(program_seconds(query))
    # What fills caches does not count.
    spark = seconds.pop("spark")[1:]
    beyond = {
        name: [each - alone for each, alone in zip(found[1:], spark, strict=True)] for name, found in seconds.items()
    }
    what = f"a run with {SMALL_RUN_RECORDS} new records, beyond Spark's own start"
    yield Row(
        what,
        "s",
        beyond["load"],
        spark,
        "a process that starts Spark and stops it",
        higher_is_better=False,
        at_most=3.0,
    )
    yield Row(
        what, "s", beyond["load"], beyond["query"], "the query by hand through our source", higher_is_better=False
    )
    yield Row(
        what,
        "s",
        beyond["load"],
        beyond["rows"],
        "as many rows of spark.range, written to Parquet",
        higher_is_better=False,
    )


def main() -> None:
    """Measure one size, or the small run, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="only the small run")
    arguments = parser.parse_args()
    if arguments.small:
        found = list(small_run(arguments.rounds))
    else:
        with Bench(arguments.rounds) as bench:
            found = [loads(bench, arguments.rows, arguments.bytes)]
    for row in found:
        print(f"{row.what}: {row.ours} {row.unit}, {row.peer_name}: {row.peer}, ratio {row.ratio}", flush=True)


if __name__ == "__main__":
    main()
