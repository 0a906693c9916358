"""Replaces segments by their cleaned copies, so that a crash leaves the old ones or the new ones.

The cleaner has written ``BASE.log.cleaned``, ``BASE.index.cleaned`` and ``BASE.timeindex.cleaned`` for each group of
source segments, and synced them. A :class:`Swap` goes on from there:

1. ``commit``, in a thread: check the files, sync the directory that names them, write ``cleaner-swap`` and sync that.
   Its rename is the commit point of the whole cleaning: before it nothing has changed, after it nothing can be undone.
2. ``apply``, by the log's owner, group by group, each in one go: the sources leave the list of segments and their files
   get the suffix ``.deleted``, the cleaned files get their names, and the new segment is in the list.
3. ``sync_names``, in a thread; then the manager writes ``cleaner-offset-checkpoint``; then ``forget``, in a thread,
   removes ``cleaner-swap``. In this order: as long as that file exists, a start knows how far the log has gaps.

``cleaner-swap`` has the form of a checkpoint (``small_files.write_swap``). All groups of a cleaning commit together: a
delete marker may leave a later group because the values that it deleted have left an earlier one.

A start calls :func:`complete_swaps` before it reads anything else of the log. That repeats step 2 from whatever state
the renames are in; every part of it may be done already, and doing it again changes nothing. A ``.swap`` file without
``cleaner-swap`` is Apache Kafka's, and is completed by Kafka's rule: the segments that begin within its offsets give
way to it. Source: org.apache.kafka.storage.internals.log.LogLoader.

A log that is truncated, deleted, closed or failed meanwhile keeps its sources. A truncation calls :meth:`Swap.settle`
first, which calls off what is not committed and ends what is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.log.compaction.clean_job import CleanedGroup
from spark_kafkalite.log.files.fs import File, Fs
from spark_kafkalite.log.files.small_files import SWAP_FILE, CheckpointError, SwapGroup, read_swap, write_swap
from spark_kafkalite.log.segments.offset_index import OffsetIndex
from spark_kafkalite.log.segments.segment import CLEANED_SUFFIX, FILE_SUFFIXES, LOG_SUFFIX
from spark_kafkalite.log.segments.time_index import TimeIndex
from spark_kafkalite.records import kernel
from spark_kafkalite.records.layout import HEADER_BYTES

logger = logging.getLogger(__name__)

# Apache Kafka's suffix of a cleaned segment that is committed.
KAFKA_SWAP_SUFFIX: Final = ".swap"


class SwappedLog(Protocol):
    """What a swap needs of the log whose segments it replaces."""

    directory: str
    cleaned_until_offset: int

    def replace_segments(self, group: CleanedGroup) -> list[str]: ...

    def write_checkpoints(self) -> None: ...


class Swap:
    """One cleaning's result on its way into the log. The log's owner calls all methods, unless their text names a
    thread."""

    def __init__(self, fs: Fs, log: SwappedLog, groups: Sequence[CleanedGroup], end_offset: int) -> None:
        """``groups`` and ``end_offset`` are the cleaner's result."""
        self.committed = False
        # The new names of the sources' files, for the manager to remove.
        self.retired: list[str] = []
        self.end_offset = end_offset
        self._fs = fs
        self._log = log
        self._directory = log.directory
        self._groups = groups
        self._applied_groups = 0
        self._called_off = False
        self._forgotten = False
        # Held while a thread changes files, so that a truncation can wait for it.
        self._lock = threading.Lock()

    @classmethod
    def ended_at_start(cls, fs: Fs, log: SwappedLog) -> Swap:
        """Return a swap that a start has completed, and that is still to be forgotten."""
        swap = cls(fs, log, (), log.cleaned_until_offset)
        swap.committed = True
        return swap

    def commit(self) -> bool:
        """Make the cleaned files count; False when the swap was called off before. For a thread.

        CorruptMessage when a cleaned file is not what the cleaner reported. OSError when the disk fails: then nothing
        has changed, unless ``cleaner-swap`` exists, which leaves it to the next start.
        """
        with self._lock:
            if self._called_off:
                return False
            for group in self._groups:
                _check(self._fs, self._directory, group)
            self._fs.sync_directory(self._directory)
            write_swap(
                self._fs,
                f"{self._directory}/{SWAP_FILE}",
                [
                    SwapGroup(
                        self.end_offset,
                        group.base_offset,
                        group.size_bytes,
                        group.index_entries * OffsetIndex.ENTRY.size,
                        group.time_index_entries * TimeIndex.ENTRY.size,
                        group.sources,
                    )
                    for group in self._groups
                ],
            )
            self.committed = True
            return True

    @property
    def applied(self) -> bool:
        """Whether all groups are in place."""
        return self._applied_groups == len(self._groups)

    def apply_next(self) -> None:
        """Have the log read the next cleaned segment from now on. KafkaStorageError when a rename fails."""
        group = self._groups[self._applied_groups]
        self._applied_groups += 1
        self.retired += self._log.replace_segments(group)
        if self.applied:
            self._log.cleaned_until_offset = self.end_offset

    def apply(self) -> None:
        """Have the log read all cleaned segments from now on."""
        while not self.applied:
            self.apply_next()

    def sync_names(self) -> None:
        """Put the new names on the disk. For a thread. OSError when the disk fails."""
        with self._lock:
            if not self._forgotten:
                self._fs.sync_directory(self._directory)

    def forget(self) -> None:
        """End the swap, once the cleaner's checkpoint is on the disk. For a thread. OSError when the disk fails."""
        with self._lock:
            if not self._forgotten:
                forget_swap(self._fs, self._directory)
                self._forgotten = True

    def settle(self) -> None:
        """Call the swap off, or end it if it is committed, in this thread: the log is going to be truncated.

        OSError and KafkaStorageError when the disk fails.
        """
        with self._lock:
            self._called_off = True
        if self.committed and not self._forgotten:
            self.apply()
            self.sync_names()
            self._log.write_checkpoints()
            self.forget()


