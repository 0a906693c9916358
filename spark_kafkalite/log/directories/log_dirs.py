"""The log directories of one broker: created, locked, claimed, and which of them can be used.

A directory is offline if it cannot be made, locked or read, or if a damaged ``meta.properties`` does not show its
owner. The broker works with the others; when none is left it cannot start. Other cases are a mistake in the settings
and always an error: another process holds the directory, or it belongs to another broker or cluster, or to Apache Kafka
with its own metadata (KRaft).

A directory that the others know (``siblings``) and that comes up empty is offline too, so that nothing is written where
its disk belongs; one that is not named any more is missing. What has no log anywhere may lie in one of these.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from spark_kafkalite.errors import ConfigError, InconsistentClusterId, KafkaStorageError
from spark_kafkalite.log.directories.disk import REPAIR_DISK, FailureKind, LogDirectory, kind_of, text_of
from spark_kafkalite.log.directories.siblings import (
    DIRECTORIES,
    DIRECTORY_ID,
    directories_text,
    find_siblings,
    how_to_go_on,
    new_directory_id,
)
from spark_kafkalite.log.files.file_kind import Kind
from spark_kafkalite.log.files.fs import Fs, Lock
from spark_kafkalite.log.files.small_files import LOCK_FILE, META_FILE, CheckpointError, read_meta, write_meta
from spark_kafkalite.model import TopicPartition

logger = logging.getLogger(__name__)


class LogDirectories:
    """All of ``log.dirs``, by path."""

    def __init__(
        self,
        fs: Fs,
        paths: Iterable[str],
        *,
        min_free_bytes: int = 0,
        reserve_bytes: int = 0,
        lost: Collection[str] = (),
    ) -> None:
        """``lost``: the ids of directories that are not to be missed any more."""
        self._fs = fs
        self._lost = lost
        # Directories that the others know and that are not there, or empty, by id: where they were. Known after open.
        self.missing: Mapping[str, str] = {}
        self._by_path = {
            path: LogDirectory(fs, path, min_free_bytes=min_free_bytes, reserve_bytes=reserve_bytes) for path in paths
        }
        self._locks: list[Lock] = []
        # Those that said no broker id before claim(), and which ids were written there by it.
        self._claimed_anew: list[tuple[LogDirectory, set[str]]] = []

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

    def check_all_online(self, topic_partition: TopicPartition) -> None:
        """Raise KafkaStorageError if a directory is offline or missing, in which the log of this partition may lie."""
        away = {directory.path: "" for directory in self if directory.offline is not None}
        away |= {path: f" ({how_to_go_on(directory_id)})" for directory_id, path in self.missing.items()}
        if away:
            raise KafkaStorageError(
                f"{topic_partition} has no log in the directories that can be read; it may lie in "
                f"{', '.join(path + remedy for path, remedy in away.items())}, which is offline: repair the disk and "
                "restart the broker, or delete the topic"
            )

    def check_room(self) -> None:
        """Raise KafkaStorageError when no directory takes records, so that a new log could hold nothing."""
        online = self.online
        for directory in online:
            directory.look()
        if online and all(directory.refusal is not None for directory in online):
            raise KafkaStorageError("; ".join(str(directory.refusal) for directory in online))

    def open(self) -> None:
        """Make and lock the directories. ConfigError when one is in use or Apache Kafka's, or none can be used."""
        self._miss_siblings()
        for directory in self:
            if directory.offline is not None:
                continue
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

    def _miss_siblings(self) -> None:
        """Find out which directories are missing, and log it; those that came up empty are not used."""
        self.missing = find_siblings(self._fs, self._by_path, self._lost).missing
        for directory_id, path in self.missing.items():
            directory = self._by_path.get(path)
            if directory is not None and self._holds_nothing(path):
                directory.take_offline(
                    f"it is empty, and the other directories know it as {directory_id}; {how_to_go_on(directory_id)}",
                    is_sound=True,
                )
                continue
            logger.error(
                "log directory %s (%s %s) is missing: the other directories know it, and none of log.dirs is it; "
                "partitions that have no log elsewhere are not served; %s",
                path, DIRECTORY_ID, directory_id, how_to_go_on(directory_id),
            )  # fmt: skip

    def _holds_nothing(self, path: str) -> bool:
        try:
            kind = self._fs.kind(path)
            return kind is None or (kind is Kind.DIRECTORY and not self._fs.exists(f"{path}/{META_FILE}"))
        except OSError:
            return False  # making or locking it says what is wrong

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
        """Check that the directories are this broker's and cluster's, give each an id, and have them know each other.

        ConfigError for another broker's, InconsistentClusterId for another cluster's.
        """
        known = find_siblings(self._fs, self._by_path).present | dict(self.missing)
        ids = {path: directory_id for directory_id, path in known.items() if directory_id not in self.missing}
        # No directory may name one whose own file does not say its id yet: after a crash that one would be missed.
        for directory in self.online:
            directory_id = ids.setdefault(directory.path, new_directory_id())
            self._claim_one(
                directory, {"broker.id": str(broker_id), "cluster.id": cluster_id, DIRECTORY_ID: directory_id}
            )
        known |= {ids[each.path]: each.path for each in self.online}
        if len(known) > 1 or self._lost:
            for directory in self.online:
                self._claim_one(directory, {DIRECTORIES: directories_text(known)})
        self.check_any_online()

    def withdraw_claim(self) -> None:
        """Remove this broker's id, or its cluster's, from the directories that claim() gave it to: another broker had
        the id, or the cluster does not let this broker in."""
        for directory, written in self._claimed_anew:
            path = f"{directory.path}/{META_FILE}"
            with contextlib.suppress(CheckpointError, OSError):
                meta = read_meta(self._fs, path) or {}
                write_meta(self._fs, path, {name: value for name, value in meta.items() if name not in written})

    def _claim_one(self, directory: LogDirectory, properties: Mapping[str, str]) -> None:
        """Add these to a directory's ``meta.properties``, if nothing is against it."""
        path = f"{directory.path}/{META_FILE}"
        try:
            meta = read_meta(self._fs, path) or {}
            if "broker.id" in properties:
                if "broker.id" not in meta:
                    written = {name for name in ("broker.id", "cluster.id") if name not in meta}
                    self._claimed_anew.append((directory, written))
                self._check_owner(directory, meta, int(properties["broker.id"]), properties["cluster.id"])
            wanted = {**meta, **properties}
            if wanted != meta:
                directory.persist(lambda: write_meta(self._fs, path, wanted))
        except CheckpointError as error:
            directory.take_offline(str(error), is_sound=True)
        except OSError as error:
            reason = f"{META_FILE}: {text_of(error)}"
            directory.take_offline(reason, is_sound=kind_of(error) is FailureKind.REFUSED)

    def _check_owner(self, directory: LogDirectory, meta: Mapping[str, str], broker_id: int, cluster_id: str) -> None:
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

    def choose(self, count_logs: Callable[[], Mapping[str, int]]) -> LogDirectory:
        """Return where a new log goes: the directory with the fewest logs of those that answer and take records, if any
        does.

        ``count_logs`` gives how many logs each directory has, by its path. KafkaStorageError when none is online.
        """
        self.check_any_online()
        if len(self.online) == 1:
            # Counting thousands of logs for each of thousands of new ones takes seconds.
            return self.online[0]
        counts = count_logs()

        def order(directory: LogDirectory) -> tuple[bool, bool, int]:
            return directory.hanging is not None, directory.refusal is not None, counts.get(directory.path, 0)

        return min(self.online, key=order)

    def release_reserve_beside(self, path: str) -> bool:
        """Release a piece of a reserve on the file system that holds ``path``; return whether there was any.

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
