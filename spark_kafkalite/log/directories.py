"""The log directories of one broker: made, locked, claimed, and which of them can be used.

A directory that cannot be made, locked or read, or does not say whose it is because its ``meta.properties`` is damaged,
is offline, and the broker works with the others; when none is left it cannot start. One that another process holds, or
that belongs to another broker or cluster, or to Apache Kafka with its own metadata (KRaft), is a mistake in the
settings and always an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from spark_kafkalite.errors import ConfigError, InconsistentClusterId, KafkaStorageError
from spark_kafkalite.log.checkpoint import LOCK_FILE, META_FILE, CheckpointError, read_meta, write_meta
from spark_kafkalite.log.disk import REPAIR_DISK, FailureKind, LogDirectory, kind_of, text_of
from spark_kafkalite.log.fs import Fs, Lock


class LogDirectories:
    """All of ``log.dirs``, by path."""

    def __init__(self, fs: Fs, paths: Iterable[str], *, min_free_bytes: int = 0, reserve_bytes: int = 0) -> None:
        self._fs = fs
        self._by_path = {
            path: LogDirectory(fs, path, min_free_bytes=min_free_bytes, reserve_bytes=reserve_bytes) for path in paths
        }
        self._locks: list[Lock] = []

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._by_path.values())

    def __getitem__(self, path: str) -> LogDirectory:
        return self._by_path[path]

    @property
    def online(self) -> list[LogDirectory]:
        """The directories that are in use."""
        return [directory for directory in self if directory.offline is None]

    def check_any_online(self) -> None:
        """Raise KafkaStorageError when every directory is offline."""
        if not self.online:
            reasons = "; ".join(f"{directory.path}: {directory.offline}" for directory in self)
            (remedy, *others) = {directory.remedy for directory in self}
            remedy = "repair or replace the disks" if others or remedy == REPAIR_DISK else remedy
            raise KafkaStorageError(
                f"no log directory can be used: {reasons}; {remedy}, or name other directories in log.dirs, and start "
                "the broker again"
            )

    def open(self) -> None:
        """Make and lock the directories. ConfigError when one is in use or Apache Kafka's, or none can be used."""
        for directory in self:
            try:
                self._make(directory.path)
                lock = self._fs.lock(f"{directory.path}/{LOCK_FILE}")
                directory.find_reserve()
            except OSError as error:
                directory.take_offline(text_of(error), is_sound=kind_of(error) is FailureKind.REFUSED)
                continue
            if lock is None:
                self.release_locks()
                raise ConfigError(
                    f"log directory {directory.path} is in use by another broker process (it holds {LOCK_FILE}); "
                    "stop that one, or name another directory in log.dirs"
                )
            self._locks.append(lock)
            if self._is_of_kraft(directory.path):
                self.release_locks()
                raise ConfigError(
                    f"log directory {directory.path} belongs to a node of Apache Kafka ({META_FILE} of version 1): its "
                    "topics are in that cluster's metadata, and none of its logs can be served here; name another "
                    "directory in log.dirs"
                )
        try:
            self.check_any_online()
        except KafkaStorageError as error:
            raise ConfigError(str(error)) from error

    def _is_of_kraft(self, directory: str) -> bool:
        """Return whether an Apache Kafka node that keeps its own metadata wrote here; nothing has been changed yet."""
        try:
            meta = read_meta(self._fs, f"{directory}/{META_FILE}")
        except (CheckpointError, OSError):
            return False  # ``claim`` says what is wrong with it
        return meta is not None and meta["version"] == "1"

    def _make(self, directory: str) -> None:
        """Make a log directory whose name, and those of the parents it needed, survive a power loss."""
        missing = []
        path = directory
        while path and not self._fs.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        self._fs.make_directories(directory)
        for made in reversed(missing):
            self._fs.sync_directory(made.rpartition("/")[0] or ("/" if made.startswith("/") else "."))

    def claim(self, broker_id: int, cluster_id: str) -> None:
        """Check that the directories are this broker's and cluster's; write ``meta.properties`` where it is missing.

        ConfigError for another broker's, InconsistentClusterId for another cluster's.
        """
        for directory in self.online:
            try:
                self._claim_one(directory, broker_id, cluster_id)
            except CheckpointError as error:
                directory.take_offline(str(error), is_sound=True)
            except OSError as error:
                reason = f"{META_FILE}: {text_of(error)}"
                directory.take_offline(reason, is_sound=kind_of(error) is FailureKind.REFUSED)
        self.check_any_online()

    def _claim_one(self, directory: LogDirectory, broker_id: int, cluster_id: str) -> None:
        path = f"{directory.path}/{META_FILE}"
        meta = read_meta(self._fs, path)
        if meta is None:
            directory.persist(lambda: write_meta(self._fs, path, broker_id, cluster_id))
            return
        found = meta.get("broker.id", str(broker_id))
        if found != str(broker_id):
            raise ConfigError(
                f"log directory {directory.path} belongs to broker {found}, this is broker {broker_id}: "
                f"set broker.id={found} or name another directory in log.dirs"
            )
        if meta.get("cluster.id", cluster_id) != cluster_id:
            raise InconsistentClusterId(
                f"log directory {directory.path} holds data of cluster {meta['cluster.id']}, this broker joins "
                f"{cluster_id}: name another directory in log.dirs, or connect to the other cluster's registry"
            )

    def choose(self, paths: Iterable[str]) -> LogDirectory:
        """Return where a new log goes: the directory with the fewest logs of those that take records, if any does.

        ``paths``: the directory of each log. KafkaStorageError when none is online.
        """
        self.check_any_online()
        if len(self.online) == 1:
            # Counting thousands of logs for each of thousands of new ones takes seconds.
            return self.online[0]
        counts = Counter(paths)
        return min(self.online, key=lambda directory: (directory.refusal is not None, counts.get(directory.path, 0)))

    def release_reserve_beside(self, path: str) -> bool:
        """Give back a piece of a reserve on the file system that holds ``path``; return whether there was any.

        In any thread.
        """
        for directory in self.online:
            try:
                beside = self._fs.same_file_system(directory.path, path)
            except OSError:
                continue
            if beside and directory.release_reserve():
                return True
        return False

    def release_locks(self) -> None:
        """Let other processes use the directories."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()
