"""A log that was cut below what was read of it, as after an unclean election (KIP-320).

A fetch says which leader epoch the last record before its offset had, and a leader whose log has no such record there
answers with its own last epoch up to that one, and where it ends. Brokers do so from Fetch 12 on.
"""

from __future__ import annotations

from spark_kafkalite.errors import OffsetOutOfRange
from spark_kafkalite.model import TopicPartition


class LogTruncated(OffsetOutOfRange):
    """Records that were read are not in the log any more: it has other ones, or none, from ``divergent_offset`` on.

    ``offset`` is what was to be read next, ``leader_epoch`` the epoch of the record before ``divergent_offset``.
    """

    def __init__(self, topic_partition: TopicPartition, offset: int, divergent_offset: int, leader_epoch: int) -> None:
        super().__init__(
            f"{topic_partition}: the log was truncated to offset {divergent_offset} after records up to offset "
            f"{offset} had been read; seek to {divergent_offset} to read what took their place, or to {offset} to go on"
        )
        self.topic_partition = topic_partition
        self.offset = offset
        self.divergent_offset = divergent_offset
        self.leader_epoch = leader_epoch

    def __reduce__(self) -> tuple[type[LogTruncated], tuple[TopicPartition, int, int, int]]:
        return type(self), (self.topic_partition, self.offset, self.divergent_offset, self.leader_epoch)


def check_not_truncated(topic_partition: TopicPartition, offset: int, diverging: tuple[int, int]) -> None:
    """Raise LogTruncated when a diverging epoch and its end offset say that ``offset`` lies beyond the common log.

    An epoch that ends at or behind the offset has lost nothing: positions that were looked up carry the epoch of their
    leader, which may have ended without a record. Source: SubscriptionState.maybeCompleteValidation.
    """
    leader_epoch, end_offset = diverging
    if 0 <= end_offset < offset:
        raise LogTruncated(topic_partition, offset, end_offset, leader_epoch)
