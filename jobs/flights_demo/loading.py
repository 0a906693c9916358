"""Step 4: the load job moves the topic into day directories, once, whatever happens to its runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from flights_demo import topic
from flights_demo.flights import Flights
from flights_demo.report import Report
from flights_demo.submit import JobRun
from spark_kafkalite.manifests.files import Files, files_for
from spark_kafkalite.manifests.manifest import MANIFESTS, STAGING
from spark_kafkalite.processes.cluster import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESENT = 1_000
_KILL_TIMEOUT_S = 90


class Loader:
    """The load job's runs into one destination, and what lies there."""

    def __init__(self, report: Report, spark: SparkSession, bootstrap: str, destination: str, logs: Path) -> None:
        self._report = report
        self._spark = spark
        self._bootstrap = bootstrap
        self._logs = logs
        self._runs = 0
        self.destination = destination
        self.files: Files = files_for(spark, destination)

    def start(self) -> JobRun:
        """Start a run of the job."""
        self._runs += 1
        return JobRun(
            "hadoop_load", "--bootstrap-server", self._bootstrap, "--topic", "flights", "--destination",
            # The run after one that is killed waits for no longer than this.
            self.destination, "--lease", "3s", log=self._logs / f"hadoop_load-{self._runs}.log",
        )  # fmt: skip

    def run(self, what: str, expected_records: int) -> None:
        """Run the job to its end and check how many records it loaded."""
        summary = self.start().result()
        self._report.check(
            f"{what} loads {expected_records}",
            summary["records"] == expected_records,
            f"{summary['records']} records in {summary['files']} files, {summary.get('seconds')} s",
        )

    def check_files(self, what: str, expected: list[int]) -> bool:
        """Check that a plain listing of the files holds exactly the expected flights, each once; return whether so."""
        values = (
            self._spark.read.option("recursiveFileLookup", "true")
            .parquet(f"{self.destination}/flights")
            .select("value")
            .toArrow()["value"]
        )
        rows = [row for chunk in values.chunks for row in topic.row_numbers(chunk).to_pylist()]
        return self._report.check_same_rows(f"{what}: the files", expected, rows)

    def double_a_file(self) -> None:
        """Damage on purpose: one data file appears a second time under another name."""
        day = self.files.names("flights")[0]
        # Beside the mark of a day that is complete.
        name = next(name for name in self.files.names(f"flights/{day}") if name.endswith(".parquet"))
        path = f"{self.destination}/flights/{day}"
        self._spark.read.parquet(f"{path}/{name}").coalesce(1).write.mode("append").parquet(path)

    def kill_in_the_middle(self) -> None:
        """Start a run and kill it with -9 once it has begun to stage and before it has committed."""
        manifests = self.files.names(MANIFESTS)
        job = self.start()
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while not self.files.names(STAGING) and job.running and time.monotonic() < deadline:
            time.sleep(0.05)
        staged = self.files.names(STAGING)
        job.kill()
        committed = self.files.names(MANIFESTS) != manifests
        self._report.check(
            "a run killed with -9 in the middle leaves its staging, no commit",
            bool(staged) and not committed,
            f"staging {staged or 'empty'}, {'a new manifest' if committed else 'no new manifest'}",
        )


def run(
    report: Report,
    broker: BrokerProcess,
    loader: Loader,
    until_november: Flights,
    december: Flights,
    whole_year: Flights,
    double_a_file: bool,
) -> None:
    """Load, load again, load December, and load after a run that was killed; check the files every time.

    Files that are wrong after the first run end it: every later check would find the same fault again.
    """
    bootstrap = broker.bootstrap
    loader.run("the first run", len(until_november))
    if double_a_file:
        loader.double_a_file()
        report.say("damaged on purpose: one file doubled")
    if not loader.check_files("first run", until_november.rows()):
        return
    loader.run("a second run", 0)
    topic.publish(bootstrap, "flights", december)
    report.say(f"December's {len(december)} flights have arrived")
    loader.run("a third run", len(december))
    in_topic = [row for rows in topic.rows_by_partition(bootstrap, "flights") for row in rows]
    report.check_same_rows(f"the topic holds the {len(whole_year)} flights until December", whole_year.rows(), in_topic)
    loader.check_files("third run", whole_year.rows())
    resent = whole_year.renumbered_tail(RESENT)
    topic.publish(bootstrap, "flights", resent)
    loader.kill_in_the_middle()
    loader.run("the run after it", RESENT)
    in_topic = [row for rows in topic.rows_by_partition(bootstrap, "flights") for row in rows]
    report.check_same_rows("the topic", whole_year.rows() + resent.rows(), in_topic)
    loader.check_files("after the killed run, as the log", in_topic)
