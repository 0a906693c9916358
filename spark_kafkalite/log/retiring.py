"""How logs go out of use: those that are deleted, and those that are set aside because no topic owns them.

The directory of a log is renamed, to a name that ends in ``-delete`` or in ``-stray``. A deleted one goes after
``file.delete.delay.ms``; one that is set aside stays for an operator to inspect. Renaming is a job (``RetireJob``) for
a thread; the thread that owns the manager does what goes before and after it. From the beginning of its job on a log
belongs to no table; it comes back when its directory could not be renamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import KafkaStorageError, UnknownTopicOrPartition
from spark_kafkalite.log.directories.checkpoints import Checkpoints
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.directories.unopened import Unopened
from spark_kafkalite.log.files.deletions import Deletions, Retired, RetireJob
from spark_kafkalite.log.files.file_kind import Kind
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import PARTITION_METADATA_FILE, CheckpointError, read_topic_id
from spark_kafkalite.log.loading.loader import FoundLog, name_out_of_use
from spark_kafkalite.log.log_starts import LogStarts
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.taking_back import AwaitingLogs
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition


class Retiring:
    """Takes logs out of ``logs`` and ``unopened``, and their offsets out of the checkpoints."""

    def __init__(
        self,
        fs: Fs,
        clock: Clock,
        logs: dict[TopicPartition, PartitionLog],
        unopened: Unopened,
        directories: LogDirectories,
        *,
        checkpoints: Checkpoints,
        log_starts: LogStarts,
        deletions: Deletions,
        config_of: Callable[[str], TopicConfig],
        awaiting: AwaitingLogs,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._logs = logs
        self._unopened = unopened
        self._directories = directories
        self._checkpoints = checkpoints
        self._log_starts = log_starts
        self._deletions = deletions
        self._config_of = config_of
        self._awaiting = awaiting

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take a log out of use and rename its directory, which goes after ``file.delete.delay.ms``.

        UnknownTopicOrPartition (3) when there is none, KafkaStorageError (56) when it cannot be renamed.
        """
        job = self.start_deletion([topic_partition])
        job.run()
        for error in self.finish(job):
            raise error

    def start_deletion(
        self, topic_partitions: Iterable[TopicPartition], unopened: Mapping[TopicPartition, bytes] | None = None
    ) -> RetireJob:
        """Take logs out of use. The caller runs the job, in any thread, and then calls :meth:`finish` in its own;
        none of the partitions may get a log meanwhile. UnknownTopicOrPartition (3) when one has none.

        ``unopened`` may have logs that could not be opened, too, each with the id of its topic; those of another topic
        are set aside.
        """
        retired = [self._take_out(key, "delete") for key in topic_partitions]
        return RetireJob(self._fs, retired + self._take_out_unopened(unopened or {}))

    def set_aside(self, topic_partition: TopicPartition, *, awaits_topic: bool = False) -> str:
        """Take a log out of use and keep its files, under a name that ends in ``-stray``; return that directory.

        For logs that belong to no topic any more, or to an older one of the same name, and for such as cannot be
        opened. ``awaits_topic`` as in :meth:`start_setting_aside`. Raises what ``delete`` does.
        """
        is_open = topic_partition not in self._unopened
        keys = ([topic_partition], ()) if is_open else ((), [topic_partition])
        job = self.start_setting_aside(*keys, awaits_topic=awaits_topic)
        job.run()
        for error in self.finish(job):
            raise error
        # Without its disk its files cannot be reached. When they can be, a start finds that no topic owns them.
        return job.renamed[0].target if job.renamed else job.logs[0].directory

    def start_setting_aside(
        self,
        topic_partitions: Iterable[TopicPartition],
        unopened: Iterable[TopicPartition] = (),
        *,
        awaits_topic: bool = False,
    ) -> RetireJob:
        """Begin to set logs aside; as :meth:`start_deletion`. ``awaits_topic``: because the registry does not have
        their topics, so that they are used again when it has them again."""
        retired = [self._take_out(key, "stray") for key in topic_partitions]
        retired += self._take_out_unopened(dict.fromkeys(unopened))
        return RetireJob(self._fs, retired, awaits_topic=awaits_topic)

    def _take_out(self, topic_partition: TopicPartition, suffix: str) -> Retired:
        log = self._logs.pop(topic_partition, None)
        if log is None:
            raise UnknownTopicOrPartition(f"there is no log of {topic_partition}")
        log.close(clean=False)
        return Retired(topic_partition, log, log.disk, log.directory, name_out_of_use(log.directory, suffix))

    def _take_out_unopened(self, topic_ids: Mapping[TopicPartition, bytes | None]) -> list[Retired]:
        """Those of a topic of another id than that are set aside; None: whichever it has."""
        retired = []
        for topic_partition, topic_id in topic_ids.items():
            found = self._unopened.discard(topic_partition)
            if found is not None:
                is_deleted = topic_id is not None and self._may_be_of(found, topic_id)
                target = name_out_of_use(found.path, "delete" if is_deleted else "stray")
                disk = self._directories[found.log_dir]
                retired.append(Retired(topic_partition, found, disk, found.path, target))
        return retired

    def _may_be_of(self, found: FoundLog, topic_id: bytes) -> bool:
        try:
            known = read_topic_id(self._fs, f"{found.path}/{PARTITION_METADATA_FILE}")
            return known in (None, topic_id) and self._fs.kind(found.path) is Kind.DIRECTORY
        except (CheckpointError, OSError):
            return False

    def finish(self, job: RetireJob) -> list[KafkaStorageError]:
        """Take up what a job has done: what is deleted goes after ``file.delete.delay.ms``. Return what could not be
        renamed."""
        for awaiting in job.awaiting:
            self._awaiting.add(awaiting)
        for key, log, _, _, target in job.renamed:
            if target.endswith("-delete"):
                config = self._config_of(key.topic) if isinstance(log, FoundLog) else log.config
                self._deletions.add_directory(self._clock.monotonic_s() + config.file_delete_delay_ms / 1000, target)
        problems = []
        for key, log, _, directory, _ in job.logs:
            error = job.failed.get(directory)
            if error is not None:
                problem = f"cannot rename {directory}: {error.strerror or error}"
                problems.append(KafkaStorageError(problem))
                if isinstance(log, FoundLog):
                    self._unopened.add(log, problem)
                else:
                    self._logs.setdefault(key, log)
            else:
                if not isinstance(log, FoundLog):
                    self._log_starts.forget(log)
                self._checkpoints.forget(key)
        return problems
