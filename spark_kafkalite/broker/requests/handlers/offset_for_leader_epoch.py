"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where a leader epoch ends, so that readers notice truncation.

The answer is the largest epoch up to the asked one that the leader knows, and its end offset: the start of the next
one, or the log end. Nothing known: -1 and -1.

The log end is given to consumers too, whatever they may see of it (``visibility.policy``). They take an end below their
position for truncation, and a new leader may have flushed less than the one before had shown.

v2  current leader epoch in the request
v3  replica id in the request (below 0: a consumer), which the connection must have proven
v4  flexible
"""

from __future__ import annotations

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import KafkaError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4)
def handle(
    context: BrokerContext, exchange: Exchange, message: OffsetForLeaderEpochRequest
) -> Work[OffsetForLeaderEpochResponse]:
    """Look up the end of one epoch for each partition."""
    topics = []
    for topic in message.topics:
        results = []
        for asked in topic.partitions:
            yield None
            result = EpochEndOffset(partition=asked.partition)
            try:
                exchange.require(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
                exchange.session.check_replica(message.replica_id)
                partition = context.replicas.get(TopicPartition(topic.topic, asked.partition))
                partition.check_leader(asked.current_leader_epoch)
                result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)
