"""DeleteRecords (key 21), versions 0 to 2: hides the records before an offset for good.

The offset becomes the log start, on the disk before the answer goes out: no crash brings the records back. Offset -1
stands for the end of what consumers may see, and no offset beyond that end is accepted. The log start never goes back:
an offset below it changes nothing. The answer goes out when the logs of all replicas in sync start there, too, so that
no leader brings the records back. After the request's timeout the answer is REQUEST_TIMED_OUT. The answer has the low
watermark, below which none of the logs has anything.

Disk space comes back in whole segments, which the next look of retention removes, half a second later.

A topic whose only cleanup policy is compact refuses: its old records are what its current values are read from.

v1  same as v0
v2  flexible
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.requests.administrative_log import MOST_NAMED, log_change, some_of
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import (
    InvalidRequest,
    InvalidTopic,
    KafkaError,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
)
from spark_kafkalite.model import HIGH_WATERMARK, INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.slices import Work, freed
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
    moves, outcomes = await context.work(exchange, _checked(context, exchange, message))
    failed: dict[Partition, KafkaError] = {**await context.retention.advance_log_starts(moves)}
    moved = [each for each in moves if each not in failed]
    if moved:
        named = [f"{each.topic_partition} before offset {moves[each]}" for each in moved[:MOST_NAMED]]
        log_change(exchange, "records have been deleted: %s", some_of(named, len(moved)))
    failed |= await _replicated(context, moved, message.timeout_ms)
    return await context.work(exchange, _answer(outcomes, failed))


async def _replicated(
    context: BrokerContext, moved: Sequence[Partition], timeout_ms: int
) -> dict[Partition, KafkaError]:
    """Wait until the replicas in sync have moved their log starts, too; return what stands against that."""
    left = list(moved)

    def all_moved() -> bool:
        # Each is looked at until it has moved, and the others wait behind it.
        while left and _has_moved(left[-1]):
            left.pop()
        return not left

    await context.replicas.wait_until(all_moved, max(timeout_ms, 0) / 1000)
    return {partition: problem for partition in moved if (problem := _problem(partition)) is not None}


def _has_moved(partition: Partition) -> bool:
    leader = partition.leader
    return leader is None or leader.follower_logs.low_watermark >= leader.log.log_start_offset


def _problem(partition: Partition) -> KafkaError | None:
    try:
        partition.check_leader()
    except KafkaError as error:
        return error
    if _has_moved(partition):
        return None
    return RequestTimedOut(f"{partition.topic_partition}: a replica in sync has not deleted the records yet")


def _checked(
    context: BrokerContext, exchange: Exchange, message: DeleteRecordsRequest
) -> Work[tuple[dict[Partition, int], dict[TopicPartition, Partition | int]]]:
    """Return where which logs are to start, and each partition or the code of what is wrong with it."""
    moves: dict[Partition, int] = {}
    outcomes: dict[TopicPartition, Partition | int] = {}
    for topic in message.topics:
        for asked in topic.partitions:
            yield None
            key = TopicPartition(topic.name, asked.partition_index)
            try:
                exchange.require(Operation.DELETE, ResourceType.TOPIC, topic.name)
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
    """Answer each partition once; the outcomes are used up."""
    results: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for (topic, number), outcome in outcomes.items():
        yield None
        if isinstance(outcome, Partition) and outcome in failed:
            outcome = failed[outcome].code
        results.setdefault(topic, []).append(_result(number, outcome))
    yield from freed(outcomes)
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
        leader = outcome.leader
        start = outcome.log_start_offset if leader is None else leader.follower_logs.low_watermark
        return DeleteRecordsPartitionResult(partition_index=partition_index, low_watermark=start)
    return DeleteRecordsPartitionResult(
        partition_index=partition_index, low_watermark=_NO_LOW_WATERMARK, error_code=outcome
    )
