"""Does a disaster to a simulated cluster: to the files of a broker's disk, to the power, to the registry.

A fault that names a file which is not there, or which is empty already, does nothing. What is drawn (which partition,
which file, which bit) comes from the fault's own number, so a schedule that is made smaller damages the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import ANY_VERSION, Delete, Operation, SetData
from spark_kafkalite.registry.tree.tree import DataNode, Tree
from spark_kafkalite.registry.znodes import LeaderAndIsr, TopicAssignment
from tests.simulator.broker import DIRECTORY
from tests.simulator.copies import Copies, whole_batches
from tests.simulator.disk import Disk, ReadFault
from tests.simulator.registry import SimulatedRegistry
from tests.simulator.schedule import Fault, FaultKind

_HEADER_BYTES: Final = 61
# The CRC of a batch spans what is behind it; the base offset and the length before it are checked by their values.
_FIRST_OF_HEADER: Final = 8
_LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
_LOG_STARTS: Final = "log-start-offset-checkpoint"
# What a fault names by a part of the name, and lies in a partition's directory.
_OF_PARTITIONS: Final = frozenset({"", ".log", ".index", ".timeindex", _LEADER_EPOCHS})

OF_FILES: Final = frozenset(
    {
        FaultKind.FLIP_RECORD,
        FaultKind.FLIP_HEADER,
        FaultKind.FLIP_INDEX,
        FaultKind.SHORT_READ,
        FaultKind.READ_ERROR,
        FaultKind.BAD_SECTOR,
        FaultKind.FILE_MISSING,
        FaultKind.FILE_EMPTIED,
        FaultKind.FILE_CUT,
        FaultKind.FILE_OLDER,
        FaultKind.LOG_START_RAISED,
        FaultKind.PARTITION_OLDER,
    }
)
_WITH_COPY: Final = frozenset({FaultKind.FILE_OLDER, FaultKind.PARTITION_OLDER})
_OF_SEGMENTS: Final = frozenset({FaultKind.FLIP_RECORD, FaultKind.FLIP_HEADER})


def kills_and_spares_the_end(draw: int) -> bool:
    """Return whether a fault of this number kills its broker, and hits none of the last of several files.

    Without its last segment a log looks like one that has ended there, if no checkpoint has come so far.
    """
    chance = random.Random(draw)
    is_killed, _, which = chance.random() >= 0.5, chance.random(), chance.random()
    return is_killed and which < 0.25


class Chosen:
    """Which partition and which file of a fault's broker it is about, and what its copy of earlier holds."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.chance = random.Random(fault.draw)
        # Whether a broker that is down for it was stopped in order.
        self.is_stopped_first = self.chance.random() < 0.5
        self._number = self.chance.random()
        self._which = self.chance.random()
        self._copy: dict[str, bytes] = {}

    def directory(self, disk: Disk, copies: Copies) -> str | None:
        """Return the name of the partition's directory, None when the broker has none."""
        names = [each for each in disk.directories(DIRECTORY) if copies.named(each) is not None]
        return names[int(self._number * len(names))] if names else None

    def keep_copy(self, disk: Disk) -> None:
        """Copy all that there is, for later."""
        self._copy = disk.copy(f"{DIRECTORY}/")

    def damage(self, disk: Disk, copies: Copies) -> TopicPartition | None:
        """Do it; return whose files it was about, None for those of the whole directory. LookupError: not there."""
        directory = self.directory(disk, copies)
        if directory is None:
            raise LookupError("the broker has no partition")
        where, below = copies.named(directory), f"{DIRECTORY}/{directory}/"
        if self.fault.kind is FaultKind.PARTITION_OLDER:
            if not any(path.startswith(below) for path in self._copy):
                raise LookupError(f"the copy has nothing of {directory}")
            for path in disk.paths(below):
                disk.take(path)
            for path, data in self._copy.items():
                if path.startswith(below):
                    disk.put(path, data)
            return where
        if self.fault.kind is FaultKind.LOG_START_RAISED:
            self._raise_log_start(disk, below, directory)
            return where
        what = ".log" if self.fault.kind in _OF_SEGMENTS else self.fault.what
        found = disk.paths(below if what in _OF_PARTITIONS else f"{DIRECTORY}/")
        paths = [path for path in found if path.endswith(what) and disk.content(path)]
        if not paths:
            raise LookupError(f"there is no {what} with anything in it")
        # The last one as often as all others: it is written to.
        which = int(self._which * 2 * len(paths))
        self._damage(disk, paths[min(which, len(paths) - 1)])
        return where if what in _OF_PARTITIONS else None

    def _damage(self, disk: Disk, path: str) -> None:
        data, chance = disk.content(path), self.chance
        match self.fault.kind:
            case FaultKind.FLIP_RECORD | FaultKind.FLIP_HEADER | FaultKind.FLIP_INDEX:
                at = self._place(data)
                flipped = bytearray(data)
                flipped[at] ^= 1 << chance.randrange(8)
                disk.put(path, bytes(flipped))
            case FaultKind.SHORT_READ:
                disk.fail_reads(path, ReadFault(1, is_short=True))
            case FaultKind.READ_ERROR:
                disk.fail_reads(path, ReadFault(1))
            case FaultKind.BAD_SECTOR:
                disk.fail_reads(path, ReadFault(None, at=chance.randrange(len(data))))
            case FaultKind.FILE_MISSING:
                disk.take(path)
            case FaultKind.FILE_EMPTIED:
                disk.put(path, b"")
            case FaultKind.FILE_CUT:
                disk.put(path, data[: chance.randrange(len(data))])
            case FaultKind.FILE_OLDER:
                if path not in self._copy or self._copy[path] == data:
                    raise LookupError(f"{path} is not older in the copy")
                disk.put(path, self._copy[path])

    def _place(self, data: bytes) -> int:
        """Return the position of a byte: in a record, in a header, or anywhere in an index."""
        found = list(whole_batches(data))
        if self.fault.kind is FaultKind.FLIP_INDEX or not found:
            return self.chance.randrange(len(data))
        position, size, _ = self.chance.choice(found)
        if self.fault.kind is FaultKind.FLIP_HEADER:
            return position + self.chance.randrange(_FIRST_OF_HEADER, _HEADER_BYTES)
        return position + self.chance.randrange(_HEADER_BYTES, size)

    def _raise_log_start(self, disk: Disk, below: str, directory: str) -> None:
        offsets = [
            batch.base_offset
            for path in disk.paths(below)
            if path.endswith(".log")
            for _, _, batch in whole_batches(disk.content(path))
        ]
        if not offsets:
            raise LookupError(f"{directory} has no records")
        topic, _, partition = directory.rpartition("-")
        start = offsets[len(offsets) // 2]
        disk.put(f"{DIRECTORY}/{_LOG_STARTS}", b"0\n1\n%s %s %d\n" % (topic.encode(), partition.encode(), start))


def needs_copy(fault: Fault) -> bool:
    """Whether something is put back that is copied before."""
    return fault.kind in _WITH_COPY


class RegistryCopy:
    """What the registry has had, without what belongs to sessions."""

    def __init__(self, registry: SimulatedRegistry) -> None:
        self._zxid = registry.zxid
        self._nodes = {path: _copy(node) for path, node in registry.tree.nodes.items() if not node.ephemeral_owner}

    def restore(self, registry: SimulatedRegistry) -> None:
        """Put it in the place of what there is. No session outlives that."""
        tree = Tree()
        for path in sorted(self._nodes):
            tree.load(path, _copy(self._nodes[path]))
        registry.tree, registry.zxid = tree, self._zxid
        for store in registry.stores:
            store.was_ended = True


def _copy(node: DataNode) -> DataNode:
    return replace(node, children=set(), ephemeral_owner=0)


def change_nodes(registry: SimulatedRegistry, fault: Fault, topics: list[str]) -> str:
    """Remove a node of the registry, or write one by hand; return which one. LookupError: it is not there."""
    chance = random.Random(fault.draw)
    topic = chance.choice(topics)
    path, operations = _by_hand(registry, fault, topic, chance)
    if path not in registry.tree.nodes:
        raise LookupError(f"there is no {path}")
    registry.tree.apply(operations(), 0, registry.next_zxid(), registry.now_ms())
    registry.settle()
    return path


def _by_hand(
    registry: SimulatedRegistry, fault: Fault, topic: str, chance: random.Random
) -> tuple[str, Callable[[], list[Operation]]]:
    state = znodes.state_path(topic, 0)
    if fault.kind is FaultKind.NODE_BY_HAND:
        return state, lambda: [_another_leader(registry, topic, state, chance)]
    path = {
        "state": state,
        "partitions": znodes.partitions_path(topic),
        "config": znodes.topic_config_path(topic),
        "broker": znodes.broker_path(fault.target),
        "controller": znodes.CONTROLLER,
    }.get(fault.what)
    if path is None:
        assigned = registry.tree.nodes.get(znodes.topic_path(topic))
        if assigned is None:
            raise LookupError(f"there is no topic {topic}")
        path = znodes.topic_guard_path(TopicAssignment.decode(topic, assigned.data).topic_id)
    below = sorted((each for each in registry.tree.nodes if f"{each}/".startswith(f"{path}/")), reverse=True)
    return path, lambda: [Delete(each) for each in below]


def _another_leader(registry: SimulatedRegistry, topic: str, path: str, chance: random.Random) -> SetData:
    """As somebody writes it who knows Kafka's state nodes: another member of the ISR leads, and all stay in it."""
    node = LeaderAndIsr.decode(topic, 0, registry.tree.nodes[path].data)
    changed = replace(node, leader=chance.choice(node.isr), incarnations={}, eligible={})
    return SetData(path, changed.encode(), ANY_VERSION)
