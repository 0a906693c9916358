"""One run of the load job: recover, then plan, stage and commit, in rounds where the run is bounded by time.

A round is a whole run in small: a plan of its own, a manifest of its own. So a backlog is worked off in pieces that
each count once they are published, and a run that stops between two rounds has lost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.jobs.destination import folding, publish
from spark_kafkalite.jobs.formats.file_layout import FileLayout
from spark_kafkalite.jobs.load import completeness
from spark_kafkalite.jobs.load.accounting import check_accounts, check_holes, with_late
from spark_kafkalite.jobs.load.completeness import Directories
from spark_kafkalite.jobs.load.load_options import LoadOptions, RunBounds, TopicOptions
from spark_kafkalite.jobs.load.planning import LoadPlan, TopicLogs, plan_load
from spark_kafkalite.jobs.load.quarantine import MaxQuarantined
from spark_kafkalite.jobs.load.task_planning import planned_in_tasks
from spark_kafkalite.jobs.program.client_options import open_admin
from spark_kafkalite.jobs.program.faults import fault_point
from spark_kafkalite.jobs.program.progress import shown_progress
from spark_kafkalite.jobs.program.session import check_same_topics, compacted_topics, matching_topics, topic_logs
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import LoadedTopic, Manifest, PublishedFile, Staged, topic_layout
from spark_kafkalite.manifests.manifest_checkpoint import published_files
from spark_kafkalite.model import IsolationLevel, TopicPartition
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.cluster_offsets import ClusterOffsets
from spark_kafkalite.spark.reading.range_bytes import Sampler
from spark_kafkalite.spark.reading.trigger_limits import limited, limited_by_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from spark_kafkalite.jobs.tables.delta_tables import DeltaTables

# Of a round, where a run is bounded by time and by nothing else.
_ROUND_BYTES: Final = 4 * 1024**3
# Each range is a request at least, and the driver reads one after the other.
_DRIVER_RANGES: Final = 100


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round is going to do: its plan, about how many bytes of the log that is, and whether more is left.

    ``unmatched`` are options about topics that no topic of the round has.
    """

    plan: LoadPlan
    logs: TopicLogs
    size_bytes: float
    more: bool
    unmatched: tuple[str, ...] = ()


def run_load(
    session: Callable[[], SparkSession],
    files: Files,
    options: LoadOptions,
    run: str,
    newest: Manifest | None,
    summary: dict[str, Any],
    tables: DeltaTables,
    clock_s: Callable[[], float] = time.monotonic,
) -> None:
    """Load the new records, within the bounds, and add the results to the summary.

    ``session`` returns the session, and starts it at the first call; only a round with new records calls it, or one
    with another schema of values. ``run`` is the name of the first round, ``newest`` the destination's newest manifest,
    after its recovery. Raises PlanError, AuditError, ManifestError and TableError, and what Spark and the file system
    raise.
    """
    until_s = None if options.bounds.max_ms is None else clock_s() + options.bounds.max_ms / 1000
    left = options.bounds
    while True:
        planned = plan_round(session, files, options, left, newest)
        published = _publish(session, files, options, run, planned, newest, summary, tables)
        _add_round(summary, planned, published)
        if published is not None:
            summary["not_folded"] = folding.problem_of_folding(files, options.keep_manifests_ms)
            newest = published
            left = replace(
                left,
                max_bytes=_less(left.max_bytes, planned.size_bytes),
                max_records=_less(left.max_records, planned.plan.size),
            )
        summary["more"] = planned.more
        out_of_bounds = left.max_bytes == 0 or left.max_records == 0
        timed_out = until_s is None or clock_s() >= until_s
        if published is None or not planned.more or out_of_bounds or timed_out:
            return
        run = publish.new_run()


def plan_round(
    session: Callable[[], SparkSession],
    files: Files,
    options: LoadOptions,
    bounds: RunBounds,
    newest: Manifest | None,
) -> RoundPlan:
    """Return what the next round of a destination is going to load. ``session`` is as in :func:`run_load`.

    Raises PlanError, and LayoutChangeRefused if the round's files would not fit those of the destination.
    """
    whole, logs, unmatched = new_records(options, newest)
    _check_layouts(session, files, options, whole)
    if not whole.ranges:
        return RoundPlan(whole, logs, 0.0, more=False, unmatched=unmatched)
    sampler = ClusterOffsets(reader_options({**options.source, "assign": whole.assign_option()})).samples
    plan = _bounded(whole, bounds, sampler)
    targets = {topic: options.of_topic(topic).layout.file_bytes for topic in plan.topics}
    plan, size_bytes = planned_in_tasks(sampler, plan, targets)
    return RoundPlan(plan, logs, size_bytes, plan.size < whole.size, unmatched)


