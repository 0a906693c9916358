"""Logs that await their topics (``awaiting_logs``), and how they come into use again when these appear.

A start finds them, and ``retiring`` adds those that it sets aside. Taking one back is a job (``TakeBackJob``) for a
thread, because the log is recovered as after a crash; the thread that owns the manager then takes up what was opened.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.files.awaiting_logs import AWAITS_TOPIC_FILE, AwaitingLog
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.loading.loaded_log import LastRun
from spark_kafkalite.log.loading.loader import FoundLog
from spark_kafkalite.log.opening import Opening
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import TopicPartition


class AwaitingLogs:
    """The logs that await their topics, by partition and topic id."""

    def __init__(self, fs: Fs, directories: LogDirectories, opening: Opening) -> None:
        self._fs = fs
        self._directories = directories
        self._opening = opening
        self._logs: dict[tuple[TopicPartition, bytes], AwaitingLog] = {}

    def add(self, log: AwaitingLog) -> None:
        """Note a log."""
        self._logs[log.key, log.topic_id] = log

    def has(self, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether a log of this topic is set aside until the registry has the topic again."""
        return (topic_partition, topic_id) in self._logs

    def start_taking_back(self, topic_partition: TopicPartition, topic_id: bytes) -> TakeBackJob | None:
        """Begin to use a log again that awaits its topic; None where it was removed. Raises KafkaStorageError while its
        directory is offline.

        The caller runs the job in a thread, and then calls ``finish_taking_back`` in its own.
        """
        awaiting = self._logs[topic_partition, topic_id]
        if (reason := self._directories[awaiting.log_dir].offline) is not None:
            raise KafkaStorageError(f"{awaiting.path} cannot be used again: {reason}")
        del self._logs[topic_partition, topic_id]
        if not self._fs.exists(awaiting.path):
            return None
        return TakeBackJob(self._fs, awaiting, lambda found: self._opening.open_as(found, topic_id, sync=True))

    def finish_taking_back(self, job: TakeBackJob) -> None:
        """Have the log that was taken back among the others, or among those that could not be opened."""
        if job.opened.done():
            self._opening.take_up(job.found, job.opened.result)
        else:
            self.add(job.awaiting)


class TakeBackJob:
    """Gives the directory of a log its name back, and opens the log. ``run`` may be called in any thread."""

    def __init__(self, fs: Fs, awaiting: AwaitingLog, open_log: Callable[[FoundLog], PartitionLog]) -> None:
        self._fs = fs
        self._open_log = open_log
        self.awaiting = awaiting
        start = awaiting.log_start_offset
        last_run = LastRun(clean=False, log_start_offset=start, said_start_offset=start)
        self.found = FoundLog(awaiting.key, awaiting.log_dir, str(awaiting.key), last_run)
        # The log, or what went wrong; not done where the directory has not got its name back.
        self.opened: Future[PartitionLog] = Future()

    def run(self) -> None:
        """Do it. OSError when the directory cannot be renamed."""
        self._fs.rename(self.awaiting.path, self.found.path)
        self._fs.sync_directory(self.awaiting.log_dir)
        try:
            log = self._open_log(self.found)
            self._fs.unlink(f"{self.found.path}/{AWAITS_TOPIC_FILE}")
            self.opened.set_result(log)
        except Exception as error:
            self.opened.set_exception(error)
