"""Which log directories belong together, so that a start notices one that is missing or empty.

A disk that is not mounted leaves an empty directory, or none: without a word its partitions would begin at offset 0
again. So each directory has an id, and ``meta.properties`` of each names all of them with where they were::

    directory.id=ID                              Apache Kafka's key, since KIP-858
    kafkalite.directories=ID:PATH,ID:PATH        ours, which Kafka passes over; paths are quoted as in a URL

A directory that has been moved keeps its id and is the same; a new one joins the others at its first start. One that is
named and does not exist is missing until it is back, or an operator declares it lost (``log.dirs.lost``).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import META_FILE, CheckpointError, read_meta, topic_id_text
from spark_kafkalite.log.loading.loader import topic_partition_of

DIRECTORY_ID: Final = "directory.id"
DIRECTORIES: Final = "kafkalite.directories"


class Siblings(NamedTuple):
    """The log directories of one broker by id: where the present ones lie, and where the missing ones were."""

    present: dict[str, str]
    missing: dict[str, str]


def find_siblings(fs: Fs, paths: Iterable[str], lost: Collection[str] = ()) -> Siblings:
    """Read what the directories state of each other. ``lost``: ids that do not count as missing.

    A directory that holds logs and has lost its own ``meta.properties`` is known by its path. One that cannot be read
    is ignored.
    """
    present: dict[str, str] = {}
    known: dict[str, str] = {}
    nameless = []
    for path in paths:
        try:
            meta = read_meta(fs, f"{path}/{META_FILE}") or {}
            holds_logs = any(topic_partition_of(entry.name) is not None for entry in fs.entries(path))
        except (CheckpointError, OSError):
            continue
        if DIRECTORY_ID in meta:
            present.setdefault(meta[DIRECTORY_ID], path)
        elif holds_logs or meta:
            nameless.append(path)
        known.update(_named(meta))
    was_at = {path: directory_id for directory_id, path in known.items()}
    for path in nameless:
        if path in was_at:
            present.setdefault(was_at[path], path)
    missing = {each: path for each, path in known.items() if each not in present and each not in lost}
    return Siblings(present, missing)


def _named(meta: Mapping[str, str]) -> dict[str, str]:
    entries = (entry.partition(":") for entry in meta.get(DIRECTORIES, "").split(","))
    return {directory_id: unquote(path) for directory_id, colon, path in entries if colon}


def new_directory_id() -> str:
    """Return an id for a new directory, as Apache Kafka writes them."""
    # Kafka's own begin with no dash, which its tools would take for an option.
    return next(text for _ in iter(int, 1) if not (text := topic_id_text(uuid.uuid4().bytes)).startswith("-"))


def directories_text(directories: Mapping[str, str]) -> str:
    """Return the value of ``kafkalite.directories`` for these paths by id."""
    return ",".join(f"{directory_id}:{quote(path)}" for directory_id, path in sorted(directories.items()))


def how_to_go_on(directory_id: str) -> str:
    """Return what can be done about a directory that is missing."""
    return (
        "mount it, or name it in log.dirs, and start the broker again; if it is lost for good, start once with "
        f"log.dirs.lost={directory_id}: its partitions are then copied from other brokers; one without other replicas "
        "begins again, empty"
    )
