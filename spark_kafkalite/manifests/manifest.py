"""What a load has published: the manifests under ``_kafkalite/manifests``.

A manifest is the commit record of one run: ``_kafkalite/manifests/N.json``, N counting from 1 in 20 digits. It holds:

- every file of the run, by its staged and its final path, with the rows, bytes and offsets in it;
- an account of every offset of the ranges that the run read (``ranges``);
- for every topic ever loaded the topic's id, the layout of its newest files and, by partition, the next offset to load
  and the time up to which the partition is loaded. So a run needs only the newest manifest to go on;
- the offsets that the run could not load (``lost``);
- the topics that were deleted and created again since the run before (``recreated``), and those whose ids were not
  known before (``adopted_ids``);
- the directories of time that the run found complete (``completed``) or opened again (``reopened``).

The rename that makes the manifest appear is the commit. The files' moves and the marks of complete directories follow.
Every later run can repeat these (``publish``).

JSON, UTF-8. ``format`` is 3, and a reader refuses newer ones. It also reads formats 1 and 2. Format 2 has no ranges, no
times and one partition in every file. Format 1 in addition has no ids, no lost ranges and no sizes. It also kept topics
such as ``_name`` under that name, which programs take for a hidden one. For such a file ``final`` here is the path that
the file has to get (``publish.show_hidden_files``), and ``hidden_final`` the path in the manifest.

``manifest_reader`` reads manifests. Pure: no file system, no Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition

FORMAT: Final = 3
FORMAT_WITHOUT_RANGES: Final = 2
FORMAT_WITHOUT_IDS: Final = 1
HOME: Final = "_kafkalite"
MANIFESTS: Final = f"{HOME}/manifests"
STAGING: Final = f"{HOME}/staging"
QUARANTINE: Final = f"{HOME}/quarantine"
REPLACED: Final = f"{HOME}/replaced"
LOAD: Final = "load"
TAKEOVER: Final = "takeover"
COMPACT: Final = "compact"
KINDS: Final = (LOAD, TAKEOVER, COMPACT)
# What a run may not change by the way about a topic's files.
TOPIC_LAYOUT: Final = ("format", "partition_by", "time_zone", "value", "value_schema")
DIGITS: Final = 20
_NAME: Final = re.compile(rf"[0-9]{{{DIGITS}}}\.json", re.ASCII)

NextOffsets = dict[TopicPartition, int]


class ManifestError(KafkaliteError):
    """A manifest cannot be read, or contradicts what is in the destination."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """One partition's rows in a file. Both offsets are those of rows in it, inclusive."""

    partition: int
    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One data file: rows of one topic, of one directory of time, and of one or several partitions.

    ``late``: its directory was complete before. ``size_bytes`` is None in manifests of format 1. ``hidden_final`` is
    set only in some manifests of format 1.
    """

    staged: str
    final: str
    topic: str
    parts: tuple[FilePart, ...]
    size_bytes: int | None = None
    late: bool = False
    hidden_final: str | None = None

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    @property
    def directory(self) -> str:
        """The directory of the final path."""
        return self.final.rpartition("/")[0]

    def document(self) -> dict[str, Any]:
        """Return the file as manifests have it."""
        return {
            "staged": self.staged,
            "final": self.final,
            "topic": self.topic,
            "records": self.records,
            "size_bytes": self.size_bytes,
            "late": self.late,
            "offsets": [
                {
                    "partition": part.partition,
                    "first": part.first_offset,
                    "last": part.last_offset,
                    "rows": part.records,
                }
                for part in self.parts
            ],
        }


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """Where the next run goes on in a topic. ``next_offsets`` by partition are exclusive ends of what was loaded.

    ``topic_id`` is Kafka's text of it, None when it is not known. ``earlier_ids`` are those of the topics of the same
    name that were loaded before this one, oldest first. ``passed_ms`` is, by partition, the time in ms since the epoch
    before which nothing more is expected (``completeness``). ``open_directories`` hold files and are not complete.
    ``layout`` has the :data:`TOPIC_LAYOUT` of the topic's newest files. It is empty if no run has published files of
    the topic, and None in manifests of versions that did not write it.
    """

    topic_id: str | None
    next_offsets: Mapping[int, int]
    earlier_ids: tuple[str | None, ...] = ()
    passed_ms: Mapping[int, int] = field(default_factory=dict)
    open_directories: tuple[str, ...] = ()
    layout: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """What a run made of the offsets from ``start`` (inclusive) to ``next_offset`` (exclusive) of one partition.

    Each offset is one of: ``lost`` (gone before it was read), a ``control`` record, a record of an ``aborted``
    transaction, ``removed`` (no batch holds it: compaction), ``outside`` or one of the ``records``. Those ``outside``
    have timestamps that are not in the time range of a replay. Of the ``records``, ``quarantined`` are not in the data
    files, and ``late`` are in files of directories that were complete. ``size_bytes`` is that of keys and values as
    they were read. Timestamps are the smallest and largest of records, None where none has one.
    """

    topic: str
    partition: int
    start: int
    next_offset: int
    lost: int = 0
    control: int = 0
    aborted: int = 0
    removed: int = 0
    records: int = 0
    quarantined: int = 0
    late: int = 0
    size_bytes: int = 0
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    outside: int = 0

    @property
    def difference(self) -> int:
        """Offsets that nothing accounts for; 0 in every range that may be published."""
        accounted = self.lost + self.control + self.aborted + self.removed + self.outside + self.records
        return self.next_offset - self.start - accounted

    def document(self) -> dict[str, Any]:
        """Return the range as manifests and results have it; ``outside`` only if it is not 0.

        Versions before it was added then still read the manifests of all other runs.
        """
        document = {name: getattr(self, name) for name in RANGE_FIELDS}
        return {**document, "outside": self.outside} if self.outside else document


RANGE_FIELDS: Final = tuple(name for name in LoadedRange.__dataclass_fields__ if name != "outside")


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets that left the log before they were loaded: ``start`` inclusive, ``until`` exclusive."""

    topic: str
    partition: int
    start: int
    until: int

    @property
    def offsets(self) -> int:
        return self.until - self.start

    def document(self) -> dict[str, Any]:
        """Return the range as plans, manifests and results have it."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "start": self.start,
            "until": self.until,
            "offsets": self.offsets,
        }


@dataclass(frozen=True, slots=True)
class RecreatedTopic:
    """A topic that was deleted and created again; what it held from ``earlier_next_offsets`` on was never loaded."""

    topic: str
    earlier_id: str | None
    topic_id: str | None
    earlier_next_offsets: Mapping[int, int]

    def document(self) -> dict[str, Any]:
        """Return the topic as plans, manifests and results have it."""
        return {
            "topic": self.topic,
            "earlier_id": self.earlier_id,
            "id": self.topic_id,
            "earlier_next_offsets": _offsets_document(self.earlier_next_offsets),
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """One run's commit record. ``topics`` are all that were ever loaded, by name.

    ``kind`` is what the run did: ``load`` (also a replay into a directory), ``takeover`` (it only took the number from
    a run that may still be alive), ``compact`` (its files replace those with the final paths in ``replaced``).
    ``layout`` is what the options asked for: format, directories, event time and so on. ``quarantine`` are the files
    with the records that could not be decoded. ``event_time_fallbacks`` counts the records in ``files`` that lack the
    event time, and so lie in the directory of their own timestamp.
    """

    number: int
    run: str
    created: str
    files: tuple[PublishedFile, ...]
    topics: Mapping[str, LoadedTopic]
    records: int
    records_without_timestamp: int
    lost: tuple[LostRange, ...] = ()
    recreated: tuple[RecreatedTopic, ...] = ()
    adopted_ids: tuple[str, ...] = ()
    ranges: tuple[LoadedRange, ...] = ()
    completed: tuple[str, ...] = ()
    reopened: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    layout: Mapping[str, str] = field(default_factory=dict)
    kind: str = LOAD
    format: int = FORMAT
    quarantine: tuple[PublishedFile, ...] = ()
    event_time_fallbacks: int = 0

    @property
    def path(self) -> str:
        return manifest_path(self.number)

    @property
    def staging(self) -> str:
        return staging_path(self.run)

    def layout_of(self, topic: str) -> dict[str, str]:
        """Return the layout of one topic: the run's, and what that topic had otherwise (``TOPIC:NAME``)."""
        usual = {name: value for name, value in self.layout.items() if ":" not in name}
        own = f"{topic}:"
        return usual | {name.removeprefix(own): value for name, value in self.layout.items() if name.startswith(own)}

    @property
    def moved_files(self) -> tuple[PublishedFile, ...]:
        """All files that have a staged and a final place."""
        return (*self.files, *self.quarantine)

    @property
    def may_have_hidden_files(self) -> bool:
        """Whether this and older manifests may name files that lie under hidden names."""
        return self.format == FORMAT_WITHOUT_IDS

    @property
    def next_offsets(self) -> NextOffsets:
        """The first offset, for each partition, that the next run will load."""
        return {
            TopicPartition(topic, partition): offset
            for topic, loaded in self.topics.items()
            for partition, offset in loaded.next_offsets.items()
        }

    def to_json(self, indent: int | None = 1) -> str:
        """Return the manifest's text, in format 3; without ``indent`` it is one line."""
        document = {
            "format": FORMAT,
            "number": self.number,
            "run": self.run,
            "created": self.created,
            "kind": self.kind,
            "layout": dict(sorted(self.layout.items())),
            "records": self.records,
            "records_without_timestamp": self.records_without_timestamp,
            "event_time_fallbacks": self.event_time_fallbacks,
            "topics": {topic: _topic_document(loaded) for topic, loaded in sorted(self.topics.items())},
            "ranges": [each.document() for each in self.ranges],
            "lost": [each.document() for each in self.lost],
            "recreated": [each.document() for each in self.recreated],
            "adopted_ids": list(self.adopted_ids),
            "completed": list(self.completed),
            "reopened": list(self.reopened),
            "replaced": list(self.replaced),
            "files": [file.document() for file in self.files],
            "quarantine": [file.document() for file in self.quarantine],
        }
        return json.dumps(document, indent=indent, separators=None if indent else (",", ":")) + "\n"


