"""A log that was cut below what was read of it, as after an unclean election (KIP-320).

A fetch carries the leader epoch of the last record before its offset. A leader whose log has no such record there
answers with its own last epoch up to that one, and where it ends. Brokers do so from Fetch 12 on; older ones are asked
with OffsetForLeaderEpoch before a fetch, whenever the leader is another one than that of the last record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from spark_kafkalite.client.consume.fetch_requests import FetchFrom, PartitionFetched
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import LogTruncated, UnsupportedVersion
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import is_retriable
from spark_kafkalite.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

# From this version of Fetch on a leader compares by itself.
_FETCH_COMPARES: Final = 12
_CONSUMER: Final = -1


def check_not_truncated(topic_partition: TopicPartition, offset: int, diverging: tuple[int, int]) -> None:
    """Raise LogTruncated when a diverging epoch and its end offset mean that ``offset`` lies beyond the common log.

    An epoch that ends at or behind the offset has lost nothing: positions that were looked up carry the epoch of their
    leader, which may have ended without a record. Source: SubscriptionState.maybeCompleteValidation.
    """
    leader_epoch, end_offset = diverging
    if 0 <= end_offset < offset:
        raise LogTruncated(topic_partition, offset, end_offset, leader_epoch)


class EpochEnds:
    """Where epochs end in the logs of one broker, asked for over one connection where its Fetch does not compare."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        # By partition: the leader epoch that was asked, the epoch that was asked about, and where it ends.
        self._known: dict[TopicPartition, tuple[int, int, int]] = {}

    def parted(self, positions: Iterable[FetchFrom], deadline: Deadline) -> dict[TopicPartition, PartitionFetched]:
        """Return what Fetch 12 would answer for partitions whose log parts before the position, and for those that
        cannot be compared now; the others may be fetched.

        Raises BrokerUnreachable, UnsupportedVersion.
        """
        if not _must_be_asked(self._connection):
            return {}
        doubtful = {each.topic_partition: each for each in positions if self._is_doubtful(each)}
        if not doubtful:
            return {}
        found: dict[TopicPartition, PartitionFetched] = {}
        for topic_partition, code, epoch, end_offset in self._ask(doubtful.values(), deadline):
            asked = doubtful.get(topic_partition)
            if asked is None:
                continue
            if is_retriable(code):
                found[topic_partition] = _answer(code)
            elif end_offset >= 0 and (epoch < asked.last_fetched_epoch or end_offset < asked.offset):
                found[topic_partition] = _answer(0, (epoch, end_offset))
            else:
                # Without an end there is nothing to compare with: the fetch says whether the offset is in the log.
                end_offset = max(end_offset, asked.offset)
                self._known[topic_partition] = asked.leader_epoch, asked.last_fetched_epoch, end_offset
        return found

    def _is_doubtful(self, position: FetchFrom) -> bool:
        # Records of the leader's own epoch are in its log.
        if not 0 <= position.last_fetched_epoch < position.leader_epoch:
            return False
        leader_epoch, epoch, end_offset = self._known.get(position.topic_partition, (-1, -1, -1))
        same = (leader_epoch, epoch) == (position.leader_epoch, position.last_fetched_epoch)
        return not same or position.offset > end_offset

    def _ask(
        self, positions: Iterable[FetchFrom], deadline: Deadline
    ) -> Iterator[tuple[TopicPartition, int, int, int]]:
        """Yield partition, error code, epoch and its end offset."""
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for each in positions:
            topics.setdefault(each.topic_partition.topic, []).append(
                OffsetForLeaderPartition(
                    partition=each.topic_partition.partition,
                    current_leader_epoch=each.leader_epoch,
                    leader_epoch=each.last_fetched_epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=[OffsetForLeaderTopic(topic=name, partitions=partitions) for name, partitions in topics.items()],
        )
        answer = self._connection.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, deadline)
        for topic in answer.topics:
            for item in topic.partitions:
                where = TopicPartition(topic.topic, item.partition)
                yield where, item.error_code, item.leader_epoch, item.end_offset


def _must_be_asked(connection: BrokerConnection) -> bool:
    if connection.version(ApiKey.FETCH) >= _FETCH_COMPARES:
        return False
    try:
        connection.version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    except UnsupportedVersion:
        # Before 2.3: only other brokers may ask.
        return False
    return True


def _answer(code: int, diverging_epoch: tuple[int, int] | None = None) -> PartitionFetched:
    return PartitionFetched(code, -1, -1, -1, None, None, diverging_epoch)
