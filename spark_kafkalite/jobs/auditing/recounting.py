"""What an audit compares: the published files and the log, each against the manifests. Pure.

The audit compares each file with the entry in its run's manifest. It compares the log with the manifest of the run that
read it: offset by offset in each partition, and by directory of time with the files that the run made. It compares the
files of a compaction with those that they replaced. So it also follows the records of a run whose files are merged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from spark_kafkalite.jobs.auditing.audit_source import QUARTER_MS, RangeCount
from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.jobs.load.completeness import LATE_DIRECTORY, ends_at_ms
from spark_kafkalite.jobs.load.planning import Tasks
from spark_kafkalite.manifests.manifest import COMPACT, FilePart, LoadedRange, Manifest, PublishedFile
from spark_kafkalite.manifests.manifest_checkpoint import published_files
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

# About what a task counts in some seconds.
TASK_OFFSETS: Final = 1_000_000
_DAY: Final = re.compile(r"day=(\d{4}-\d{2}-\d{2})(?:/hour=(\d{2}))?", re.ASCII)
_COUNTS: Final = ("records", "control", "aborted", "removed")


@dataclass(frozen=True, slots=True)
class RecountScope:
    """What to audit: topics (none: all), one run by name or number, one directory of time, or those of a time span.

    ``from_ms`` and ``to_ms`` are ms since the epoch; the span selects directories that overlap it. If any file of a run
    is selected, the whole run is audited.
    """

    topics: frozenset[str] = frozenset()
    run: str | None = None
    directory: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    def __str__(self) -> str:
        parts = {
            "topic": ", ".join(sorted(self.topics)) or None,
            "run": self.run,
            "directory": self.directory,
            "from": self.from_ms,
            "to": self.to_ms,
        }
        return " ".join(f"--{name} {value}" for name, value in parts.items() if value is not None) or "any topic"

    @property
    def is_of_directories(self) -> bool:
        return self.directory is not None or self.from_ms is not None or self.to_ms is not None

    def takes(self, manifest: Manifest, file: PublishedFile) -> bool:
        """Return whether the audit includes a file, whichever run made it."""
        if self.topics and file.topic not in self.topics:
            return False
        directory = time_directory(file)
        if self.directory is not None and not f"{directory}/".startswith(f"{self.directory.strip('/')}/"):
            return False
        if self.from_ms is None and self.to_ms is None:
            return True
        zone = manifest.layout_of(file.topic).get("time_zone", "UTC")
        begins, ends = _begins_ms(directory, zone), ends_at_ms(directory, zone)
        if begins is None or ends is None:
            return False
        return (self.from_ms is None or ends > self.from_ms) and (self.to_ms is None or begins < self.to_ms)

    def takes_run(self, manifest: Manifest) -> bool:
        return self.run is None or self.run in (manifest.run, str(manifest.number))


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """What a run made of one topic. ``ranges`` are what it read: None where its manifest is only in a checkpoint.

    ``is_accounted``: the ranges have all counts; manifests of formats 1 and 2 have records only. ``standing`` are the
    files that are published still, of all ``files``.
    """

    manifest: Manifest
    topic: str
    files: tuple[PublishedFile, ...]
    standing: tuple[PublishedFile, ...]
    ranges: tuple[LoadedRange, ...] | None = ()
    is_accounted: bool = True

    def without(self, gone: Collection[str]) -> AuditedRun:
        """Return the run without files that are published no more, by final path."""
        return replace(self, standing=tuple(file for file in self.standing if file.final not in gone))

    @property
    def layout(self) -> dict[str, str]:
        return self.manifest.layout_of(self.topic)

    @property
    def name(self) -> str:
        return f"run {self.manifest.run} (manifest {self.manifest.number})"


@dataclass(slots=True)
class Findings:
    """What an audit found: contradictions, each with the numbers of both sides, and what it could not compare."""

    mismatches: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)


def time_directory(file: PublishedFile) -> str:
    """Return the directory of time that a file's records are of, late ones too; empty without one."""
    return "/".join(part for part in file.directory.split("/")[1:] if part != LATE_DIRECTORY)


