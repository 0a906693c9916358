"""How the manager's logs come into use: what a log directory gives each of them, and what it means that one cannot be
opened.

A log for which there is no room or no descriptor stays among the unopened ones, and is tried again; so does one that a
bad sector is in, while its disk can be written. Any other failure of the disk takes its directory offline. A log of
another topic than its directory's name is set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.log.directories.checkpoints import Checkpoints
from spark_kafkalite.log.directories.disk import FailureKind, LogDirectory, kind_of, text_of
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.directories.unopened import Unopened
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.loading.loader import FoundLog, Identities
from spark_kafkalite.log.log_host import LogHost
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import TopicPartition


class Opening:
    """Puts logs into ``logs``, or into ``unopened``."""

    def __init__(
        self,
        fs: Fs,
        logs: dict[TopicPartition, PartitionLog],
        unopened: Unopened,
        directories: LogDirectories,
        *,
        checkpoints: Checkpoints,
        config_of: Callable[[str], TopicConfig],
        make_host: Callable[[LogDirectory], LogHost],
        on_disk_lost: Callable[[], None],
    ) -> None:
        """``make_host`` gives what the logs of a directory share; ``on_disk_lost`` is called when a disk has failed."""
        self._fs = fs
        self._logs = logs
        self._unopened = unopened
        self._directories = directories
        self._checkpoints = checkpoints
        self._config_of = config_of
        self._make_host = make_host
        self._on_disk_lost = on_disk_lost
        self._hosts: dict[str, LogHost] = {}
        self._identities = Identities(fs, ())

    def identify(self, found: Iterable[FoundLog], topic_id_of: Callable[[str], bytes | None] | None) -> None:
        """Believe the topic ids in the files of these logs, which a start has found."""
        self._identities = Identities(self._fs, list(found), topic_id_of)

    def host_of(self, disk: LogDirectory) -> LogHost:
        """Return what all logs of a directory share."""
        host = self._hosts.get(disk.path)
        if host is None:
            host = self._hosts[disk.path] = self._make_host(disk)
        return host

    def open(self, found: FoundLog, *, sync: bool) -> None:
        """Open a log that a start has found, unless its directory is offline."""
        if self._directories[found.log_dir].offline is None:
            self.take_up(found, lambda: self._open_own(found, sync=sync))

    def _open_own(self, found: FoundLog, *, sync: bool) -> PartitionLog | None:
        """Open a log, or set it aside when it is that of another topic; then return None."""
        metadata = self._identities.metadata_in(found)
        if not self._identities.is_foreign(found, metadata):
            return self.open_as(found, None if metadata is None else metadata.topic_id, sync=sync)
        self._identities.set_aside(found)
        self._checkpoints.forget(found.key)
        return None

    def open_as(self, found: FoundLog, topic_id: bytes | None, *, sync: bool) -> PartitionLog:
        """Open a log, recovered where that is needed, as that of this topic; :meth:`take_up` is to follow. Raises what
        the disk does. In any thread."""
        disk = self._directories[found.log_dir]
        host, config = self.host_of(disk), self._config_of(found.key.topic)
        # Recovery writes indexes and snapshots, and can begin again from any state that it has left.
        return disk.persist(
            lambda: PartitionLog.open(host, found.path, found.key, topic_id, config, found.last_run, sync=sync)
        )

    def take_up(self, found: FoundLog, opened: Callable[[], PartitionLog | None]) -> None:
        """Take up the log that ``opened`` returns, or what it raises."""
        disk = self._directories[found.log_dir]
        try:
            log = opened()
            if log is not None:
                self._logs[found.key] = log
            self._unopened.discard(found.key)
        except KafkaStorageError as error:
            self._unopened.add(found, str(error))
        except OSError as error:
            reason = f"cannot open the log {found.path}: {text_of(error)}"
            if kind_of(error) is not FailureKind.BROKEN:
                self._unopened.add(found, f"{reason}; it is tried again from time to time")
            elif _is_writable(disk):
                # A bad sector concerns the log that has it, not the others on the disk.
                advice = (
                    "the rest of the disk can be written, and the log is tried again from time to time; where another "
                    "broker leads it is copied again; check the disk"
                )
                self._unopened.add(found, f"{reason}; {advice}", is_unreadable=True)
            else:
                disk.take_offline(reason)
                self._on_disk_lost()


def _is_writable(disk: LogDirectory) -> bool:
    try:
        disk.probe()
    except OSError:
        return False
    return True