def topic_layout(layout: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a layout that is kept with a topic."""
    return {name: layout[name] for name in TOPIC_LAYOUT if name in layout}


def _topic_document(loaded: LoadedTopic) -> dict[str, Any]:
    return {
        "id": loaded.topic_id,
        "earlier_ids": list(loaded.earlier_ids),
        "next_offsets": _offsets_document(loaded.next_offsets),
        "passed_ms": _offsets_document(loaded.passed_ms),
        "open_directories": list(loaded.open_directories),
        **({} if loaded.layout is None else {"layout": dict(sorted(loaded.layout.items()))}),
    }


def _offsets_document(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def manifest_path(number: int) -> str:
    """Return where manifest ``number`` lies under the destination."""
    return f"{MANIFESTS}/{number:0{DIGITS}d}.json"


def manifest_numbers(names: list[str]) -> list[int]:
    """Return the numbers of the manifests among the names in ``_kafkalite/manifests``, ascending."""
    return sorted(int(name.removesuffix(".json")) for name in names if _NAME.fullmatch(name))


def staging_path(run: str) -> str:
    """Return the staging directory of a run."""
    return f"{STAGING}/{run}"


def replaced_path(run: str, final: str) -> str:
    """Return where a file lies that a run has replaced."""
    return f"{REPLACED}/{run}/{final}"


@dataclass(frozen=True, slots=True)
class Staged:
    """What a run wrote to its staging directory, and what became of every offset of its plan.

    ``quarantine`` are the files of records that could not be decoded. ``event_time_fallbacks`` counts records in
    ``files`` without the event time that was asked for, ``early_event_times`` those with one of the first months of
    1970, as a number of seconds is if it is taken for milliseconds.
    """

    files: tuple[PublishedFile, ...] = ()
    ranges: tuple[LoadedRange, ...] = ()
    records_without_timestamp: int = 0
    quarantine: tuple[PublishedFile, ...] = ()
    event_time_fallbacks: int = 0
    early_event_times: int = 0

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)