def day_of(directory: str) -> datetime | None:
    """Return the beginning of a directory of time, by the clock on the wall; None for another directory."""
    found = _DAY.fullmatch(directory.strip("/"))
    try:
        return datetime.fromisoformat(found[1]) + timedelta(hours=int(found[2] or 0)) if found else None
    except ValueError:
        return None


def _begins_ms(directory: str, time_zone: str) -> int | None:
    begins = day_of(directory)
    if begins is None:
        return None
    return int(begins.replace(tzinfo=ZoneInfo(time_zone)).timestamp() * 1000)


def audited_runs(manifests: Sequence[Manifest], folded: frozenset[int], selection: RecountScope) -> list[AuditedRun]:
    """Return what is to be audited, by run and topic, oldest first.

    ``manifests`` are all, in order; those with a number in ``folded`` are as a checkpoint has them. Compactions are
    taken with the runs whose files they replaced.
    """
    standing = {file.final for _, file in published_files(manifests)}
    taken: set[str] = set()
    found = []
    before: Manifest | None = None
    for manifest in manifests:
        topics = {file.topic for file in manifest.files} | {each.topic for each in manifest.ranges}
        ranges, is_accounted = _ranges(
            manifest, before if before is None or before.number + 1 == manifest.number else None
        )
        for topic in sorted(topics):
            files = [file for file in manifest.files if file.topic == topic and selection.takes(manifest, file)]
            is_taken = selection.takes_run(manifest) and (not selection.topics or topic in selection.topics)
            if manifest.kind == COMPACT:
                replaced = {path.rpartition("/")[0] for path in taken.intersection(manifest.replaced)}
                files = [file for file in files if is_taken or file.directory in replaced]
                is_taken = is_taken or bool(files)
            if not is_taken or (selection.is_of_directories and not files):
                continue
            taken.update(file.final for file in files)
            whole = [file for file in manifest.files if file.topic == topic]
            found.append(
                AuditedRun(
                    manifest,
                    topic,
                    tuple(whole),
                    tuple(file for file in files if file.final in standing),
                    None if manifest.number in folded else tuple(each for each in ranges if each.topic == topic),
                    is_accounted,
                )
            )
        before = manifest
    return found


def _ranges(manifest: Manifest, before: Manifest | None) -> tuple[tuple[LoadedRange, ...], bool]:
    """Return the ranges that a run read, and whether they have all counts.

    Older formats have no ranges: these are derived from two manifests, as far as possible.
    """
    if manifest.ranges or not manifest.files or manifest.kind == COMPACT:
        return manifest.ranges, True
    found: dict[TopicPartition, LoadedRange] = {}
    again = {each.topic for each in manifest.recreated}
    for file in manifest.files:
        for part in file.parts:
            tp = TopicPartition(file.topic, part.partition)
            earlier = found.get(tp, LoadedRange(*tp, part.first_offset, part.last_offset + 1))
            found[tp] = replace(
                earlier,
                start=min(earlier.start, part.first_offset),
                next_offset=max(earlier.next_offset, part.last_offset + 1),
                records=earlier.records + part.records,
            )
    lost = {TopicPartition(each.topic, each.partition): each.until for each in manifest.lost}
    for tp, each in found.items():
        start = lost.get(tp)
        if start is None and before is not None and tp.topic not in again:
            start = before.next_offsets.get(tp)
        found[tp] = replace(
            each,
            start=each.start if start is None else min(start, each.start),
            next_offset=max(each.next_offset, manifest.next_offsets.get(tp, 0)),
        )
    return tuple(found.values()), False


# The files against the manifests -----------------------------------------------------------------------------------


