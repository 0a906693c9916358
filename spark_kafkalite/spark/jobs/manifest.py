"""What a load has published: the manifests under ``_kafkalite/manifests`` and the file names that they speak of.

A manifest is the commit record of one run: ``_kafkalite/manifests/N.json``, N counting from 1 in 20 digits. It names
every file of the run by its staged and its final path, with the records and offsets in it, and carries the next offset
to load for every partition ever loaded, so that the newest manifest alone tells a run where to go on. The rename that
makes it appear is the commit; the files' moves that follow can be done again by anybody (``publish``).

Pure: no file system, no Spark. JSON, UTF-8; ``format`` is 1 and a reader refuses any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition

FORMAT = 1
HOME = "_kafkalite"
MANIFESTS = f"{HOME}/manifests"
STAGING = f"{HOME}/staging"
_DIGITS = 20

NextOffsets = dict[TopicPartition, int]


class ManifestError(KafkaliteError):
    """A manifest cannot be read, or contradicts what is in the destination."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One data file. ``first_offset`` and ``last_offset`` are those of records in it, both inclusive."""

    staged: str
    final: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One run's commit record. ``next_offsets`` are exclusive ends: the first offset that the next run will load."""

    number: int
    run: str
    created: str
    files: tuple[PublishedFile, ...]
    next_offsets: NextOffsets
    records: int
    records_without_timestamp: int

    @property
    def path(self) -> str:
        return manifest_path(self.number)

    @property
    def staging(self) -> str:
        return staging_path(self.run)

    def to_json(self) -> str:
        offsets: dict[str, dict[str, int]] = {}
        for topic_partition, offset in sorted(self.next_offsets.items()):
            offsets.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offset
        document = {
            "format": FORMAT,
            "number": self.number,
            "run": self.run,
            "created": self.created,
            "records": self.records,
            "records_without_timestamp": self.records_without_timestamp,
            "next_offsets": offsets,
            "files": [asdict(file) for file in self.files],
        }
        return json.dumps(document, indent=1) + "\n"


def read_manifest(text: str, path: str) -> Manifest:
    """Return the manifest in ``text``. Raises ManifestError naming ``path`` for anything that is not one."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ManifestError(f"{path}: format {document['format']!r} is not {FORMAT}; a newer version wrote it")
        return Manifest(
            number=document["number"],
            run=document["run"],
            created=document["created"],
            files=tuple(PublishedFile(**file) for file in document["files"]),
            next_offsets=_next_offsets(document["next_offsets"]),
            records=document["records"],
            records_without_timestamp=document["records_without_timestamp"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{path} is not a manifest of this program: {error}") from error


def _next_offsets(document: Mapping[str, Mapping[str, int]]) -> NextOffsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }


def manifest_path(number: int) -> str:
    """Return where manifest ``number`` lies under the destination."""
    return f"{MANIFESTS}/{number:0{_DIGITS}d}.json"


def manifest_numbers(names: list[str]) -> list[int]:
    """Return the numbers of the manifests among the names in ``_kafkalite/manifests``, ascending."""
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def staging_path(run: str) -> str:
    """Return the staging directory of a run."""
    return f"{STAGING}/{run}"


def file_name(topic: str, partition: int, first_offset: int, last_offset: int, suffix: str = ".parquet") -> str:
    """Return a data file's published name; both offsets inclusive, in 20 digits so that names sort by offset."""
    return f"{topic}-{partition}-{first_offset:0{_DIGITS}d}-{last_offset:0{_DIGITS}d}{suffix}"
