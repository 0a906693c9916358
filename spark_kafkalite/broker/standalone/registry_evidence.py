"""What the log directories record about their registry, by which a start detects a lost or outdated registry.

Without a check a broker would trust a registry that is empty or lacks its last commits. Topics that it does not name
would not exist, and their logs would belong to no topic. The next record of such a topic would get offset 0 again. So a
broker with logs starts only if both conditions are true:

- The registry has a cluster id. The broker writes it before it creates the first log, and never removes it.
- The registry's last transaction is not older than that in ``registry-zxid-checkpoint`` of each directory. Within a
  second of a change, the broker writes there the last transaction on the registry's disk
  (:meth:`RegistryEvidence.note`). So this file is never newer than a complete registry.

A registry that brokers share is checked in the same way. So a broker that was a cluster by itself may join a cluster
with its former registry, served by ``kafkalite registry``. It cannot go back to an old copy of that registry.

A registry that was rebuilt from the logs (``registry.recovery``) names the transaction in the directories at that time.
If a directory still has the same transaction, the registry is the right one, although its own number is lower.

Directories without that file (new ones, those of earlier versions) cannot show the second condition. The registry's own
directory contains a more recent note (``registry.zxid_note``), which is lost together with the whole registry.

A directory without ``meta.properties`` does not name its cluster. The broker serves its logs if the registry knows
their topics. Other logs in it may belong to another cluster, so they prevent the start.
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
from spark_kafkalite.printable import first_of
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.tree.database import DATABASE_NAME
from spark_kafkalite.registry.tree.tree import Tree
from spark_kafkalite.registry.znodes import CLUSTER_ID

logger = logging.getLogger(__name__)

_SHOWN = 5
# A part of the names of registry files whose contents were exported to another registry.
EXPORTED: Final = "exported"


class RegistryLost(RegistryError):
    """The registry lacks data that it once had, according to the log directories."""


class DirectoryEvidence(NamedTuple):
    """One log directory: its cluster's id, its logs, and the registry's last transaction in its notes (0: unknown)."""

    path: str
    cluster_id: str | None
    logs: tuple[TopicPartition, ...]
    zxid: int


class RegistryEvidence:
    """The log directories of one broker before its start, and the notes about the registry in them."""

    def __init__(
        self, fs: Fs, log_dirs: Iterable[str], registry_dir: Path, missing: Mapping[str, str] | None = None
    ) -> None:
        """Read the directories. One that is unreadable or does not exist is ignored.

        ``missing``: the former paths, by id, of missing directories that the others know
        (``log.directories.siblings``).
        """
        self._fs = fs
        self._missing = missing or {}
        self._registry_dir = registry_dir
        self.directories = [found for path in log_dirs if (found := _look(fs, path)) is not None]

    @property
    def logs(self) -> list[TopicPartition]:
        """All logs in the directories."""
        return sorted(key for each in self.directories for key in each.logs)

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster to which the directories belong, None if none of them names it."""
        return next((each.cluster_id for each in self.directories if each.cluster_id), None)

    @property
    def zxid(self) -> int:
        """The registry's last transaction according to the directories, 0 if none of them has a note."""
        return max((each.zxid for each in self.directories), default=0)

    def check_file(self) -> None:
        """Raise RegistryLost if the registry's file is missing or empty, and there are logs, or its log directory is
        missing. Creates nothing."""
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
            return  # its disk is missing, which the later open reports
        missing = path if self._registry_dir.exists() else self._registry_dir
        problem = "is empty" if path.exists() else "does not exist"
        raise RegistryLost(f"the registry {missing} {problem}, {self._consequence()}")

    def check_tree(self, tree: Tree, zxid: int) -> None:
        """Raise RegistryLost if there are logs, and the loaded registry cannot be the one that they knew."""
        path = self._registry_dir / DATABASE_NAME
        if not self.logs:
            return
        if CLUSTER_ID not in tree.nodes:
            raise RegistryLost(f"the registry {path} is a new one, {self._consequence()}")
        if zxid < self.zxid:
            raise RegistryLost(
                f"the registry {path} is older than the logs: it ends with transaction {zxid}, the log directories "
                f"have seen transaction {self.zxid}. Its write-ahead log {DATABASE_NAME}-wal has been removed, or an "
                f"older copy has been put in its place, {self._consequence()}"
            )

    def check_shared(self, zxid: int, settled_zxid: int | None = None) -> None:
        """Raise RegistryLost if there are logs, and the shared registry is older than the notes in the directories.

        ``settled_zxid``: the transaction in the directories when the registry was rebuilt from these logs
        (``registry.recovery.evidence_node``), None if it was not rebuilt.
        """
        if self.zxid == settled_zxid:
            return
        if self.logs and zxid < self.zxid:
            log_dirs = shlex.quote(",".join(each.path for each in self.directories))
            raise RegistryLost(
                f"the registry is older than the logs: it ends with transaction {zxid}, the log directories have seen "
                f"transaction {self.zxid}. An older copy has been put in its place, or zookeeper.connect names another "
                f"one: {len(self.logs)} partitions ({_some(self.logs)}) may be served no more, or go back. Put the "
                f"registry's newest data back, or correct zookeeper.connect; if there is no newer copy, stop all "
                "brokers and have the registry completed from the logs of all of them: kafkalite cluster "
                f"recover-registry (here with --log-dirs {log_dirs})"
            )

    def check_unclaimed(self, cluster: ClusterState) -> None:
        """Raise ConfigError for logs without a topic in a directory that does not name its cluster."""
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
        """Write the last transaction on the registry's disk into these directories. One thread at a time may call this.

        If a write fails, the directory keeps its older note, which is still correct.
        """
        for path in log_dirs:
            try:
                write_registry_zxid(self._fs, f"{path}/{REGISTRY_ZXID_FILE}", zxid)
            except OSError as error:
                logger.debug("cannot write %s/%s: %s", path, REGISTRY_ZXID_FILE, error)

    def begin_again(self) -> None:
        """Remove the notes when another registry, with all data of the present one, replaces it.

        Raises KafkaStorageError if that fails.
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
    """Return whether ``kafkalite registry export`` has retired the registry in a directory."""
    return any(registry_dir.glob(f"{DATABASE_NAME}.{EXPORTED}-*"))


def noted_zxid(fs: Fs, log_dirs: Iterable[str]) -> int:
    """Return the registry's last transaction according to the directories, 0 if none of them has a note."""
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
        pass  # LogDirectories.claim reports the error
    try:
        zxid = read_registry_zxid(fs, f"{path}/{REGISTRY_ZXID_FILE}")
    except (CheckpointError, OSError) as error:
        logger.warning("%s; whether the registry has lost commits cannot be seen there", error)
    return DirectoryEvidence(path, cluster_id, tuple(sorted(logs)), zxid)


def _some(logs: list[TopicPartition]) -> str:
    return first_of(logs, _SHOWN)