def compare_file(
    manifest: Manifest, file: PublishedFile, size_bytes: int | None, counted: Sequence[FilePart] | str | None
) -> Iterator[str]:
    """Yield how a file differs from its manifest.

    ``counted``: its rows, the reason why it cannot be read, or None if it was not counted.
    """
    named = f"{file.final}, published by {manifest.path} (run {manifest.run})"
    if size_bytes is None:
        yield f"{named} with {file.records} records, is not there"
        return
    if file.size_bytes not in (None, size_bytes):
        yield f"{named} with {file.size_bytes} bytes, has {size_bytes}"
    if isinstance(counted, str):
        yield f"{named} with {file.records} records, cannot be read: {counted}"
    elif counted is not None:
        was = {part.partition: part for part in file.parts}
        now = {part.partition: part for part in counted}
        for partition in sorted(was.keys() | now.keys()):
            published, found = was.get(partition), now.get(partition)
            if published != found:
                yield f"{named}: of partition {partition} it has {_told(found)}, the manifest {_told(published)}"


def _told(part: FilePart | None) -> str:
    return "nothing" if part is None else f"{part.records} records at offsets {part.first_offset} to {part.last_offset}"


def compare_merged(manifests: Iterable[Manifest], selected: Iterable[AuditedRun]) -> Iterator[str]:
    """Yield where a compaction's files have other records than those that they replaced, by the manifests."""
    known = {file.final: file for manifest in manifests for file in manifest.files}
    for run in selected:
        if run.manifest.kind != COMPACT or run.ranges is None:
            continue
        olds = [known[path] for path in run.manifest.replaced if path in known]
        if len(olds) != len(run.manifest.replaced):
            continue
        was, now = _by_directory(file for file in olds if file.topic == run.topic), _by_directory(run.files)
        for key in sorted(was.keys() | now.keys()):
            if was[key] != now[key]:
                yield (
                    f"{run.name} replaced {was[key]} records of {run.topic}-{key[0]} in {run.topic}/{key[1]} by "
                    f"{now[key]}"
                )


def _by_directory(files: Iterable[PublishedFile]) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for file in files:
        for part in file.parts:
            found[part.partition, time_directory(file)] += part.records
    return found


# The log against the manifests --------------------------------------------------------------------------------------


def why_another_topic(run: AuditedRun, newest: Manifest, found_id: str | None) -> str | None:
    """Return why the topic that exists now is not the one that the run read; None if it may be the same."""
    loaded = run.manifest.topics.get(run.topic)
    known = None if loaded is None else loaded.topic_id
    if known is None:
        latest = newest.topics.get(run.topic)
        if latest is None or None in latest.earlier_ids:
            return "the topic was created again since, and its earlier id is not known"
        known = latest.topic_id
    if known is not None and found_id is not None and known != found_id:
        return f"the topic was created again since: it had id {known}, and has {found_id}"
    return None


def readable(run: AuditedRun, bounds: Mapping[TopicPartition, LogBounds], findings: Findings) -> list[LoadedRange]:
    """Return the ranges of a run that the log still holds, without offsets lost before. Add others to findings."""
    found = []
    for each in run.ranges or ():
        tp = TopicPartition(each.topic, each.partition)
        begins = each.start + each.lost
        log = bounds.get(tp)
        if begins == each.next_offset:
            continue
        if log is None or each.next_offset > log.end_offset:
            ends = "the partition is gone" if log is None else f"the log ends at {log.end_offset}"
            findings.mismatches.append(f"{tp}: {run.name} read up to offset {each.next_offset}, but {ends}")
        elif begins < log.start_offset:
            findings.not_compared.append(
                f"{run.name}, {tp}: offsets {begins} to {each.next_offset - 1} with the log, which begins at "
                f"{log.start_offset} by now"
            )
        else:
            found.append(each)
    return found


def counting_tasks(ranges: Iterable[LoadedRange]) -> Tasks:
    """Return the ranges as tasks read them: long ones in pieces, short ones together."""
    tasks: list[tuple[OffsetRange, ...]] = []
    sharing: list[OffsetRange] = []
    offsets = 0
    for piece in (piece for each in ranges for piece in _pieces(each)):
        if sharing and offsets + piece.size > TASK_OFFSETS:
            tasks.append(tuple(sharing))
            sharing, offsets = [], 0
        sharing.append(piece)
        offsets += piece.size
    return (*tasks, tuple(sharing)) if sharing else ()


