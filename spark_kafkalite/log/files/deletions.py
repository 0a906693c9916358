"""Files and directories that were renamed to be deleted, and their removal.

Readers may still be in the middle of them: a slice of a log keeps its file open, so what is removed here is only the
name. The delay (``file.delete.delay.ms``) is Kafka's, and lets an operator rescue files that were deleted by mistake.

The list lives in memory. What a stop or a crash leaves behind ends in ``.deleted`` or ``-delete`` and is removed by the
next start.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from spark_kafkalite.log.files.awaiting_logs import AwaitingLog, note_awaiting, read_awaiting
from spark_kafkalite.log.files.fs import Fs, remove_tree
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.log.directories.disk import LogDirectory
    from spark_kafkalite.log.loading.loader import FoundLog
    from spark_kafkalite.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


class DeletionJob:
    """Names to remove now. ``run`` may be called in any thread: freeing a large file takes long."""

    __slots__ = ("_fs", "directories", "files")

    def __init__(self, fs: Fs, files: list[str], directories: list[str]) -> None:
        self._fs = fs
        self.files = files
        self.directories = directories

    def run(self) -> None:
        """Remove everything; what cannot be removed is logged, and the next start tries again."""
        for path in self.files:
            try:
                self._fs.unlink(path)
            except FileNotFoundError:
                # Gone with its log's directory, or replaced by a younger file of the same name that went first.
                continue
            except OSError as error:
                logger.warning("cannot remove %s: %s; the next start tries again", path, error.strerror or error)
        for path in self.directories:
            try:
                remove_tree(self._fs, path)
            except OSError as error:
                logger.warning("cannot remove %s: %s; the next start tries again", path, error.strerror or error)


class Retired(NamedTuple):
    """A log that goes out of use: what is known of it, open or not, and the new path of its directory."""

    key: TopicPartition
    log: PartitionLog | FoundLog
    disk: LogDirectory
    directory: str
    target: str


def _start_of(retired: Retired) -> int:
    """Return the log start offset of a log, open or not."""
    log = retired.log
    return log.last_run.log_start_offset if isinstance(log, tuple) else log.log_start_offset


class RetireJob:
    """Directories of logs to rename; ``failed`` has what went wrong, by directory. ``run`` may be called in any thread.

    One sync of a log directory makes all renames in it last: thousands of syncs would take minutes. Until then a power
    cut may bring the directories back; the next start finds that no topic owns them.
    """

    __slots__ = ("_awaits_topic", "_fs", "awaiting", "failed", "logs", "renamed")

    def __init__(self, fs: Fs, logs: Sequence[Retired], *, awaits_topic: bool = False) -> None:
        """``awaits_topic``: the logs are used again when their topic appears again (``awaiting_logs``); ``awaiting``
        then has those that can be."""
        self._fs = fs
        self._awaits_topic = awaits_topic
        self.awaiting: list[AwaitingLog] = []
        self.logs = logs
        self.renamed: list[Retired] = []
        self.failed: dict[str, OSError] = {}

    def run(self) -> None:
        """Rename everything; what is on a disk that is offline stays as it is."""
        renamed: dict[str, list[Retired]] = {}
        for each in self.logs:
            if each.disk.offline is None:
                try:
                    if self._awaits_topic:
                        each.disk.persist(partial(note_awaiting, self._fs, each.directory, each.key, _start_of(each)))
                    each.disk.persist(partial(self._fs.rename, each.directory, each.target))
                    renamed.setdefault(each.disk.path, []).append(each)
                except OSError as error:
                    self.failed[each.directory] = error
        for parent, logs in renamed.items():
            try:
                self._fs.sync_directory(parent)
                self.renamed += logs
            except OSError as error:
                self.failed.update((each.directory, error) for each in logs)
        if self._awaits_topic:
            for each in self.renamed:
                parent, _, name = each.target.rpartition("/")
                # What cannot be read now the next start finds.
                with contextlib.suppress(OSError):
                    if (found := read_awaiting(self._fs, parent, name)) is not None:
                        self.awaiting.append(found)


class Deletions:
    """What is to be removed, each with the monotonic time from which on that may happen."""

    __slots__ = ("_directories", "_files", "_fs")

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._files: list[tuple[float, str]] = []
        self._directories: list[tuple[float, str]] = []

    def add_files(self, at_s: float, paths: Sequence[str]) -> None:
        """Remove these files from ``at_s`` on."""
        self._files.extend((at_s, path) for path in paths)

    def add_directory(self, at_s: float, path: str) -> None:
        """Remove this directory with all it holds from ``at_s`` on."""
        self._directories.append((at_s, path))

    def due(self, now_s: float) -> DeletionJob | None:
        """Take out what may go now; None when nothing may."""
        files = [path for at_s, path in self._files if at_s <= now_s]
        directories = [path for at_s, path in self._directories if at_s <= now_s]
        if not files and not directories:
            return None
        self._files = [item for item in self._files if item[0] > now_s]
        self._directories = [item for item in self._directories if item[0] > now_s]
        return DeletionJob(self._fs, files, directories)

    def __len__(self) -> int:
        return len(self._files) + len(self._directories)
