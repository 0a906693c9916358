"""Finds out whether a load has anything to do, for schedulers: without Spark, without a lease, without a change.

A run is worth its start if records wait. It also is if a run that committed did not end, because its files are not in
their places yet, and if a directory of time became complete without new records: programs wait for its ``_SUCCESS``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.load.load_options import LoadOptions
from spark_kafkalite.jobs.load.load_run import new_records, quiet_directories
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.jobs.tables.table_mark import table_topics
from spark_kafkalite.jobs.tables.table_state import LOG
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import Manifest
from spark_kafkalite.manifests.names import directory_name


@dataclass(frozen=True, slots=True)
class Work:
    """What a run would do now.

    ``waiting``: the offsets that are not loaded, by topic. Those of transaction markers, and of records that were
    aborted or compacted, are among them, so that there may be fewer records. ``unfinished``: a run that committed and
    did not end, None if there is none. ``completed``: directories that get their ``_SUCCESS`` if no record waits.
    ``unmatched``: options that match no topic.
    """

    waiting: dict[str, int] = field(default_factory=dict)
    unfinished: str | None = None
    completed: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        return bool(self.waiting or self.unfinished or self.completed)

    def to_json(self) -> str:
        """Return the line that the command prints."""
        return json.dumps(
            {
                "waiting": self.waiting,
                "unfinished": self.unfinished,
                "completed": list(self.completed),
                "unmatched": list(self.unmatched),
            }
        )


def waiting_work(files: Files, options: LoadOptions) -> Work:
    """Return what a run of these options would do in the destination.

    Raises PlanError and TableError where a run would fail before it reads, ManifestError, and what clients and the file
    system raise. Schemas are not compared: only Spark can read them.
    """
    newest = publish.newest_manifest(files)
    plan, _, unmatched = new_records(options, newest)
    waiting: dict[str, int] = {}
    for each in plan.ranges:
        topic = each.topic_partition.topic
        waiting[topic] = waiting.get(topic, 0) + each.size
    unfinished = newest.run if newest is not None and files.exists(newest.staging) else None
    # A table gets what it lacks after the files have their places.
    unfinished = _checked_tables(files, options, plan, newest) or unfinished
    completed = () if waiting else quiet_directories(files, options, plan)
    return Work(waiting, unfinished, completed, unmatched)


def _checked_tables(files: Files, options: LoadOptions, plan: LoadPlan, newest: Manifest | None) -> str | None:
    """Check the Delta tables as a run does, and return the first run that a table lacks. Raises TableError."""
    made = table_topics(files)
    layouts = options.tables_of(plan.topics, made)
    topics = sorted({each.topic_partition.topic for each in plan.ranges} - layouts.keys())
    foreign = [each for each in topics if files.exists(f"{directory_name(each, files.name_max_bytes)}/{LOG}")]
    if not made and not layouts and not foreign:
        return None
    # Arrow, which a destination without tables does without.
    from spark_kafkalite.jobs.tables.delta_tables import DeltaTables

    tables = DeltaTables(files, None)
    tables.check_only(layouts if plan.ranges else {}, newest)
    tables.check_plain(foreign)
    return tables.unfinished_run(newest)
