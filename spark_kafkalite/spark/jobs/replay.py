"""The replay job: reads a past range of a topic again, into another topic or into files.

The range is given by time or by offset and is planned before anything is read. Into a topic, records keep key, value,
headers and timestamp, and their partition when the target has as many partitions; into files, they go through the same
stage and commit as a load, into a destination that holds nothing yet. A topic has no such commit: every run writes, and
one that is run again writes records again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, cast

import click

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.model import IsolationLevel, LogBounds, TopicPartition
from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.spark.jobs import lease, planning, publish, staging
from spark_kafkalite.spark.jobs.client_options import (
    client_options,
    client_settings,
    open_admin,
    sink_options,
    source_options,
)
from spark_kafkalite.spark.jobs.command import JobCommand
from spark_kafkalite.spark.jobs.formats import FileLayout, PartitionBy
from spark_kafkalite.spark.jobs.planning import LoadPlan, PlanError, TopicLogs
from spark_kafkalite.spark.jobs.session import (
    check_same_topics,
    failures_in_one_line,
    is_submitted,
    reachable_files,
    say,
    start_session,
    topic_logs,
)
from spark_kafkalite.spark.positions import EARLIEST, LATEST
from spark_kafkalite.times import moment_ms

_FROM_OFFSETS: Final = (
    'First offset of every partition: \'{"0": 120, "1": 80}\'; -2 is the earliest offset there is, -1 the end.'
)


class Instant(click.ParamType[int]):
    """Milliseconds since the epoch, or an ISO 8601 time; a time without a zone is UTC."""

    name = "MS_OR_ISO"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return moment_ms(str(value))
        except ValueError:
            self.fail(f"{str(value)!r} is neither milliseconds since the epoch nor an ISO 8601 time", param, ctx)


class PartitionOffsets(click.ParamType[dict[int, int]]):
    """Offsets by partition as JSON: {"0": 120, "1": 80}. -2 is the earliest one, -1 the end, as in Spark's source."""

    name = "JSON"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[int, int]:
        if isinstance(value, dict):
            return value
        try:
            document = json.loads(str(value))
            return {int(partition): int(offset) for partition, offset in document.items()}
        except (ValueError, AttributeError, TypeError):
            self.fail(f'{value!r} is not of the form {{"PARTITION": OFFSET, ...}}', param, ctx)


