"""Which files are in the directory of one log, by kind, and the removal of leftovers.

Names that are ours begin with a base offset in 20 digits::

    00000000000000000000.log .index .timeindex   a segment and its indexes; see ``segment``
    00000000000000000042.snapshot                the producers as of offset 42; see ``producer_state``
    cleaner-swap                                 cleaned segments that count already; see ``swap``
    damaged-ranges                               offsets that are missing or unreadable; see ``known_damage``
    *.cleaned *.tmp                              not finished when the broker stopped: removed
    *.deleted                                    retired, waiting for file.delete.delay.ms: removed
    an index without its segment                 removed

Anything else belongs to another program and stays, such as a ``.txnindex`` of Kafka's. A symbolic link is never
followed, since its target would be written and cut. A log is refused if one of its files is a link, or if a directory,
a pipe or the like has one of these names; the other logs go on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.files.file_kind import Kind, misplaced
from spark_kafkalite.log.files.fs import Entry, Fs
from spark_kafkalite.log.files.small_files import (
    DAMAGED_RANGES_FILE,
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    SWAP_FILE,
)
from spark_kafkalite.log.producer_snapshot import (
    LARGE_SNAPSHOT_BYTES,
    LARGE_SNAPSHOTS_KEPT,
    SNAPSHOT_SUFFIX,
    snapshot_path,
)
from spark_kafkalite.log.segments.offset_index import OffsetIndex
from spark_kafkalite.log.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from spark_kafkalite.log.segments.swap import KAFKA_SWAP_SUFFIX, complete_swaps
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.records.layout import MAX_INT64

BASE_OFFSET_DIGITS: Final = 20
_SMALL_FILES: Final = (LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, SWAP_FILE, DAMAGED_RANGES_FILE)
_LEFTOVER_SUFFIXES: Final = (CLEANED_SUFFIX, DELETED_SUFFIX, ".tmp")
_SUFFIXES: Final = (
    LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, KAFKA_SWAP_SUFFIX, *_LEFTOVER_SUFFIXES
)  # fmt: skip
# What can be removed without looking into it.
_REMOVABLE: Final = frozenset(Kind) - {Kind.DIRECTORY}


class LogRefused(KafkaStorageError):
    """A log is not opened because its files are not what they look like; the message names one and what to do."""


class LogFiles(NamedTuple):
    """The files of one log: size by base offset, of snapshots by their offset; whether there is a file of epochs."""

    logs: dict[int, int]
    indexes: dict[int, int]
    time_indexes: dict[int, int]
    snapshots: dict[int, int]
    has_epochs: bool
    # Up to where a cleaning that a crash had interrupted, and that has been ended now, has cleaned the log; else 0.
    swapped_until_offset: int = 0
    # Whether there is a file of damaged ranges.
    has_damaged_ranges: bool = False

    @property
    def base_offsets(self) -> list[int]:
        """The base offsets of the segments, ascending."""
        return sorted(self.logs)

    def has_whole_indexes(self, base_offset: int) -> bool:
        """Return whether both indexes of a segment exist with whole entries."""
        return not (
            self.indexes.get(base_offset, 1) % OffsetIndex.ENTRY.size
            or self.time_indexes.get(base_offset, 1) % TimeIndex.ENTRY.size
        )


def list_log_files(fs: Fs, directory: str) -> LogFiles:
    """List a log's directory; end the cleaning and remove the rest of what interrupted work has left in it.

    Raises LogRefused, with nothing changed, for a log that cannot be what it looks like.
    """
    kind = fs.kind(directory)
    if kind is None:
        raise LogRefused(f"{directory} is missing: put it back, or restart the broker, which starts an empty log")
    if kind is not Kind.DIRECTORY:
        raise LogRefused(misplaced(directory, kind, Kind.DIRECTORY).strerror)
    found, leftovers, has_swap = _sorted_out(directory, fs.entries(directory))
    if has_swap:
        swapped_until_offset = complete_swaps(fs, directory)
        found, leftovers, _ = _sorted_out(directory, fs.entries(directory))
        found = found._replace(swapped_until_offset=swapped_until_offset)
    for name in leftovers:
        fs.unlink(f"{directory}/{name}")
    for sizes, suffix in ((found.indexes, INDEX_SUFFIX), (found.time_indexes, TIME_INDEX_SUFFIX)):
        for base_offset in sizes.keys() - found.logs.keys():
            fs.unlink(f"{directory}/{base_offset:0{BASE_OFFSET_DIGITS}d}{suffix}")
            del sizes[base_offset]
    return found


def _sorted_out(directory: str, entries: Iterable[Entry]) -> tuple[LogFiles, list[str], bool]:
    """Return the files of a log by kind, the names of leftovers, and whether a cleaning was interrupted; raises what
    :func:`refuse_foreign` does. There are four entries for each segment, so they are gone through once."""
    logs: dict[int, int] = {}
    found = LogFiles(logs, {}, {}, {}, has_epochs=False)
    by_suffix = {
        LOG_SUFFIX: logs,
        INDEX_SUFFIX: found.indexes,
        TIME_INDEX_SUFFIX: found.time_indexes,
        SNAPSHOT_SUFFIX: found.snapshots,
    }
    leftovers: list[str] = []
    others: set[str] = set()
    for name, kind, size_bytes in entries:
        if kind is not Kind.FILE:
            _refuse_misplaced(directory, name, kind)
            if kind is Kind.DIRECTORY:
                continue
        stem, dot, ending = name.rpartition(".")
        suffix = dot + ending
        sizes = by_suffix.get(suffix)
        if suffix in _LEFTOVER_SUFFIXES:
            leftovers.append(name)
        elif sizes is None:
            others.add(name)
        elif len(stem) == BASE_OFFSET_DIGITS and stem.isdecimal():
            offset = int(stem)
            if offset <= MAX_INT64:
                sizes[offset] = size_bytes
            elif sizes is logs:
                raise _no_offset(directory, stem)
            elif sizes is not found.snapshots:
                leftovers.append(name)
    has_swap = SWAP_FILE in others or any(name.endswith(KAFKA_SWAP_SUFFIX) for name in others)
    found = found._replace(has_epochs=LEADER_EPOCH_FILE in others, has_damaged_ranges=DAMAGED_RANGES_FILE in others)
    return found, leftovers, has_swap


def refuse_foreign(directory: str, entries: Iterable[Entry]) -> None:
    """Raise LogRefused if a name of a log's file is that of something else, or a segment's name is no offset."""
    for name, kind, _ in entries:
        if kind is not Kind.FILE:
            _refuse_misplaced(directory, name, kind)
        stem = name.removesuffix(LOG_SUFFIX)
        if stem != name and len(stem) == BASE_OFFSET_DIGITS and stem.isdecimal() and int(stem) > MAX_INT64:
            raise _no_offset(directory, stem)


def _refuse_misplaced(directory: str, name: str, kind: Kind) -> None:
    is_removable = name.endswith(_LEFTOVER_SUFFIXES) and kind in _REMOVABLE
    if _is_of_log(name) and not is_removable:
        raise LogRefused(misplaced(f"{directory}/{name}", kind).strerror)


def _no_offset(directory: str, stem: str) -> LogRefused:
    return LogRefused(
        f"{directory}/{stem}{LOG_SUFFIX}: no segment begins at offset {stem}, the largest offset is {MAX_INT64}; move "
        "the file away, or give it its name back"
    )


def _is_of_log(name: str) -> bool:
    """Return whether a log may write a file of this name, or of this name without what marks it as unfinished."""
    stem, *suffixes = name.split(".")
    is_numbered = len(stem) == BASE_OFFSET_DIGITS and stem.isdecimal()
    return name.removesuffix(".tmp") in _SMALL_FILES or (
        is_numbered and all(f".{each}" in _SUFFIXES for each in suffixes)
    )


def drop_segments_below(fs: Fs, directory: str, found: LogFiles, log_start_offset: int) -> None:
    """Remove the segments that lie wholly below the log start offset, from the disk and from ``found``.

    Retention renames them in no safe order, because the checkpoint of log start offsets was on the disk before: after a
    power cut any of them may be back, with holes in between.
    """
    bases = found.base_offsets
    for base_offset in bases[: max(bisect_right(bases, log_start_offset) - 1, 0)]:
        for sizes, suffix in (
            (found.logs, LOG_SUFFIX),
            (found.indexes, INDEX_SUFFIX),
            (found.time_indexes, TIME_INDEX_SUFFIX),
        ):
            if sizes.pop(base_offset, None) is not None:
                fs.unlink(f"{directory}/{base_offset:0{BASE_OFFSET_DIGITS}d}{suffix}")


def snapshot_offsets(fs: Fs, directory: str) -> list[int]:
    """Return the offsets of the producer snapshots in a directory, in no order."""
    return [
        int(entry.name[:BASE_OFFSET_DIGITS])
        for entry in fs.entries(directory)
        if entry.name.endswith(SNAPSHOT_SUFFIX) and entry.name[:BASE_OFFSET_DIGITS].isdecimal()
    ]


def drop_snapshots(
    fs: Fs, directory: str, snapshots: Mapping[int, int], base_offsets: Iterable[int], newest: int, end_offset: int
) -> None:
    """Remove the snapshots of what is gone, those of clean stops but the newest, and large ones but the newest few.

    ``snapshots``: the size of each, by its offset; some may be gone by now.
    """
    bases, large, removed = frozenset(base_offsets), [], []
    for offset, size_bytes in sorted(snapshots.items()):
        if offset > end_offset or (offset < newest and offset not in bases):
            removed.append(offset)
        elif size_bytes > LARGE_SNAPSHOT_BYTES:
            large.append(offset)
    for offset in [*removed, *large[:-LARGE_SNAPSHOTS_KEPT]]:
        path = snapshot_path(directory, offset)
        if fs.exists(path):
            fs.unlink(path)