def _check_layouts(session: Callable[[], SparkSession], files: Files, options: LoadOptions, plan: LoadPlan) -> None:
    asked = {topic: options.of_topic(topic).layout.document() for topic in plan.topics}
    if all(loaded.layout == {} or loaded.layout == topic_layout(asked[topic]) for topic, loaded in plan.topics.items()):
        return
    # With PySpark's types, which a run without a change does without.
    from spark_kafkalite.jobs.formats.decoding import value_column_type
    from spark_kafkalite.jobs.load.layout_changes import WrittenLayout, check_layouts, written_layouts
    from spark_kafkalite.jobs.tables.table_mark import table_topics

    def type_of(form: tuple[str, str | None]) -> DataType:
        if form[1] is not None:
            session()
        return value_column_type(*form)

    written = {
        topic: WrittenLayout.of(loaded.layout) for topic, loaded in plan.topics.items() if loaded.layout is not None
    }
    if plan.ranges and len(written) < len(plan.topics):
        # An older version wrote the newest manifest.
        written = written_layouts(published_files(publish.manifests(files))) | written
    check_layouts(files.root, written, asked, type_of, change_layout=options.change_layout, tables=table_topics(files))


def new_records(options: LoadOptions, newest: Manifest | None) -> tuple[LoadPlan, TopicLogs, tuple[str, ...]]:
    """Return the plan of all records that are not loaded yet, the logs, and the options that match no topic.

    Raises PlanError.
    """
    with open_admin(options.bootstrap_server, options.client) as admin:
        topics = (*options.topics, *(matching_topics(admin, options.pattern) if options.pattern else ()))
        logs = topic_logs(admin, dict.fromkeys(topics), IsolationLevel.READ_COMMITTED)
    loaded: Mapping[str, LoadedTopic] = newest.topics if newest is not None else {}
    plan = plan_load(loaded, logs, {topic: options.of_topic(topic).policies for topic in topics})
    return plan, logs, options.unmatched(topics)


def quiet_directories(files: Files, options: LoadOptions, plan: LoadPlan) -> tuple[str, ...]:
    """Return the directories that a run of a plan without ranges completes."""
    return _placed(files, options, plan, Staged())[1].completed


def summary_of(files: Files, recovery: publish.Recovery) -> dict[str, Any]:
    """Return the summary before anything is loaded."""
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
        "quarantined_records": 0,
        "event_time_fallbacks": 0,
        "early_event_times": 0,
        "offsets": 0,
        "lost_offsets": 0,
        "lost": [],
        "recreated": [],
        "skipped": [],
        "adopted_ids": {},
        "completed": [],
        "records_without_timestamp": 0,
        "topics": {},
        "unmatched": [],
        "more": False,
        "not_folded": None,
        "tables": {},
        "not_checkpointed": {},
    }


def _less(bound: int | None, taken: float) -> int | None:
    return None if bound is None else max(0, bound - int(taken))


def _bounded(plan: LoadPlan, bounds: RunBounds, sampler: Sampler) -> LoadPlan:
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


def _publish(
    session: Callable[[], SparkSession],
    files: Files,
    options: LoadOptions,
    run: str,
    planned: RoundPlan,
    newest: Manifest | None,
    summary: dict[str, Any],
    tables: DeltaTables,
) -> Manifest | None:
    """Stage and commit a planned round; None when there was nothing to publish."""
    plan = planned.plan
    layouts = options.tables_of(plan.topics, tables.tables)
    tables.make(layouts, 0 if newest is None else newest.number)
    if plan.ranges:
        tables.check(layouts)
        tables.check_plain({each.topic_partition.topic for each in plan.ranges} - layouts.keys())
        plan = replace(plan, last_times_ms=_last_times_ms(options, layouts))
        planned = replace(planned, plan=plan)
    with publish.dropped_on_failure(files, run):
        if not plan.ranges:
            staged = Staged(ranges=check_accounts(plan, (), ()))
        else:
            spark = session()
            publish.write_plan(files, run, plan)
            fault_point("planned")
            staged = _staged(spark, files, run, options, planned)
            summary["early_event_times"] += staged.early_event_times
            with open_admin(options.bootstrap_server, options.client) as admin:
                check_same_topics(admin, planned.logs.topic_ids, "nothing was published; run again")
                suspicious = {
                    each.topic
                    for each in staged.ranges
                    if each.removed and options.of_topic(each.topic).on_hole == "fail"
                }
                compacted = compacted_topics(admin, suspicious)
            check_holes([each for each in staged.ranges if each.topic in suspicious], compacted)
        staged, directories = _placed(files, options, plan, staged)
        loaded = newest.topics if newest is not None else {}
        if not plan.ranges and not plan.changes(loaded) and not directories.completed:
            return None
        if not plan.ranges:
            # The sign that there is something to be done after the commit.
            publish.write_plan(files, run, plan)
        tables.begin(layouts.keys(), staged.files)
    published = publish.commit(files, run, plan, staged, newest, directories, _document(options, plan.topics))
    tables.publish(published)
    return published


