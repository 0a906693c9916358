"""The output of the load job: its plan before, a report after, and figures for a monitoring system."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from spark_kafkalite.spark.conditions import listed

if TYPE_CHECKING:
    from spark_kafkalite.jobs.load.load_run import RoundPlan

# Figures of the summary, the names they have for Prometheus, and what they are.
_FIGURES = {
    "records": "Records that the last run published.",
    "quarantined_records": "Records of the last run that could not be decoded.",
    "late_records": "Records of the last run that came after their directory was complete.",
    "offsets": "Offsets that the last run went through.",
    "lost_offsets": "Offsets that were gone before the last run could load them.",
    "files": "Files that the last run published.",
}


def planned_text(planned: RoundPlan, as_json: bool) -> str:
    """Return what a dry run prints: the ranges, how they are read, and about how much it is."""
    plan = planned.plan
    if as_json:
        document = json.loads(plan.to_json())
        return json.dumps(
            document
            | {"offsets": plan.size, "size_bytes": int(planned.size_bytes), "more": planned.more}
            | {"unmatched": list(planned.unmatched)}
        )
    lines = [_unmatched(each) for each in planned.unmatched]
    lines += [f"{each}: {each.size} offsets" for each in plan.ranges]
    lines += [f"lost: {each.topic}-{each.partition} [{each.start}, {each.until})" for each in plan.lost]
    lines += [f"left as it is, because records were deleted: {each}" for each in plan.skipped]
    lines.append(
        f"would load {plan.size} offsets, about {planned.size_bytes / 1e6:,.1f} MB of the log, in "
        f"{len(plan.planned_tasks)} tasks{', and leave more for later runs' if planned.more else ''}"
    )
    return "\n".join(lines)


def _unmatched(option: str) -> str:
    return f"WARNING: {option}: matches no topic that is loaded, and has no effect"


def metrics_text(destination: str, summary: Mapping[str, Any], seconds: float) -> str:
    """Return the figures of a run in Prometheus' text format; those of a failed run are only that and its time."""
    label = destination.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    figures: dict[str, tuple[str, float]] = {
        "success": ("Whether the last run succeeded.", float(bool(summary))),
        "duration_seconds": ("How long the last run took.", seconds),
        "end_timestamp_seconds": ("When the last run ended.", time.time()),
    }
    if summary:
        figures |= {name: (text, float(summary[name])) for name, text in _FIGURES.items()}
    lines = []
    for name, (text, value) in figures.items():
        full = f"kafkalite_load_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f'{full}{{destination="{label}"}} {value:.15g}']
    return "\n".join(lines) + "\n"


def check_metrics_file(path: str) -> None:
    """Raise click.BadParameter, before a run begins, where its figures cannot be written."""
    directory = os.path.dirname(os.path.abspath(path))
    problem = None
    if not os.path.isdir(directory):
        problem = f"{directory} is no directory"
    elif os.path.isdir(path):
        problem = "is a directory"
    elif not os.access(directory, os.W_OK | os.X_OK):
        problem = f"this user may not write into {directory}"
    if problem is not None:
        raise click.BadParameter(f"{path}: {problem}", param_hint="--metrics-file")


def write_metrics(path: str, text: str) -> None:
    """Replace a file in one step, so that an exporter never sees half of it. Raises OSError."""
    temporary = Path(f"{path}.{uuid4().hex}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def report(summary: Mapping[str, Any]) -> str:
    """Return the report of a run at its end."""
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
            f"topic {topic}: the manifests do not name the id of the topic that was loaded; the one that exists now, "
            f"with id {topic_id}, is taken for it; if it was created again since, load it into another destination"
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
    lines += [_unmatched(each) for each in summary["unmatched"]]
    if summary["skipped"]:
        lines.append(f"WARNING: left as they are, because records were deleted: {listed(summary['skipped'])}")
    if summary["late_records"]:
        lines.append(f"{summary['late_records']} records were late, for directories that were complete")
    if summary["quarantined_records"]:
        lines.append(
            f"WARNING: {summary['quarantined_records']} records cannot be decoded; they are under _kafkalite/quarantine"
        )
    if summary["event_time_fallbacks"]:
        lines.append(
            f"WARNING: {summary['event_time_fallbacks']} records have no --event-time that can be read, and lie by "
            "their own timestamp"
        )
    if summary["early_event_times"]:
        lines.append(
            f"WARNING: {summary['early_event_times']} records have an --event-time before May 1970: a number is "
            "milliseconds since the epoch, and these may be seconds"
        )
    if summary["records_without_timestamp"]:
        lines.append(f"{summary['records_without_timestamp']} records had no timestamp and lie under day=1969-12-31")
    for topic, of_topic in summary["topics"].items() if len(summary["topics"]) > 1 else ():
        size = of_topic["file_bytes"] / 1e6
        lines.append(f"  {topic}: {of_topic['records']} records in {of_topic['files']} files, {size:,.1f} MB")
    if summary["files"]:
        lines.append(
            f"loaded {summary['records']} records into {summary['files']} files under {summary['destination']} "
            f"({summary['manifest']})"
        )
    else:
        noted = f" ({summary['manifest']})" if summary["manifest"] is not None else ""
        what = "none of the new records is in a file under" if summary["quarantined_records"] else "nothing new for"
        lines.append(f"{what} {summary['destination']}{noted}")
    if summary["completed"]:
        lines.append(f"complete now: {listed(summary['completed'])}")
    for topic, table in summary["tables"].items():
        if table["published"]:
            lines.append(f"Delta table {topic}: version {table['version']}, up to manifest {table['manifest']}")
    for topic, problem in summary["not_checkpointed"].items():
        lines.append(f"WARNING: Delta table {topic} has no new checkpoint, which readers open faster: {problem}")
    if summary.get("not_folded"):
        lines.append(f"WARNING: old manifests were not folded into a checkpoint: {summary['not_folded']}")
    if summary["more"]:
        lines.append("there is more to load: run again")
    return "\n".join(lines)


def _first_held(topic: str, lost: list[dict[str, Any]]) -> str:
    """Return at which offset the log of each partition of a topic that was created again starts."""
    later = [f"{topic}-{each['partition']} from offset {each['until']}" for each in lost if each["topic"] == topic]
    return f"offset 0{', but ' if later else ''}{listed(later)}"
