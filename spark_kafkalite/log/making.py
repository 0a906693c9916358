"""Makes the logs of new partitions in a thread, some hundred in a row.

A log takes a directory and two files, and on a busy disk each of them waits for the file system; the loop serves
requests meanwhile. Several threads would wait for each other: for the interpreter, and for the one directory that all
logs are made in. Four take half as much processor time again as one, and make no log sooner.
``LogManager.start_making`` makes the job, and ``LogManager.finish_making`` takes up what it has made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.partition_log import PartitionLog


class MakeLogsJob:
    """Makes some logs. ``run`` may be called in any thread."""

    def __init__(self, makes: Sequence[Callable[[], PartitionLog]]) -> None:
        self._makes = makes
        self.made: list[PartitionLog] = []

    def run(self) -> None:
        """Make the logs. The first failure ends it without an error: ``LogManager.create`` meets it again, and reports
        it."""
        for make in self._makes:
            try:
                self.made.append(make())
            except (OSError, KafkaStorageError):
                return
