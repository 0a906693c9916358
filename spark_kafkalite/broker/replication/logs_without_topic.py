"""What becomes of a log that was set aside. Pure.

Only a deletion that the controller began deletes records: its id is then in the registry (``deleted_topics``). A topic
that is missing in another way may have been removed by hand, or be unknown to an older copy of the registry. Where a
reassignment has moved a partition away, the state names this broker (rule V6), and the other replicas have the records.
"""

from __future__ import annotations

from spark_kafkalite.log.strays import StrayFate
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState


def is_moved_away(state: PartitionState, broker_id: int) -> bool:
    """Return whether a reassignment has taken a partition from a broker, which has not got it again since."""
    return broker_id in state.removed and broker_id not in state.all_listed


def fate_of_stray(cluster: ClusterState, broker_id: int, directory: str, topic_id: bytes | None) -> StrayFate:
    """Return what becomes of a broker's log in a directory of this name; ``topic_id`` is None where the log names no
    id."""
    if cluster.has_deleted(topic_id):
        return StrayFate.DELETED
    name, _, number = directory.rpartition(".")[0].rpartition("-")
    if topic_id is None:
        is_known = name in cluster.topics
    else:
        known_as = cluster.topic_name(topic_id)
        is_known = known_as is not None
        state = cluster.topics[name].partitions.get(int(number)) if known_as == name and number.isdecimal() else None
        if state is not None and is_moved_away(state, broker_id):
            return StrayFate.DELETED
    # Where the topic exists, its other replicas have the records.
    return StrayFate.KEPT_FOR_A_TIME if is_known else StrayFate.KEPT