def _last_times_ms(options: LoadOptions, tables: Iterable[str]) -> dict[str, int]:
    """Return up to which time the tables among the topics have days."""
    found = {topic: options.of_topic(topic).layout.last_time_ms for topic in tables}
    return {topic: last_ms for topic, last_ms in found.items() if last_ms is not None}


def _staged(spark: SparkSession, files: Files, run: str, options: LoadOptions, planned: RoundPlan) -> Staged:
    """Stage each group of topics that have one layout."""
    # PySpark and Arrow take most of a second to import, and a run that only looks does without them.
    from spark_kafkalite.jobs.load import staging

    plan = planned.plan
    in_driver = planned.size_bytes <= options.driver_bytes and len(plan.ranges) <= _DRIVER_RANGES
    by_bytes = options.usual.layout.is_made_of_pieces
    with shown_progress(spark, "loading", plan.size, planned.size_bytes, by_bytes=by_bytes):
        parts = [
            staging.stage(
                spark,
                files,
                run,
                plan.of_topics(topics),
                options.source,
                usual.layout,
                usual.max_quarantined,
                number,
                in_driver,
            )
            for number, (usual, topics) in enumerate(_groups(options, plan.topics))
        ]
    return Staged(
        tuple(file for part in parts for file in part.files),
        tuple(each for part in parts for each in part.ranges),
        sum(part.records_without_timestamp for part in parts),
        tuple(file for part in parts for file in part.quarantine),
        sum(part.event_time_fallbacks for part in parts),
        sum(part.early_event_times for part in parts),
    )


def _groups(options: LoadOptions, topics: Iterable[str]) -> Iterator[tuple[TopicOptions, set[str]]]:
    """Return the topics by layout and what it may not decode, each group with the options of one of them."""
    groups: dict[tuple[FileLayout, MaxQuarantined], tuple[TopicOptions, set[str]]] = {}
    for topic in topics:
        of_topic = options.of_topic(topic)
        groups.setdefault((of_topic.layout, of_topic.max_quarantined), (of_topic, set()))[1].add(topic)
    return iter(groups.values())


def _placed(files: Files, options: LoadOptions, plan: LoadPlan, staged: Staged) -> tuple[Staged, Directories]:
    """Return what is staged with what is late marked and placed, and the directories that the run completes."""
    placed: list[PublishedFile] = []
    topics: dict[str, LoadedTopic] = {}
    completed: list[str] = []
    reopened: list[str] = []
    for topic in plan.topics:
        of_topic = options.of_topic(topic)
        own = completeness.placed(
            [file for file in staged.files if file.topic == topic],
            lambda directory: files.exists(f"{directory}/{completeness.SUCCESS}"),
            of_topic.late,
        )
        found = completeness.advanced(
            plan.of_topics({topic}),
            [each for each in staged.ranges if each.topic == topic],
            own,
            of_topic.late,
            of_topic.grace_ms,
            of_topic.layout.time_zone,
            by_record_time=of_topic.layout.by_record_time,
        )
        placed += own
        topics |= found.topics
        completed += found.completed
        reopened += found.reopened
    return (
        replace(staged, files=tuple(placed), ranges=with_late(staged.ranges, placed)),
        Directories(topics, tuple(completed), tuple(reopened)),
    )


def _document(options: LoadOptions, topics: Iterable[str]) -> dict[str, str]:
    """Return the layout of the run, with what some topics have otherwise under ``TOPIC:NAME``."""
    usual = options.usual.layout.document()
    own = {topic: options.of_topic(topic).layout.document() for topic in topics}
    differing = {
        f"{topic}:{name}": value
        for topic, document in own.items()
        for name, value in document.items()
        if usual.get(name) != value
    }
    return {**usual, **differing}


def _add_round(summary: dict[str, Any], planned: RoundPlan, published: Manifest | None) -> None:
    plan = planned.plan
    summary["lost_offsets"] += plan.lost_offsets
    summary["lost"] += [each.document() for each in plan.lost]
    summary["recreated"] += [each.document() for each in plan.recreated]
    summary["unmatched"] = list(planned.unmatched)
    summary["skipped"] = [str(each) for each in plan.skipped]
    summary["adopted_ids"] |= {topic: plan.topics[topic].topic_id for topic in plan.adopted_ids}
    if published is None:
        return
    summary["manifest"] = published.path
    summary["manifests"].append(published.path)
    summary["files"] += len(published.files)
    summary["records"] += published.records
    summary["late_records"] += sum(each.late for each in published.ranges)
    summary["quarantined_records"] += sum(each.quarantined for each in published.ranges)
    summary["event_time_fallbacks"] += published.event_time_fallbacks
    summary["offsets"] += plan.size
    summary["completed"] += published.completed
    summary["records_without_timestamp"] += published.records_without_timestamp
    for file in published.files:
        of_topic = summary["topics"].setdefault(file.topic, {"records": 0, "files": 0, "file_bytes": 0})
        of_topic["records"] += file.records
        of_topic["files"] += 1
        of_topic["file_bytes"] += file.size_bytes or 0
