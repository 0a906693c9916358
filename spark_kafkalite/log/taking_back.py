"""Logs that await their topics (``awaiting_logs``), and how they come into use again when these appear.

A start finds them, and ``retiring`` adds those that it sets aside. Taking one back is a job (``TakeBackJob``) for a
thread, because the log is recovered as after a crash; the thread that owns the manager then takes up what was opened.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from spark_kafkalite.log.files.awaiting_logs import AWAITS_TOPIC_FILE, AwaitingLog
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.loading.loader import FoundLog
from spark_kafkalite.log.loading.recovery import LastRun
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import TopicPartition


class AwaitingLogs:
    """The logs that await their topics, by partition and topic id."""

    def __init__(self) -> None:
        self._logs: dict[tuple[TopicPartition, bytes], AwaitingLog] = {}

    def add(self, log: AwaitingLog) -> None:
        """Note a log."""
        self._logs[log.key, log.topic_id] = log

    def find(self, key: TopicPartition, topic_id: bytes) -> AwaitingLog | None:
        """Return the log that awaits this topic, None when there is none."""
        return self._logs.get((key, topic_id))

    def pop(self, key: TopicPartition, topic_id: bytes) -> AwaitingLog:
        """Return the log and forget it. KeyError when there is none."""
        return self._logs.pop((key, topic_id))


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
