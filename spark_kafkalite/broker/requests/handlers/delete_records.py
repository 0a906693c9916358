"""DeleteRecords (key 21), versions 0 to 2: hides the records before an offset for good.

The offset becomes the log start, on the disk before the answer goes out: no crash brings the records back. Offset -1
stands for the end of what consumers may see, and no offset beyond that end is accepted. The log start never goes back:
an offset below it changes nothing. The answer is the log start that came of it, the low watermark.

Disk space comes back in whole segments, which the next look of retention removes, half a second later.

A topic whose only cleanup policy is compact refuses: its old records are what its current values are read from.

v1  same as v0
v2  flexible
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, InvalidTopic, KafkaError, OffsetOutOfRange, PolicyViolation
from spark_kafkalite.model import HIGH_WATERMARK, INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.slices import Work
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_NO_LOW_WATERMARK = -1


@handles(ApiKey.DELETE_RECORDS, 0, 2)
async def handle(context: BrokerContext, exchange: Exchange, message: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move log starts; each partition has its own outcome."""
    moves, outcomes = await context.work(exchange, _checked(context, message))
    failed = await context.retention.advance_log_starts(moves)
    return await context.work(exchange, _answer(outcomes, failed))


def _checked(
    context: BrokerContext, message: DeleteRecordsRequest
) -> Work[tuple[dict[Partition, int], dict[TopicPartition, Partition | int]]]:
    """Return where which logs are to start, and each partition or the code of what is wrong with it."""
    moves: dict[Partition, int] = {}
    outcomes: dict[TopicPartition, Partition | int] = {}
    for topic in message.topics:
        for asked in topic.partitions:
            yield None
            key = TopicPartition(topic.name, asked.partition_index)
            try:
                if key in outcomes:
                    raise InvalidRequest(f"{key} is named twice")
                if topic.name in INTERNAL_TOPICS:
                    raise InvalidTopic(f"{topic.name} is an internal topic; its records cannot be deleted")
                partition = context.replicas.get(key)
                moves[partition] = _new_start(partition, asked.offset)
                outcomes[key] = partition
            except KafkaError as error:
                former = outcomes.get(key)
                if isinstance(former, Partition):
                    moves.pop(former, None)
                outcomes[key] = error.code
    return moves, outcomes


def _answer(
    outcomes: dict[TopicPartition, Partition | int], failed: Mapping[Partition, KafkaError]
) -> Work[DeleteRecordsResponse]:
    """Answer each partition once."""
    results: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for (topic, number), outcome in outcomes.items():
        yield None
        if isinstance(outcome, Partition) and outcome in failed:
            outcome = failed[outcome].code
        results.setdefault(topic, []).append(_result(number, outcome))
    return DeleteRecordsResponse(
        topics=[DeleteRecordsTopicResult(name=topic, partitions=partitions) for topic, partitions in results.items()]
    )


def _new_start(partition: Partition, offset: int) -> int:
    """Return where the log is to start. Raises what forbids it. Source: Partition.deleteRecordsOnLeader."""
    partition.check_leader()
    # No policy at all keeps everything, and forbids nothing.
    policy = partition.log.config.cleanup_policy
    if policy and "delete" not in policy:
        raise PolicyViolation(
            f"{partition.topic_partition}: cleanup.policy is {','.join(policy)}; records are "
            "deleted only where it contains delete"
        )
    end = partition.visible_end_offset
    if offset == HIGH_WATERMARK:
        return end
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(f"{partition.topic_partition}: offset {offset} is not between 0 and {end}")
    return offset


def _result(partition_index: int, outcome: Partition | int) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, Partition):
        return DeleteRecordsPartitionResult(partition_index=partition_index, low_watermark=outcome.log_start_offset)
    return DeleteRecordsPartitionResult(
        partition_index=partition_index, low_watermark=_NO_LOW_WATERMARK, error_code=outcome
    )
