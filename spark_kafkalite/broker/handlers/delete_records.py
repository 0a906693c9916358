"""DeleteRecords (key 21), versions 0 to 2: hide the records before an offset for good.

The offset becomes the log start, on the disk before the answer goes out: no crash brings the records back. Offset -1
stands for the end of what consumers may see, and no offset beyond that end is accepted. The log start never goes back:
an offset below it changes nothing. The answer is the log start that came of it, the low watermark.

Disk space comes back in whole segments, which the next look of retention removes, half a second later.

A topic whose only cleanup policy is compact refuses: its old records are what its current values are read from.

v1  same as v0
v2  flexible
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.dispatch import Request, handles
from spark_kafkalite.broker.partition import Partition
from spark_kafkalite.errors import InvalidRequest, InvalidTopic, KafkaError, OffsetOutOfRange, PolicyViolation
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1


@handles(21, 0, 2)
async def handle(context: BrokerContext, request: Request, message: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move log starts; each partition has its own outcome."""
    moves: dict[Partition, int] = {}
    outcomes: dict[TopicPartition, Partition | KafkaError] = {}
    for topic in message.topics:
        for asked in topic.partitions:
            key = TopicPartition(topic.name, asked.partition_index)
            try:
                if key in outcomes:
                    raise InvalidRequest(f"{key} is named twice")
                if topic.name in INTERNAL_TOPICS:
                    raise InvalidTopic(f"{topic.name} is the brokers' own; its records cannot be deleted")
                partition = context.replicas.get(key)
                moves[partition] = _new_start(partition, asked.offset)
                outcomes[key] = partition
            except KafkaError as error:
                moves = {partition: offset for partition, offset in moves.items() if partition.topic_partition != key}
                outcomes[key] = error
    failed = await context.retention.advance_log_starts(moves)
    topics = []
    for topic in message.topics:
        results = []
        for asked in topic.partitions:
            outcome = outcomes[TopicPartition(topic.name, asked.partition_index)]
            if isinstance(outcome, Partition):
                outcome = failed.get(outcome, outcome)
            results.append(_result(asked.partition_index, outcome))
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def _new_start(partition: Partition, offset: int) -> int:
    """Return where the log is to start. Raises what forbids it. Source: Partition.deleteRecordsOnLeader."""
    partition.check_leader()
    # No policy at all keeps everything, and forbids nothing.
    if partition.config.cleanup_policy and "delete" not in partition.config.cleanup_policy:
        raise PolicyViolation(
            f"{partition.topic_partition}: cleanup.policy is {','.join(partition.config.cleanup_policy)}; records are "
            "deleted only where it contains delete"
        )
    end = partition.visible_end_offset
    if offset == HIGH_WATERMARK:
        return end
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(f"{partition.topic_partition}: offset {offset} is not between 0 and {end}")
    return offset


def _result(partition_index: int, outcome: Partition | KafkaError) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, KafkaError):
        return DeleteRecordsPartitionResult(
            partition_index=partition_index, low_watermark=_NO_LOW_WATERMARK, error_code=outcome.code
        )
    return DeleteRecordsPartitionResult(partition_index=partition_index, low_watermark=outcome.log_start_offset)
