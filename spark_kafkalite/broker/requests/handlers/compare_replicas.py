"""CompareReplicas (key 10001), version 0: a follower asks its leader for the checksum of a range of offsets.

Only authenticated brokers are answered; see ``broker.replication.comparison``. At most 1 MB is read for a request, in a
thread, but for a range of which headers cannot be followed. Of a range that differs the follower reports what is wrong
with its own batches; this broker checks its own, answers what is wrong with them, and takes note of its own damage.
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.replication.compared_log import ComparedLog
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.rules.comparing import UNREADABLE, Side, verdict
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import KafkaError, UnknownTopicId
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.inner.compare_replicas import ComparedRange, CompareReplicasRequest, CompareReplicasResponse


@handles(ApiKey.COMPARE_REPLICAS, 0, 0, brokers_only=True)
async def handle(
    context: BrokerContext, exchange: Exchange, message: CompareReplicasRequest
) -> CompareReplicasResponse:
    """Answer for one range."""
    try:
        exchange.session.check_replica(message.replica_id)
        name = context.cluster.topic_name(message.topic_id)
        if name is None:
            raise UnknownTopicId(f"no topic has the id {message.topic_id.hex()}")
        partition = context.replicas.get(TopicPartition(name, message.partition))
        partition.check_leader(message.leader_epoch)
        compared = ComparedLog(partition.log, context.io)
        answer = CompareReplicasResponse(
            first_offset=compared.first_offset,
            start_offset=message.start_offset,
            end_offset=message.start_offset,
        )
        if message.start_offset < compared.first_offset:
            # The follower goes on where this log can be compared.
            return answer
        if message.is_detailed:
            await _look(context, partition, compared, message, answer)
        else:
            until_offset = min(message.end_offset, partition.high_watermark)
            answer.end_offset, side = await compared.next_range(message.start_offset, until_offset, message.max_bytes)
            answer.size_bytes, answer.checksum = side.size_bytes, side.checksum
        partition.check_leader(message.leader_epoch)
        return answer
    except KafkaError as error:
        return CompareReplicasResponse(error_code=error.code)


async def _look(
    context: BrokerContext,
    partition: Partition,
    compared: ComparedLog,
    asked: CompareReplicasRequest,
    answer: CompareReplicasResponse,
) -> None:
    """Answer what is wrong with a range, and take note of what counts as damage of this log."""
    end_offset = min(asked.end_offset, partition.high_watermark)
    mine, epochs = await compared.faults_of(asked.start_offset, end_offset)
    answer.end_offset, answer.size_bytes, answer.checksum = end_offset, mine.size_bytes, mine.checksum
    answer.damaged = [ComparedRange(start_offset=start, end_offset=end) for start, end in mine.damaged]
    answer.missing = [ComparedRange(start_offset=start, end_offset=end) for start, end in mine.missing]
    answer.is_compacted = mine.is_compacted
    answer.first_epoch, answer.last_epoch = epochs
    other = Side(
        UNREADABLE,
        0,
        tuple((each.start_offset, each.end_offset) for each in asked.damaged),
        tuple((each.start_offset, each.end_offset) for each in asked.missing),
        asked.is_compacted,
    )
    damage = verdict(mine, other, is_compacted=partition.log.config.is_compacted).mine
    if damage:
        partition.damage_found(damage, f"it differs from the log of broker {asked.replica_id}")
