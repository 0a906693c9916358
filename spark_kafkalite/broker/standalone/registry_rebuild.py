"""Rebuilds the registry of a standalone broker from its log directories.

What can be known from them: the cluster id and broker id (``meta.properties``), the topics with their ids and
partitions, and what must not be given twice: leader epochs, producer ids and the registry's own transaction numbers.
So consumers that remember an epoch, and idempotent producers in the middle of a partition, go on. A registry that can
still be read, only older than the logs, is kept and completed: its settings and the offsets below /consumers stay.

What cannot be known is said: settings, and the offsets of registry consumers. Because a topic's retention is among
them, a topic that is made again keeps everything (``retention.ms=-1``, ``retention.bytes=-1``) until somebody says
otherwise; one that the cleaner has compacted is compacted again.

:func:`plan_rebuild` reads and changes nothing; :func:`write` makes a new file beside the old ones, sets these aside
under other names, and renames the new one into place. Whatever interrupts it leaves a registry that a broker refuses
(``registry_evidence``), or the new one. Both hold the locks of the directories, so no broker runs meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.standalone.log_dirs_survey import SurveyedTopic, survey_log_dirs
from spark_kafkalite.broker.standalone.registry_evidence import RegistryEvidence
from spark_kafkalite.errors import ConfigError, KafkaStorageError, RegistryError
from spark_kafkalite.log.directories.siblings import DIRECTORY_ID, find_siblings
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.small_files import LOCK_FILE
from spark_kafkalite.model import CONSUMER_OFFSETS_TOPIC, BrokerId, ControllerEpoch, LeaderEpoch
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.producer_id_block import PRODUCER_ID_BLOCK, PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock
from spark_kafkalite.registry.store import Create, Operation, SetData
from spark_kafkalite.registry.tree.database import DATABASE_NAME, NodeDatabase, copy_database, read_copy
from spark_kafkalite.registry.tree.embedded import take_lock
from spark_kafkalite.registry.tree.tree import Tree
from spark_kafkalite.registry.tree.zxid_note import NOTE_NAME, ZxidNote
from spark_kafkalite.registry.znodes import LeaderAndIsr, TopicAssignment

T = TypeVar("T")

# Numbers that were given out and left no trace in a log: ids of producers that have not sent, commits after the last
# note, epochs of elections after which nothing was appended. A client that knows a higher epoch would wait for ever.
_SKIPPED_PRODUCER_IDS: Final = 1_000_000
_SKIPPED_ZXIDS: Final = 1_000_000
_SKIPPED_EPOCHS: Final = 1_000
_WORK_NAME: Final = "registry.rebuild"
# Nothing may be removed before somebody has said what may.
_KEEP_ALL: Final = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class RebuiltTopic:
    """One topic as the registry will have it. ``epochs``: of each partition, the epoch its state will have."""

    name: str
    topic_id: bytes
    epochs: Mapping[int, int]
    without_log: tuple[int, ...]
    # None: the registry still has its settings.
    config: Mapping[str, str] | None


@dataclass(slots=True)
class RebuildPlan:
    """What a registry made again would hold, and what was found on the way."""

    registry_dir: Path
    cluster_id: str
    broker_id: int
    # What became of the registry that was there: "missing", "empty", "damaged: ...", "older", "complete".
    state: str = "missing"
    keeps_old: bool = False
    topics: list[RebuiltTopic] = field(default_factory=list)
    next_producer_id: int = 0
    zxid: int = 0
    nodes: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        """Whether the registry that is there lacks anything."""
        return bool(self.nodes) or self.state != "complete"


@contextlib.contextmanager
def locked(fs: Fs, log_dirs: Sequence[str], registry_dir: Path) -> Iterator[None]:
    """Keep brokers out of the directories meanwhile. ConfigError, KafkaStorageError when that is not possible."""
    with contextlib.ExitStack() as stack:
        for path in log_dirs:
            if not fs.exists(path):
                raise ConfigError(f"log directory {path} does not exist: name all directories of log.dirs as they are")
            try:
                lock = fs.lock(f"{path}/{LOCK_FILE}")
            except OSError as error:
                raise KafkaStorageError(f"log directory {path} cannot be used: {error.strerror or error}") from error
            if lock is None:
                raise ConfigError(f"log directory {path} is in use by a broker: stop it first")
            stack.callback(lock.release)
        if registry_dir.exists():
            stack.callback(os.close, take_lock(registry_dir))
        yield


def plan_rebuild(
    fs: Fs, log_dirs: Sequence[str], registry_dir: Path, broker_id: int | None = None, lost: Collection[str] = ()
) -> RebuildPlan:
    """Read the logs, and what there is of the registry, and say what it should hold. Changes nothing.

    ``broker_id`` counts where no ``meta.properties`` names one. ConfigError when the directories contradict each other,
    or know one that is not among them and whose id is not in ``lost``; KafkaStorageError when one cannot be read: a
    topic that is left out here would be lost for good.
    """
    try:
        missing = find_siblings(fs, log_dirs, lost).missing
        if missing:
            each = ", ".join(f"{path} ({DIRECTORY_ID} {directory_id})" for directory_id, path in missing.items())
            raise ConfigError(
                f"the log directories know others that are missing or empty: {each}; topics and partitions that lie "
                "there would be left out: mount them and name all directories; if they are lost for good, say so with "
                + " ".join(f"--lost {directory_id}" for directory_id in missing)
            )
        survey = survey_log_dirs(fs, log_dirs)
        evidence = RegistryEvidence(fs, log_dirs, registry_dir)
    except OSError as error:
        raise KafkaStorageError(f"a log directory cannot be read: {error}") from error
    if broker_id is not None and survey.broker_id not in (None, broker_id):
        raise ConfigError(f"the log directories belong to broker {survey.broker_id}, not to {broker_id}")
    broker = next((each for each in (survey.broker_id, broker_id) if each is not None), 1)
    cluster_id, found = survey.cluster_id, survey.topics
    plan = RebuildPlan(registry_dir, cluster_id or "", broker, problems=survey.problems, strays=survey.strays)
    tree, zxid = _read_old(registry_dir, plan)
    noted = max(evidence.zxid, ZxidNote(registry_dir).read())
    behind = zxid < noted
    if plan.keeps_old:
        plan.state = "older" if behind else "complete"
    old_cluster_id = _readable(tree, znodes.CLUSTER_ID, znodes.decode_cluster_id, plan)
    if cluster_id and old_cluster_id and old_cluster_id != cluster_id:
        raise ConfigError(
            f"the registry in {registry_dir} is that of cluster {old_cluster_id}, the log directories belong to "
            f"{cluster_id}: name another --registry-dir (registry.dir), or move that registry away"
        )
    plan.cluster_id = cluster_id or old_cluster_id or znodes.uuid_text(znodes.new_uuid())
    plan.zxid = max(zxid, noted) + (_SKIPPED_ZXIDS if behind or not plan.keeps_old else 1)
    wanted = _Nodes(tree, plan)
    wanted.put(znodes.CLUSTER_ID, znodes.encode_cluster_id(plan.cluster_id), keep=old_cluster_id is not None)
    for path in znodes.PERSISTENT_PATHS:
        wanted.put(path, b"", keep=True)
    for name, logs in sorted(found.items()):
        _plan_topic(name, logs, tree, plan, wanted, behind)
    if behind:
        gone = [name for name in _children(tree, znodes.TOPICS) if name not in found]
        if gone:
            plan.problems.append(f"topics of the older registry without a log, which stay: {', '.join(gone)}")
    _plan_numbers(found, tree, plan, wanted, behind)
    return plan


def _children(tree: Tree, path: str) -> list[str]:
    return sorted(tree.nodes[path].children) if path in tree.nodes else []


# Reading ------------------------------------------------------------------------------------------------------------


def _read_old(registry_dir: Path, plan: RebuildPlan) -> tuple[Tree, int]:
    """Load what there is of the registry, from a copy: a look must not change it."""
    if not (registry_dir / DATABASE_NAME).exists():
        return Tree(), 0
    try:
        tree, zxid = read_copy(registry_dir)
    except RegistryError as error:
        plan.state = f"damaged: {error.__cause__ or error}"
        return Tree(), 0
    plan.keeps_old = zxid > 0
    if not plan.keeps_old:
        plan.state = "empty"
    return tree, zxid


def _readable(tree: Tree, path: str, decode: Callable[[bytes], T], plan: RebuildPlan) -> T | None:
    """Return what a node says; None when it is missing or cannot be read, which is noted."""
    node = tree.nodes.get(path)
    if node is None:
        return None
    try:
        return decode(node.data)
    except MalformedNode as malformed:
        plan.problems.append(str(malformed))
        return None


# Planning -----------------------------------------------------------------------------------------------------------


class _Nodes:
    """Collects the nodes that differ from those that are there."""

    def __init__(self, tree: Tree, plan: RebuildPlan) -> None:
        self._tree = tree
        self._plan = plan

    def put(self, path: str, data: bytes, *, keep: bool = False) -> None:
        """Have ``path`` hold ``data``; with ``keep`` only if there is no such node."""
        node = self._tree.nodes.get(path)
        if node is None or (not keep and node.data != data):
            self._plan.nodes[path] = data


def _plan_topic(name: str, logs: SurveyedTopic, tree: Tree, plan: RebuildPlan, wanted: _Nodes, behind: bool) -> None:
    old = _readable(tree, znodes.topic_path(name), lambda data: TopicAssignment.decode(name, data), plan)
    named = next(iter(logs.topic_ids), None)
    if old is not None and named is not None and old.topic_id != named:
        if not behind:
            plan.problems.append(
                f"topic {name} has id {znodes.uuid_text(old.topic_id)} in the registry, its logs have "
                f"{znodes.uuid_text(named)}: they are those of an older topic, which the next start sets aside"
            )
            return
        old = None
    topic_id = named or (old.topic_id if old is not None else znodes.new_uuid())
    kept = {} if old is None else dict(old.partitions)
    mine = (BrokerId(plan.broker_id),)
    numbers = range(max([*logs.directories, *kept]) + 1)
    replicas = {number: kept[number] if plan.broker_id in kept.get(number, ()) else mine for number in numbers}
    if replicas != kept:
        wanted.put(znodes.topic_path(name), TopicAssignment(topic_id, replicas).encode())
    wanted.put(znodes.partitions_path(name), b"", keep=True)
    epochs: dict[int, int] = {}
    for number in numbers:
        path = znodes.state_path(name, number)
        state = None if old is None else _readable(tree, path, partial(LeaderAndIsr.decode, name, number), plan)
        in_log = logs.ids[number].leader_epoch if number in logs.ids else -1
        wanted.put(znodes.partition_path(name, number), b"", keep=True)
        if state is not None and state.leader_epoch >= in_log and not behind:
            epochs[number] = state.leader_epoch
            continue
        epochs[number] = max(in_log, -1 if state is None else state.leader_epoch) + _SKIPPED_EPOCHS
        controller_epoch = ControllerEpoch(0) if state is None else state.controller_epoch
        made = LeaderAndIsr(BrokerId(plan.broker_id), LeaderEpoch(epochs[number]), mine, controller_epoch)
        wanted.put(path, made.encode())
    config = None
    path = znodes.topic_config_path(name)
    if old is None or _readable(tree, path, lambda data: znodes.decode_config(path, data), plan) is None:
        config = _config_of(name, logs)
        wanted.put(path, znodes.encode_config(config))
    without_log = tuple(number for number in numbers if number not in logs.directories)
    plan.topics.append(RebuiltTopic(name, topic_id, epochs, without_log, config))


def _config_of(name: str, logs: SurveyedTopic) -> dict[str, str]:
    """Return settings under which nothing is removed that the lost ones may have kept."""
    if name == CONSUMER_OFFSETS_TOPIC:
        segment_bytes = BROKER_SETTINGS["offsets.topic.segment.bytes"].default
        return {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}
    return {"cleanup.policy": "compact"} if logs.compacted else dict(_KEEP_ALL)


def _plan_numbers(
    found: Mapping[str, SurveyedTopic], tree: Tree, plan: RebuildPlan, wanted: _Nodes, behind: bool
) -> None:
    """Have producer ids and controller epochs go on above what was given out."""
    highest = max((ids.producer_id for logs in found.values() for ids in logs.ids.values()), default=-1)
    block = _readable(tree, PRODUCER_ID_BLOCK, ProducerIdBlock.decode, plan)
    if block is not None and block.last > 2**63 - 1 - 2 * _SKIPPED_PRODUCER_IDS:
        plan.problems.append(f"registry node {PRODUCER_ID_BLOCK} leaves no producer ids; those in the logs count")
        block = None
    given = highest if block is None else block.last
    if block is None or behind or block.last < highest:
        # To the end of a block, as brokers count.
        size = PRODUCER_ID_BLOCK_SIZE
        given = max(given, highest) + (_SKIPPED_PRODUCER_IDS if highest >= 0 or plan.keeps_old else 0)
        last = (given // size + 1) * size - 1
        if given >= 0:
            wanted.put(PRODUCER_ID_BLOCK, ProducerIdBlock(BrokerId(plan.broker_id), last - size + 1, last).encode())
            given = last
    plan.next_producer_id = given + 1
    if znodes.CONTROLLER_EPOCH in tree.nodes:
        epoch = _readable(tree, znodes.CONTROLLER_EPOCH, znodes.decode_controller_epoch, plan)
        if epoch is None:
            wanted.put(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(_highest_controller_epoch(tree)))


def _highest_controller_epoch(tree: Tree) -> int:
    highest = 0
    for path, node in tree.nodes.items():
        if path.startswith(f"{znodes.TOPICS}/") and path.endswith("/state"):
            with contextlib.suppress(MalformedNode):
                state = LeaderAndIsr.decode("", 0, node.data)
                highest = max(highest, min(state.controller_epoch, znodes.MAX_EPOCH - 1))
    return highest


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
        for path, data in sorted(plan.nodes.items()):
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
        "cluster_id": plan.cluster_id,
        "broker_id": plan.broker_id,
        "next_producer_id": plan.next_producer_id,
        "topics": [
            {
                "topic": topic.name,
                "topic_id": znodes.uuid_text(topic.topic_id),
                "leader_epochs": list(topic.epochs.values()),
                "partitions_without_log": list(topic.without_log),
                "assumed_config": None if topic.config is None else dict(topic.config),
            }
            for topic in plan.topics
        ],
        "nodes": sorted(plan.nodes),
        "problems": plan.problems,
        "set_aside_before": plan.strays,
    }
