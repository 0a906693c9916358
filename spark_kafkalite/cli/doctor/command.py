"""``kafkalite doctor``: can this host, and can Spark's executors, work with the cluster?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from spark_kafkalite.cli.doctor import probe
from spark_kafkalite.cli.doctor.findings import clock_offset_s, problems
from spark_kafkalite.cli.options import ClientSettings, client_options, json_option, name_values, reachable_admin
from spark_kafkalite.cli.output import print_json, print_table

if TYPE_CHECKING:
    from spark_kafkalite.spark.workers.worker_python import WorkerPython

_EPILOG = """\b
Examples:
  kafkalite doctor
  kafkalite doctor --bootstrap-server broker1:9092 --command-config client.properties
  kafkalite doctor --spark --master spark://10.0.0.7:7077 --json
"""


@click.command("doctor", epilog=_EPILOG)
@click.option("--spark", "with_spark", is_flag=True, help="Check Spark's executors too, with a task on each.")
@click.option("--master", metavar="URL", help="With --spark: Spark's master; by default that of the environment.")
@click.option(
    "--conf", "conf", metavar="NAME=VALUE", multiple=True, help="With --spark: a setting of Spark. Repeatable."
)
@client_options
@json_option
def command(
    with_spark: bool,
    master: str | None,
    conf: tuple[str, ...],
    client: ClientSettings,
    as_json: bool,
) -> int:
    """Check this host, and with --spark every executor, against a cluster.

    It checks Python, packages, the address that each broker advertises, its certificate and our own. With --spark it
    also checks the Python that Spark starts for format("kafkalite"), and compares executors' clocks with the driver's.
    If something is wrong, it ends with 1 and a list of what to do. It writes nothing.
    """
    if (master is not None or conf) and not with_spark:
        raise click.UsageError("--master and --conf are for --spark")
    spark_conf = name_values(conf, "--conf")
    with reachable_admin(client, shared=True, by_bootstrap_server=True) as admin:
        nodes = admin.cluster.snapshot.nodes
    addresses = [(nodes[number].host, nodes[number].port) for number in sorted(nodes)]
    driver = probe.look(client, addresses, False)
    executors: list[dict[str, Any]] = []
    expected = 0
    planning: WorkerPython | None = None
    if with_spark:
        executors, expected, planning = _executors(master, spark_conf, client, addresses)
    wrong = problems(driver, executors, expected, planning)
    if as_json:
        found = {"driver": driver, "executors": executors, "executors_expected": expected}
        print_json({**found, "planning_python": planning and asdict(planning), "problems": wrong})
        return 1 if wrong else 0
    _show(driver, executors)
    for each in wrong:
        click.echo(f"To do: {each}")
    if not wrong:
        click.echo("Nothing to do.")
    return 1 if wrong else 0


def _executors(
    master: str | None, conf: dict[str, str], settings: dict[str, object], addresses: list[tuple[str, int]]
) -> tuple[list[dict[str, Any]], int, WorkerPython]:
    """Return (what the probes found, the number of executors, the Python with which Spark plans on this host)."""
    from spark_kafkalite.cli.doctor.executors import look_on_executors, start_session

    spark = start_session(master, conf)
    from spark_kafkalite.jobs.program.session import failures_in_one_line
    from spark_kafkalite.spark.workers.unix_sockets import RECOMMENDATION, lacks_unix_sockets
    from spark_kafkalite.spark.workers.worker_python import planning_python

    if lacks_unix_sockets(spark):
        click.echo(f"Recommended: {RECOMMENDATION}", err=True)
    try:
        with failures_in_one_line():
            return *look_on_executors(spark, settings, addresses), planning_python(spark)
    finally:
        spark.stop()


def _show(driver: dict[str, Any], executors: list[dict[str, Any]]) -> None:
    rows = []
    for name, found in [("driver", driver), *((f"executor {each['process']}", each) for each in executors)]:
        packages = found["packages"]
        reached = sum(each["problem"] is None for each in found["addresses"])
        rows.append(
            (
                name,
                found["host"],
                found["python"],
                packages["spark-kafkalite"] or "-",
                packages["pyarrow"] or "-",
                packages["pyspark"] or "-",
                f"{reached} of {len(found['addresses'])}",
                "-" if found is driver else f"{clock_offset_s(found):+.1f} s",
            )
        )
    print_table(("WHERE", "HOST", "PYTHON", "KAFKALITE", "PYARROW", "PYSPARK", "BROKERS", "CLOCK"), rows)
