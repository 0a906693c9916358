"""What becomes of a log that was set aside. Pure.

Only a deletion that the controller began deletes records: its id is then in the registry (``deleted_topics``). A topic
that is missing in another way may have been removed by hand, or be unknown to an older copy of the registry.
"""

from __future__ import annotations

from spark_kafkalite.log.strays import StrayFate
from spark_kafkalite.registry.cluster.cluster_state import ClusterState


def fate_of_stray(cluster: ClusterState, directory: str, topic_id: bytes | None) -> StrayFate:
    """Return what becomes of the log in a directory of this name; ``topic_id`` is None where the log names no id."""
    if cluster.has_deleted(topic_id):
        return StrayFate.DELETED
    if topic_id is None:
        is_known = directory.rpartition(".")[0].rpartition("-")[0] in cluster.topics
    else:
        is_known = cluster.topic_name(topic_id) is not None
    # Where the topic exists, its other replicas have the records.
    return StrayFate.KEPT_FOR_A_TIME if is_known else StrayFate.KEPT
