"""``kafkalite jobs``: lists the Spark jobs that come with the package, names their scripts, runs one here."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import click

from spark_kafkalite.cli.options import json_option
from spark_kafkalite.cli.output import print_json, print_table
from spark_kafkalite.version import install_command

JOBS = {
    "hadoop_load": "Load what arrived in topics since the last run into a directory, each record once.",
    "audit": "Count a load's records again, in its files and in the log, and compare.",
    "compact": "Merge the small files of a load into few.",
    "mirror": "Copy topics to another cluster, with partitions, keys, headers and timestamps, and go on from there.",
    "replay": "Read a past range of a topic again, by offset, time or batch, into a topic or a directory.",
    "stream": "Copy a topic continuously into another topic or into Parquet files.",
}

_EPILOG = """\b
Examples:
  kafkalite jobs list
  spark-submit "$(kafkalite jobs path hadoop_load)" --topic events --destination hdfs:///data/events
  kafkalite jobs run replay --topic events --from-timestamp 2026-01-01T00:00:00Z --to-topic again
"""


@click.group("jobs", epilog=_EPILOG)
def command() -> None:
    """List, locate and run the Spark jobs.

    A job is a script for spark-submit; 'kafkalite jobs run JOB --help' shows its options.
    """


@command.command("list")
@json_option
def list_jobs(as_json: bool) -> None:
    """Show the jobs and what they do."""
    if as_json:
        print_json([{"name": name, "path": str(script_path(name)), "text": text} for name, text in JOBS.items()])
    else:
        print_table(("JOB", "WHAT IT DOES"), list(JOBS.items()))


@command.command("path")
@click.argument("name", type=click.Choice(list(JOBS)))
def path(name: str) -> None:
    """Print the path of a job's script, for spark-submit."""
    click.echo(script_path(name))


# Everything behind the job's name is the job's, --help included; before it --help is this command's.
@command.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    short_help="Run a job in this process, on a local Spark.",
)
@click.argument("name", metavar="JOB", type=click.Choice(list(JOBS)))
@click.argument("arguments", metavar="[JOB_OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def run(name: str, arguments: tuple[str, ...]) -> int:
    """Run a job in this process, on a local Spark unless the environment names another.

    JOB is one of those that 'kafkalite jobs list' shows; 'kafkalite jobs run JOB --help' shows its options.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise click.ClickException(f"the Spark jobs need PySpark: {install_command('spark')}")
    job: click.Command = importlib.import_module(f"spark_kafkalite.jobs.{name}").main
    result = job.main(args=list(arguments), prog_name=f"kafkalite jobs run {name}", standalone_mode=False)
    return result if isinstance(result, int) else 0


def script_path(name: str) -> Path:
    """Return where the job's script lies, without importing PySpark."""
    package = importlib.util.find_spec("spark_kafkalite")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "jobs" / "scripts" / f"{name}.py"
