"""Rule R21: the identity of a log, its topic's id in ``partition.metadata``, is on the disk before its first record.

A power loss may keep records that nothing has flushed, and lose a small file that was written before them. If all
replicas lose that file, no broker knows any more of which topic the records are. So the first append of a log waits
until the file, and the names that lead to it, are synced. A log that gets no record syncs nothing, so ten thousand new
partitions cost no sync. A log that a start finds after a crash may have been made just before, so its identity is
synced before the next append as well.

Source: UnifiedLog.maybeFlushMetadataFile, which Kafka calls before each append.
"""

from __future__ import annotations

import threading

from spark_kafkalite.log.directories.disk import LogDirectory
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.needs_thread import NeedsThread
from spark_kafkalite.log.files.small_files import PARTITION_METADATA_FILE
from spark_kafkalite.log.flush import SyncJob, Unsynced


class IdentitySync(NeedsThread):
    """Syncs the identity of one log, once, whichever threads are asked to do it."""

    syncs = True

    def __init__(self, job: SyncJob, directory: str) -> None:
        super().__init__(f"the identity of the log {directory} is not on the disk yet")
        self.job = job
        self.is_done = False
        self._lock = threading.Lock()

    def work(self) -> None:
        """Sync, or wait for the thread that does. The job has the outcome."""
        with self._lock:
            if not self.is_done:
                self.job.run()
                self.is_done = True


class LogIdentity:
    """Whether the identity of the log in ``directory`` is on the disk. One thread owns it, that of the log."""

    __slots__ = ("_directory", "_disk", "_fs", "_sync", "is_synced")

    def __init__(self, fs: Fs, disk: LogDirectory, directory: str) -> None:
        self._fs = fs
        self._disk = disk
        self._directory = directory
        self.is_synced = True
        # The sync that is to be run, or has been run and not been taken up.
        self._sync: IdentitySync | None = None

    def changed(self) -> None:
        """Note that the identity was written, or may have been written before a crash."""
        self.is_synced = False
        self._sync = None

    def add_to(self, unsynced: Unsynced) -> None:
        """Have a flush sync the identity, too."""
        unsynced.add_path(f"{self._directory}/{PARTITION_METADATA_FILE}")
        unsynced.directories.append(self._directory.rpartition("/")[0])

    def pending(self) -> IdentitySync | None:
        """Return what a thread has to run before the log takes appends; None when there is nothing, or it has run."""
        if self.is_synced:
            return None
        if self._sync is None:
            unsynced = Unsynced()
            self.add_to(unsynced)
            self._sync = IdentitySync(SyncJob(self._fs, self._disk, unsynced), self._directory)
        return None if self._sync.is_done else self._sync

    def take_up(self) -> SyncJob | None:
        """Return the job that has synced the identity, run in this thread where no other has; None where nothing was to
        be synced. After a job that can be repeated, the next one syncs."""
        pending = self.pending()
        if pending is not None:
            pending.work()
        if self._sync is None:
            return None
        job, self._sync = self._sync.job, None
        self.is_synced = job.error is None
        return job
