"""Logs that this broker has set aside because they differ from their leader's, and that it copies again.

A delayed fetch may have reported the former log's end. If the leader adds this broker to the ISR because of that, the
broker leaves again, and does not lead, until its new log has what was committed when the former one was set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.rules.leaving import others_with_log
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState


class CopiedAgain:
    """See the module's text."""

    def __init__(self, leave: Callable[[TopicPartition], None]) -> None:
        """``leave`` has this broker leave the ISR of a partition."""
        self._leave = leave
        # The topic's id, the leader epoch when the log was set aside, and what was committed.
        self._noted: dict[TopicPartition, tuple[bytes, int, int]] = {}

    def add(self, partition: Partition) -> None:
        """Note a partition whose log is about to be set aside."""
        self._noted[partition.topic_partition] = partition.topic_id, partition.leader_epoch, partition.high_watermark

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._noted)

    def is_named_too_early(self, partition: Partition, state: PartitionState, me: BrokerInfo) -> bool:
        """Leave the ISR again if the leader has added this broker too early. Return whether the partition is not led
        although the state names this broker."""
        noted = self._noted.get(partition.topic_partition)
        if noted is None:
            return False
        topic_id, epoch, committed = noted
        is_led = state.is_led_by(me)
        is_over = topic_id != partition.topic_id or state.leader_epoch > epoch + is_led
        if is_over or partition.log.log_end_offset >= committed:
            del self._noted[partition.topic_partition]
            return False
        if not others_with_log(state, me.broker_id):
            return False
        self._leave(partition.topic_partition)
        return is_led
