"""One flush of one log: which files are synced so that its records up to an offset are on the disk.

The log's owner makes a :class:`FlushJob` (``PartitionLog.start_flush``), any thread runs it, and the owner ends it
(``PartitionLog.finish_flush``). The end offset is taken before the sync begins: what is appended meanwhile may or may
not be covered, and is not counted. A job runs once; a sync that failed is never repeated, because the kernel has by
then marked the lost pages clean and would report success. Only a job that could not open a file to begin with may be
followed by another one for the same files.
"""

from __future__ import annotations

import contextlib
import errno

from spark_kafkalite.log.directories.disk import FailureKind, LogDirectory, kind_of
from spark_kafkalite.log.files.fs import File, Fs


class Unsynced:
    """What the next flush must sync: files, small files by name, and directories that gained or lost a name."""

    __slots__ = ("directories", "files", "paths")

    def __init__(self) -> None:
        self.files: list[File] = []
        self.paths: list[str] = []
        self.directories: list[str] = []

    def add_path(self, path: str) -> None:
        """Add a small file that was written, and the directory that names it."""
        self.paths.append(path)
        self.directories.append(path.rpartition("/")[0])

    def put_back(self, others: Unsynced) -> None:
        """Take what another one had to sync in front."""
        self.files[:0] = others.files
        self.paths[:0] = others.paths
        self.directories[:0] = others.directories


class SyncJob:
    """Files, small files and directories to sync, in this order; ``error`` holds what went wrong."""

    __slots__ = ("_disk", "_fs", "can_be_repeated", "error", "in_sync", "unsynced")

    def __init__(self, fs: Fs, disk: LogDirectory, unsynced: Unsynced) -> None:
        self._fs = fs
        self._disk = disk
        self.unsynced = unsynced
        self.error: OSError | None = None
        # Whether the error came before any sync failed: a file could not be opened, for want of descriptors or because
        # something else has its name.
        self.can_be_repeated = False
        # Whether a sync has begun and not come back.
        self.in_sync = False

    def run(self) -> None:
        """Sync everything; may run in any thread. Never raises: ``error`` is set instead."""
        if self._disk.hanging is not None:
            # It was found while the job waited for a thread, which would hang as well.
            self.error, self.can_be_repeated = OSError(errno.EAGAIN, "its disk does not answer"), True
            return
        try:
            for file in self.unsynced.files:
                self._sync(file)
            for path in dict.fromkeys(self.unsynced.paths):
                try:
                    self._sync(self._fs.open(path))
                except FileNotFoundError:
                    # Removed with its segment, or replaced, since the job was made.
                    continue
            for directory in dict.fromkeys(self.unsynced.directories):
                self.in_sync = True
                with contextlib.suppress(FileNotFoundError):
                    self._fs.sync_directory(directory)
                self.in_sync = False
        except OSError as error:
            self.error = error
            # No sync ends with these two.
            no_descriptor = error.errno in (errno.EMFILE, errno.ENFILE)
            self.can_be_repeated = no_descriptor or (not self.in_sync and kind_of(error) is FailureKind.REFUSED)
        except MemoryError as error:
            # Between two syncs it is repeated. In the middle of one nobody knows what came of that, so it has failed.
            self.error = OSError(str(error) or "out of memory")
            self.can_be_repeated = not self.in_sync

    def _sync(self, file: File) -> None:
        self.in_sync = True
        file.sync()
        self.in_sync = False


class FlushJob(SyncJob):
    """The sync after which the records of a log up to ``end_offset`` are on the disk."""

    __slots__ = ("end_offset", "generation", "started_s")

    def __init__(
        self, fs: Fs, disk: LogDirectory, unsynced: Unsynced, end_offset: int, generation: int, started_s: float
    ) -> None:
        super().__init__(fs, disk, unsynced)
        self.end_offset = end_offset
        # Which truncation of the log the job belongs to.
        self.generation = generation
        self.started_s = started_s