def _pieces(each: LoadedRange) -> Iterator[OffsetRange]:
    tp = TopicPartition(each.topic, each.partition)
    for begins in range(each.start + each.lost, each.next_offset, TASK_OFFSETS):
        yield OffsetRange(tp, begins, min(begins + TASK_OFFSETS, each.next_offset))


@dataclass(frozen=True, slots=True)
class LogCount:
    """What the log holds of a range: the counts of :class:`LoadedRange`, and records by quarter of an hour."""

    counts: Mapping[str, int]
    quarters: Mapping[int, int]

    @classmethod
    def of(cls, each: LoadedRange, counted: Mapping[OffsetRange, RangeCount]) -> LogCount:
        """Return the sum over the pieces of a range. Raises AuditError for one that was not counted."""
        counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        quarters: Counter[int] = Counter()
        for piece in _pieces(each):
            if piece not in counted:
                raise AuditError(f"{piece} was to be counted, and was not")
            account = counted[piece].account
            counts.update(
                records=account.present, control=account.control, aborted=account.aborted, removed=account.removed
            )
            quarters.update(counted[piece].quarters)
        return cls(counts, quarters)


def compare_range(run: AuditedRun, each: LoadedRange, found: LogCount, is_compacted: bool) -> Iterator[str]:
    """Yield how the log differs from the counts in a run's manifest, and from the run's files by directory.

    The log of a compacted topic may hold fewer records than before, so only a larger count is a contradiction.
    """
    where = f"{each.topic}-{each.partition}, offsets {each.start + each.lost} to {each.next_offset - 1}, {run.name}"
    for name in _COUNTS if run.is_accounted else ("records",):
        was, now = getattr(each, name), found.counts[name]
        if name == "records":
            was += each.outside
        if was != now and not (is_compacted and (name == "removed" or now < was)):
            yield f"{where}: the log has {now} {_NAMES[name]}, the manifest {was}"
    if is_compacted or each.quarantined or each.outside or not _has_directories_by_record_time(run):
        return
    was_in = {
        directory: count
        for (partition, directory), count in _by_directory(run.files).items()
        if partition == each.partition
    }
    try:
        now_in = directories_of(found.quarters, run)
    except OverflowError:  # Times beyond the calendar's end.
        return
    for directory in sorted(was_in.keys() | now_in.keys()):
        if was_in.get(directory, 0) != now_in.get(directory, 0):
            yield (
                f"{where}: of {directory} the log has {now_in.get(directory, 0)} records, the files by the manifest "
                f"{was_in.get(directory, 0)}"
            )


_NAMES: Final = {
    "records": "records",
    "control": "markers of transactions",
    "aborted": "aborted records",
    "removed": "offsets that no batch holds",
}


def _has_directories_by_record_time(run: AuditedRun) -> bool:
    return run.layout.get("event_time", "record") == "record" and any(map(time_directory, run.files))


def directories_of(quarters: Mapping[int, int], run: AuditedRun) -> Counter[str]:
    """Return the records by directory of time, as a run's layout makes them. Raises OverflowError beyond year 9999."""
    by_hour = any("hour=" in time_directory(file) for file in run.files)
    zone = ZoneInfo(run.layout.get("time_zone", "UTC"))
    found: Counter[str] = Counter()
    for quarter, count in quarters.items():
        moment = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=quarter * QUARTER_MS)).astimezone(zone)
        found[f"day={moment.date().isoformat()}" + (f"/hour={moment.hour:02d}" if by_hour else "")] += count
    return found


# The report ---------------------------------------------------------------------------------------------------------


def audit_record(run: AuditedRun, each: LoadedRange, found: LogCount | None, audited: str) -> dict[str, Any]:
    """Return a range's record for the audit topic: the loader's counts, and the log's if they were compared."""
    return {
        "tier": "loader",
        "audited": audited,
        "run": run.manifest.run,
        "manifest": run.manifest.number,
        **each.document(),
        "topic_id": None if run.topic not in run.manifest.topics else run.manifest.topics[run.topic].topic_id,
        "directories": {
            directory: count
            for (partition, directory), count in sorted(_by_directory(run.files).items())
            if partition == each.partition
        },
        "log_records": None if found is None else found.counts["records"],
    }
