"""When a partition that this broker seems to be no replica of any more is really left.

A partition has two nodes in the registry: its state, and the list of replicas that was written with it. Both are
written in one step, and read apart. As long as one of them may be older than the other, they may agree in a moment that
a reassignment has moved the partition away, and its log may be deleted; before that it would only be set aside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from spark_kafkalite.broker.replication.logs_without_topic import is_moved_away
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import PartitionState

# How long the two may come apart: on a busy host the news of thousands of partitions take seconds.
_OTHER_NODE_WITHIN_S: Final = 30.0


class Departures:
    """See the module's text."""

    def __init__(self, loop: asyncio.AbstractEventLoop, me: int, look_again: Callable[[TopicPartition], None]) -> None:
        """``look_again`` is called when the other node should be there."""
        self._loop = loop
        self._me = me
        self._look_again = look_again
        # When the list of replicas was found not to have this broker any more, where the state may come later.
        self._since_s: dict[TopicPartition, float] = {}

    def awaits_other_node(self, topic_partition: TopicPartition, state: PartitionState | None) -> bool:
        """Return whether one of the partition's two nodes may still be older than the other."""
        if state is None or is_moved_away(state, self._me) or not self._is_half_known(state):
            self.forget(topic_partition)
            return False
        now_s = self._loop.time()
        if topic_partition not in self._since_s:
            self._since_s[topic_partition] = now_s
            self._loop.call_later(_OTHER_NODE_WITHIN_S, self._look_again, topic_partition)
        if now_s < self._since_s[topic_partition] + _OTHER_NODE_WITHIN_S:
            return True
        self.forget(topic_partition)
        return False

    def forget(self, topic_partition: TopicPartition) -> None:
        """Take note that this broker is a replica again, or that the partition is left."""
        self._since_s.pop(topic_partition, None)

    def _is_half_known(self, state: PartitionState) -> bool:
        """Whether the list of replicas is newer than the state, or still has this broker, which the state has taken
        away."""
        return state.modified_zxid < state.replicas_zxid or (self._me in state.removed and self._me in state.all_listed)
