"""A flush of one log: what must be synced for a stretch of offsets to be on the disk.

The log's owner makes a :class:`FlushJob` (``PartitionLog.start_flush``), any thread runs it, and the owner ends it
(``PartitionLog.finish_flush``). The end offset is taken before the sync begins: what is appended meanwhile may or may
not be covered, and is not counted. A job runs once; a sync that failed is never repeated, because the kernel has by
then marked the lost pages clean and would report success.
"""

from __future__ import annotations

from spark_kafkalite.log.fs import File, Fs


class FlushJob:
    """Files, small files and directories to sync, in this order; ``error`` holds what went wrong."""

    __slots__ = ("_directories", "_files", "_fs", "_paths", "end_offset", "error", "generation", "started_s")

    def __init__(
        self,
        fs: Fs,
        files: list[File],
        paths: list[str],
        directories: list[str],
        end_offset: int,
        generation: int,
        started_s: float,
    ) -> None:
        self._fs = fs
        self._files = files
        self._paths = paths
        self._directories = directories
        self.end_offset = end_offset
        # Which truncation of the log the job belongs to.
        self.generation = generation
        self.started_s = started_s
        self.error: OSError | None = None

    def run(self) -> None:
        """Sync everything; may run in any thread. Never raises: ``error`` is set instead."""
        try:
            for file in self._files:
                file.sync()
            for path in self._paths:
                try:
                    self._fs.open(path).sync()
                except FileNotFoundError:
                    # Removed with its segment, or replaced, since the job was made.
                    continue
            for directory in self._directories:
                try:
                    self._fs.sync_directory(directory)
                except FileNotFoundError:
                    continue
        except OSError as error:
            self.error = error
