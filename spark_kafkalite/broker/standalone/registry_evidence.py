"""What the log directories know of their registry: a start notices by it that the registry is lost or too old.

A registry that is empty, or lacks its last commits, would be taken at its word: topics that it does not name do not
exist, their logs belong to nobody, and the next record of such a topic gets offset 0 again. So a broker whose
directories hold logs does not start unless

- the registry has a cluster id: it is written before the first log is made, and never removed;
- the registry has come at least as far as ``registry-zxid-checkpoint`` in each directory says. The broker writes there,
  within a second of a change, how far the registry has come on its disk (:meth:`RegistryEvidence.note`); so this file
  is never ahead of a registry that is whole.

A registry that is shared with other brokers is held against the same, so a broker that has been a cluster by itself may
join one with the registry that it had, served by ``kafkalite registry``; and it cannot go back to a copy that was left
behind.

A registry that was made again from the logs (``registry.recovery``) names the transaction that they had seen by then:
one that the directories still name so is the right one, though it has not come so far.

Directories without that file (new ones, those of earlier versions) say nothing of the second kind. Beside the registry
itself lies a closer note (``registry.zxid_note``), which goes with it when it is lost as a whole.

Logs in a directory that does not say whose it is (no ``meta.properties``) are served if the registry knows their
topics; others are not taken for leftovers, but stop the start: they may be another cluster's.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from spark_kafkalite.errors import ConfigError, KafkaStorageError, RegistryError
from spark_kafkalite.log.directories.siblings import how_to_go_on
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import (
    META_FILE,
    REGISTRY_ZXID_FILE,
    CheckpointError,
    read_meta,
    read_registry_zxid,
    write_registry_zxid,
)
from spark_kafkalite.log.loading.loader import topic_partition_of
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.tree.database import DATABASE_NAME
from spark_kafkalite.registry.tree.tree import Tree
from spark_kafkalite.registry.znodes import CLUSTER_ID

logger = logging.getLogger(__name__)

_SHOWN = 5
# Stands in the names of files whose registry was copied elsewhere.
EXPORTED: Final = "exported"


class RegistryLost(RegistryError):
    """The registry lacks what the log directories show it once held."""


class DirectoryEvidence(NamedTuple):
    """One log directory: whose it says it is, its logs, and how far the registry had come (0: unknown)."""

    path: str
    cluster_id: str | None
    logs: tuple[TopicPartition, ...]
    zxid: int


class RegistryEvidence:
    """The log directories of one broker as they were before its start, and the notes that it leaves there."""

    def __init__(
        self, fs: Fs, log_dirs: Iterable[str], registry_dir: Path, missing: Mapping[str, str] | None = None
    ) -> None:
        """Look at the directories; one that cannot be read, or does not exist, shows nothing. ``missing``: by id, where
        directories were that the others know (``log.directories.siblings``)."""
        self._fs = fs
        self._missing = missing or {}
        self._registry_dir = registry_dir
        self.directories = [found for path in log_dirs if (found := _look(fs, path)) is not None]

    @property
    def logs(self) -> list[TopicPartition]:
        """All logs that were found."""
        return sorted(key for each in self.directories for key in each.logs)

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the directories say they belong to, None when they say nothing."""
        return next((each.cluster_id for each in self.directories if each.cluster_id), None)

    @property
    def zxid(self) -> int:
        """How far the registry has come, by what the directories say; 0 when they say nothing."""
        return max((each.zxid for each in self.directories), default=0)

    def check_file(self) -> None:
        """Raise RegistryLost when the registry's file is missing or empty, and logs were found or its own log directory
        is missing. Makes nothing."""
        path = self._registry_dir / DATABASE_NAME
        wal = path.with_name(f"{DATABASE_NAME}-wal")
        if path.exists() and (path.stat().st_size or wal.exists()):
            return
        for directory_id, was_at in self._missing.items():
            if Path(was_at) in self._registry_dir.parents:
                raise RegistryLost(
                    f"the registry {self._registry_dir} lies in the log directory {was_at}, which is missing: "
                    f"{how_to_go_on(directory_id)}"
                )
        if not self.logs:
            return
        if was_exported(self._registry_dir):
            raise RegistryLost(
                f"the registry in {self._registry_dir} has been exported to a ZooKeeper ensemble: set "
                "zookeeper.connect to that"
            )
        above = (self._registry_dir, *self._registry_dir.absolute().parents)
        if not next(each for each in above if each.exists()).is_dir():
            return  # its disk is away, which opening it says
        missing = path if self._registry_dir.exists() else self._registry_dir
        problem = "is empty" if path.exists() else "does not exist"
        raise RegistryLost(f"the registry {missing} {problem}, {self._consequence()}")

    def check_tree(self, tree: Tree, zxid: int) -> None:
        """Raise RegistryLost when logs were found and the registry, as loaded, cannot be the one that they knew."""
        path = self._registry_dir / DATABASE_NAME
        if not self.logs:
            return
        if CLUSTER_ID not in tree.nodes:
            raise RegistryLost(f"the registry {path} is a new one, {self._consequence()}")
        if zxid < self.zxid:
            raise RegistryLost(
                f"the registry {path} is older than the logs: it ends with transaction {zxid}, the log directories "
                f"have seen transaction {self.zxid}; its write-ahead log {DATABASE_NAME}-wal has been removed, or an "
                f"older copy has been put in its place, {self._consequence()}"
            )

    def check_shared(self, zxid: int, settled_zxid: int | None = None) -> None:
        """Raise RegistryLost when logs were found and the registry elsewhere has not come as far as they knew.

        ``settled_zxid``: the registry was made again from these logs when the directories had seen this transaction
        (``registry.recovery.evidence_node``), None if it was not.
        """
        if self.zxid == settled_zxid:
            return
        if self.logs and zxid < self.zxid:
            log_dirs = shlex.quote(",".join(each.path for each in self.directories))
            raise RegistryLost(
                f"the registry is older than the logs: it ends with transaction {zxid}, the log directories have seen "
                f"transaction {self.zxid}; an older copy has been put in its place, or zookeeper.connect names another "
                f"one: {len(self.logs)} partitions ({_some(self.logs)}) may be served no more, or go back. Put the "
                f"registry's newest data back, or correct zookeeper.connect; if there is no newer copy, stop all "
                "brokers and have the registry completed from the logs of all of them: kafkalite cluster "
                f"recover-registry (here with --log-dirs {log_dirs})"
            )

    def check_unclaimed(self, cluster: ClusterState) -> None:
        """Raise ConfigError for logs of no topic in a directory that does not say whose it is."""
        for directory in self.directories:
            unknown = [
                key
                for key in directory.logs
                if key.topic not in cluster.topics and key.topic not in cluster.unreadable_topics
            ]
            if directory.cluster_id is None and unknown:
                raise ConfigError(
                    f"log directory {directory.path} has no {META_FILE}, so it may be another cluster's, and the "
                    f"registry of cluster {cluster.cluster_id} has no topic for {_some(unknown)}: restore {META_FILE}, "
                    "or move what is not this cluster's away"
                )

    def note(self, log_dirs: Iterable[str], zxid: int) -> None:
        """Write how far the registry has come, on its disk, into these directories. In any one thread at a time.

        A directory where that fails keeps its older note, which is no less true.
        """
        for path in log_dirs:
            try:
                write_registry_zxid(self._fs, f"{path}/{REGISTRY_ZXID_FILE}", zxid)
            except OSError as error:
                logger.debug("cannot write %s/%s: %s", path, REGISTRY_ZXID_FILE, error)

    def begin_again(self) -> None:
        """Forget how far the registry had come, when another one takes its place with all that it held.

        Raises KafkaStorageError when a disk refuses.
        """
        for directory in self.directories:
            path = f"{directory.path}/{REGISTRY_ZXID_FILE}"
            try:
                if self._fs.exists(path):
                    self._fs.unlink(path)
                    self._fs.sync_directory(directory.path)
            except OSError as error:
                raise KafkaStorageError(f"cannot remove {path}: {error.strerror or error}") from error

    def _consequence(self) -> str:
        whose = f"of cluster {self.cluster_id} " if self.cluster_id else ""
        log_dirs = shlex.quote(",".join(each.path for each in self.directories))
        return (
            f"but the log directories hold {len(self.logs)} partitions {whose}({_some(self.logs)}), which would be "
            f"served no more. Put the registry's files back into {self._registry_dir} ({DATABASE_NAME} together with "
            f"{DATABASE_NAME}-wal), or set registry.dir to where they are; if they are lost, have them made from the "
            f"logs: kafkalite registry rebuild --log-dirs {log_dirs} "
            f"--registry-dir {shlex.quote(str(self._registry_dir))}"
        )


