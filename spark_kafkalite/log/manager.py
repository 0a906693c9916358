"""All logs of one broker: where they are, how they are loaded, flushed, checkpointed, removed and closed.

A log directory (``log.dirs``) holds Kafka's names and no others of this project::

    .lock                              held (flock) while a broker uses the directory
    meta.properties                    whose directory this is, and which others there are (``siblings``)
    .kafka_cleanshutdown               written last by an orderly stop; read and deleted before anything is loaded
    cleaner-offset-checkpoint          up to where each log has been compacted
    recovery-point-offset-checkpoint   from where each log must be scanned after a crash
    log-start-offset-checkpoint
    replication-offset-checkpoint      high watermarks; the broker gives and takes them
    registry-zxid-checkpoint           how far the registry has come; the broker gives and takes it
    kafkalite-run                      which run of the broker has written here; see ``runs``
    kafkalite-log-starts               what we have written into log-start-offset-checkpoint; see ``log_starts``
    kafkalite-compared                 when logs were last compared with their leaders'; see ``small_files``
    TOPIC-PARTITION/                   one log
    TOPIC-PARTITION.HEX-delete/        a removed log, until file.delete.delay.ms has passed

The clean-shutdown marker counts only if it is read: it is deleted before the first log is opened, so that a crash while
loading is seen as a crash (KAFKA-10471). At a stop it is written after every log and checkpoint is on the disk.

A directory whose disk fails is offline: its logs fail with it, and loading, checkpoints and the stop skip it. The
others go on; the broker ends with the last one. Each of these steps documents what a full disk means for it; ``disk``
has the whole.

``open`` (locks, identity) and ``load`` (the work) are separate, and ``load`` touches nothing but its own logs, so that
a broker can run it in a thread and listen meanwhile. Afterwards one thread owns the manager and its logs.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from functools import partial

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import ConfigError, KafkaStorageError
from spark_kafkalite.log.directories.checkpoints import CheckpointJob, Checkpoints
from spark_kafkalite.log.directories.disk import FailureKind, LogDirectory, kind_of, text_of
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.directories.runs import Runs
from spark_kafkalite.log.directories.siblings import how_to_go_on
from spark_kafkalite.log.directories.unopened import LogLimit, Unopened
from spark_kafkalite.log.files.awaiting_logs import awaiting_in
from spark_kafkalite.log.files.deletions import DeletionJob, Deletions
from spark_kafkalite.log.files.fs import Fs, remove_tree, replace_file
from spark_kafkalite.log.files.log_files import LogRefused
from spark_kafkalite.log.files.open_files import DEFAULT_CAPACITY, OpenFiles
from spark_kafkalite.log.files.small_files import (
    CLEAN_SHUTDOWN_FILE,
)
from spark_kafkalite.log.loading.holes import StoppedLog, marker_text
from spark_kafkalite.log.loading.loader import (
    FoundLog,
    Loading,
    report_vanished,
    survey,
    without_doubles,
)
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.log_starts import LogStarts
from spark_kafkalite.log.making import MakeLogsJob
from spark_kafkalite.log.opening import Opening
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.producer_state import ProducerIdLimits
from spark_kafkalite.log.retiring import Retiring
from spark_kafkalite.log.segments.swap import Swap, forget_swap
from spark_kafkalite.log.strays import FateOf, StraysJob
from spark_kafkalite.log.taking_back import AwaitingLogs
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.log.truncation import truncate_fully
from spark_kafkalite.model import TopicPartition, topic_name_problem

logger = logging.getLogger(__name__)

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
        producer_limits: ProducerIdLimits | None = None,
        open_files: int = DEFAULT_CAPACITY,
        min_free_bytes: int = 0,
        reserve_bytes: int = 0,
        topic_id_of: Callable[[str], bytes | None] | None = None,
        log_limit: LogLimit | None = None,
        lost_directories: Collection[str] = (),
    ) -> None:
        """``config_of`` gives a topic's configuration: its overrides over the broker's defaults. ``min_free_bytes`` and
        ``reserve_bytes`` as ``disk.LogDirectory`` takes them. ``topic_id_of`` gives the id of a topic that exists;
        ``log_limit`` how many logs may be open; ``lost_directories`` as ``directories.LogDirectories`` takes them.
        """
        self.fs = fs
        self.log_dirs = [directory.rstrip("/") or "/" for directory in log_dirs]
        if not self.log_dirs:
            raise ConfigError("log.dirs is empty: name at least one directory")
        self.directories = LogDirectories(
            fs, self.log_dirs, min_free_bytes=min_free_bytes, reserve_bytes=reserve_bytes, lost=lost_directories
        )
        self.logs: dict[TopicPartition, PartitionLog] = {}
        # Called with its path when a directory goes offline after the start.
        self.on_offline: list[Callable[[str], None]] = []
        # Logs with records that are not synced; the only ones that flushing has to look at.
        self.dirty: set[PartitionLog] = set()
        # Whether all directories were left by an orderly stop; known after load.
        self.was_clean = True
        self._clock = clock
        self._config_of = config_of
        self.producer_limits = producer_limits if producer_limits is not None else ProducerIdLimits()
        self._files = OpenFiles(fs, open_files)
        self._topic_id_of = topic_id_of
        self._unopened = Unopened(log_limit)
        # Logs that the checkpoints name and whose directories are gone: the topic's id and where the log had ended.
        self._vanished: dict[TopicPartition, tuple[bytes | None, int]] = {}
        self._deletions = Deletions(fs)
        self._loading = Loading(clock)
        # How log starts move: see log_starts.
        self.log_starts = LogStarts(fs, self.log_dirs)
        self.checkpoints = Checkpoints(fs, self.directories, self.logs, self._unopened, self.log_starts)
        # Which earlier runs have lost nothing: see runs.
        self.runs = Runs(fs, self.directories, self.log_starts)
        self._opening = Opening(
            fs,
            self.logs,
            self._unopened,
            self.directories,
            checkpoints=self.checkpoints,
            config_of=config_of,
            make_host=self._make_host,
            on_disk_lost=self.runs.forget,
        )
        # Logs that were set aside until the registry has their topics again.
        self.awaiting = AwaitingLogs(fs, self.directories, self._opening)
        # How logs go out of use: see retiring.
        self.retiring = Retiring(
            fs,
            clock,
            self.logs,
            self._unopened,
            self.directories,
            checkpoints=self.checkpoints,
            log_starts=self.log_starts,
            deletions=self._deletions,
            config_of=config_of,
            awaiting=self.awaiting,
        )
        self._closed = False

    # Start ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make and lock the directories; see ``directories``."""
        self.directories.open()

    def claim(self, broker_id: int, cluster_id: str) -> None:
        """Check that the directories are this broker's and cluster's; see ``directories``."""
        self.directories.claim(broker_id, cluster_id)

    def load(self, threads_per_dir: int = 1) -> None:
        """Open every log, recovering those that a crash left, in up to ``threads_per_dir`` threads a directory.

        May run in a thread of its own before anything else of the manager is used; ``interrupt_load`` ends it early
        with LoadInterrupted, after which only ``abandon`` may follow. A directory whose disk fails is offline
        afterwards; a log for which there is no room or no descriptor is opened by ``create`` later. Raises
        KafkaStorageError when no directory is left, ConfigError when two directories hold the same partition.
        """
        found: list[FoundLog] = []
        misplaced: list[FoundLog] = []
        vanished: dict[TopicPartition, tuple[str, int, int]] = {}
        for directory in self.directories.online:
            try:
                here = survey(self.fs, directory.path)
            except OSError as error:
                is_sound = kind_of(error) is FailureKind.REFUSED
                directory.take_offline(f"cannot load it: {text_of(error)}", is_sound=is_sound)
                continue
            found += here.logs
            misplaced += here.misplaced
            self.was_clean &= here.clean
            self.runs.stopped_in_order &= here.marked
            self.checkpoints.high_watermarks.update(here.high_watermarks)
            vanished.update({key: (directory.path, *offsets) for key, offsets in here.vanished.items()})
            for path in here.deleted:
                self._deletions.add_directory(self._clock.monotonic_s(), path)
        keys = {each.key for each in found}
        # What no topic misses is somebody else's.
        found += [each for each in misplaced if each.key not in keys and self._may_exist(each.key.topic)]
        found.sort(key=lambda each: each.key)
        found = without_doubles(self.fs, found, self._topic_id_of)
        for key in sorted(vanished.keys() - {each.key for each in found}):
            # Without the topic nobody misses it.
            topic_id = self._topic_id_of(key.topic) if self._topic_id_of is not None else None
            if self._may_exist(key.topic):
                report_vanished(vanished[key][0], key, *vanished[key][1:])
                self._vanished[key] = topic_id, vanished[key][2]
        self._opening.identify(found, self._topic_id_of)
        found = self._unopened.within_limit(found)
        # With many logs to recover, all are synced at once in the end.
        unclean = {each.log_dir for each in found if not each.last_run.clean}
        sync_each = sum(not each.last_run.clean for each in found) <= _SYNCED_ONE_BY_ONE
        self._loading.open_all(found, lambda each: self._opening.open(each, sync=sync_each), threads_per_dir)
        for directory in self.directories.online:
            with contextlib.suppress(OSError):
                # What the disk's failure costs is found by those that open logs there.
                for awaiting in awaiting_in(self.fs, directory.path):
                    self.awaiting.add(awaiting)
        for log_dir, logs in self.checkpoints.logs_by_directory().items():
            self.log_starts.take_up(log_dir, logs, self._unopened.in_directory(log_dir))
        if unclean:
            if not sync_each:
                self._sync_everything(unclean)
            logger.info(
                "the last stop was not clean: %s; %d segments recovered, %d bytes cut",
                self._loading.describe(),
                sum(log.recovered_segments for log in self.logs.values()),
                sum(log.cut_bytes for log in self.logs.values()),
            )
            try:
                self.checkpoint()
            except KafkaStorageError as error:
                logger.warning("%s; the next start scans again what this one has scanned", error)
        elif found:
            logger.info("loaded %s", self._loading.describe())
        self._end_swaps()
        self.directories.check_any_online()
        for log in self.logs.values():
            if log.disk.offline is not None:
                log.local.fail(log.disk.offline)

    def _may_exist(self, topic: str) -> bool:
        return self._topic_id_of is None or self._topic_id_of(topic) is not None

    def _end_swaps(self) -> None:
        """Write into the checkpoints how far interrupted cleanings, which loading has ended, have cleaned the logs."""
        swapped = [log for log in self.logs.values() if log.swapped_at_start and log.disk.offline is None]
        for disk in self.directories.online:
            here = [log for log in swapped if log.disk is disk]
            if here:
                self._end_swaps_of(disk, here)

    def _end_swaps_of(self, disk: LogDirectory, swapped: Sequence[PartitionLog]) -> None:
        for log in swapped:
            log.swap = Swap.ended_at_start(self.fs, log)
        try:
            disk.persist(self.checkpoints.cleaned_offsets(swapped[0]).write)
            for log in swapped:
                forget_swap(self.fs, log.directory)
                log.swap = None
        except OSError as error:
            reason = f"cannot end an interrupted cleaning: {error.strerror or error} ({error.filename})"
            if kind_of(error) is FailureKind.BROKEN:
                disk.take_offline(reason)
            else:
                # The logs are whole; what says how far they have been cleaned stays until the broker's cleaner, or a
                # truncation, can end it.
                logger.warning("%s; it is tried again", reason)

    def not_whole(self) -> dict[TopicPartition, str]:
        """Return the logs that may lack what an earlier run had written, though it is proven, each with the reason."""
        found = {key: "lacks records, or has damage" for key, log in self.logs.items() if not log.was_whole}
        found |= dict.fromkeys(self._vanished, "is missing")
        return found | dict.fromkeys((each.key for each in self._unopened), "could not be opened")

    @property
    def remaining_logs(self) -> int:
        """How many logs a load that is under way has yet to open. May be called from any thread."""
        return self._loading.remaining

    def interrupt_load(self) -> None:
        """Have ``load`` end soon. May be called from any thread, before ``load`` too."""
        self._loading.interrupt()

    def _make_host(self, disk: LogDirectory) -> LogHost:
        return LogHost(
            self._files,
            self._clock,
            disk,
            self.producer_limits,
            on_dirty=self.dirty.add,
            note_recovery_points=partial(self.checkpoints.note_recovery_points, disk.path),
            note_truncated=self.log_starts.note_truncated,
            on_bytes=self._loading.on_bytes,
        )

    def _sync_everything(self, directories: Iterable[str]) -> None:
        for path in directories:
            try:
                if self.directories[path].offline is None:
                    self.fs.sync_everything(path)
            except OSError as error:
                self.fail_directory(path, f"cannot sync it: {error.strerror or error}")

    def fail_directory(self, path: str, reason: str) -> None:
        """Take a log directory and all its logs offline, because its disk cannot be trusted."""
        if not self.directories[path].take_offline(reason):
            return
        for log in self.logs.values():
            if log.disk.path == path:
                log.local.fail(reason)
        self.runs.forget()
        for listener in self.on_offline:
            listener(path)

    # Logs -----------------------------------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """Return a log, None when this broker has none of the partition."""
        return self.logs.get(topic_partition)

    def knows(self, topic_partition: TopicPartition) -> bool:
        """Return whether there is a log of the partition, opened or not, in a directory that is online."""
        return topic_partition in self.logs or topic_partition in self._unopened

    def directory_of(self, topic_partition: TopicPartition) -> str | None:
        """Return the log directory that has the log of the partition, opened or not, None when none has."""
        log = self.logs.get(topic_partition)
        if log is not None:
            return log.disk.path
        return self._unopened.found(topic_partition).log_dir if topic_partition in self._unopened else None

    def is_unreadable(self, topic_partition: TopicPartition) -> bool:
        """Return whether there is a log of the partition that cannot be read, on a disk that can be written."""
        return self._unopened.is_unreadable(topic_partition)

    def why_incomplete(self) -> str | None:
        """Return why not all logs that the directories hold are open, None when they are."""
        for directory in self.directories:
            if directory.offline is not None:
                return f"log directory {directory.path} is offline: {directory.offline}"
        for directory_id, path in self.directories.missing.items():
            return f"log directory {path} is missing ({how_to_go_on(directory_id)})"
        for found in self._unopened:
            return f"the log of {found.key} is not open: {self._unopened.reason(found.key)}"
        return None

    def create(self, topic_partition: TopicPartition, topic_id: bytes | None) -> PartitionLog:
        """Make the log of a new partition, or return the existing one with the same topic id.

        A log of another topic id is never touched: ConfigError (``retiring.set_aside`` it first). A log without takes
        this one. KafkaStorageError when the disk fails, or has no room, or as many logs are open as may be.
        """
        if topic_partition not in self.logs:
            self._unopened.check_limit(f"the log of {topic_partition}", len(self.logs))
        if topic_partition in self._unopened:
            self._opening.open(self._unopened.found(topic_partition), sync=True)
            if topic_partition in self._unopened:
                raise KafkaStorageError(self._unopened.reason(topic_partition))
        log = self.logs.get(topic_partition)
        if log is None:
            problem = topic_name_problem(topic_partition.topic)
            if problem is not None:
                raise ConfigError(problem)
            if self.checkpoints.name_removed(topic_partition):
                self.checkpoint()
            log = self._make(topic_partition, topic_id)
            self.logs[topic_partition] = log
        elif topic_id is not None and log.topic_id != topic_id:
            if log.topic_id is not None:
                raise ConfigError(f"{log.directory} belongs to an older topic of the same name")
            try:
                log.disk.persist(lambda: log.adopt_topic_id(topic_id))
            except OSError as error:
                raise KafkaStorageError(f"{log.directory}: {error.strerror or error}") from error
        return log

    def _make(self, topic_partition: TopicPartition, topic_id: bytes | None) -> PartitionLog:
        disk = self.directories.choose(self._logs_in_directories)
        directory = f"{disk.path}/{topic_partition}"

        was_topic_id, end_offset = self._vanished.get(topic_partition, (None, 0))

        new_log = self._new_log(disk, topic_partition, topic_id)

        def make_log() -> PartitionLog:
            log = new_log()
            if end_offset and was_topic_id in (None, topic_id):
                # Where the log that has vanished ended: an offset is never given twice.
                truncate_fully(log, end_offset)
                log.local.known_damage.add(0, end_offset)
                log.local.known_damage.write()
            return log

        try:
            log = disk.persist(make_log)
            self._vanished.pop(topic_partition, None)
            return log
        except LogRefused:
            # There was something of that name, which is not ours to remove.
            raise
        except OSError as error:
            reason = f"cannot create the log {directory}: {text_of(error)}"
            if kind_of(error) is FailureKind.BROKEN:
                self.fail_directory(disk.path, reason)
            # Another directory may get it next time; two of the same partition would keep the broker from starting.
            with contextlib.suppress(OSError):
                remove_tree(self.fs, directory)
            raise KafkaStorageError(f"{reason}; {disk.refusal}" if disk.refusal else reason) from error

    def _logs_in_directories(self) -> Counter[str]:
        return Counter(log.disk.path for log in self.logs.values())

    def start_making(self, wanted: Iterable[tuple[TopicPartition, bytes]]) -> MakeLogsJob:
        """Begin to make the logs of new partitions, given with their topic ids.

        The caller runs the job in a thread, and then calls ``finish_making`` in its own. Logs that ``create`` would
        not simply make are left to it.
        """
        counts: Counter[str] | None = None

        def counted() -> Counter[str]:
            nonlocal counts
            counts = self._logs_in_directories() if counts is None else counts
            return counts

        makes: list[Callable[[], PartitionLog]] = []
        for key, topic_id in wanted:
            is_known = self.knows(key) or key in self._vanished or self.checkpoints.name_removed(key)
            if is_known or topic_name_problem(key.topic) is not None:
                continue
            try:
                self._unopened.check_limit(key, len(self.logs) + len(makes))
                disk = self.directories.choose(counted)
            except KafkaStorageError:
                break
            if counts is not None:
                counts[disk.path] += 1
            makes.append(partial(disk.persist, self._new_log(disk, key, topic_id)))
        return MakeLogsJob(makes)

    def _new_log(self, disk: LogDirectory, key: TopicPartition, topic_id: bytes | None) -> Callable[[], PartitionLog]:
        host, config = self._opening.host_of(disk), self._config_of(key.topic)
        return partial(PartitionLog.create, host, f"{disk.path}/{key}", key, topic_id, config)

    def finish_making(self, job: MakeLogsJob) -> list[PartitionLog]:
        """Take up the logs that a job has made, and return them."""
        for log in job.made:
            self.logs[log.topic_partition] = log
            if log.disk.offline is not None:
                log.local.fail(log.disk.offline)
            # The settings may have changed meanwhile.
            log.update_config(self._config_of(log.topic_partition.topic))
        return job.made

    def delete_files(self, log: PartitionLog, paths: Sequence[str]) -> None:
        """Have files that ``LocalLog.retire`` has renamed removed after the topic's ``file.delete.delay.ms``."""
        self._deletions.add_files(self._clock.monotonic_s() + log.config.file_delete_delay_ms / 1000, paths)

    def update_configs(self) -> None:
        """Ask for every topic's configuration again, after the broker's or a topic's settings have changed."""
        for key, log in self.logs.items():
            log.update_config(self._config_of(key.topic))

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """Return the checkpointed high watermark, None when there is none; the caller bounds it by the log's ends."""
        return self.checkpoints.high_watermarks.get(topic_partition)

    # Ticks ----------------------------------------------------------------------------------------------------------

    def due_flushes(self) -> list[PartitionLog]:
        """Return the logs to flush now: by ``flush.messages``, by ``flush.ms``, or because a segment has rolled.

        The caller runs ``start_flush``, ``FlushJob.run`` in a thread, ``finish_flush`` for each.
        """
        now_s = self._clock.monotonic_s()
        due, clean = [], []
        for log in self.dirty:
            local = log.local
            if not local.is_usable or not (local.unflushed_records or local.has_sealed_unflushed):
                clean.append(log)
            elif not local.flush_in_progress and (local.has_sealed_unflushed or local.flush_due(now_s)):
                due.append(log)
        self.dirty.difference_update(clean)
        return due

    def finish_checkpoint(self, job: CheckpointJob) -> None:
        """Handle the outcome of a job of ``checkpoints``; raises what ``Checkpoints.finish`` does."""
        self.checkpoints.finish(job, self.fail_directory)

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Write the checkpoints now, in this thread. Raises what ``Checkpoints.finish`` does."""
        job = self.checkpoints.start(high_watermarks)
        job.run()
        self.finish_checkpoint(job)

    def due_deletions(self) -> DeletionJob | None:
        """Take out what ``retiring`` and ``delete_files`` left and whose time has come; None when there is nothing.

        The caller runs the job in a thread. Cheap; about once a second.
        """
        return self._deletions.due(self._clock.monotonic_s())

    def look_at_strays(self, retention_ms: int, fate_of: FateOf) -> StraysJob:
        """Return the job that removes logs that were set aside (see ``StraysJob``); the caller runs it in a thread."""
        online = [disk.path for disk in self.directories.online]
        return StraysJob(self.fs, online, self._clock.wall_ms(), retention_ms, fate_of)

    def expire_producers(self) -> Generator[None, None, None]:
        """Forget silent producers, in slices of a loop (``slices``); about once a minute."""
        for log in list(self.logs.values()):
            if not log.closed:
                yield from log.expire_producers()
            yield

    # Stop -----------------------------------------------------------------------------------------------------------

    def shutdown(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Close every log and leave the clean-shutdown marker; without it where something could not be written.

        Blocks while logs are synced. Safe to call twice.
        """
        if self._closed:
            return
        self._closed = True
        failed = set()
        logs = [log for log in self.logs.values() if log.disk.offline is None]
        many = False
        try:
            for log in logs:
                if log.failure is None:
                    log.write_small_files()
            # Not only what was appended to: after a recovery every log has an index and a snapshot to sync.
            many = sum(log.local.has_unsynced for log in logs) > _SYNCED_ONE_BY_ONE
            if many:
                self._sync_everything(self.log_dirs)
        except KafkaStorageError as error:
            logger.error("%s", error)
            many = False
        for log in logs:
            try:
                log.close(sync=not many)
            except KafkaStorageError as error:
                logger.error("%s", error)
                failed.add(log.disk.path)
            if log.failure is not None:
                failed.add(log.disk.path)
        try:
            self.checkpoint(high_watermarks)
        except KafkaStorageError as error:
            logger.error("the stop is not clean: %s", error)
            # The next clean start takes the recovery points for the logs' ends.
            failed.update(disk.path for disk in self.directories)
        logs_by_directory = self.checkpoints.logs_by_directory()
        for disk in self.directories.online:
            # A log that could not be opened has not been recovered either.
            if disk.path in failed or self._unopened.in_directory(disk.path):
                continue
            here = logs_by_directory[disk.path].values()
            stopped = {
                str(log.topic_partition): StoppedLog(log.segments.sizes(), log.last_record_epoch) for log in here
            }
            marker = marker_text(stopped)
            try:
                disk.persist(partial(replace_file, self.fs, f"{disk.path}/{CLEAN_SHUTDOWN_FILE}", marker))
            except OSError as error:
                logger.error("the stop is not clean in %s: %s", disk.path, error.strerror or error)
        self._close_rest()

    def _close_rest(self) -> None:
        for log in self.logs.values():
            log.close(clean=False)
        self.directories.release_locks()

    def abandon(self) -> None:
        """Let go of everything as a crash would: nothing is synced or written."""
        self._closed = True
        self._close_rest()
