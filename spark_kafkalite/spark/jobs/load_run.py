"""One run of the load job: recover, then plan, stage and commit, in rounds where the run is bounded by time.

A round is a whole run in small: a plan of its own, a manifest of its own. So a backlog is worked off in pieces that
each count once they are published, and a run that stops between two rounds has lost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spark_kafkalite.model import IsolationLevel, TopicPartition
from spark_kafkalite.spark.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.jobs import completeness, planning, publish, staging
from spark_kafkalite.spark.jobs.accounting import HolePolicy, check_holes, with_late
from spark_kafkalite.spark.jobs.client_options import open_admin, source_options
from spark_kafkalite.spark.jobs.completeness import LatePolicy
from spark_kafkalite.spark.jobs.files import Files
from spark_kafkalite.spark.jobs.manifest import LoadedTopic, Manifest
from spark_kafkalite.spark.jobs.planning import LoadPlan, LoadPolicies
from spark_kafkalite.spark.jobs.session import check_same_topics, compacted_topics, topic_logs
from spark_kafkalite.spark.jobs.task_planning import tasks_by_bytes
from spark_kafkalite.spark.offset_ranges import limited
from spark_kafkalite.spark.options import reader_options
from spark_kafkalite.spark.range_bytes import Sampler, limited_by_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a round, where a run is bounded by time and by nothing else.
_ROUND_BYTES = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a run takes at most; None is no bound. Bytes are those of the log, and a soft bound."""

    max_bytes: int | None = None
    max_records: int | None = None
    max_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a run is asked for."""

    bootstrap_server: str
    topics: tuple[str, ...]
    client: Mapping[str, str] = field(default_factory=dict)
    layout: staging.Layout = field(default_factory=staging.Layout)
    policies: LoadPolicies = field(default_factory=LoadPolicies)
    on_hole: HolePolicy = "fail"
    late: LatePolicy = "append"
    grace_ms: int = 600_000
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def source(self) -> dict[str, str]:
        """The options of the reading source."""
        return {"kafka.isolation.level": "read_committed", **source_options(self.bootstrap_server, self.client)}


def run_load(
    spark: SparkSession, files: Files, options: LoadOptions, clock_s: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Load what there is, within the bounds, and return what is to be told of it.

    Raises PlanError, AuditError and ManifestError, and what Spark and the file system raise.
    """
    until_s = None if options.bounds.max_ms is None else clock_s() + options.bounds.max_ms / 1000
    recovery = publish.recover(files)
    summary = summary_of(files, recovery)
    newest = recovery.newest
    left = options.bounds
    while True:
        plan, published, more = _round(spark, files, options, left, newest)
        _add_round(summary, plan, published)
        if published is None or not more or until_s is None or clock_s() >= until_s:
            summary["more"] = more
            return summary
        newest = published
        left = replace(
            left,
            max_bytes=_less(left.max_bytes, sum(each.size_bytes for each in published.ranges)),
            max_records=_less(left.max_records, plan.size),
        )
        if left.max_bytes == 0 or left.max_records == 0:
            summary["more"] = True
            return summary


def summary_of(files: Files, recovery: publish.Recovery) -> dict[str, Any]:
    """Return what is to be told before anything is loaded."""
    return {
        "destination": files.root,
        "recovered_files": recovery.moved,
        "renamed_files": recovery.renamed,
        "discarded_runs": list(recovery.discarded),
        "manifest": None,
        "manifests": [],
        "files": 0,
        "records": 0,
        "late_records": 0,
        "offsets": 0,
        "lost_offsets": 0,
        "lost": [],
        "recreated": [],
        "skipped": [],
        "adopted_ids": {},
        "completed": [],
        "records_without_timestamp": 0,
        "more": False,
    }


def _less(bound: int | None, taken: int) -> int | None:
    return None if bound is None else max(0, bound - taken)


def _round(
    spark: SparkSession, files: Files, options: LoadOptions, bounds: Bounds, newest: Manifest | None
) -> tuple[LoadPlan, Manifest | None, bool]:
    """Plan, stage and commit once; the manifest is None when there was nothing to publish.

    Also returns whether the bounds left something for another round.
    """
    with open_admin(options.bootstrap_server, options.client) as admin:
        logs = topic_logs(admin, options.topics, IsolationLevel.READ_COMMITTED)
    loaded: Mapping[str, LoadedTopic] = newest.topics if newest is not None else {}
    whole = planning.plan_load(loaded, logs, options.policies)
    plan = whole
    if whole.ranges:
        sampler = ClusterOffsets(reader_options({**options.source, "assign": whole.assign_option()})).samples
        plan = _bounded(whole, bounds, sampler)
        plan = replace(plan, tasks=tasks_by_bytes(sampler, plan.ranges, options.layout.file_bytes))
    more = plan.size < whole.size
    run = publish.new_run()
    staged = staging.Staged()
    directories = completeness.advanced(plan, (), (), options.late, options.grace_ms, options.layout.time_zone)
    if plan.ranges:
        publish.write_plan(files, run, plan)
        staged = staging.stage(spark, files, run, plan, options.source, options.layout)
        with open_admin(options.bootstrap_server, options.client) as admin:
            check_same_topics(admin, logs.topic_ids, "nothing was published; run again")
            suspicious = {each.topic for each in staged.ranges if each.removed}
            check_holes(staged.ranges, compacted_topics(admin, suspicious), options.on_hole)
        placed = completeness.placed(
            staged.files, lambda directory: files.exists(f"{directory}/{completeness.SUCCESS}"), options.late
        )
        staged = replace(staged, files=placed, ranges=with_late(staged.ranges, placed))
        directories = completeness.advanced(
            plan, staged.ranges, placed, options.late, options.grace_ms, options.layout.time_zone
        )
    elif not plan.changes(loaded) and not directories.completed:
        return plan, None, more
    published = publish.commit(files, run, plan, staged, newest, directories, options.layout.document())
    return plan, published, more


def _bounded(plan: LoadPlan, bounds: Bounds, sampler: Sampler) -> LoadPlan:
    starts = {each.topic_partition: each.start_offset for each in plan.ranges}
    ends: dict[TopicPartition, int] = {each.topic_partition: each.end_offset for each in plan.ranges}
    if bounds.max_records is not None:
        ends = limited(starts, ends, bounds.max_records)
    max_bytes = bounds.max_bytes
    if bounds.max_ms is not None:
        max_bytes = _ROUND_BYTES if max_bytes is None else min(_ROUND_BYTES, max_bytes)
    if max_bytes is not None:
        ends = limited_by_bytes(sampler, starts, ends, max_bytes)
    return plan.bounded(ends)


def _add_round(summary: dict[str, Any], plan: LoadPlan, published: Manifest | None) -> None:
    summary["lost_offsets"] += plan.lost_offsets
    summary["lost"] += [each.document() for each in plan.lost]
    summary["recreated"] += [each.document() for each in plan.recreated]
    summary["skipped"] = [str(each) for each in plan.skipped]
    summary["adopted_ids"] |= {topic: plan.topics[topic].topic_id for topic in plan.adopted_ids}
    if published is None:
        return
    summary["manifest"] = published.path
    summary["manifests"].append(published.path)
    summary["files"] += len(published.files)
    summary["records"] += published.records
    summary["late_records"] += sum(each.late for each in published.ranges)
    summary["offsets"] += plan.size
    summary["completed"] += published.completed
    summary["records_without_timestamp"] += published.records_without_timestamp
