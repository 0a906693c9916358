"""What a load has published: the manifests under ``_kafkalite/manifests``.

A manifest is the commit record of one run: ``_kafkalite/manifests/N.json``, N counting from 1 in 20 digits. It names
every file of the run by its staged and its final path, with the records, offsets and bytes in it. For every topic ever
loaded it carries the topic's id and the next offset to load of each partition, so that the newest manifest alone tells
a run where to go on. It says what the run could not load (``lost``), which topics had been deleted and created again
since the run before (``recreated``), and whose ids were not known before (``adopted_ids``). The rename that makes it
appear is the commit; the files' moves that follow can be done again by anybody (``publish``).

JSON, UTF-8. ``format`` is 2, and a reader refuses what is newer. Format 1 is read, too. It has no ids, no lost ranges
and no sizes, and kept topics whose names programs take for hidden ones under those names: such a file's ``final`` here
is the path that it has to be given (``publish.show_hidden_files``), and ``hidden_final`` the one in the manifest.

``manifest_reader`` reads them. Pure: no file system, no Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition

FORMAT: Final = 2
FORMAT_WITHOUT_IDS: Final = 1
HOME: Final = "_kafkalite"
MANIFESTS: Final = f"{HOME}/manifests"
STAGING: Final = f"{HOME}/staging"
_DIGITS: Final = 20
_NAME: Final = re.compile(rf"[0-9]{{{_DIGITS}}}\.json", re.ASCII)

NextOffsets = dict[TopicPartition, int]


class ManifestError(KafkaliteError):
    """A manifest cannot be read, or contradicts what is in the destination."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One data file. ``first_offset`` and ``last_offset`` are those of records in it, both inclusive.

    ``size_bytes`` is None in manifests of format 1, ``hidden_final`` None but in some of theirs.
    """

    staged: str
    final: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    size_bytes: int | None = None
    hidden_final: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """Where the next run goes on in a topic. ``next_offsets`` by partition are exclusive ends of what was loaded.

    ``topic_id`` is Kafka's text of it, None when it is not known. ``earlier_ids`` are those of the topics of the same
    name that were loaded before this one, oldest first.
    """

    topic_id: str | None
    next_offsets: Mapping[int, int]
    earlier_ids: tuple[str | None, ...] = ()


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
        """Return the range as it stands in plans, manifests and results."""
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
        """Return it as it stands in plans, manifests and results."""
        return {
            "topic": self.topic,
            "earlier_id": self.earlier_id,
            "id": self.topic_id,
            "earlier_next_offsets": _offsets_document(self.earlier_next_offsets),
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """One run's commit record. ``topics`` are all that were ever loaded, by name."""

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
    format: int = FORMAT

    @property
    def path(self) -> str:
        return manifest_path(self.number)

    @property
    def staging(self) -> str:
        return staging_path(self.run)

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

    def to_json(self) -> str:
        """Return the manifest's text, in format 2."""
        document = {
            "format": FORMAT,
            "number": self.number,
            "run": self.run,
            "created": self.created,
            "records": self.records,
            "records_without_timestamp": self.records_without_timestamp,
            "topics": {topic: _topic_document(loaded) for topic, loaded in sorted(self.topics.items())},
            "lost": [each.document() for each in self.lost],
            "recreated": [each.document() for each in self.recreated],
            "adopted_ids": list(self.adopted_ids),
            "files": [
                {
                    "staged": file.staged,
                    "final": file.final,
                    "topic": file.topic,
                    "partition": file.partition,
                    "first_offset": file.first_offset,
                    "last_offset": file.last_offset,
                    "records": file.records,
                    "size_bytes": file.size_bytes,
                }
                for file in self.files
            ],
        }
        return json.dumps(document, indent=1) + "\n"


def _topic_document(loaded: LoadedTopic) -> dict[str, Any]:
    return {
        "id": loaded.topic_id,
        "earlier_ids": list(loaded.earlier_ids),
        "next_offsets": _offsets_document(loaded.next_offsets),
    }


def _offsets_document(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def manifest_path(number: int) -> str:
    """Return where manifest ``number`` lies under the destination."""
    return f"{MANIFESTS}/{number:0{_DIGITS}d}.json"


def manifest_numbers(names: list[str]) -> list[int]:
    """Return the numbers of the manifests among the names in ``_kafkalite/manifests``, ascending."""
    return sorted(int(name.removesuffix(".json")) for name in names if _NAME.fullmatch(name))


def staging_path(run: str) -> str:
    """Return the staging directory of a run."""
    return f"{STAGING}/{run}"
