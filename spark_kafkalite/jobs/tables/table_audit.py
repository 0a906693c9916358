"""Compares the files that tables name with those of the manifests, for the audit.

Others may rewrite a table: OPTIMIZE replaces its files by fewer ones with the same records, RESTORE and DELETE take
records away. No load repairs that, because it is their will, so the audit reports it. It counts records by the
statistics of the table's files, and reads none of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from spark_kafkalite.jobs.tables.delta_actions import ENGINE, Action
from spark_kafkalite.jobs.tables.delta_log import DeltaLog
from spark_kafkalite.jobs.tables.table_errors import TableError, some_of
from spark_kafkalite.jobs.tables.table_mark import TableMark, contradiction, mark_path, table_topics
from spark_kafkalite.jobs.tables.table_state import TableState
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import Manifest, PublishedFile
from spark_kafkalite.manifests.manifest_checkpoint import published_files

_OPERATIONS_AT_MOST: Final = 5


@dataclass(slots=True)
class TableFindings:
    """What was found: topics that are tables, contradictions, what was not compared, and files that are no longer.

    ``gone`` are files of manifests, by final path, that do not exist and that no table names any more.
    """

    topics: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)


def compare_tables(files: Files, manifests: Sequence[Manifest], chosen: Collection[str]) -> TableFindings:
    """Compare the tables of the chosen topics, or all if none is chosen, with their manifests. It writes nothing."""
    found = TableFindings()
    number = manifests[-1].number if manifests else 0
    for topic in table_topics(files):
        if chosen and topic not in chosen:
            continue
        found.topics.append(topic)
        published = [file for _, file in published_files(manifests) if file.topic == topic]
        log = DeltaLog(files, topic)
        try:
            path = mark_path(topic)
            mark = TableMark.from_json(files.read(path), f"{files.root}/{path}")
            state = log.read()
            problem = contradiction(files.root, topic, mark, state, number)
            if problem is not None:
                raise problem
            adds, history = log.read_files()
        except TableError as error:
            found.mismatches.append(str(error))
            continue
        in_table = {f"{topic}/{unquote(path)}": each for path, each in adds.items()}
        found.mismatches += _behind(topic, mark, state, manifests)
        mismatches, notes = compare_table(topic, published, in_table, history)
        found.mismatches += mismatches
        found.not_compared += notes
        lacking = [file.final for file in published if file.final not in in_table]
        found.gone.update(final for final in lacking if files.size_bytes(final) is None)
    return found


def _behind(topic: str, mark: TableMark, state: TableState | None, manifests: Iterable[Manifest]) -> list[str]:
    number = 0 if state is None else state.transactions.get(mark.app_id, 0)
    lacking = [each.path for each in manifests if each.number > number and any(f.topic == topic for f in each.files)]
    if not lacking:
        return []
    return [f"Delta table of topic {topic}: it lacks {some_of(lacking)}; the next run of hadoop_load publishes them"]


def compare_table(
    topic: str,
    published: Sequence[PublishedFile],
    in_table: Mapping[str, Mapping[str, Any]],
    history: Iterable[tuple[int, Action]],
) -> tuple[list[str], list[str]]:
    """Return how a table's files differ from the published ones, and what could not be compared. Pure.

    ``in_table`` are the add actions by final path; ``history`` the commitInfo of commits, by version.
    """
    named = f"Delta table of topic {topic}"
    mismatches = [
        f"{named}: {file.final} has {in_table[file.final]['size']} bytes in the table, and {file.size_bytes} by its "
        "manifest"
        for file in published
        if file.final in in_table and file.size_bytes not in (None, in_table[file.final]["size"])
    ]
    lacking = sum(file.final not in in_table for file in published)
    foreign = len(in_table) - (len(published) - lacking)
    if not lacking and not foreign:
        return mismatches, []
    others = _operations_of_others(history)
    counts = [_records(each) for each in in_table.values()]
    known = sum(each for each in counts if each is not None)
    records = sum(file.records for file in published)
    compared = (
        f"{lacking} of the {len(published)} published files are no longer in it, and {foreign} other files are, by "
        f"{others}"
    )
    if None in counts:
        return mismatches, [f"{named}: {compared}; {counts.count(None)} files have no count of their records"]
    if known == records:
        return mismatches, [f"{named}: {compared}; they have the same {records} records"]
    return [*mismatches, f"{named} has {known} records, and its manifests {records}: {compared}"], []


def _records(add: Mapping[str, Any]) -> int | None:
    try:
        return int(json.loads(add["stats"])["numRecords"])
    except (KeyError, TypeError, ValueError):
        return None


def _operations_of_others(history: Iterable[tuple[int, Action]]) -> str:
    found = [
        f"{info.get('operation', 'an unnamed operation')} (version {version})"
        for version, info in history
        if not str(info.get("engineInfo", "")).startswith(ENGINE)
    ]
    more = f" and {len(found) - _OPERATIONS_AT_MOST} before" if len(found) > _OPERATIONS_AT_MOST else ""
    return f"{', '.join(found[-_OPERATIONS_AT_MOST:])}{more}" if found else "operations whose commits are deleted"
