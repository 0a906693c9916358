"""The ids of the topics that a streaming query reads, kept in its checkpoint.

Offsets do not show that a topic was deleted and created again, once the new log is longer than the old offset. Spark's
offset log has no room for ids, because Spark's own Kafka source must be able to go on from it. So the ids are in files
next to it, ``CHECKPOINT/_kafkalite/source_topic_ids/NAME``, which Spark and its source do not read. Each source of a
query has a file, a JSON object::

    {"source": "subscribe=orders", "topics": {"orders": "vPeOCWypqUOSepEvx0cbog"}}

- The ids of all files of a checkpoint count together: a topic is the one that was read if any file has its id. An id
  never comes back, so the id of another source, or of a source that the query no longer has, does no harm.
- They count only if this package's source wrote the offset at which the query goes on. Spark's own source may have read
  a topic that was created again. The two write JSON with and without blanks.
- A file is written after the offset log has a batch that was planned under the ids, never before. A query that dies in
  between finds the earlier id, and reports a new topic once more.

The functions work on the ``Files`` of a checkpoint, in whatever process reaches them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.spark.checkpoints.checkpoint_files import VERSION, batch_ids, offsets_path
from spark_kafkalite.spark.reading.topic_id import topic_id_of

if TYPE_CHECKING:
    from spark_kafkalite.manifests.files import Files

DIRECTORY: Final = "_kafkalite/source_topic_ids"
# A batch that is planned begins at the end of the one before it.
_NEWEST: Final = 2
_NAME_DIGITS: Final = 16

TopicIds = Mapping[str, frozenset[str]]
"""The known ids of topics, as text."""


def offset_digest(offset: Mapping[str, Any]) -> str:
    """Return a text that identifies an offset of a source, in whatever form it was written."""
    return sha256(json.dumps(offset, sort_keys=True).encode()).hexdigest()


def source_name(bootstrap_servers: str, subscription: str) -> str:
    """Return the name of a source's file."""
    return sha256(f"{bootstrap_servers} {subscription}".encode()).hexdigest()[:_NAME_DIGITS]


def is_at(files: Files, digest: str) -> bool:
    """Whether one of the newest batches of a checkpoint ends at the offset with this digest."""
    return any(offset_digest(offset) == digest for _, offset in _newest_offsets(files))


def known_ids(files: Files, digest: str) -> TopicIds | None:
    """Return the ids that a checkpoint has of topics; none if another source wrote the offset with this digest.

    None: no batch of the checkpoint ends at that offset.
    """
    lines = [line for line, offset in _newest_offsets(files) if offset_digest(offset) == digest]
    if not lines:
        return None
    found: dict[str, frozenset[str]] = {}
    if any(line == json.dumps(json.loads(line)) for line in lines):
        for name in files.names(DIRECTORY):
            for topic, topic_id in ids_in(files, name).items():
                found[topic] = found.get(topic, frozenset()) | {topic_id}
    return found


def ids_in(files: Files, name: str) -> dict[str, str]:
    """Return the ids in one source's file; none if there is no such file, or something else is in it."""
    try:
        topics = json.loads(files.read(f"{DIRECTORY}/{name}"))["topics"]
        return {topic: text for topic, text in topics.items() if topic_id_of(text) is not None}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_ids(files: Files, name: str, source: str, topics: Mapping[str, str]) -> None:
    """Write ids into a source's file, in one step; topics that only the file names stay, as they may come back.

    Raises what the file system raises.
    """
    before = ids_in(files, name)
    if {**before, **topics} != before:
        document = {"source": source, "topics": dict(sorted({**before, **topics}.items()))}
        files.replace(f"{DIRECTORY}/{name}", json.dumps(document) + "\n")


def _newest_offsets(files: Files) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the lines of the newest batches that are offsets of sources, each with its object.

    Raises ValueError for a version of the offset log in which offsets are not lines.
    """
    for number in sorted(batch_ids(files, "offsets"))[-_NEWEST:]:
        try:
            version, _, *lines = files.read(offsets_path(number)).split("\n")
        except FileNotFoundError:
            continue
        if version != VERSION:
            raise ValueError(f"{files.root}/{offsets_path(number)} is not {VERSION} of Spark's offset log")
        for line in lines:
            try:
                offset = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(offset, dict):
                yield line, offset
