"""Makes the registry of a standalone broker again from its log directories: the recovery of one host.

``registry.recovery.plan`` decides what it holds. A registry that can still be read, only older than the logs, is kept
and completed: its settings and the offsets below /consumers stay. It goes on with transaction numbers above those that
the log directories have noted.

:func:`plan_rebuild` reads and changes nothing; :func:`write` makes a new file next to the old ones, sets these aside
under other names, and renames the new one into place. Whatever interrupts it leaves a registry that a broker refuses
(``registry_evidence``), or the new one. Both hold the locks of the directories, so no broker runs meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_kafkalite.broker.standalone.host_logs import locked_log_dirs, offsets_topic_config, read_host_logs
from spark_kafkalite.errors import ConfigError, RegistryError
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.registry.recovery.host_logs import HostLogs
from spark_kafkalite.registry.recovery.plan import RecoveryPlan, brokers_named, plan_recovery
from spark_kafkalite.registry.store import Create, Operation, SetData
from spark_kafkalite.registry.tree.database import DATABASE_NAME, NodeDatabase, copy_database, read_copy
from spark_kafkalite.registry.tree.embedded import take_lock
from spark_kafkalite.registry.tree.tree import Tree
from spark_kafkalite.registry.tree.zxid_note import NOTE_NAME, ZxidNote

# Commits after the last note.
_SKIPPED_ZXIDS: Final = 1_000_000
_WORK_NAME: Final = "registry.rebuild"


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What a registry made again would hold, and what was found on the way.

    ``state`` is the condition of the old registry: "missing", "empty", "damaged: ...", "older", "complete";
    ``keeps_old`` whether it is completed. ``zxid`` is the transaction with which the nodes are written.
    """

    registry_dir: Path
    host: HostLogs
    state: str
    keeps_old: bool
    zxid: int
    recovery: RecoveryPlan

    @property
    def is_needed(self) -> bool:
        """Whether the old registry lacks anything."""
        return bool(self.recovery.nodes) or self.state != "complete"


@contextlib.contextmanager
def locked(fs: Fs, log_dirs: Sequence[str], registry_dir: Path) -> Iterator[None]:
    """Keep brokers out of the directories meanwhile. ConfigError, KafkaStorageError when that is not possible."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked_log_dirs(fs, log_dirs))
        if registry_dir.exists():
            stack.callback(os.close, take_lock(registry_dir))
        yield


def plan_rebuild(
    fs: Fs, log_dirs: Sequence[str], registry_dir: Path, broker_id: int | None = None, lost: Collection[str] = ()
) -> RebuildPlan:
    """Read the logs, and what there is of the registry, and return what it should hold. Changes nothing.

    Raises what ``read_host_logs`` and ``plan_recovery`` do.
    """
    host = read_host_logs(fs, log_dirs, broker_id, lost, default_id=1)
    state, nodes, zxid = _read_old(registry_dir)
    noted = max(host.zxid, ZxidNote(registry_dir).read())
    keeps_old, behind = zxid > 0, zxid < noted
    if keeps_old:
        state = "older" if behind else "complete"
    try:
        recovery = plan_recovery(
            [host],
            nodes,
            without=brokers_named(nodes),
            is_current=keeps_old and not behind,
            offsets_config=offsets_topic_config(),
        )
    except ConfigError as error:
        raise ConfigError(
            f"{registry_dir}: {error}; name another --registry-dir (registry.dir), or move that registry away"
        ) from error
    last_zxid = max(zxid, noted) + (_SKIPPED_ZXIDS if behind or not keeps_old else 1)
    return RebuildPlan(registry_dir, host, state, keeps_old, last_zxid, recovery)


# Reading ------------------------------------------------------------------------------------------------------------


def _read_old(registry_dir: Path) -> tuple[str, dict[str, bytes], int]:
    """Load what there is of the registry, from a copy: a look must not change it. Returns what became of it, its nodes,
    and its last transaction, 0 when there is none."""
    if not (registry_dir / DATABASE_NAME).exists():
        return "missing", {}, 0
    try:
        tree, zxid = read_copy(registry_dir)
    except RegistryError as error:
        return f"damaged: {error.__cause__ or error}", {}, 0
    if not zxid:
        return "empty", {}, 0
    return "", {path: node.data for path, node in tree.nodes.items()}, zxid


# Writing ------------------------------------------------------------------------------------------------------------


def write(plan: RebuildPlan, now_ms: int | None = None) -> list[str]:
    """Make the registry as planned; return the names under which the old files are kept. The locks must be held.

    Raises RegistryError when the disk refuses.
    """
    directory, work = plan.registry_dir, plan.registry_dir / _WORK_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        _make(plan, work, round(time.time() * 1000) if now_ms is None else now_ms)
        kept = set_files_aside(directory, "before-rebuild")
        os.rename(work / DATABASE_NAME, directory / DATABASE_NAME)
        shutil.rmtree(work)
        sync_directory(directory)
        sync_directory(directory.parent)
    except OSError as error:
        raise RegistryError(
            f"cannot write the registry: {error.filename}: {error.strerror or error}; free or repair the disk, and run "
            "the same again"
        ) from error
    return kept


def set_files_aside(directory: Path, why: str) -> list[str]:
    """Rename a registry's files to ``NAME.WHY-TIME``, so that no broker uses them; return the new names."""
    kept = []
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    # The note last: until then it says that a registry of which only a part is left is no whole one.
    for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-shm", NOTE_NAME):
        if (directory / name).exists():
            kept.append(str(directory / f"{name}.{why}-{stamp}"))
            os.rename(directory / name, kept[-1])
    sync_directory(directory)
    return kept


def _make(plan: RebuildPlan, work: Path, now_ms: int) -> None:
    if plan.keeps_old:
        copy_database(plan.registry_dir, work)
    tree = Tree()
    database = NodeDatabase(work / DATABASE_NAME)
    try:
        _, session = database.load(tree)
        database.create()
        for path, data in sorted(plan.recovery.nodes.items()):
            operations: list[Operation] = [SetData(path, data)]
            if path not in tree.nodes:
                operations = [*tree.missing_parents(path), Create(path, data)]
            tree.apply(operations, 0, plan.zxid, now_ms)
        touched, _ = tree.drain()
        database.commit([(path, tree.nodes[path]) for path in touched], [], plan.zxid, session)
    finally:
        database.close()
    # Who runs this may be another user than the one who runs the broker.
    owner = os.stat(plan.registry_dir)
    with contextlib.suppress(PermissionError):
        os.chown(work / DATABASE_NAME, owner.st_uid, owner.st_gid)
    fd = os.open(work / DATABASE_NAME, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(directory: Path) -> None:
    """Have what was renamed in a directory on the disk."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def as_json(plan: RebuildPlan) -> dict[str, Any]:
    """Return the plan for machines."""
    return {
        "registry": str(plan.registry_dir / DATABASE_NAME),
        "state": plan.state,
        "keeps_old": plan.keeps_old,
        "broker_id": plan.host.broker_id,
        **plan.recovery.as_json(),
    }
