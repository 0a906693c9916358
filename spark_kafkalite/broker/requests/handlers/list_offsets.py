"""ListOffsets (key 2), versions 1 to 9: the offset of a time, or of one end of the log.

All is looked up below the end that the reader may see (``replication.reader``). Timestamp -1 asks for that end, -2 for
the log start, -3 (v7) for the record with the largest timestamp. Timestamp -4 (v8) asks for the first offset on this
broker's own disk, -5 (v9) for the last one that is only in tiered storage. A timestamp from 0 on asks for the first
record that is not older. A time after the last record has no offset, which is no error: -1 and -1. There is no tiered
storage: -4 is -2, and -5 has no offset.

A new leader's high watermark may not have reached the offset at which its epoch began. Until then the leader does not
know how much of what the leader before had shown to consumers is committed. The end, and times behind the committed
records, are not available so long, or the end would seem to go back (KIP-207). Source:
kafka.cluster.Partition.fetchOffsetForTimestamp.

Replica id -2 asks for the end of this broker's own log (timestamp -1), whether it leads or not: what an operator wants
to know before an unclean election.

v1  one offset per partition
v2  isolation level
v4  leader epochs in the request (fencing) and in the answer
v5  OFFSET_NOT_AVAILABLE; before, LEADER_NOT_AVAILABLE in its place
v6  flexible
v7  timestamp -3
v8  timestamp -4
v9  timestamp -5
"""

from __future__ import annotations

from functools import partial

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.replication.leader import Leader
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.reader import Reader
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.waiting.page_cache import look_up
from spark_kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from spark_kafkalite.model import (
    DEBUGGING_REPLICA_ID,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    TopicPartition,
)
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

_FIRST_VERSIONS = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}


_FIRST_VERSION_NOT_AVAILABLE = 5


@handles(ApiKey.LIST_OFFSETS, 1, 9)
def handle(context: BrokerContext, exchange: Exchange, message: ListOffsetsRequest) -> Work[ListOffsetsResponse]:
    """Look up one offset for each partition; a partition asked for twice is an error for that partition."""
    topics = []
    seen: set[TopicPartition] = set()
    for topic in message.topics:
        partitions = []
        for asked in topic.partitions:
            yield None
            topic_partition = TopicPartition(topic.name, asked.partition_index)
            try:
                exchange.require(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
                if topic_partition in seen:
                    raise InvalidRequest(f"{topic_partition} is asked for twice")
                seen.add(topic_partition)
                exchange.session.check_replica(message.replica_id)
                if message.replica_id == DEBUGGING_REPLICA_ID and asked.timestamp == LATEST_TIMESTAMP:
                    partitions.append(_own_end(context, topic_partition))
                    continue
                find = partial(_look_up, context, exchange, topic_partition, asked, message)
                partitions.append((yield from look_up(context.io, context.loop, find)))
            except KafkaError as error:
                partitions.append(
                    ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error.code)
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


def _own_end(context: BrokerContext, topic_partition: TopicPartition) -> ListOffsetsPartitionResponse:
    partition = context.replicas.get(topic_partition)
    if partition.storage_error is not None:
        raise partition.storage_error
    return ListOffsetsPartitionResponse(
        partition_index=topic_partition.partition,
        offset=partition.log.log_end_offset,
        leader_epoch=partition.log.epochs.epoch_at(partition.log.log_end_offset),
    )


def _look_up(
    context: BrokerContext,
    exchange: Exchange,
    topic_partition: TopicPartition,
    asked: ListOffsetsPartition,
    message: ListOffsetsRequest,
) -> ListOffsetsPartitionResponse:
    if asked.timestamp < 0 and exchange.api_version < _FIRST_VERSIONS.get(asked.timestamp, exchange.api_version + 1):
        raise UnsupportedVersion(f"timestamp {asked.timestamp} is not known in version {exchange.api_version}")
    partition = context.replicas.get(topic_partition)
    leader = partition.check_leader(asked.current_leader_epoch)
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    reader = Reader.of(message.replica_id, message.isolation_level)
    if asked.timestamp == LATEST_TIMESTAMP:
        if reader is not Reader.FOLLOWER:
            _check_known(context, exchange, partition, leader)
        answer.offset = leader.end_offset_for(reader)
        answer.leader_epoch = partition.leader_epoch
        return answer
    if asked.timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        answer.offset = partition.log_start_offset
        answer.leader_epoch = partition.log.epochs.epoch_at(answer.offset)
        return answer
    if asked.timestamp == LATEST_TIERED_TIMESTAMP:
        return answer
    if asked.timestamp == MAX_TIMESTAMP:
        _check_known(context, exchange, partition, leader)
        found = partition.log.offset_of_max_timestamp(leader.end_offset_for(reader))
    else:
        found = partition.log.offset_for_timestamp(asked.timestamp, leader.end_offset_for(reader))
        if found is None:
            _check_known(context, exchange, partition, leader)
    if found is not None:
        answer.offset, answer.timestamp, answer.leader_epoch = found
    return answer


def _check_known(context: BrokerContext, exchange: Exchange, partition: Partition, leader: Leader) -> None:
    """See that this broker knows where what is committed ends.

    Raises NotLeaderOrFollower (6) when another one may lead by now; OffsetNotAvailable (78), in old versions
    LeaderNotAvailable (5), while it is not known.
    """
    context.lease.check_leads(context.clock.monotonic_s())
    if partition.high_watermark < leader.epoch_start_offset:
        text = (
            f"{partition.topic_partition}: what was shown before epoch {leader.epoch}, below offset "
            f"{leader.epoch_start_offset}, is not known to be in enough replicas yet"
        )
        raise (OffsetNotAvailable if exchange.api_version >= _FIRST_VERSION_NOT_AVAILABLE else LeaderNotAvailable)(text)