def forget_swap(fs: Fs, directory: str) -> None:
    """Remove ``cleaner-swap`` for good; the cleaner may work on the log again afterwards."""
    fs.unlink(f"{directory}/{SWAP_FILE}")
    fs.sync_directory(directory)


def remove_cleaned(fs: Fs, directory: str) -> None:
    """Remove what a cleaning that came to nothing has left, if the directory is still there."""
    try:
        names = [entry.name for entry in fs.entries(directory)]
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            try:
                fs.unlink(f"{directory}/{name}")
            except FileNotFoundError:
                continue


def _check(fs: Fs, directory: str, group: CleanedGroup) -> None:
    """Raise CorruptMessage unless a group's files are as long as reported, and end with a whole batch and its
    entries."""
    stem = f"{directory}/{group.base_offset:020d}"
    index_bytes = group.index_entries * OffsetIndex.ENTRY.size
    sizes = (group.size_bytes, index_bytes, group.time_index_entries * TimeIndex.ENTRY.size)
    opened: list[File] = []
    for suffix, size in zip(FILE_SUFFIXES, sizes, strict=True):
        file = fs.open(stem + suffix + CLEANED_SUFFIX)
        if file.size() != size:
            raise CorruptMessage(f"{file.path}: {file.size()} bytes, the cleaner wrote {size}")
        opened.append(file)
    log, index, _ = opened
    position = 0
    if index_bytes:
        entry = index.pread(OffsetIndex.ENTRY.size, index_bytes - OffsetIndex.ENTRY.size)
        last_offset, position = OffsetIndex.ENTRY.unpack(entry)
        header = kernel.read_header(log.pread(HEADER_BYTES, position))
        if header.last_offset - group.base_offset != last_offset:
            raise CorruptMessage(
                f"{log.path}: its index has offset {group.base_offset + last_offset} at {position}, "
                f"the log has {header.last_offset}"
            )
    while position < group.size_bytes:
        position += kernel.read_header(log.pread(HEADER_BYTES, position)).size_bytes
    if position != group.size_bytes:
        raise CorruptMessage(f"{log.path}: its last batch ends at {position}, the file at {group.size_bytes}")


# At a start ---------------------------------------------------------------------------------------------------------


