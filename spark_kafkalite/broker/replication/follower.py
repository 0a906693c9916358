"""What a replica does while another broker leads its partition, or none does.

It serves nobody and waits for nobody. Whoever asks is sent to the leader; so far, that is all.
"""

from __future__ import annotations

from spark_kafkalite.errors import NotLeaderOrFollower
from spark_kafkalite.model import TopicPartition


class Follower:
    """One replica under one leader epoch of another broker's; ``leader_id`` -1: nobody leads."""

    __slots__ = ("_reason", "leader_id")

    def __init__(self, topic_partition: TopicPartition, leader_id: int, reason: str = "") -> None:
        """``reason`` says why nobody leads here, where that is not another broker's leading."""
        self.leader_id = leader_id
        leads = f"is led by broker {leader_id}" if leader_id >= 0 else "has no leader"
        self._reason = reason or f"{topic_partition} {leads}"

    def refusal(self) -> NotLeaderOrFollower:
        """Return what requests are answered with, also those that had waited for a leader which this has followed."""
        return NotLeaderOrFollower(self._reason)
