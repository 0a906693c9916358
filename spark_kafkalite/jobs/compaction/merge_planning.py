"""Which published files a compaction merges, and whether what it made of them holds their records. Pure.

Only files of one topic, one directory and one layout (format, codec, zone) become one, and never those of a topic with
those of the topic of the same name that was created after it: their offsets mean different records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spark_kafkalite.jobs.formats.data_files import FORMATS
from spark_kafkalite.jobs.load.accounting import AuditError
from spark_kafkalite.manifests.manifest import COMPACT, Manifest, PublishedFile
from spark_kafkalite.manifests.names import file_format_of, recreations_in_name

Published = list[tuple[Manifest, PublishedFile]]
Layout = tuple[tuple[str, str], ...]
# A file this much smaller than the target is small.
_SMALL = 2


@dataclass(frozen=True, slots=True)
class MergeBounds:
    """A directory is worth a merge from ``min_files`` small files on; ``file_bytes`` is the size to make of them."""

    min_files: int = 4
    file_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Merge:
    """Published files of one topic, directory, recreation and layout that become one file."""

    topic: str
    directory: str
    recreations: int
    file_format: str
    layout: Layout
    files: tuple[PublishedFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes or 0 for file in self.files)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What to merge. ``waiting`` directories have enough small files and are not settled; ``unreadable`` counts files
    of formats that Spark does not read by itself."""

    merges: tuple[Merge, ...]
    waiting: tuple[str, ...] = ()
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class PartFacts:
    """Rows of one partition: ``offsets`` counts the different ones, ``content`` is a sum over all their columns."""

    first: int
    last: int
    records: int
    offsets: int
    content: int


def plan_merges(published: Published, bounds: MergeBounds, is_settled: Callable[[str, str], bool]) -> MergePlan:
    """Return the merges in the order of topics, directories and offsets.

    ``is_settled`` returns whether a directory may be merged; it gets the directory and the time at which its newest
    file was published, by the manifests. Every file's ``size_bytes`` has to be known.
    """
    groups: dict[tuple[str, str, int, str, Layout], list[PublishedFile]] = {}
    newest: dict[str, str] = {}
    unreadable = 0
    for manifest, file in published:
        newest[file.directory] = max(manifest.created, newest.get(file.directory, ""))
        file_format = file_format_of(file.final)
        # Lines of JSON do not say what their values were decoded to.
        layout = manifest.layout_of(file.topic)
        decoded = layout.get("value", "bytes") != "bytes"
        if file_format not in FORMATS or (file_format == "json" and decoded):
            unreadable += 1
        elif (file.size_bytes or 0) * _SMALL < bounds.file_bytes:
            kind = tuple(sorted(layout.items()))
            key = (file.topic, file.directory, recreations_of(manifest, file), file_format, kind)
            groups.setdefault(key, []).append(file)
    merges: list[Merge] = []
    waiting: list[str] = []
    for key, small in sorted(groups.items()):
        if len(small) < bounds.min_files:
            continue
        if not is_settled(key[1], newest[key[1]]):
            waiting.append(key[1])
            continue
        merges += (Merge(*key, each) for each in _filled(small, bounds.file_bytes) if len(each) > 1)
    return MergePlan(tuple(merges), tuple(dict.fromkeys(waiting)), unreadable)


def recreations_of(manifest: Manifest, file: PublishedFile) -> int:
    """Return how often the file's topic had been created again when its records were loaded."""
    if manifest.kind == COMPACT or file.topic not in manifest.topics:
        # A compaction's topics are those of its own time; its files' names tell.
        return recreations_in_name(file.final)
    return len(manifest.topics[file.topic].earlier_ids)


def _filled(files: Iterable[PublishedFile], file_bytes: int) -> list[tuple[PublishedFile, ...]]:
    """Return the files in groups of about ``file_bytes``, in the order of their first offsets."""
    groups: list[list[PublishedFile]] = []
    size_bytes = file_bytes
    for file in sorted(files, key=lambda each: (each.parts[0].partition, each.parts[0].first_offset, each.final)):
        if size_bytes + (file.size_bytes or 0) > file_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append(file)
        size_bytes += file.size_bytes or 0
    return [tuple(group) for group in groups]


def rounds(merges: Iterable[Merge], round_bytes: int) -> list[tuple[Merge, ...]]:
    """Return the merges in rounds of one format and layout each, of about ``round_bytes``."""
    found: list[tuple[Merge, ...]] = []
    by_layout: dict[tuple[str, Layout], list[Merge]] = {}
    for each in merges:
        by_layout.setdefault((each.file_format, each.layout), []).append(each)
    for of_layout in by_layout.values():
        taken: list[Merge] = []
        for each in of_layout:
            if taken and sum(merge.size_bytes for merge in taken) + each.size_bytes > round_bytes:
                found.append(tuple(taken))
                taken = []
            taken.append(each)
        found.append(tuple(taken))
    return found


def merges_text(merges: Iterable[Merge]) -> str:
    """Return what is written down before anything is read."""
    document = [{"directory": each.directory, "files": [file.final for file in each.files]} for each in merges]
    return json.dumps({"merges": document}, indent=1) + "\n"


def check_merged(merge: Merge, before: Mapping[int, PartFacts], after: Mapping[int, PartFacts]) -> None:
    """Raise AuditError unless ``after`` holds, by partition, just what was published and what ``before`` read of it."""
    published: dict[int, tuple[int, int, int]] = {}
    for file in merge.files:
        for part in file.parts:
            first, last, records = published.get(part.partition, (part.first_offset, part.last_offset, 0))
            bounds = min(first, part.first_offset), max(last, part.last_offset)
            published[part.partition] = (*bounds, records + part.records)
    files = f"{merge.directory}: {len(merge.files)} files of topic {merge.topic}"
    for partition in sorted({*published, *before, *after}):
        was, read, made = published.get(partition), before.get(partition), after.get(partition)
        found, merged = _bounds(read), _bounds(made)
        of_partition = f"{files}, partition {partition}"
        if found != was:
            raise AuditError(
                f"{of_partition}: manifests have {_told(was)}, the files have {_told(found)}; nothing was merged; "
                "kafkalite jobs run audit shows more"
            )
        if read is not None and read.offsets != read.records:
            raise AuditError(
                f"{of_partition}: {read.records} records have {read.offsets} different offsets, so some occur twice; "
                "nothing was merged; kafkalite jobs run audit shows more"
            )
        if made != read:
            other = " with other content" if merged == found else ""
            raise AuditError(
                f"{of_partition}: they have {_told(found)}, and what was merged from them has {_told(merged)}{other}; "
                "nothing was published"
            )


def _bounds(facts: PartFacts | None) -> tuple[int, int, int] | None:
    return None if facts is None else (facts.first, facts.last, facts.records)


def _told(found: tuple[int, int, int] | None) -> str:
    return "nothing" if found is None else f"{found[2]} records at offsets {found[0]} to {found[1]}"
