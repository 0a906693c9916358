"""The load job: what a topic received since the last run becomes Parquet files in a directory, once.

Run by ``spark-submit "$(kafkalite jobs path hadoop_load)" ...`` or ``kafkalite jobs run hadoop_load ...``. The steps
are recover (finish or drop what an earlier run left; ``publish.recover``), plan (``planning``), stage (``staging``) and
commit (``publish.commit``). A run
with nothing new publishes nothing and succeeds.
"""

from __future__ import annotations

import json
import time
from typing import Any, cast

import click

from spark_kafkalite.model import IsolationLevel
from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.spark.jobs import planning, publish, staging
from spark_kafkalite.spark.jobs.client_options import client_options, client_settings, open_admin, source_options
from spark_kafkalite.spark.jobs.session import (
    check_same_topics,
    failures_in_one_line,
    reachable_files,
    start_session,
    topic_logs,
)


@click.command(name="hadoop_load", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--topic", "topics", required=True, help="Topic to load, or several with commas.")
@click.option("--destination", required=True, help="Directory to load into: a path, or a URI such as hdfs://host/dir.")
@click.option("--format", "file_format", type=click.Choice(["parquet"]), default="parquet", show_default=True)
@click.option(
    "--partition-by",
    type=click.Choice(["day", "hour", "none"]),
    default="day",
    show_default=True,
    help="Directories by record timestamp, in UTC.",
)
@click.option(
    "--on-out-of-range",
    type=click.Choice(["fail", "earliest"]),
    default="fail",
    show_default=True,
    help="When records were deleted before they were loaded: fail, or go on from what is left and say how many.",
)
@click.option(
    "--on-recreated-topic",
    type=click.Choice(["fail", "earliest"]),
    default="fail",
    show_default=True,
    help="When a topic was deleted and created again since the last run: fail, or load what the new one holds.",
)
@click.option("--recover", "recover_only", is_flag=True, help="Only finish or drop what an earlier run left.")
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(
    bootstrap_server: str,
    topics: str,
    destination: str,
    file_format: str,
    partition_by: str,
    on_out_of_range: str,
    on_recreated_topic: str,
    recover_only: bool,
    command_config: str | None,
    option_pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Load what TOPIC received since the last run into DESTINATION.

    Files appear as DESTINATION/TOPIC/day=YYYY-MM-DD/TOPIC-PARTITION-FIRST-LAST.parquet with the columns of the Spark
    source, values undecoded. A run killed at any point leaves nothing half-done: the next one completes or drops it.

    The first character of a TOPIC that begins with '_' or '.' is written as %XX in names, because Spark leaves such
    files out, and names too long for the file system are cut and end in a hash. What a run could not load, and topics
    that were created again, stand in its manifest.
    """
    options = client_settings(command_config, option_pairs)
    names = list(dict.fromkeys(name.strip() for name in topics.split(",") if name.strip()))
    if not names:
        raise click.BadParameter(f"{topics!r} names no topic", param_hint="--topic")
    policies = (
        cast(planning.OutOfRangePolicy, on_out_of_range),
        cast(planning.RecreatedPolicy, on_recreated_topic),
    )
    with failures_in_one_line():
        by = cast(staging.PartitionBy, partition_by)
        summary = _run(bootstrap_server, names, destination, by, policies, recover_only, options)
    click.echo(json.dumps(summary) if as_json else _sentence(summary))


def _run(
    bootstrap_server: str,
    topics: list[str],
    destination: str,
    partition_by: staging.PartitionBy,
    policies: tuple[planning.OutOfRangePolicy, planning.RecreatedPolicy],
    recover_only: bool,
    options: dict[str, str],
) -> dict[str, object]:
    started = time.monotonic()
    spark = start_session("kafkalite hadoop_load")
    files = reachable_files(spark, "--destination", destination)
    recovery = publish.recover(files)
    summary: dict[str, object] = {
        "destination": files.root,
        "recovered_files": recovery.moved,
        "renamed_files": recovery.renamed,
        "discarded_runs": list(recovery.discarded),
        "manifest": None,
        "files": 0,
        "records": 0,
        "offsets": 0,
        "lost_offsets": 0,
        "lost": [],
        "recreated": [],
        "adopted_ids": {},
        "records_without_timestamp": 0,
    }
    if recover_only:
        return summary
    with open_admin(bootstrap_server, options) as admin:
        logs = topic_logs(admin, topics, IsolationLevel.READ_COMMITTED)
    loaded = recovery.newest.topics if recovery.newest is not None else {}
    plan = planning.plan_load(loaded, logs, *policies)
    summary |= {
        "lost_offsets": plan.lost_offsets,
        "lost": [each.document() for each in plan.lost],
        "recreated": [each.document() for each in plan.recreated],
        "adopted_ids": {topic: plan.topics[topic].topic_id for topic in plan.adopted_ids},
    }
    if plan.changes(loaded):
        run = publish.new_run()
        publish.write_plan(files, run, plan)
        staged = staging.Staged((), 0, 0)
        if plan.ranges:
            source = {
                "kafka.isolation.level": "read_committed",
                **source_options(bootstrap_server, options),
            }
            staged = staging.stage(spark, files, run, plan, source, partition_by)
            with open_admin(bootstrap_server, options) as admin:
                check_same_topics(admin, logs.topic_ids, "nothing was published; run again")
        manifest = publish.commit(files, run, plan, staged, recovery.newest)
        summary |= {
            "manifest": manifest.path,
            "files": len(manifest.files),
            "records": manifest.records,
            "offsets": plan.size,
            "records_without_timestamp": manifest.records_without_timestamp,
        }
    summary["seconds"] = round(time.monotonic() - started, 1)
    return summary


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
    return "\n".join(lines)


def _first_held(topic: str, lost: list[dict[str, Any]]) -> str:
    """Say at which offset the log of each partition of a topic that was created again starts."""
    later = [f"{topic}-{each['partition']} from offset {each['until']}" for each in lost if each["topic"] == topic]
    return f"offset 0{', but ' if later else ''}{listed(later)}"
