"""What a client knows of a cluster: brokers, topics, partitions and their leaders, as immutable values.

Pure: :func:`merge` makes the next snapshot from a Metadata answer and the last snapshot. :func:`with_leaders` makes it
from the new leaders in the answer to a produce request or a fetch. A partition's leader epoch never goes back within
one topic id, so that an answer from a broker that lags behind does not undo what is known (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.errors import KafkaError, LeaderNotAvailable, UnknownTopicOrPartition
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.rights import refusal

if TYPE_CHECKING:
    from spark_kafkalite.wire.packed import NodeEndpoint

NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and the address that it advertises."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"broker {self.node_id} at {self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition. ``leader`` is a node id, -1 for none; ``error_code`` is the protocol's, 0 for none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error_code: int = 0

    def needed_in_sync(self, min_insync_replicas: int) -> int:
        """Return how many replicas must be in sync for acks=all; of a partition that has fewer, all."""
        return min(min_insync_replicas, len(self.replicas))


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic; ``partitions`` are in order of their numbers."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cluster as last seen. ``version`` grows with every change of the picture."""

    version: int = 0
    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)

    def partition(self, topic_partition: TopicPartition) -> PartitionInfo | None:
        """Return what is known of a partition, None for nothing."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or topic.error_code:
            return None
        number = topic_partition.partition
        if 0 <= number < len(topic.partitions) and topic.partitions[number].partition == number:
            return topic.partitions[number]
        return next((info for info in topic.partitions if info.partition == number), None)

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader's node id, -1 when there is none or it is not known."""
        info = self.partition(TopicPartition(topic, partition))
        return NO_LEADER if info is None else info.leader


def merge(last: ClusterSnapshot, answer: Any, asked: set[str] | None) -> ClusterSnapshot:
    """Return the picture after a Metadata answer; ``asked`` are the topics that were asked for, None for all.

    Topics that were not asked for stay as they were; with None, those that are not in the answer are gone.
    """
    topics = {} if asked is None else dict(last.topics)
    for received in answer.topics:
        if received.name is not None:
            topics[received.name] = _merged_topic(last.topics.get(received.name), received)
    return replace(
        last,
        version=last.version + 1,
        cluster_id=answer.cluster_id or last.cluster_id,
        controller_id=answer.controller_id,
        nodes={node.node_id: Node(node.node_id, node.host, node.port, node.rack) for node in answer.brokers},
        topics=topics,
    )


def with_leaders(
    last: ClusterSnapshot, leaders: Mapping[TopicPartition, tuple[int, int]], endpoints: Iterable[NodeEndpoint]
) -> ClusterSnapshot:
    """Return the picture after an answer named current leaders: (node id, leader epoch), and where they are reached.

    Only a higher epoch than the known one counts, and a leader whose address is known or given; without such news the
    picture is the same object. Source: KIP-951.
    """
    nodes = dict(last.nodes)
    for each in endpoints:
        nodes[each.node_id] = Node(each.node_id, each.host, each.port, each.rack)
    topics = dict(last.topics)
    for topic_partition, (leader, leader_epoch) in leaders.items():
        topic = topics.get(topic_partition.topic)
        known = None if topic is None else last.partition(topic_partition)
        if topic is None or known is None or leader not in nodes or leader_epoch <= known.leader_epoch:
            continue
        partitions = tuple(
            replace(info, leader=leader, leader_epoch=leader_epoch, error_code=0)
            if info.partition == known.partition
            else info
            for info in topic.partitions
        )
        topics[topic.name] = replace(topic, partitions=partitions)
    if topics == last.topics:
        return last
    return replace(last, version=last.version + 1, nodes=nodes, topics=topics)


def _merged_topic(last: TopicInfo | None, received: Any) -> TopicInfo:
    known: dict[int, PartitionInfo] = {}
    if last is not None and last.topic_id == received.topic_id:
        known = {info.partition: info for info in last.partitions}
    partitions = []
    for item in sorted(received.partitions, key=lambda item: item.partition_index):
        info = PartitionInfo(
            item.partition_index,
            item.leader_id,
            item.leader_epoch,
            tuple(item.replica_nodes),
            tuple(item.isr_nodes),
            tuple(item.offline_replicas),
            item.error_code,
        )
        before = known.get(info.partition)
        # Epoch -1 comes from answers before version 7, which have none.
        if before is not None and 0 <= info.leader_epoch < before.leader_epoch:
            info = before
        partitions.append(info)
    return TopicInfo(received.name, received.topic_id, received.is_internal, tuple(partitions), received.error_code)


def not_live(broker_id: int, snapshot: ClusterSnapshot) -> str:
    """Return that a broker is not live, and which ones are."""
    live = ", ".join(map(str, sorted(snapshot.nodes))) or "none"
    return f"broker {broker_id} is not among the live brokers of the cluster at present: {live}"


def topic_error(name: str, code: int, *, allow_auto_create: bool = False) -> KafkaError:
    """Return why a topic cannot be used, by its error code in the metadata; 0 when it has no leader yet."""
    if code == UnknownTopicOrPartition.code:
        hint = (
            "; the broker does not create it automatically (auto.create.topics.enable), or cannot at present (see the "
            "broker's log)"
            if allow_auto_create
            else ""
        )
        why = f"it does not exist{hint}"
    elif code in (0, LeaderNotAvailable.code):
        why = "it has no leader yet"
    else:
        why = "the broker refuses it"
    return refusal(ApiKey.METADATA, code or LeaderNotAvailable.code, f"topic {name!r}: {why}")
