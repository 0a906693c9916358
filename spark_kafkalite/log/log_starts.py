"""Moving log start offsets: written to the disk before they take effect.

Segments are removed, and records hidden, only after the checkpoint with the new start is on the disk: a log start
offset that a client has seen never goes back, whatever crashes. So a move has three steps: it is *promised*, the
checkpoint is written (in a thread: writing syncs), and then it is put into force. Before that checkpoint the one of
high watermarks is written, with at least the same offset. A start beyond both the high watermark and the log is damage.

A truncation, of a follower whose leader's log is another, may take a log start back, or begin the log again beyond it.
Then the checkpoint follows before the truncation returns: the start of the old log would hide, or at a start remove,
the new records. But it reaches the disk after the cut itself. The other way round, a power cut would show again what
the start has hidden. A crash in between leaves an empty log that begins at the checkpoint's offset.

Every log start above 0 is written, also where it is the name of the first segment (Kafka leaves those out). The renames
that take older segments away may be lost in a power cut, and the checkpoint must still show that they have gone.

The checkpoint alone would be no proof: Kafka's format has no checksum, and people edit it. So the same is written into
``kafkalite-log-starts`` first, with a checksum. What the checkpoint has beyond that did not come from this broker, and
removes nothing before another replica confirms it; see ``loading.log_start``.

One thread owns these objects; only ``LogStartJob.run`` and the writing of checkpoints may be called elsewhere (see
``offset_checkpoint``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.offset_checkpoint import OffsetCheckpoint
from spark_kafkalite.log.files.small_files import LOG_START_OFFSET_FILE, OWN_LOG_START_FILE, write_own_starts
from spark_kafkalite.log.loading.loader import FoundLog
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import TopicPartition


class LogStartCheckpoint(OffsetCheckpoint):
    """``log-start-offset-checkpoint`` of one log directory, and the broker's own copy of it."""

    __slots__ = ("_own_path", "_promised")

    def __init__(self, fs: Fs, directory: str) -> None:
        super().__init__(fs, f"{directory}/{LOG_START_OFFSET_FILE}", leaves_out_zero=True)
        self._own_path = f"{directory}/{OWN_LOG_START_FILE}"
        self._promised: dict[TopicPartition, int] = {}

    def set(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Have the next ``write`` write the starts of all logs, and what has been promised where that is larger."""
        promised = {key: max(start, offsets[key]) for key, start in self._promised.items() if key in offsets}
        super().set({**offsets, **promised})

    def promise(self, starts: Mapping[TopicPartition, int]) -> None:
        """Have the next ``write`` write these larger starts besides."""
        for key, offset in starts.items():
            self._promised[key] = max(offset, self._promised.get(key, 0))
        self._wanted = {**self._wanted, **self._promised}

    def settle(self, starts: Mapping[TopicPartition, int]) -> None:
        """Take promises back that are in force by now, or will never be."""
        for key, offset in starts.items():
            if self._promised.get(key, 0) <= offset:
                self._promised.pop(key, None)

    @property
    def has_own_copy(self) -> bool:
        """Whether the directory has the copy; a version that wrote none may have been the last to use it."""
        return self._fs.exists(self._own_path)

    def _replace(self, wanted: Mapping[TopicPartition, int]) -> None:
        # First: in a crash in between the checkpoint says no more than the copy.
        write_own_starts(self._fs, self._own_path, wanted)
        super()._replace(wanted)

    def start_of(self, key: TopicPartition) -> int:
        """Return what the next ``write`` writes of a log."""
        return self._wanted.get(key, 0)

    def begin_anew(self, key: TopicPartition, start: int) -> None:
        """Have the next ``write`` write this start of a log that has been truncated, whatever was promised."""
        self._promised.pop(key, None)
        super().set({**self._wanted, key: start})

    def forget(self, key: TopicPartition) -> None:
        """Drop a log that has been removed."""
        self.begin_anew(key, 0)


class LogStartJob:
    """Log starts on their way: the checkpoints to write, and which logs move where."""

    __slots__ = ("_high_watermarks", "errors", "generations", "moves")

    def __init__(
        self,
        moves: Mapping[LogStartCheckpoint, Mapping[PartitionLog, int]],
        high_watermarks: Mapping[LogStartCheckpoint, OffsetCheckpoint],
    ) -> None:
        self.moves = moves
        self._high_watermarks = high_watermarks
        # Of each log, to see whether it has been truncated meanwhile.
        self.generations = {log: log.local.generation for starts in moves.values() for log in starts}
        # What could not be written, and why.
        self.errors: dict[LogStartCheckpoint, OSError] = {}

    def run(self) -> None:
        """Write; may run in any thread. Never raises: ``errors`` is filled instead."""
        for checkpoint, moves in self.moves.items():
            disk = next(iter(moves)).disk
            try:
                # On a full disk too: removing segments is what makes room there.
                if checkpoint in self._high_watermarks:
                    disk.persist(self._high_watermarks[checkpoint].write)
                disk.persist(checkpoint.write)
            except OSError as error:
                self.errors[checkpoint] = error


class LogStarts:
    """Moves the log starts of a broker's logs."""

    def __init__(self, fs: Fs, log_dirs: Iterable[str]) -> None:
        # Has a directory's high watermarks be at least these offsets, and returns what is to be written for it.
        self.raise_high_watermarks: Callable[[str, Mapping[TopicPartition, int]], OffsetCheckpoint] | None = None
        self._checkpoints = {directory: LogStartCheckpoint(fs, directory) for directory in log_dirs}

    def promise(self, moves: Mapping[PartitionLog, int]) -> LogStartJob:
        """Begin to move logs to larger starts. The caller runs the job in a thread and then calls ``finish``."""
        by_checkpoint: dict[LogStartCheckpoint, dict[PartitionLog, int]] = {}
        for log, offset in moves.items():
            by_checkpoint.setdefault(self._checkpoint(log), {})[log] = offset
        for checkpoint, starts in by_checkpoint.items():
            checkpoint.promise(_by_name(starts))
        cover = {}
        if self.raise_high_watermarks is not None:
            cover = {
                checkpoint: self.raise_high_watermarks(checkpoint.path.rpartition("/")[0], _by_name(starts))
                for checkpoint, starts in by_checkpoint.items()
            }
        return LogStartJob(by_checkpoint, cover)

    def finish(self, job: LogStartJob) -> dict[PartitionLog, KafkaStorageError]:
        """Put the starts of a job into force; return the logs whose checkpoint could not be written.

        Logs that have been removed, truncated or have failed meanwhile stay as they are.
        """
        failed: dict[PartitionLog, KafkaStorageError] = {}
        for checkpoint, starts in job.moves.items():
            error = job.errors.get(checkpoint)
            for log, offset in starts.items():
                if error is not None:
                    failed[log] = KafkaStorageError(
                        f"{log.topic_partition}: the log start offset {offset} cannot be written to "
                        f"{checkpoint.path}: {error.strerror or error}"
                    )
                elif not log.closed and log.failure is None and log.local.generation == job.generations[log]:
                    log.advance_log_start(offset)
            # A truncation has taken the promise back; what is promised now is another job's.
            same = {log: offset for log, offset in starts.items() if log.local.generation == job.generations[log]}
            checkpoint.settle(_by_name(same))
        return failed

    def note_truncated(self, log: PartitionLog) -> Callable[[], None]:
        """Note where a log begins after a truncation; what is returned has the checkpoint follow, in any thread, and
        raises OSError when the disk fails."""
        checkpoint = self._checkpoint(log)
        if checkpoint.start_of(log.topic_partition) == log.log_start_offset:
            return lambda: None
        checkpoint.begin_anew(log.topic_partition, log.log_start_offset)

        def write() -> None:
            log.local.sync_truncation()
            log.disk.persist(checkpoint.write)

        return write

    def take_up(
        self,
        directory: str,
        logs: Mapping[TopicPartition, PartitionLog],
        unopened: Mapping[TopicPartition, FoundLog],
    ) -> LogStartCheckpoint:
        """Note the starts of the logs in a directory, open or not, which the next write would drop otherwise."""
        checkpoint = self._checkpoints[directory]
        closed = {key: found.last_run.log_start_offset for key, found in unopened.items()}
        checkpoint.set({**closed, **{key: int(log.log_start_offset) for key, log in logs.items()}})
        return checkpoint

    def begin(self, directory: str) -> None:
        """Write a directory's first own copy of the starts, unless it has one. OSError when the disk fails."""
        checkpoint = self._checkpoints[directory]
        if not checkpoint.has_own_copy:
            checkpoint.write()

    def forget(self, log: PartitionLog) -> None:
        """Drop a log that has been removed; the next write leaves it out."""
        self._checkpoint(log).forget(log.topic_partition)

    def _checkpoint(self, log: PartitionLog) -> LogStartCheckpoint:
        return self._checkpoints[log.directory.rpartition("/")[0]]


def _by_name(starts: Mapping[PartitionLog, int]) -> dict[TopicPartition, int]:
    return {log.topic_partition: offset for log, offset in starts.items()}
