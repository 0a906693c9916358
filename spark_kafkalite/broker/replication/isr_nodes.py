"""A partition's state node as brokers other than the controller write it: by compare-and-set, and only for this topic.

Every write checks the topic's guard, too: the versions of nodes begin at 0 again when a topic is deleted and made
again, so that a write still under way could hit the new topic's state (rule R14).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    NodeError,
    NoNode,
    SetData,
    Stat,
    Store,
    answer,
)
from spark_kafkalite.registry.znodes import LeaderAndIsr, state_path, topic_guard_path

_GUARD = 0


class GuardMissing(NoNode):
    """The topic has no guard: it has been deleted, or no controller has made the guard yet."""


class StateChange(NamedTuple):
    """A state to be written in the place of another one."""

    topic_partition: TopicPartition
    topic_id: bytes
    before: PartitionState
    after: PartitionState


async def write_states(store: Store, changes: Sequence[StateChange]) -> list[PartitionState] | None:
    """Write all of these in one step, or none; return them as the registry has them then.

    None: one of the nodes, at least, has another version, or is gone, or its topic has no guard. Raises RegistryError;
    after a ConnectionLoss they may have been written.
    """
    guards = [_guard(topic_id) for topic_id in dict.fromkeys(each.topic_id for each in changes)]
    writes = [_write(each.topic_partition, each.before, each.after) for each in changes]
    try:
        results = await answer(store.multi([*guards, *writes]))
    except NodeError:
        return None
    return [_as_written(each.after, stat) for each, stat in zip(changes, results[len(guards) :], strict=True)]


async def write_state(
    store: Store, topic_partition: TopicPartition, topic_id: bytes, before: PartitionState, after: PartitionState
) -> PartitionState | None:
    """Write ``after`` if the node's version is that of ``before``; return it as the registry has it then.

    None: the node has another version, or is gone. Raises GuardMissing, RegistryError; after a ConnectionLoss it may
    have been written.
    """
    try:
        _, stat = await answer(store.multi([_guard(topic_id), _write(topic_partition, before, after)]))
    except BadVersion:
        return None
    except NoNode as error:
        if error.operation_index == _GUARD:
            raise GuardMissing(str(error), error.path, error.operation_index) from None
        return None
    return _as_written(after, stat)


def _as_written(state: PartitionState, stat: Stat) -> PartitionState:
    return replace(state, version=stat.version, modified_zxid=stat.mzxid, created_zxid=stat.czxid)


def _guard(topic_id: bytes) -> Check:
    return Check(topic_guard_path(topic_id), ANY_VERSION)


def _write(topic_partition: TopicPartition, before: PartitionState, after: PartitionState) -> SetData:
    return SetData(state_path(*topic_partition), after.node.encode(), before.version)


async def read_state(store: Store, topic_partition: TopicPartition, known: PartitionState) -> PartitionState | None:
    """Return the state as the registry has it now, with the replicas of ``known``; None when there is none.

    Raises MalformedNode, RegistryError.
    """
    # An ensemble's member may lag behind the one that has answered last.
    await answer(store.sync())
    try:
        data, stat = await answer(store.get(state_path(*topic_partition)))
    except NoNode:
        return None
    # Of the replicas it says nothing: they stay as old as they are (PartitionState.merged_with).
    return PartitionState.of(known.replicas, LeaderAndIsr.decode(*topic_partition, data), stat, known.replicas_zxid)
