"""Partitions' state nodes as they are written: each by compare-and-set, and only under a guard.

A leader or a follower checks the topic's guard with every write. The versions of nodes begin at 0 again when a topic is
deleted and made again, so that a write still under way could hit the new topic's state (rule R14). The controller's
writes are fenced by its epoch (R13): while that is valid no other program deletes a topic.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.store import (
    ANY_VERSION,
    Check,
    Create,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Stat,
    Store,
    answer,
)
from spark_kafkalite.registry.znodes import (
    LeaderAndIsr,
    partition_path,
    partitions_path,
    state_path,
    topic_guard_path,
)

FencedWrite = Callable[[Sequence[Operation]], Awaitable[list[Any]]]


class GuardMissing(NoNode):
    """The topic has no guard: it has been deleted, or no controller has made the guard yet."""


@dataclass(frozen=True, eq=False)
class StateChange:
    """A state to be written in the place of another one."""

    topic_partition: TopicPartition
    topic_id: bytes
    before: PartitionState
    after: PartitionState
    # What it goes by besides, and is refused without.
    checks: tuple[Check, ...] = ()

    @cached_property
    def operation(self) -> Operation:
        """What writes it; a hundred take a millisecond to encode."""
        path, data = state_path(*self.topic_partition), self.after.node.encode()
        return SetData(path, data, self.before.version) if self.before.has_state else Create(path, data)

    def as_written(self, result: Any) -> PartitionState:
        """Return the state as the registry has it after the operation: ``result`` is a Stat, or a new node's path."""
        if isinstance(result, Stat):
            return replace(self.after, version=result.version, modified_zxid=result.mzxid, created_zxid=result.czxid)
        return replace(self.after, version=0)


class StateNodes(ABC):
    """The state nodes, through the sessions of the broker that writes them."""

    def __init__(self, store: Callable[[], Store]) -> None:
        """``store`` gives the present session with the registry, or raises SessionExpired."""
        self._store = store

    @abstractmethod
    async def write(self, changes: Sequence[StateChange]) -> list[PartitionState]:
        """Write all of these in one step, or none; return the states as the registry has them then.

        Raises NodeError when a node is gone or has another version; RegistryError, after which the states may have been
        written or not.
        """

    async def read(self, known: StateChange) -> PartitionState | None:
        """Return a state as the registry has it now, with the replicas that are known; None when there is none.

        Raises MalformedNode, RegistryError.
        """
        # An ensemble's member may lag behind the one that has answered last.
        await answer(self._store().sync())
        try:
            data, stat = await answer(self._store().get(state_path(*known.topic_partition)))
        except NoNode:
            return None
        before, node = known.before, LeaderAndIsr.decode(*known.topic_partition, data)
        # Of the replicas it says nothing: they stay as old as they are (PartitionState.merged_with).
        return PartitionState.of(before.replicas, node, stat).with_replicas_of(before)


class GuardedNodes(StateNodes):
    """As brokers other than the controller write them: only for the topic of this id."""

    async def write(self, changes: Sequence[StateChange]) -> list[PartitionState]:
        """As for :class:`StateNodes`; raises GuardMissing, too."""
        topic_ids = dict.fromkeys(each.topic_id for each in changes)
        guards = [Check(topic_guard_path(topic_id), ANY_VERSION) for topic_id in topic_ids]
        try:
            results = await answer(self._store().multi([*guards, *(each.operation for each in changes)]))
        except NoNode as error:
            if 0 <= error.operation_index < len(guards):
                raise GuardMissing(str(error), error.path, error.operation_index) from None
            raise
        return [each.as_written(result) for each, result in zip(changes, results[len(guards) :], strict=True)]


class FencedNodes(StateNodes):
    """As the controller writes them; it makes those that are not there yet, each with its parents."""

    def __init__(self, store: Store, write: FencedWrite) -> None:
        """``write`` does a multi that the controller's epoch fences; what it raises is raised."""
        super().__init__(lambda: store)
        self._write = write

    async def write(self, changes: Sequence[StateChange]) -> list[PartitionState]:
        for each in changes:
            if not each.before.has_state:
                name, number = each.topic_partition
                for path in (partitions_path(name), partition_path(name, number)):
                    with contextlib.suppress(NodeExists):
                        await answer(self._store().create(path))
        checks = list(dict.fromkeys(check for each in changes for check in each.checks))
        results = await self._write([*checks, *(each.operation for each in changes)])
        return [each.as_written(result) for each, result in zip(changes, results[len(checks) :], strict=True)]
