"""Step 5: a bug is fixed, so the past is read again from a time and from offsets, and the aggregate is made anew.

The bug: the average departure delay by carrier counted a blank delay as zero. The corrected one leaves blanks out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from flights_demo.flights import Flights
from flights_demo.report import Report
from flights_demo.submit import JobRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FROM_TIME = "2013-10-01T00:00:00Z"
_FROM_MS = 1_380_585_600_000

Averages = dict[str, tuple[int, float]]


def run(
    report: Report, spark: SparkSession, bootstrap: str, destination: str, logs: Path, events: list[Flights]
) -> None:
    """Replay from a time and from an offset; ``events`` are the flights in the order in which they were sent."""
    lines = [
        line
        for flights in events
        for line in flights.table.select(["row", "carrier", "dep_delay", "event_time"]).to_pylist()
    ]
    by_row = {line["row"]: line for line in lines}
    in_log = [
        [row for flights in parts for row in flights]
        for parts in zip(*(f.rows_by_partition() for f in events), strict=True)
    ]
    halves = [len(rows) // 2 for rows in in_log]
    asked = {
        f"from the time {FROM_TIME}": (
            ["--from-timestamp", FROM_TIME],
            [row for rows in in_log for row in _from_time(rows, by_row)],
        ),
        f"from the offsets {halves}": (
            ["--from-offsets", json.dumps({str(number): offset for number, offset in enumerate(halves)})],
            [row for rows, half in zip(in_log, halves, strict=True) for row in rows[half:]],
        ),
    }
    for number, (what, (arguments, rows)) in enumerate(asked.items(), start=1):
        target = f"{destination}/replay-{number}"
        job = JobRun(
            "replay", "--bootstrap-server", bootstrap, "--topic", "flights", *arguments, "--destination", target,
            "--partition-by", "none",
            log=logs / f"replay-{number}.log",
        )  # fmt: skip
        summary = job.result()
        report.check(f"replay {what}: records", summary["records"] == len(rows), f"{summary['records']} of {len(rows)}")
        expected = _averages([by_row[row] for row in rows])
        wrong_then = _averages([{**by_row[row], "dep_delay": by_row[row]["dep_delay"] or 0} for row in rows])
        found = _recomputed(spark, f"{target}/flights")
        changed = sum(expected[carrier] != wrong_then[carrier] for carrier in expected)
        report.check(
            f"replay {what}: corrected averages equal to the CSV's",
            found == expected,
            f"{len(found)} carriers, {changed} differ from the buggy averages",
        )


def _from_time(rows: list[int], by_row: dict[int, dict[str, object]]) -> list[int]:
    """Return a partition's rows from the first whose timestamp is at or after the asked time, in log order."""
    first = next((i for i, row in enumerate(rows) if int(str(by_row[row]["event_time"])) >= _FROM_MS), len(rows))
    return rows[first:]


def _averages(lines: list[dict[str, object]]) -> Averages:
    delays: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        if line["dep_delay"] is not None:
            delays[str(line["carrier"])].append(int(str(line["dep_delay"])))
    return {carrier: (len(values), round(sum(values) / len(values), 6)) for carrier, values in delays.items()}


def _recomputed(spark: SparkSession, path: str) -> Averages:
    event = F.from_json(F.col("value").cast("string"), "carrier STRING, dep_delay BIGINT").alias("event")
    lines = (
        spark.read.option("recursiveFileLookup", "true")
        .parquet(path)
        .select(event)
        .groupBy("event.carrier")
        .agg(F.count("event.dep_delay").alias("departed"), F.avg("event.dep_delay").alias("average"))
        .where("departed > 0")
        .collect()
    )
    return {line["carrier"]: (line["departed"], round(line["average"], 6)) for line in lines}
