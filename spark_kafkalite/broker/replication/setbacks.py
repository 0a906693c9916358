"""States of the registry that a hosted partition does not obey: neither a leader nor a controller writes them.

A person has written the node by hand, or the registry is an older copy. A leader epoch is one leader's, and the next
leader's is higher (docs/replication.md): two logs that go on under one epoch cannot be distinguished later. So the
partition goes on as it was, and the broker logs what to write.
"""

from __future__ import annotations

import logging

from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.znodes import NO_LEADER, state_path

_quiet = QuietLog(logging.getLogger(__name__))


def tell_of_setback(partition: Partition, state: PartitionState) -> bool:
    """Return whether a state is not to be obeyed, and log that."""
    if state.names_nobody:
        # The controller has made it because there was none, and waits for what the logs have.
        return False
    if state.leader_epoch < partition.leader_epoch:
        _tell(partition, state, f"has only {state.leader_epoch}")
        return True
    if state.leader_epoch == partition.leader_epoch and state.order > partition.state_order:
        leader_id = _leader_of(partition)
        if leader_id is not None and state.leader not in (NO_LEADER, leader_id):
            _tell(partition, state, f"has another leader under it, broker {state.leader} instead of {leader_id}")
            return True
    return False


def _leader_of(partition: Partition) -> int | None:
    """Return the leader under the partition's epoch; None while it has none, as far as this broker knows."""
    role = partition.role
    if isinstance(role, Leader):
        return partition.broker_id
    return role.leader_id if isinstance(role, Follower) else None


def _tell(partition: Partition, state: PartitionState, what: str) -> None:
    _quiet.log(
        logging.ERROR,
        str(partition.topic_partition),
        "%s goes on under leader epoch %d, though registry node %s %s, which neither a leader nor a controller writes: "
        "set its leader_epoch to %d; until then the ISR does not change, and no other broker can lead",
        partition.topic_partition,
        partition.leader_epoch,
        state_path(*partition.topic_partition),
        what,
        partition.leader_epoch + 1,
    )
