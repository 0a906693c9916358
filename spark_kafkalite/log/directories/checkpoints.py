"""The offset checkpoints of all log directories: their contents, the threads that write them, and which logs they name.

In each directory lie four: recovery points, log starts, how far logs are cleaned, and high watermarks. The thread that
owns the logs notes their offsets (``start``, at once), any thread runs the :class:`CheckpointJob` (it syncs), and the
owner checks its errors (``finish``). Recovery points go first: they are the only ones that a later start pays for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.directories.disk import FailureKind, LogDirectory, kind_of
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.directories.unopened import Unopened
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.offset_checkpoint import OffsetCheckpoint
from spark_kafkalite.log.files.small_files import CLEANER_OFFSET_FILE, HIGH_WATERMARK_FILE, RECOVERY_POINT_FILE
from spark_kafkalite.log.log_starts import LogStarts
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import TopicPartition


class CheckpointJob:
    """Checkpoints to write, by directory; ``errors`` holds what went wrong, and where.

    ``removed`` are logs that the files named before and that what is written now leaves out, each with the removal that
    is meant.
    """

    __slots__ = ("_checkpoints", "errors", "removed")

    def __init__(
        self,
        checkpoints: Mapping[LogDirectory, Sequence[OffsetCheckpoint]],
        removed: Mapping[TopicPartition, object],
    ) -> None:
        self._checkpoints = checkpoints
        self.removed = removed
        self.errors: dict[LogDirectory, OSError] = {}

    def run(self) -> None:
        """Write; may run in any thread. Never raises OSError: ``errors`` is filled instead."""
        for disk, checkpoints in self._checkpoints.items():
            try:
                # On a full disk too, by way of the reserve.
                disk.persist(_writer_of(checkpoints))
            except OSError as error:
                self.errors[disk] = error


def _writer_of(checkpoints: Sequence[OffsetCheckpoint]) -> Callable[[], None]:
    def write() -> None:
        for checkpoint in checkpoints:
            checkpoint.write()

    return write


class Checkpoints:
    """The checkpoints of these logs, which are the manager's own mapping."""

    def __init__(
        self,
        fs: Fs,
        directories: LogDirectories,
        logs: Mapping[TopicPartition, PartitionLog],
        unopened: Unopened,
        log_starts: LogStarts,
    ) -> None:
        # The high watermarks as they are in the checkpoints.
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._fs = fs
        self._directories = directories
        self._logs = logs
        self._unopened = unopened
        self._log_starts = log_starts
        # Removed logs that the checkpoints still name; a new log of the same name must not inherit their offsets.
        self._removed: dict[TopicPartition, object] = {}
        self._recovery_points = self._files(RECOVERY_POINT_FILE)
        self._high_watermark_files = self._files(HIGH_WATERMARK_FILE)
        self._cleaned_offsets = self._files(CLEANER_OFFSET_FILE, leaves_out_zero=True)
        log_starts.raise_high_watermarks = self._raise_high_watermarks

    def _files(self, name: str, *, leaves_out_zero: bool = False) -> dict[str, OffsetCheckpoint]:
        return {
            disk.path: OffsetCheckpoint(self._fs, f"{disk.path}/{name}", leaves_out_zero=leaves_out_zero)
            for disk in self._directories
        }

    def name_removed(self, topic_partition: TopicPartition) -> bool:
        """Return whether the files still name a removed log of this partition."""
        return topic_partition in self._removed

    def forget(self, topic_partition: TopicPartition) -> None:
        """Leave a log that has been removed out of what is written next."""
        self.high_watermarks.pop(topic_partition, None)
        self._removed[topic_partition] = object()

    def start(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> CheckpointJob:
        """Note the contents of all checkpoints. The caller runs the job, in any thread, and then calls ``finish`` in
        its own. High watermarks that are not given stay as they were."""
        if high_watermarks is not None:
            closed = {key: offset for key, offset in self.high_watermarks.items() if key in self._unopened}
            known = {key: offset for key, offset in high_watermarks.items() if key in self._logs}
            self.high_watermarks = closed | known
        checkpoints = {}
        for path, logs in self.logs_by_directory().items():
            disk = self._directories[path]
            if disk.offline is None and disk.hanging is None:
                marks = self._high_watermark_files[path]
                unopened = self._unopened.in_directory(path)
                marks.set({key: at for key, at in self.high_watermarks.items() if key in logs or key in unopened})
                starts = self._log_starts.take_up(path, logs, unopened)
                checkpoints[disk] = (*self._set_recovery_points(path, logs), starts, marks)
        return CheckpointJob(checkpoints, dict(self._removed))

    def start_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> CheckpointJob:
        """As :meth:`start`, for the checkpoints of high watermarks alone."""
        self.high_watermarks.update((key, at) for key, at in high_watermarks.items() if key in self._logs)
        checkpoints = {}
        for path, logs in self.logs_by_directory().items():
            disk = self._directories[path]
            if disk.offline is None and disk.hanging is None:
                marks, unopened = self._high_watermark_files[path], self._unopened.in_directory(path)
                marks.set({key: at for key, at in self.high_watermarks.items() if key in logs or key in unopened})
                checkpoints[disk] = (marks,)
        return CheckpointJob(checkpoints, {})

    def finish(self, job: CheckpointJob, on_broken: Callable[[str, str], None]) -> None:
        """Handle the outcome of a job.

        ``on_broken`` is called with the path of a directory whose disk cannot be trusted, and why. KafkaStorageError
        when a directory's checkpoints could not be written: the old ones are then still there, and those of the other
        directories are new all the same.
        """
        problems = []
        for disk, error in job.errors.items():
            reason = f"cannot write the checkpoints in {disk.path}: {error.strerror or error} ({error.filename})"
            problems.append(reason)
            if kind_of(error) is FailureKind.BROKEN:
                on_broken(disk.path, reason)
        if problems:
            raise KafkaStorageError("; ".join(problems))
        for key, removal in job.removed.items():
            if self._removed.get(key) is removal:
                del self._removed[key]

    def _raise_high_watermarks(self, path: str, offsets: Mapping[TopicPartition, int]) -> OffsetCheckpoint:
        for key, offset in offsets.items():
            self.high_watermarks[key] = max(offset, self.high_watermarks.get(key, 0))
        marks, logs, unopened = self._high_watermark_files[path], self.logs_by_directory()[path], self._unopened
        here = logs.keys() | unopened.in_directory(path).keys()
        marks.set({key: at for key, at in self.high_watermarks.items() if key in here})
        return marks

    def note_recovery_points(self, path: str) -> Callable[[], None]:
        """Note what a truncation has lowered in one directory; what is returned writes it, in any thread. OSError comes
        out of that when the disk fails."""
        disk, write = (
            self._directories[path],
            _writer_of(self._set_recovery_points(path, self.logs_by_directory()[path])),
        )
        return lambda: disk.persist(write)

    def _set_recovery_points(
        self, path: str, logs: Mapping[TopicPartition, PartitionLog]
    ) -> tuple[OffsetCheckpoint, OffsetCheckpoint]:
        """Note the recovery points of a directory's logs, and how far they are cleaned, which goes back with them."""
        points = self._recovery_points[path]
        unopened = {key: found.last_run.recovery_point for key, found in self._unopened.in_directory(path).items()}
        points.set(unopened | {key: int(log.recovery_point) for key, log in logs.items()})
        return points, self._set_cleaned_offsets(path, logs)

    def cleaned_offsets(self, log: PartitionLog) -> OffsetCheckpoint:
        """Return the checkpoint of cleaned logs in a log's directory with the logs' present offsets, ready to be
        written in a thread."""
        return self._set_cleaned_offsets(log.disk.path, self.logs_by_directory()[log.disk.path])

    def _set_cleaned_offsets(self, path: str, logs: Mapping[TopicPartition, PartitionLog]) -> OffsetCheckpoint:
        checkpoint = self._cleaned_offsets[path]
        unopened = {
            key: found.last_run.cleaned_until_offset for key, found in self._unopened.in_directory(path).items()
        }
        checkpoint.set(unopened | {key: log.cleaned_until_offset for key, log in logs.items()})
        return checkpoint

    def logs_by_directory(self) -> dict[str, dict[TopicPartition, PartitionLog]]:
        """Return the logs of each log directory, none where there are none."""
        by_directory: dict[str, dict[TopicPartition, PartitionLog]] = {disk.path: {} for disk in self._directories}
        for key, log in self._logs.items():
            by_directory[log.disk.path][key] = log
        return by_directory
