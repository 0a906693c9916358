"""The registry operations that create, extend and delete topics. Pure.

Operations come one after the other as they are needed, and ``multi_pieces`` gathers as many of them as fit into one
multi. A topic of ten thousand partitions is twenty thousand operations, which should not be in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from spark_kafkalite.model import BrokerId, ControllerEpoch
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState, TopicState
from spark_kafkalite.registry.controller.election import elect
from spark_kafkalite.registry.controller.topic_plan import TopicSpec
from spark_kafkalite.registry.multi_pieces import PIECE_BYTES, PIECE_OPERATIONS
from spark_kafkalite.registry.store import (
    Create,
    Delete,
    Operation,
    SetData,
)

T = TypeVar("T")

# Topics, and partitions of these, that are written at a time: one commit of the registry, and no long turn of the loop.
_BATCH_TOPICS: Final = 50
_BATCH_PARTITIONS: Final = 300
# What a topic's node may hold, so that one piece has room for it.
MAX_ASSIGNMENT_BYTES: Final = PIECE_BYTES - 1024


def batches(topics: Iterable[tuple[T, int]]) -> Iterator[list[T]]:
    """Cut topics, given with their numbers of partitions, into those that are written together."""
    batch: list[T] = []
    size = 0
    for topic, partition_count in topics:
        if batch and (len(batch) >= _BATCH_TOPICS or size + partition_count > _BATCH_PARTITIONS):
            yield batch
            batch, size = [], 0
        batch.append(topic)
        size += partition_count
    if batch:
        yield batch


def creation(
    topic: TopicSpec,
    topic_id: bytes,
    encoded: bytes,
    partitions: Mapping[int, tuple[BrokerId, ...]],
    live: Mapping[int, BrokerInfo],
    controller_epoch: ControllerEpoch,
    *,
    replaces_config: bool,
) -> Iterator[Operation]:
    """Make a topic with its leaders elected; ``encoded`` is its node's data, the assignment of these partitions.

    ``replaces_config``: the settings of an earlier topic of the name have been left over.
    """
    config_path, config = znodes.topic_config_path(topic.name), znodes.encode_config(topic.config)
    yield SetData(config_path, config) if replaces_config else Create(config_path, config)
    yield Create(znodes.topic_guard_path(topic_id))
    yield Create(znodes.topic_path(topic.name), encoded)
    yield Create(znodes.partitions_path(topic.name))
    yield from new_partitions(topic.name, partitions, live, controller_epoch)


def new_partitions(
    name: str,
    partitions: Mapping[int, tuple[BrokerId, ...]],
    live: Mapping[int, BrokerInfo],
    controller_epoch: ControllerEpoch,
) -> Iterator[Operation]:
    """Make partitions of a topic with their leaders elected; one that no replica can lead gets its state later."""
    encoded: dict[tuple[BrokerId, ...], bytes] = {}
    for number, replicas in partitions.items():
        state = encoded.get(replicas)
        if state is None:
            elected = elect(PartitionState(replicas), live)
            state = elected.as_node(0, controller_epoch).encode() if elected.isr else b""
            encoded[replicas] = state
        yield Create(znodes.partition_path(name, number))
        if state:
            yield Create(znodes.state_path(name, number), state)


def deletion(name: str, topic: TopicState) -> Iterator[Operation]:
    """Remove a topic of which the snapshot knows everything, children first.

    The guard goes before all else: no leader writes a state any more (rule R14).
    """
    if topic.topic_id != znodes.NO_TOPIC_ID:
        yield Delete(znodes.topic_guard_path(topic.topic_id))
    yield Delete(znodes.topic_config_path(name))
    for number, partition in topic.partitions.items():
        if partition.has_state:
            yield Delete(znodes.state_path(name, number))
        yield Delete(znodes.partition_path(name, number))
    yield Delete(znodes.partitions_path(name))
    yield Delete(znodes.topic_path(name))


def fits_one_multi(topic: TopicState) -> bool:
    """Return whether :func:`deletion` needs only one piece."""
    return 2 * len(topic.partitions) + 4 < PIECE_OPERATIONS