def was_exported(registry_dir: Path) -> bool:
    """Return whether ``kafkalite registry export`` has put the registry in a directory out of use."""
    return any(registry_dir.glob(f"{DATABASE_NAME}.{EXPORTED}-*"))


def noted_zxid(fs: Fs, log_dirs: Iterable[str]) -> int:
    """Return how far the registry has come, by what the directories say; 0 when they say nothing."""
    return max((found.zxid for path in log_dirs if (found := _look(fs, path)) is not None), default=0)


def _look(fs: Fs, path: str) -> DirectoryEvidence | None:
    path = path.rstrip("/") or "/"
    try:
        logs = [
            key
            for entry in fs.entries(path)
            if entry.is_directory and (key := topic_partition_of(entry.name)) is not None
        ]
    except OSError:
        return None
    cluster_id, zxid = None, 0
    try:
        cluster_id = (read_meta(fs, f"{path}/{META_FILE}") or {}).get("cluster.id")
    except (CheckpointError, OSError):
        pass  # LogDirectories.claim says what is wrong with it
    try:
        zxid = read_registry_zxid(fs, f"{path}/{REGISTRY_ZXID_FILE}")
    except (CheckpointError, OSError) as error:
        logger.warning("%s; whether the registry has lost commits cannot be seen there", error)
    return DirectoryEvidence(path, cluster_id, tuple(sorted(logs)), zxid)


def _some(logs: list[TopicPartition]) -> str:
    more = f" and {len(logs) - _SHOWN} more" if len(logs) > _SHOWN else ""
    return ", ".join(map(str, logs[:_SHOWN])) + more
