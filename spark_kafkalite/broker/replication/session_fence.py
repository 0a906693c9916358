"""What stops the leaders of a broker whose session with the registry is lost, and all replicas for a recovery.

While there is no registration nothing is led (rule R6): the next leader may have been elected. Clients receive
NotLeaderOrFollower, and find the next leader, or this one again, in the metadata. Followers go on, and logs stay open.

For the recovery of the registry the followers stop as well, until the broker is started again: the logs stay as they
are.

Lives in one event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_kafkalite.broker.replication.follower import NoLeader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.slices import Work


class SessionFence:
    """Under which registration the partitions act.

    ``me`` is the registration, None while there is none. ``stands_still``: nothing is led or followed any more.
    """

    def __init__(
        self,
        view: ClusterView,
        partitions: Mapping[TopicPartition, Partition],
        untruncated: Callable[[Partition], Work[None]],
    ) -> None:
        """``partitions`` are the hosted ones at any time; ``untruncated`` waits until no thread works on a log."""
        self._view = view
        self._partitions = partitions
        self._untruncated = untruncated
        self.me: BrokerInfo | None = None
        self.stands_still = False

    def stop_leading(self) -> Work[None]:
        """Have no partition led, except under a registration that has come meanwhile."""
        for partition in list(self._partitions.values()):
            # Work that was asked for before may have had it lead under the next registration by now.
            if not self._leads_as_registered(partition):
                partition.fence("its broker has lost its registration")
            yield None

    def stop_all(self, why: str) -> Work[None]:
        """Have no partition led or followed."""
        for partition in list(self._partitions.values()):
            yield from self._untruncated(partition)
            partition.fence(why)
            partition.stop_following(why)
            yield None

    @property
    def has_stopped(self) -> bool:
        """Whether no partition is led or followed, and no log is being cut back."""
        return all(isinstance(each.role, NoLeader) and not each.is_truncating for each in self._partitions.values())

    def _leads_as_registered(self, partition: Partition) -> bool:
        state = self._view.state.partition(partition.topic_partition)
        return (
            self.me is not None
            and state is not None
            and state.is_led_by(self.me)
            and state.order == partition.state_order
        )