@click.command(name="replay", cls=JobCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--topic", required=True, help="Topic to read again.")
@click.option("--from-timestamp", type=Instant(), help="First record timestamp: milliseconds, or ISO 8601 (UTC).")
@click.option("--from-offsets", type=PartitionOffsets(), help=_FROM_OFFSETS)
@click.option("--to-timestamp", type=Instant(), help="End, exclusive; default is the end of the log.")
@click.option("--to-offsets", type=PartitionOffsets(), help="End by partition, exclusive; the log's where not named.")
@click.option("--to-topic", help="Topic to write the records to, again at each run; it must exist.")
@click.option("--destination", help="Directory to write the records to; it must hold no manifest yet.")
@click.option(
    "--partition-by",
    type=click.Choice(["day", "hour", "none"]),
    default="day",
    show_default=True,
    help="Directories by record timestamp, in UTC.",
)
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(
    bootstrap_server: str,
    topic: str,
    from_timestamp: int | None,
    from_offsets: dict[int, int] | None,
    to_timestamp: int | None,
    to_offsets: dict[int, int] | None,
    to_topic: str | None,
    destination: str | None,
    partition_by: str,
    command_config: str | None,
    option_pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Read a past range of TOPIC again, into another topic or into files.

    The range is in log order: with timestamps it starts, in each partition, at the first record whose timestamp is at
    or after the one given, and runs to the first at or after the end. Records may be out of time order inside it.

    Every replay into a topic writes: run twice, or run again after one that failed, it writes records twice. Replay
    again into an empty topic. A directory that holds published files is refused.
    """
    _exactly_one("--from-timestamp", from_timestamp, "--from-offsets", from_offsets)
    _exactly_one("--to-topic", to_topic, "--destination", destination)
    if to_timestamp is not None and to_offsets is not None:
        raise click.UsageError("give --to-timestamp or --to-offsets, not both")
    if to_topic == topic:
        raise click.UsageError(f"--to-topic {to_topic}: a topic cannot be replayed into itself")
    if from_timestamp is not None and to_timestamp is not None and from_timestamp >= to_timestamp:
        raise click.UsageError(
            f"--from-timestamp {_shown(from_timestamp)} is not before --to-timestamp {_shown(to_timestamp)}: swap them"
        )
    options = client_settings(command_config, option_pairs, writes=to_topic is not None)
    with failures_in_one_line():
        if is_submitted():
            # Only a session knows where the files lie that were shipped.
            start_session("kafkalite replay")
        with open_admin(bootstrap_server, options) as admin:
            logs = topic_logs(admin, [topic], IsolationLevel.READ_COMMITTED)
            if from_offsets is not None:
                check_all_named(topic, logs.bounds, from_offsets)
            starts = _positions(admin, topic, logs.bounds, from_timestamp, from_offsets)
            ends = _positions(admin, topic, logs.bounds, to_timestamp, to_offsets)
            same_partitions = to_topic is not None and len(logs.bounds) == len(
                topic_logs(admin, [to_topic], IsolationLevel.READ_UNCOMMITTED).bounds
            )
        plan = planning.plan_replay(starts, ends, logs)
        if not plan.ranges:
            click.echo(nothing_to_replay(topic, logs.bounds, starts, from_timestamp), err=True)
        summary = _run(
            bootstrap_server,
            plan,
            logs,
            to_topic,
            same_partitions,
            destination,
            cast(PartitionBy, partition_by),
            options,
        )
    click.echo(json.dumps(summary) if as_json else f"replayed {summary['records']} records to {summary['target']}")


def _exactly_one(first: str, first_value: object, second: str, second_value: object) -> None:
    if (first_value is None) == (second_value is None):
        raise click.UsageError(f"give exactly one of {first} and {second}")


def _positions(
    admin: Admin,
    topic: str,
    bounds: Mapping[TopicPartition, LogBounds],
    timestamp: int | None,
    offsets: dict[int, int] | None,
) -> dict[TopicPartition, int]:
    """Return the offset of each partition that a timestamp or explicit offsets name; a time past the end is the end."""
    if offsets is not None:
        named = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        return {item: _resolved(offset, bounds.get(item)) for item, offset in named.items()}
    if timestamp is None:
        return {}
    found = admin.list_offsets(dict.fromkeys(bounds, timestamp), isolation=IsolationLevel.READ_COMMITTED)
    return {item: bounds[item].end_offset if at is None else at.offset for item, at in found.items()}


def _resolved(offset: int, log: LogBounds | None) -> int:
    if log is None:
        return offset
    return {EARLIEST: log.start_offset, LATEST: log.end_offset}.get(offset, offset)


def check_all_named(topic: str, bounds: Mapping[TopicPartition, LogBounds], offsets: Mapping[int, int]) -> None:
    """Raise PlanError when ``--from-offsets`` leaves a partition out, as Spark's source does."""
    lacking = [item for item in sorted(bounds) if item.partition not in offsets]
    if lacking:
        raise PlanError(
            f"--from-offsets names not every partition of topic {topic}: it lacks {listed(lacking)}; add each with the "
            f'offset to begin with, as "{lacking[0].partition}": OFFSET, in which -2 is the earliest and -1 the end, '
            "which replays nothing of it"
        )


def nothing_to_replay(
    topic: str,
    bounds: Mapping[TopicPartition, LogBounds],
    starts: Mapping[TopicPartition, int],
    from_timestamp: int | None,
) -> str:
    """Say why no partition has a range."""
    if all(log.start_offset == log.end_offset for log in bounds.values()):
        return f"nothing to replay: topic {topic} holds no records"
    if from_timestamp is not None and all(starts[item] == log.end_offset for item, log in bounds.items()):
        return f"nothing to replay: topic {topic} holds no record of {_shown(from_timestamp)} or later"
    return f"nothing to replay: topic {topic} holds records, but none between the start and the end that were given"


def _shown(timestamp_ms: int) -> str:
    """Return a time as people read it; as milliseconds where Python's calendar ends before it."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _run(
    bootstrap_server: str,
    plan: LoadPlan,
    logs: TopicLogs,
    to_topic: str | None,
    same_partitions: bool,
    destination: str | None,
    partition_by: PartitionBy,
    options: dict[str, str],
) -> dict[str, object]:
    started = time.monotonic()
    spark = start_session("kafkalite replay")
    source = {**source_options(bootstrap_server, options), "kafka.isolation.level": "read_committed"}
    records = 0
    if to_topic is not None:
        if plan.ranges:
            frame = staging.read_ranges(spark, plan, source).where(staging.IS_RECORD)
            columns = ["key", "value", "headers", "timestamp", *(["partition"] if same_partitions else [])]
            writer = frame.select(*columns).write.format("kafkalite").options(**sink_options(bootstrap_server, options))
            writer.option("topic", to_topic).mode("append").save()
            with open_admin(bootstrap_server, options) as admin:
                check_same_topics(admin, logs.topic_ids, f"what was written to topic {to_topic} is not what was asked")
            records = plan.size
    elif destination is not None:
        files = reachable_files(spark, "--destination", destination)
        run = publish.new_run()
        with lease.held(files, run, lease_ms=lease.DEFAULT_MS, wait_ms=None, say=say) as held:
            recovery = publish.recover(files, run, held.check)
            # A recovery leaves a manifest of no topic where nothing has been published.
            if recovery.newest is not None and recovery.newest.topics:
                raise PlanError(f"{files.root} already holds published files; replay into a new directory")
            if plan.ranges:
                publish.write_plan(files, run, plan)
                staged = staging.stage(spark, files, run, plan, source, FileLayout(partition_by))
                with open_admin(bootstrap_server, options) as admin:
                    check_same_topics(admin, logs.topic_ids, "nothing was published; run again")
                records = publish.commit(files, run, plan, staged, recovery.newest).records
    return {
        "target": to_topic or destination,
        "offsets": plan.size,
        "records": records,
        "ranges": json.loads(plan.to_json())["ranges"],
        "seconds": round(time.monotonic() - started, 1),
    }
