"""A log that was cut below what was read of it, as after an unclean election (KIP-320).

A fetch says which leader epoch the last record before its offset had, and a leader whose log has no such record there
answers with its own last epoch up to that one, and where it ends. Brokers do so from Fetch 12 on.
"""

from __future__ import annotations

from spark_kafkalite.errors import LogTruncated
from spark_kafkalite.model import TopicPartition


def check_not_truncated(topic_partition: TopicPartition, offset: int, diverging: tuple[int, int]) -> None:
    """Raise LogTruncated when a diverging epoch and its end offset say that ``offset`` lies beyond the common log.

    An epoch that ends at or behind the offset has lost nothing: positions that were looked up carry the epoch of their
    leader, which may have ended without a record. Source: SubscriptionState.maybeCompleteValidation.
    """
    leader_epoch, end_offset = diverging
    if 0 <= end_offset < offset:
        raise LogTruncated(topic_partition, offset, end_offset, leader_epoch)
