"""The demo from its first step to its table. Exit code 1 when any check failed; nothing is left running."""

from __future__ import annotations

import calendar
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from flights_demo import topic
from flights_demo.flights import Flights, read_flights
from flights_demo.report import CheckFailed, Report
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.lab import hdfs

FAULTS = ("lost-record", "doubled-file")
EXPECTED_FLIGHTS = 336_776


def _step_numbers(_: click.Context, __: click.Parameter, text: str) -> set[int]:
    numbers = {part.strip() for part in text.split(",")}
    if not numbers <= set("12345"):
        raise click.BadParameter(f"{text}: not of the form 1,2,4; the steps are 1 to 5")
    return {int(number) for number in numbers}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--output", type=click.Path(path_type=Path), default=Path("demo-output"), show_default=True)
@click.option("--steps", default="1,2,3,4,5", show_default=True, help="1 and 2 always run.", callback=_step_numbers)
@click.option(
    "--from-month",
    type=click.IntRange(1, 10),
    default=1,
    show_default=True,
    help="Leave the flights of earlier months out: the same steps with less to do.",
)
@click.option("--hdfs/--no-hdfs", "use_hdfs", default=True, help="Load into a real HDFS when its jars can be had.")
@click.option("--seed-fault", type=click.Choice(FAULTS), help="Damage something on purpose, to see a check fail.")
def main(output: Path, steps: set[int], from_month: int, use_hdfs: bool, seed_fault: str | None) -> None:
    """Send the flights of 2013 through broker, Spark and Hadoop, kill things on the way, and check every step."""
    output = output.absolute()
    if output.exists() and any(output.iterdir()) and not (output / "broker").exists():
        raise click.UsageError(f"--output {output}: it would be emptied, and is not an earlier demo's; name another")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    report = Report()
    paths = {"output": str(output), "broker's data": str(output / "broker"), "job logs": str(output / "logs")}
    with ExitStack() as running:
        try:
            _run_steps(report, running, output, steps, from_month, use_hdfs, seed_fault, paths)
        except CheckFailed as failed:
            report.say(f"stopped after step {failed}: what follows would rest on it")
    sys.exit(0 if report.finish(paths) else 1)


def _run_steps(
    report: Report,
    running: ExitStack,
    output: Path,
    wanted: set[int],
    from_month: int,
    use_hdfs: bool,
    seed_fault: str | None,
    paths: dict[str, str],
) -> None:
    with report.step("1. A broker starts"):
        broker = running.enter_context(BrokerProcess(output / "broker"))
        report.check("the broker serves", True, f"{broker.bootstrap}, no ZooKeeper, data in {output / 'broker'}")

    months = "October" if from_month == 10 else f"{calendar.month_name[from_month]} to October"
    with report.step(f"2. The flights of {months} go in"):
        year = read_flights()
        report.check("the CSV has every flight of 2013", len(year) == EXPECTED_FLIGHTS, f"{len(year)}")
        year = year.months(from_month, 12)
        early, november, december = year.months(1, 10), year.months(11, 11), year.months(12, 12)
        topic.create_topic(broker.bootstrap, "flights")
        sent = early.without(early.rows()[len(early) // 2]) if seed_fault == "lost-record" else early
        seconds = topic.publish(broker.bootstrap, "flights", sent)
        report.figure("2. published", f"{len(sent)} events in {seconds:.1f} s, JSON encoding included")
        blanks = {column: early.blank(column) for column in ("dep_delay", "arr_delay")}
        report.say(f"blank delays stay blank: {blanks['dep_delay']} dep_delay, {blanks['arr_delay']} arr_delay")
        _check_topic(report, broker.bootstrap, early)

    sent_in_order = [early, november, december]
    if wanted & {3, 4, 5}:
        spark = _start_spark(running, output)
    if 3 in wanted:
        from flights_demo import streaming

        with report.step("3. Two streaming queries, November, and a broker killed with -9"):
            streaming.run(report, spark, broker, output, early, november)
        paths["delays per carrier and hour"] = str(output / "delays")
    elif wanted & {4, 5}:
        topic.publish(broker.bootstrap, "flights", november)

    destination = _destination(report, running, output, use_hdfs) if wanted & {4, 5} else ""
    if 4 in wanted:
        from flights_demo import loading

        with report.step("4. spark-submit of the load job"):
            loader = loading.Loader(report, spark, broker.bootstrap, f"{destination}/load", output / "logs")
            until_november = year.months(1, 11)
            loading.run(report, broker, loader, until_november, december, year, seed_fault == "doubled-file")
        sent_in_order.append(year.renumbered_tail(loading.RESENT))
        paths["loaded files"] = str(output / "files" / "load" / "flights")
    elif 5 in wanted:
        topic.publish(broker.bootstrap, "flights", december)
    if 5 in wanted:
        from flights_demo import replaying

        with report.step("5. spark-submit of the replay job"):
            replaying.run(report, spark, broker.bootstrap, destination, output / "logs", sent_in_order)
        paths["replayed files"] = str(output / "files" / "replay-*")
    if destination.startswith("hdfs:"):
        _copy_from_hdfs(spark, destination, output / "files")
        report.say(f"HDFS stops with the demo: its files are copied to {output / 'files'}")
    report.check("the broker stops cleanly", broker.stop() == 0, "SIGTERM, exit code 0")


def _check_topic(report: Report, bootstrap: str, expected: Flights) -> None:
    in_order = topic.rows_by_partition(bootstrap, "flights")
    report.check_same_rows("the topic", expected.rows(), [row for rows in in_order for row in rows])
    report.check(
        "by carrier, each partition in event-time order",
        in_order == expected.rows_by_partition(),
        f"{[len(rows) for rows in in_order]} events",
    )


def _destination(report: Report, running: ExitStack, output: Path, use_hdfs: bool) -> str:
    problem = hdfs.available() if use_hdfs else "not asked for (--no-hdfs)"
    if problem is None:
        cluster = running.enter_context(hdfs.MiniHdfs(output / "hdfs"))
        report.figure("HDFS", f"a real one, {cluster.uri}")
        report.say(f"HDFS serves at {cluster.uri}")
        return f"{cluster.uri}/flights-demo"
    report.figure("HDFS", f"not run: {problem}")
    return f"file://{output / 'files'}"


def _copy_from_hdfs(spark: Any, source: str, target: Path) -> None:
    jvm = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(source)
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    files.copyToLocalFile(False, path, jvm.org.apache.hadoop.fs.Path(str(target)), True)


def _start_spark(running: ExitStack, output: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("kafkalite demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(output / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    running.callback(spark.stop)
    return spark
