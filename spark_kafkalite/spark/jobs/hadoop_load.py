"""The load job: what topics received since the last run becomes files in a directory, once.

Run by ``spark-submit "$(kafkalite jobs path hadoop_load)" ...`` or ``kafkalite jobs run hadoop_load ...``. This is its
command line and what it tells; the run itself is :mod:`.load_run`. A run with nothing new publishes nothing and
succeeds.
"""

from __future__ import annotations

import json
import time
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.spark.jobs import planning, publish, staging
from spark_kafkalite.spark.jobs.accounting import HolePolicy
from spark_kafkalite.spark.jobs.client_options import client_options, client_settings
from spark_kafkalite.spark.jobs.completeness import LatePolicy
from spark_kafkalite.spark.jobs.load_run import Bounds, LoadOptions, run_load, summary_of
from spark_kafkalite.spark.jobs.quantities import Duration, Size
from spark_kafkalite.spark.jobs.session import failures_in_one_line, reachable_files, start_session


@click.command(name="hadoop_load", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--topic", "topics", required=True, help="Topic to load, or several with commas.")
@click.option("--destination", required=True, help="Directory to load into: a path, or a URI such as hdfs://host/dir.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "orc", "json"]),
    default="parquet",
    show_default=True,
    help="Format of the files; json is a JSON object a line, with keys and values in base64.",
)
@click.option("--codec", help="Compression of the files, in Spark's name: zstd, gzip, none. [default: Spark's own]")
@click.option(
    "--partition-by",
    type=click.Choice(["day", "hour", "none"]),
    default="day",
    show_default=True,
    help="Directories by record timestamp.",
)
@click.option("--time-zone", default="UTC", show_default=True, help="Zone of days and hours, such as Europe/Berlin.")
@click.option(
    "--file-size",
    type=Size(),
    default="256m",
    show_default=True,
    help="Bytes of the log that one file is made of, about: larger ranges are cut, smaller ones share a file.",
)
@click.option("--max-bytes", type=Size(), help="Take about so many bytes of the log at most.")
@click.option("--max-records", type=click.IntRange(min=1), help="Take about so many offsets at most.")
@click.option(
    "--max-minutes",
    type=click.FloatRange(min=0),
    help="Publish in rounds, and begin no further one after so many minutes.",
)
@click.option(
    "--on-out-of-range",
    type=click.Choice(["fail", "earliest", "latest", "nearest", "skip"]),
    default="fail",
    show_default=True,
    help="When records were deleted before they were loaded: fail; go on from what is left (earliest, nearest), or "
    "from the end (latest), and say how many were lost; or leave the partition as it is (skip).",
)
@click.option(
    "--new-partitions",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to begin in partitions that were never loaded.",
)
@click.option(
    "--on-recreated-topic",
    type=click.Choice(["fail", "earliest"]),
    default="fail",
    show_default=True,
    help="When a topic was deleted and created again since the last run: fail, or load what the new one holds.",
)
@click.option(
    "--on-hole",
    type=click.Choice(["fail", "accept"]),
    default="fail",
    show_default=True,
    help="When a topic that is neither compacted nor transactional lacks offsets: fail, or load what there is.",
)
@click.option(
    "--late",
    type=click.Choice(["append", "late-dir", "reopen"]),
    default="append",
    show_default=True,
    help="What to do with records of a directory that has its _SUCCESS: add a file to it; put it under TOPIC/_late; or "
    "add it and take _SUCCESS away meanwhile.",
)
@click.option(
    "--grace",
    type=Duration(),
    default="10m",
    show_default=True,
    help="How long after its end a day or an hour is waited for before it gets its _SUCCESS.",
)
@click.option("--recover", "recover_only", is_flag=True, help="Only finish or drop what an earlier run left.")
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(**given: Any) -> None:
    """Load what TOPIC received since the last run into DESTINATION.

    Files appear as DESTINATION/TOPIC/day=YYYY-MM-DD/TOPIC-PARTITION-FIRST-LAST.parquet, or TOPIC-load-RUN-N.parquet
    with several small partitions, with the columns of the Spark source, values undecoded. A run killed at any point
    leaves nothing half-done: the next one completes or drops it. A directory gets _SUCCESS when every partition of the
    topic has passed its end.

    The first character of a TOPIC that begins with '_' or '.' is written as %XX in names, because Spark leaves such
    files out, and names too long for the file system are cut and end in a hash. What a run could not load, and topics
    that were created again, stand in its manifest.
    """
    options = _options(given)
    with failures_in_one_line():
        started = time.monotonic()
        spark = start_session("kafkalite hadoop_load")
        files = reachable_files(spark, "--destination", given["destination"])
        if given["recover_only"]:
            summary = summary_of(files, publish.recover(files))
        else:
            summary = run_load(spark, files, options)
        summary["seconds"] = round(time.monotonic() - started, 1)
    click.echo(json.dumps(summary) if given["as_json"] else _sentence(summary))


def _options(given: dict[str, Any]) -> LoadOptions:
    names = tuple(dict.fromkeys(name.strip() for name in given["topics"].split(",") if name.strip()))
    if not names:
        raise click.BadParameter(f"{given['topics']!r} names no topic", param_hint="--topic")
    try:
        ZoneInfo(given["time_zone"])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise click.BadParameter(
            f"{given['time_zone']!r} is no time zone of this system; name one as Europe/Berlin or UTC",
            param_hint="--time-zone",
        ) from None
    minutes = given["max_minutes"]
    return LoadOptions(
        given["bootstrap_server"],
        names,
        client_settings(given["command_config"], given["option_pairs"]),
        staging.Layout(
            cast(staging.PartitionBy, given["partition_by"]),
            cast(staging.FileFormat, given["file_format"]),
            given["codec"],
            given["time_zone"],
            given["file_size"],
        ),
        planning.LoadPolicies(given["on_out_of_range"], given["on_recreated_topic"], given["new_partitions"]),
        cast(HolePolicy, given["on_hole"]),
        cast(LatePolicy, given["late"]),
        given["grace"],
        Bounds(given["max_bytes"], given["max_records"], None if minutes is None else int(minutes * 60_000)),
    )


def _sentence(summary: dict[str, Any]) -> str:
    lines = []
    if summary["recovered_files"]:
        lines.append(f"completed an earlier run: {summary['recovered_files']} files moved to their places")
    if summary["renamed_files"]:
        lines.append(
            f"renamed {summary['renamed_files']} files of topics that an older version had put under names that Spark "
            "does not read"
        )
    if summary["discarded_runs"]:
        lines.append(f"dropped what {len(summary['discarded_runs'])} unfinished run(s) had left")
    for topic, topic_id in summary["adopted_ids"].items():
        lines.append(
            f"topic {topic}: the manifests do not say which topic of this name was loaded; the one that is there now, "
            f"with id {topic_id}, is taken for it; if it has been created again since, load it into another destination"
        )
    for topic in summary["recreated"]:
        held = _first_held(topic["topic"], summary["lost"])
        lines.append(
            f"WARNING: topic {topic['topic']} was deleted and created again (id {topic['earlier_id'] or 'not known'}, "
            f"now {topic['id'] or 'not known'}); loading the new one from {held}"
        )
    for lost in summary["lost"]:
        lines.append(
            f"WARNING: {lost['topic']}-{lost['partition']}: {lost['offsets']} offsets, {lost['start']} to "
            f"{lost['until'] - 1}, were deleted from the log before they were loaded"
        )
    if summary["skipped"]:
        lines.append(f"WARNING: left as they are, because records were deleted: {listed(summary['skipped'])}")
    if summary["late_records"]:
        lines.append(f"{summary['late_records']} records came late, for directories that were complete")
    if summary["records_without_timestamp"]:
        lines.append(f"{summary['records_without_timestamp']} records had no timestamp and lie under day=1969-12-31")
    if summary["files"]:
        lines.append(
            f"loaded {summary['records']} records into {summary['files']} files under {summary['destination']} "
            f"({summary['manifest']})"
        )
    else:
        noted = f" ({summary['manifest']})" if summary["manifest"] is not None else ""
        lines.append(f"nothing new for {summary['destination']}{noted}")
    if summary["completed"]:
        lines.append(f"complete now: {listed(summary['completed'])}")
    if summary["more"]:
        lines.append("there is more to load: run again")
    return "\n".join(lines)


def _first_held(topic: str, lost: list[dict[str, Any]]) -> str:
    """Say at which offset the log of each partition of a topic that was created again starts."""
    later = [f"{topic}-{each['partition']} from offset {each['until']}" for each in lost if each["topic"] == topic]
    return f"offset 0{', but ' if later else ''}{listed(later)}"