def complete_swaps(fs: Fs, directory: str) -> int:
    """End the swap that a crash has interrupted in a log's directory; return up to where the log has been cleaned by
    it, 0 when there was none.

    ``cleaner-swap`` stays, for the caller to :func:`forget_swap` once the cleaner's checkpoint has that offset. A
    second crash, in here, is like the first one. OSError when the disk fails.
    """
    names = {entry.name: entry.size_bytes for entry in fs.entries(directory)}
    groups: list[SwapGroup] = []
    try:
        groups = read_swap(fs, f"{directory}/{SWAP_FILE}")
    except CheckpointError as error:
        # Written before it was named, so this is no crash's work.
        logger.error("%s; continuing without it", error)
    for group in groups:
        _complete(fs, directory, names, group)
    foreign = [name for name in names if name.endswith(LOG_SUFFIX + KAFKA_SWAP_SUFFIX)]
    for name in sorted(foreign):
        _complete_kafkas(fs, directory, names, name.removesuffix(LOG_SUFFIX + KAFKA_SWAP_SUFFIX))
    for name in names:
        if name.endswith(KAFKA_SWAP_SUFFIX) and fs.exists(f"{directory}/{name}"):
            fs.unlink(f"{directory}/{name}")
    if groups or foreign:
        fs.sync_directory(directory)
    if groups:
        logger.info("%s: ended an interrupted cleaning, %d segments replaced", directory, len(groups))
    return max((group.end_offset for group in groups), default=0)


def _complete(fs: Fs, directory: str, names: dict[str, int], group: SwapGroup) -> None:
    stem = f"{group.base_offset:020d}"
    sizes = (group.log_bytes, group.index_bytes, group.time_index_bytes)
    for suffix, size in zip(FILE_SUFFIXES, sizes, strict=True):
        # A cleaned file that still has its suffix, or the one that has got its name already.
        found = names.get(stem + suffix + CLEANED_SUFFIX, names.get(stem + suffix))
        if found != size and suffix == LOG_SUFFIX:
            # Not a crash's work either. The sources are all there or this would have been seen before.
            logger.error(
                "%s: %s%s has %s bytes, the cleaner wrote %d; not replacing", directory, stem, suffix, found, size
            )
            return
    for source in group.sources:
        if source == group.base_offset:
            continue
        for suffix in FILE_SUFFIXES:
            name = f"{source:020d}{suffix}"
            if name in names:
                fs.unlink(f"{directory}/{name}")
    for suffix in FILE_SUFFIXES:
        if stem + suffix + CLEANED_SUFFIX in names:
            fs.rename(f"{directory}/{stem}{suffix}{CLEANED_SUFFIX}", f"{directory}/{stem}{suffix}")


def _complete_kafkas(fs: Fs, directory: str, names: dict[str, int], stem: str) -> None:
    """Replace the segments that begin in the offsets of a ``.swap`` file by it."""
    if len(stem) != 20 or not stem.isdecimal():
        return
    path = f"{directory}/{stem}{LOG_SUFFIX}"
    file = fs.open(path + KAFKA_SWAP_SUFFIX)
    position, end_offset = 0, int(stem) + 1
    try:
        while position < file.size():
            header = kernel.read_header(file.pread(HEADER_BYTES, position))
            position, end_offset = position + header.size_bytes, header.next_offset
        if position != file.size():
            raise CorruptMessage(f"its last batch ends at {position}, the file at {file.size()}")
    except CorruptMessage as error:
        logger.warning("%s%s: %s; keeping the segments that it was to replace", path, KAFKA_SWAP_SUFFIX, error)
        return
    for name in names:
        base, dot, kind = name.rpartition(".")
        if dot + kind in FILE_SUFFIXES and base.isdecimal() and int(stem) <= int(base) < end_offset:
            fs.unlink(f"{directory}/{name}")
    for suffix in FILE_SUFFIXES:
        if stem + suffix + KAFKA_SWAP_SUFFIX in names:
            fs.rename(f"{directory}/{stem}{suffix}{KAFKA_SWAP_SUFFIX}", f"{directory}/{stem}{suffix}")
