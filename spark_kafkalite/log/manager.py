"""All logs of one broker: where they lie, how they are loaded, flushed, checkpointed, removed, and stopped.

A log directory (``log.dirs``) holds Kafka's names and nothing else of ours::

    .lock                              held (flock) while a broker uses the directory
    meta.properties                    whose directory this is
    .kafka_cleanshutdown               written last by an orderly stop; read and deleted before anything is loaded
    cleaner-offset-checkpoint          up to where each log has been compacted
    recovery-point-offset-checkpoint   from where each log must be scanned after a crash
    log-start-offset-checkpoint
    replication-offset-checkpoint      high watermarks; the broker gives and takes them
    TOPIC-PARTITION/                   one log
    TOPIC-PARTITION.HEX-delete/        a removed log, until file.delete.delay.ms has passed

The clean-shutdown marker counts only if it is read: it is deleted before the first log is opened, so that a crash while
loading is seen as a crash (KAFKA-10471). At a stop it is written after every log and checkpoint is on the disk.

``open`` (locks, identity) and ``load`` (the work) are separate, and ``load`` touches nothing but its own logs, so that
a broker can run it in a thread and listen meanwhile. Afterwards one thread owns the manager and its logs.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import ConfigError, InconsistentClusterId, KafkaStorageError, UnknownTopicOrPartition
from spark_kafkalite.log.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    META_FILE,
    RECOVERY_POINT_FILE,
    CheckpointError,
    read_meta,
    write_meta,
    write_offsets,
)
from spark_kafkalite.log.cleaner_checkpoint import CleanerCheckpoint
from spark_kafkalite.log.config import TopicConfig
from spark_kafkalite.log.deletions import DeletionJob, Deletions
from spark_kafkalite.log.fs import Fs, Lock, replace_file
from spark_kafkalite.log.loading import FoundLog, Loading, survey
from spark_kafkalite.log.log_starts import LogStarts
from spark_kafkalite.log.open_files import DEFAULT_CAPACITY, OpenFiles
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.swap import forget_swap
from spark_kafkalite.model import TopicPartition, topic_name_problem

logger = logging.getLogger(__name__)

_MAX_NAME_BYTES = 255
# With more logs to sync than this, the whole file system is synced at once: a sync of each of a thousand logs takes ten
# seconds, while syncing everything also waits for what others have written.
_SYNCED_ONE_BY_ONE = 32

ConfigOf = Callable[[str], TopicConfig]


class LogManager:
    """The logs in some log directories."""

    def __init__(
        self,
        fs: Fs,
        log_dirs: Iterable[str],
        clock: Clock,
        *,
        config_of: ConfigOf,
        producer_id_expiration_ms: int = 86_400_000,
        open_files: int = DEFAULT_CAPACITY,
    ) -> None:
        """``config_of`` gives a topic's configuration: its overrides over the broker's defaults."""
        self.fs = fs
        self.log_dirs = [directory.rstrip("/") or "/" for directory in log_dirs]
        if not self.log_dirs:
            raise ConfigError("log.dirs is empty: name at least one directory")
        self.logs: dict[TopicPartition, PartitionLog] = {}
        # Logs with records that are not synced; the only ones that flushing has to look at.
        self.dirty: set[PartitionLog] = set()
        # Whether all directories were left by an orderly stop; known after load.
        self.was_clean = True
        self._clock = clock
        self._config_of = config_of
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._files = OpenFiles(fs, open_files)
        self._locks: list[Lock] = []
        # The high watermarks as they are in the checkpoints.
        self._high_watermarks: dict[TopicPartition, int] = {}
        # Removed logs that the checkpoints still name; a new log of the same name must not inherit their offsets.
        self._stale_checkpoints: set[TopicPartition] = set()
        self._deletions = Deletions(fs)
        self._cleaner_checkpoints = {log_dir: CleanerCheckpoint(fs, log_dir) for log_dir in self.log_dirs}
        self._loading = Loading(clock)
        # How log starts move: see log_starts.
        self.log_starts = LogStarts(fs, self.log_dirs)
        self._closed = False

    # Start ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make and lock the directories. ConfigError when one is in use or cannot be made."""
        for directory in self.log_dirs:
            try:
                self._make_directory(directory)
                lock = self.fs.lock(f"{directory}/{LOCK_FILE}")
            except OSError as error:
                self._release_locks()
                raise ConfigError(f"log directory {directory}: {error.strerror or error}") from error
            if lock is None:
                self._release_locks()
                raise ConfigError(
                    f"log directory {directory} is in use by another broker process (it holds {LOCK_FILE}); "
                    "stop that one, or name another directory in log.dirs"
                )
            self._locks.append(lock)

    def _make_directory(self, directory: str) -> None:
        """Make a log directory whose name, and those of the parents it needed, survive a power loss."""
        missing = []
        path = directory
        while path and not self.fs.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        self.fs.make_directories(directory)
        for made in reversed(missing):
            self.fs.sync_directory(made.rpartition("/")[0] or ("/" if made.startswith("/") else "."))

    def claim(self, broker_id: int, cluster_id: str) -> None:
        """Check that the directories are this broker's and cluster's; write ``meta.properties`` where it is missing.

        ConfigError for another broker's, InconsistentClusterId for another cluster's.
        """
        for directory in self.log_dirs:
            path = f"{directory}/{META_FILE}"
            try:
                meta = read_meta(self.fs, path)
            except CheckpointError as error:
                raise ConfigError(str(error)) from error
            if meta is None:
                write_meta(self.fs, path, broker_id, cluster_id)
                continue
            found = meta.get("broker.id", meta.get("node.id", str(broker_id)))
            if found != str(broker_id):
                raise ConfigError(
                    f"log directory {directory} belongs to broker {found}, this is broker {broker_id}: "
                    f"set broker.id={found} or name another directory in log.dirs"
                )
            if meta.get("cluster.id", cluster_id) != cluster_id:
                raise InconsistentClusterId(
                    f"log directory {directory} holds data of cluster {meta['cluster.id']}, this broker joins "
                    f"{cluster_id}: name another directory in log.dirs, or connect to the other cluster's registry"
                )

    def load(self, threads_per_dir: int = 1) -> None:
        """Open every log, recovering those that a crash left, in up to ``threads_per_dir`` threads a directory.

        May run in a thread of its own before anything else of the manager is used; ``interrupt_load`` ends it early
        with LoadInterrupted, after which only ``abandon`` may follow. Raises KafkaStorageError naming the directory
        when the disk fails, ConfigError when two directories hold the same partition.
        """
        found: list[FoundLog] = []
        for log_dir in self.log_dirs:
            try:
                here = survey(self.fs, log_dir)
            except OSError as error:
                raise KafkaStorageError(f"log directory {log_dir}: {error.strerror or error}") from error
            found += here.logs
            self.was_clean &= here.clean
            self._high_watermarks.update(here.high_watermarks)
            for path in here.deleted:
                self._deletions.add_directory(self._clock.monotonic_s(), path)
        found.sort(key=lambda each: each.key)
        for one, other in pairwise(found):
            if one.key == other.key:
                raise ConfigError(f"partition {one.key} lies in {one.path} and in {other.path}: move one away")
        # With many logs to recover, all are synced at once in the end.
        unclean = {each.log_dir for each in found if not each.clean}
        sync_each = sum(not each.clean for each in found) <= _SYNCED_ONE_BY_ONE
        self._loading.open_all(found, lambda each: self._open_found(each, sync=sync_each), threads_per_dir)
        if unclean:
            if not sync_each:
                self._sync_everything(unclean)
            logger.info(
                "the last stop was not clean: %s; %d segments recovered, %d bytes cut",
                self._loading.describe(),
                sum(log.recovered_segments for log in self.logs.values()),
                sum(log.cut_bytes for log in self.logs.values()),
            )
            self.checkpoint()
        elif found:
            logger.info("loaded %s", self._loading.describe())
        self._end_swaps()

    def _end_swaps(self) -> None:
        """Say in the checkpoints how far interrupted cleanings, which loading has ended, have cleaned the logs."""
        swapped = [log for log in self.logs.values() if log.swapped_at_start]
        try:
            for log in swapped:
                self.cleaner_checkpoint(log).write()
            for log in swapped:
                forget_swap(self.fs, log.directory)
        except OSError as error:
            raise KafkaStorageError(
                f"cannot end an interrupted cleaning: {error.strerror or error} ({error.filename})"
            ) from error

    def interrupt_load(self) -> None:
        """Have ``load`` end soon. May be called from any thread, before ``load`` too."""
        self._loading.interrupt()

    def _open_found(self, found: FoundLog, *, sync: bool) -> None:
        try:
            self.logs[found.key] = PartitionLog.open(
                self._files,
                found.path,
                found.key,
                self._config_of(found.key.topic),
                self._clock,
                clean=found.clean,
                recovery_point=found.recovery_point,
                log_start_offset=found.log_start_offset,
                cleaned_until_offset=found.cleaned_until_offset,
                on_dirty=self.dirty.add,
                on_recovery_point_lowered=self._write_recovery_points,
                sync=sync,
                on_bytes=self._loading.on_bytes,
            )
        except OSError as error:
            raise KafkaStorageError(f"cannot open the log {found.path}: {error.strerror or error}") from error

    def _sync_everything(self, directories: Iterable[str]) -> None:
        for directory in directories:
            try:
                self.fs.sync_everything(directory)
            except OSError as error:
                raise KafkaStorageError(f"cannot sync {directory}: {error.strerror or error}") from error

    # Logs -----------------------------------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """Return a log, None when this broker has none of the partition."""
        return self.logs.get(topic_partition)

    def create(self, topic_partition: TopicPartition, topic_id: bytes | None) -> PartitionLog:
        """Make the log of a new partition, or return the one that is there with the same topic id.

        A log of another topic id is never touched: ConfigError (``set_aside`` it first). A log without takes this.
        KafkaStorageError when the disk fails.
        """
        log = self.logs.get(topic_partition)
        if log is None:
            problem = topic_name_problem(topic_partition.topic)
            if problem is not None:
                raise ConfigError(problem)
            if topic_partition in self._stale_checkpoints:
                self.checkpoint()
            directory = f"{self._emptiest()}/{topic_partition}"
            try:
                log = PartitionLog.create(
                    self._files,
                    directory,
                    topic_partition,
                    topic_id,
                    self._config_of(topic_partition.topic),
                    self._clock,
                    on_dirty=self.dirty.add,
                    on_recovery_point_lowered=self._write_recovery_points,
                )
            except OSError as error:
                raise KafkaStorageError(f"cannot make the log {directory}: {error.strerror or error}") from error
            self.logs[topic_partition] = log
        elif topic_id is not None and log.topic_id != topic_id:
            if log.topic_id is not None:
                raise ConfigError(f"{log.directory} belongs to an older topic of the same name")
            try:
                log.adopt_topic_id(topic_id)
            except OSError as error:
                raise KafkaStorageError(f"{log.directory}: {error.strerror or error}") from error
        return log

    def _emptiest(self) -> str:
        """Return the log directory with the fewest logs."""
        counts = dict.fromkeys(self.log_dirs, 0)
        for log in self.logs.values():
            counts[log.directory.rpartition("/")[0]] += 1
        return min(self.log_dirs, key=counts.__getitem__)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take a log out of use and rename its directory, which goes after ``file.delete.delay.ms``.

        UnknownTopicOrPartition (3) when there is none, KafkaStorageError (56) when it cannot be renamed.
        """
        log, path = self._retire(topic_partition, "delete")
        self._deletions.add_directory(self._clock.monotonic_s() + log.config.file_delete_delay_ms / 1000, path)

    def delete_files(self, log: PartitionLog, paths: Sequence[str]) -> None:
        """Have files that ``LocalLog.retire`` has renamed removed after the topic's ``file.delete.delay.ms``."""
        self._deletions.add_files(self._clock.monotonic_s() + log.config.file_delete_delay_ms / 1000, paths)

    def set_aside(self, topic_partition: TopicPartition) -> str:
        """Take a log out of use and keep its files, under a name that ends in ``-stray``; return that directory.

        For logs that belong to no topic any more, or to an older one of the same name.
        """
        return self._retire(topic_partition, "stray")[1]

    def _retire(self, topic_partition: TopicPartition, suffix: str) -> tuple[PartitionLog, str]:
        log = self.logs.get(topic_partition)
        if log is None:
            raise UnknownTopicOrPartition(f"there is no log of {topic_partition}")
        log.close(clean=False)
        tail = f".{uuid.uuid4().hex}-{suffix}"
        parent, _, name = log.directory.rpartition("/")
        target = f"{parent}/{name[: _MAX_NAME_BYTES - len(tail)]}{tail}"
        try:
            self.fs.rename(log.directory, target)
            self.fs.sync_directory(parent)
        except OSError as error:
            raise KafkaStorageError(f"cannot rename {log.directory}: {error.strerror or error}") from error
        del self.logs[topic_partition]
        self.dirty.discard(log)
        self._high_watermarks.pop(topic_partition, None)
        self.log_starts.forget(log)
        self._stale_checkpoints.add(topic_partition)
        return log, target

    def update_configs(self) -> None:
        """Ask for every topic's configuration again, after the broker's or a topic's settings have changed."""
        for key, log in self.logs.items():
            log.update_config(self._config_of(key.topic))

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """Return the checkpointed high watermark, None when there is none; the caller bounds it by the log's ends."""
        return self._high_watermarks.get(topic_partition)

    # Ticks ----------------------------------------------------------------------------------------------------------

    def due_flushes(self, now_s: float | None = None) -> list[PartitionLog]:
        """Return the logs to flush now: by ``flush.messages``, by ``flush.ms``, or because a segment has rolled.

        The caller runs ``start_flush``, ``FlushJob.run`` in a thread, ``finish_flush`` for each.
        """
        now = self._clock.monotonic_s() if now_s is None else now_s
        due, clean = [], []
        for log in self.dirty:
            if log.closed or log.failure is not None or not (log.unflushed_records or log.has_sealed_unflushed):
                clean.append(log)
            elif not log.flush_in_progress and (log.has_sealed_unflushed or log.flush_due(now)):
                due.append(log)
        self.dirty.difference_update(clean)
        return due

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Write the checkpoints of recovery points and log start offsets, and of high watermarks.

        High watermarks that are not given stay what they were. KafkaStorageError when the disk fails; the old
        checkpoints are then still there.
        """
        if high_watermarks is not None:
            self._high_watermarks = {key: offset for key, offset in high_watermarks.items() if key in self.logs}
        try:
            self._write_recovery_points()
            for directory, logs in self._logs_by_directory().items():
                self.log_starts.write(directory, logs)
                marks = {key: offset for key, offset in self._high_watermarks.items() if key in logs}
                write_offsets(self.fs, f"{directory}/{HIGH_WATERMARK_FILE}", marks)
        except OSError as error:
            raise KafkaStorageError(
                f"cannot write a checkpoint: {error.strerror or error} ({error.filename})"
            ) from error
        self._stale_checkpoints.clear()

    def _write_recovery_points(self) -> None:
        for directory, logs in self._logs_by_directory().items():
            points = {key: int(log.recovery_point) for key, log in logs.items()}
            write_offsets(self.fs, f"{directory}/{RECOVERY_POINT_FILE}", points)
            self._set_cleaner_offsets(directory, logs).write()

    def cleaner_checkpoint(self, log: PartitionLog) -> CleanerCheckpoint:
        """Return the checkpoint of cleaned logs in a log's directory, ready to be written, in a thread, with what the
        logs say now."""
        directory = log.directory.rpartition("/")[0]
        return self._set_cleaner_offsets(directory, self._logs_by_directory()[directory])

    def _set_cleaner_offsets(self, directory: str, logs: Mapping[TopicPartition, PartitionLog]) -> CleanerCheckpoint:
        checkpoint = self._cleaner_checkpoints[directory]
        checkpoint.set({key: log.cleaned_until_offset for key, log in logs.items()})
        return checkpoint

    def _logs_by_directory(self) -> dict[str, dict[TopicPartition, PartitionLog]]:
        by_directory: dict[str, dict[TopicPartition, PartitionLog]] = {directory: {} for directory in self.log_dirs}
        for key, log in self.logs.items():
            by_directory[log.directory.rpartition("/")[0]][key] = log
        return by_directory

    def due_deletions(self) -> DeletionJob | None:
        """Take out what ``delete`` and ``delete_files`` left and whose time has come; None when there is nothing.

        The caller runs the job in a thread. Cheap; about once a second.
        """
        return self._deletions.due(self._clock.monotonic_s())

    def tick(self) -> None:
        """Forget silent producers. Cheap; about once a minute."""
        for log in self.logs.values():
            log.expire_producers(self.producer_id_expiration_ms)

    # Stop -----------------------------------------------------------------------------------------------------------

    def shutdown(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Close every log and leave the clean-shutdown marker; without it where something could not be written.

        Blocks while logs are synced. Safe to call twice.
        """
        if self._closed:
            return
        self._closed = True
        failed = set()
        many = len(self.dirty) > _SYNCED_ONE_BY_ONE
        if many:
            try:
                for log in self.logs.values():
                    if log.failure is None:
                        log.write_small_files()
                self._sync_everything(self.log_dirs)
            except KafkaStorageError as error:
                logger.error("%s", error)
                many = False
        for log in self.logs.values():
            try:
                log.close(sync=not many)
            except KafkaStorageError as error:
                logger.error("%s", error)
            if log.failure is not None:
                failed.add(log.directory.rpartition("/")[0])
        try:
            self.checkpoint(high_watermarks)
            for directory in self.log_dirs:
                if directory in failed:
                    continue
                # The content is Kafka's: a version and a broker epoch, which says nothing here.
                marker = b'{"version":0,"brokerEpoch":-1}'
                replace_file(self.fs, f"{directory}/{CLEAN_SHUTDOWN_FILE}", marker)
        except (OSError, KafkaStorageError) as error:
            logger.error("the stop is not clean: %s", error)
        self._release_locks()

    def abandon(self) -> None:
        """Let go of everything as a crash would: nothing is synced or written."""
        self._closed = True
        for log in self.logs.values():
            log.close(clean=False)
        self._release_locks()

    def _release_locks(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()
