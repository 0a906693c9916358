"""The replay job: reads a past range of a topic again, into another topic or into files.

The range is given by time, by offset or by the batches of a query. The job plans it before it reads (``replay_plan``).

Into a topic, records keep key, value, headers and timestamp. They keep their partition if the target has as many
partitions (``topic_copy``). With a run id the cluster remembers the run (``replay_run``); if that runs again, it writes
only the records that the target lacks. Into files, records go through the same stage and commit as a load. The
destination must be empty.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import click

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.jobs.copying import replay_run
from spark_kafkalite.jobs.copying.replay_options import (
    FROM_OFFSETS,
    AskedRange,
    Batches,
    Instant,
    PartitionOffsets,
    exactly_one,
    run_id_option,
)
from spark_kafkalite.jobs.copying.time_order import TimeOrder
from spark_kafkalite.jobs.destination import lease, publish
from spark_kafkalite.jobs.formats.file_layout import FileLayout, PartitionBy
from spark_kafkalite.jobs.load import staging
from spark_kafkalite.jobs.load.planning import LoadPlan, PlanError, TopicLogs
from spark_kafkalite.jobs.load.quarantine import MaxQuarantined
from spark_kafkalite.jobs.program.client_options import (
    client_options,
    client_settings,
    open_admin,
    sink_options,
    source_options,
)
from spark_kafkalite.jobs.program.command import JobCommand, is_given, lease_options
from spark_kafkalite.jobs.program.quantities import Size
from spark_kafkalite.jobs.program.session import (
    check_same_topics,
    is_submitted,
    reachable_files,
    say,
    start_session,
    topic_logs,
)
from spark_kafkalite.jobs.program.stopping import cancelled_with
from spark_kafkalite.model import IsolationLevel

if TYPE_CHECKING:
    from spark_kafkalite.jobs.copying.offset_set import OffsetSet


# Nothing is decoded, so it is only records whose timestamps do not fit.
_ANY_QUARANTINED: Final = MaxQuarantined(percent=100)


@click.command(name="replay", cls=JobCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--topic", required=True, help="Topic to read again.")
@click.option("--from-timestamp", type=Instant(), help="First record timestamp: milliseconds, or ISO 8601 (UTC).")
@click.option("--from-offsets", type=PartitionOffsets(), help=FROM_OFFSETS)
@click.option("--from-checkpoint", metavar="DIR", help="Begin where a batch of the query with this checkpoint began.")
@click.option(
    "--batch",
    "span",
    type=Batches(),
    help="With --from-checkpoint: that batch, and with N..M also end where batch M ended. Default: the last finished.",
)
@click.option("--to-timestamp", type=Instant(), help="End, exclusive; default is the end of the log.")
@click.option("--to-offsets", type=PartitionOffsets(), help="End by partition, exclusive; the log's where not named.")
@click.option(
    "--exact-time",
    is_flag=True,
    help="Read on to the end of the log, and write exactly the records whose timestamps are in the time range.",
)
@click.option("--to-topic", help="Topic to write the records to; it must exist.")
@click.option(
    "--run-id",
    callback=run_id_option,
    metavar="NAME",
    help="With --to-topic: run again with it, a run writes only what the topic lacks of it. It stamps the records.",
)
@click.option(
    "--max-bytes-per-second",
    type=Size(),
    help="With --to-topic: of keys, values and headers, of all tasks together, such as 10m.",
)
@click.option("--destination", help="Directory to write the records to; it must hold no manifest yet.")
@click.option(
    "--partition-by",
    type=click.Choice(["day", "hour", "none"]),
    default="day",
    show_default=True,
    help="Directories by record timestamp, in UTC.",
)
@lease_options
@client_options
@click.option("--dry-run", is_flag=True, help="Show the ranges and about how many bytes they have, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(
    bootstrap_server: str,
    topic: str,
    to_topic: str | None,
    run_id: str | None,
    max_bytes_per_second: int | None,
    destination: str | None,
    partition_by: str,
    lease_ms: int,
    wait_ms: int | None,
    command_config: str | None,
    option_pairs: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **range_options: Any,
) -> None:
    """Read a past range of TOPIC again, into another topic or into files.

    The range is in log order: with timestamps it starts, in each partition, at the first record whose timestamp is at
    or after the one given, and runs to the first at or after the end. Records may be out of time order inside it, and
    records of the time range may lie behind it; the job prints how many. --exact-time leaves out the former and
    includes the latter.

    With --run-id a replay into a topic that was killed, or is run again, goes on: it writes what the topic lacks of the
    range that its first start planned. Without, every replay into a topic writes: run twice, or run again after one
    that failed, it writes records twice. A directory that holds published files is refused.
    """
    asked = AskedRange(topic, **range_options)
    asked.check()
    exactly_one({"--to-topic": to_topic, "--destination": destination})
    for option, value in (("--run-id", run_id), ("--max-bytes-per-second", max_bytes_per_second)):
        if value is not None and to_topic is None:
            raise click.UsageError(f"{option} needs --to-topic")
    for option, parameter in (("--lease", "lease_ms"), ("--wait", "wait_ms"), ("--partition-by", "partition_by")):
        if is_given(parameter) and destination is None:
            raise click.UsageError(f"{option} needs --destination")
    if to_topic == topic:
        raise click.UsageError(f"--to-topic {to_topic}: a topic cannot be replayed into itself")
    options = client_settings(command_config, option_pairs, writes=to_topic is not None)
    job = Replay(bootstrap_server, options, asked)
    if is_submitted():
        # Only a session knows where the files lie that were shipped.
        start_session("kafkalite replay")
    if to_topic is not None:
        summary = job.into_topic(to_topic, run_id, max_bytes_per_second, dry_run)
    else:
        summary = job.into_files(cast(str, destination), cast(PartitionBy, partition_by), dry_run, lease_ms, wait_ms)
    click.echo(json.dumps(summary) if as_json else sentence(summary))


class Replay:
    """One run of the job: a range of a topic, and the cluster that it is on."""

    def __init__(self, bootstrap_server: str, options: Mapping[str, str], asked: AskedRange) -> None:
        self._bootstrap_server = bootstrap_server
        self._options = options
        self._asked = asked
        self._started_s = time.monotonic()
        self._source = {
            **source_options(bootstrap_server, options),
            "kafka.isolation.level": "read_committed",
        }

    def _admin(self) -> Admin:
        return open_admin(self._bootstrap_server, self._options)

    def _logs(self, admin: Admin) -> TopicLogs:
        return topic_logs(admin, [self._asked.topic], IsolationLevel.READ_COMMITTED)

    def into_topic(
        self, target: str, run_id: str | None, max_bytes_per_second: int | None, dry_run: bool
    ) -> dict[str, Any]:
        """Copy the range, or what the target lacks of it, and return the summary."""
        run: replay_run.ReplayRun | None = None
        begun = False
        with self._admin() as admin:
            logs = self._logs(admin)
            target_logs = topic_logs(admin, [target], IsolationLevel.READ_UNCOMMITTED)
            if run_id is not None:
                if (problem := replay_run.compaction_problem(admin, target)) is not None:
                    raise PlanError(problem)
                run = replay_run.recorded_run(admin, run_id)
            begun = run is not None
            if run is not None and run_id is not None:
                plan = run.resumed(run_id, self._asked.digest(), logs, target_logs)
                plan = replace(plan, times=self._asked.written_times)
            else:
                plan = self._asked.plan(admin, logs)
            if dry_run:
                return {**self._planned(plan, logs, target), "run_id": run_id, "begun": begun}
            if not begun:
                self._warn_of_time_order(plan, logs)
            spark = start_session("kafkalite replay")
            # Spark's worker processes import what reads and writes; who only plans does without.
            from spark_kafkalite.jobs.copying.topic_copy import Look, TopicCopy

            look = None
            if run_id is not None:
                topic = self._asked.topic
                if run is None:
                    run = replay_run.ReplayRun.first(self._asked.digest(), plan, logs, target_logs)
                    back = Look(self._source, run_id, topic, replay_run.last_records(target_logs))
                    replay_run.check_new(run_id, target, back.once(spark)[0])
                # Also of a run that goes on: the coordinator then remembers it for longer.
                replay_run.commit(admin, run_id, run)
                look = Look(self._source, run_id, topic, run.look_from(target_logs))
        present: Mapping[int, OffsetSet] = {}
        if look is not None and begun:
            with cancelled_with(spark):
                present = look.when_quiet(spark)
        there = sum(each.count for each in present.values())
        if begun:
            click.echo(f"run {run_id} goes on: {there} of its records are in topic {target} already", err=True)
        same_partitions = len(logs.bounds) == len(target_logs.bounds)
        sink = {**sink_options(self._bootstrap_server, self._options), "topic": target}
        records = 0
        if plan.ranges:
            copy = TopicCopy(self._source, sink, plan, same_partitions=same_partitions, look=look)
            with cancelled_with(spark):
                records = copy.run(spark, present, max_bytes_per_second)
            with self._admin() as admin:
                check_same_topics(admin, logs.topic_ids, f"what was written to topic {target} is not what was asked")
        if run is not None and run_id is not None:
            self._leave_no_lag(run_id, run)
        return {**self._summary(plan, target, records), "run_id": run_id, "present_before": there}

    def _leave_no_lag(self, run_id: str, run: replay_run.ReplayRun) -> None:
        """Commit the ends of the logs, which the run has moved. All is written: an error here is only printed."""
        try:
            with self._admin() as admin:
                replay_run.commit(admin, run_id, run)
        except KafkaliteError as error:
            say(f"run {run_id} is complete, but group {replay_run.group_of(run_id)} keeps a lag: {error}")

    def into_files(
        self, destination: str, partition_by: PartitionBy, dry_run: bool, lease_ms: int, wait_ms: int | None
    ) -> dict[str, Any]:
        """Publish the range in a directory and return the summary; the times are those of its lease."""
        with self._admin() as admin:
            logs = self._logs(admin)
            plan = self._asked.plan(admin, logs)
        if dry_run:
            return self._planned(plan, logs, destination)
        self._warn_of_time_order(plan, logs)
        spark = start_session("kafkalite replay")
        files = reachable_files(spark, "--destination", destination)
        run = publish.new_run()
        layout = FileLayout(partition_by)
        records = quarantined = 0
        with lease.held(files, run, lease_ms=lease_ms, wait_ms=wait_ms, say=say) as held:
            recovery = publish.recover(files, run, held.check)
            # A recovery leaves a manifest of no topic where nothing has been published.
            if recovery.newest is not None and recovery.newest.topics:
                raise PlanError(f"{files.root} already holds published files; replay into a new directory")
            if plan.ranges:
                with publish.dropped_on_failure(files, run):
                    publish.write_plan(files, run, plan)
                    staged = staging.stage(spark, files, run, plan, self._source, layout, _ANY_QUARANTINED)
                    with self._admin() as admin:
                        check_same_topics(admin, logs.topic_ids, "nothing was published; run again")
                records = publish.commit(files, run, plan, staged, recovery.newest, layout=layout.document()).records
                quarantined = sum(each.quarantined for each in staged.ranges)
        return {**self._summary(plan, destination, records), "quarantined_records": quarantined}

    def _summary(self, plan: LoadPlan, target: str, records: int) -> dict[str, Any]:
        return {
            "target": target,
            "offsets": plan.size,
            "records": records,
            "ranges": json.loads(plan.to_json())["ranges"],
            "seconds": round(time.monotonic() - self._started_s, 1),
        }

    def _warn_of_time_order(self, plan: LoadPlan, logs: TopicLogs) -> None:
        """Print how many records the offsets of a time range have that are not of it, and how many they lack."""
        if plan.times is None and (order := self._time_order(plan, logs)) is not None and order.differs:
            say(order.sentence())

    def _time_order(self, plan: LoadPlan, logs: TopicLogs) -> TimeOrder | None:
        """Return how the plan's offsets differ from the time range, None where no time was given."""
        if (times := self._asked.times) is None:
            return None
        from spark_kafkalite.jobs.copying.time_counts import time_order

        # What lies behind is of interest only if a time ends the plan.
        behind = self._asked.to_timestamp is not None and plan.times is None
        return time_order(self._source, plan, logs.bounds if behind else {}, times)

    def _planned(self, plan: LoadPlan, logs: TopicLogs, target: str) -> dict[str, Any]:
        """Return the report of a dry run: the ranges, each with its approximate size in the log in bytes.

        Of a replay by time it also has the number of records outside of the time range.
        """
        from spark_kafkalite.spark.options.options import reader_options
        from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
        from spark_kafkalite.spark.reading.range_bytes import measured

        ranges = json.loads(plan.to_json())["ranges"]
        if plan.ranges:
            lookup = ClusterOffsets(reader_options({**self._source, "assign": plan.assign_option()}))
            spans = {each.topic_partition: (each.start_offset, each.end_offset) for each in plan.ranges}
            sizes = measured(lookup.samples, spans)
            for shown, each in zip(ranges, plan.ranges, strict=True):
                shown["bytes"] = round(sizes[each.topic_partition].size_bytes)
        size = sum(each["bytes"] for each in ranges)
        planned = {"dry_run": True, "target": target, "offsets": plan.size, "bytes": size, "ranges": ranges}
        order = self._time_order(plan, logs)
        return planned if order is None else {**planned, **order.document()}


def sentence(summary: Mapping[str, Any]) -> str:
    """Return a summary as people read it."""
    if not summary.get("dry_run"):
        before = f", {summary['present_before']} existed already" if summary.get("present_before") else ""
        held_back = ""
        if summary.get("quarantined_records"):
            held_back = (
                f"; {summary['quarantined_records']} more, with timestamps that no column can hold, are under "
                "_kafkalite/quarantine"
            )
        return f"replayed {summary['records']} records to {summary['target']}{before}{held_back}"
    offsets = f"{summary['offsets']} offsets, about {summary['bytes']} bytes of the log,"
    if summary.get("exact_time"):
        lines = [f"would read {offsets} and replay what is in the time range to {summary['target']}"]
    else:
        lines = [f"would replay {offsets} to {summary['target']}"]
    if summary.get("begun"):
        lines[0] += f"; run {summary['run_id']} has begun, what the target holds of it is left out"
    for each in summary["ranges"]:
        lines.append(
            f"  {each['topic']}-{each['partition']}: offsets {each['start']} to {each['until']} (exclusive), about "
            f"{each['bytes']} bytes"
        )
    if "exact_time" in summary:
        lines.append(TimeOrder.of(summary).sentence())
    return "\n".join(lines)
