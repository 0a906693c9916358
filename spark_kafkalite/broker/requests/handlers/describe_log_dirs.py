"""DescribeLogDirs (key 35), versions 1 to 4: the log directories of this broker, what is in them, what room is left.

Sizes are those of the segments' records, without indexes, as Kafka's. ``offset_lag`` is how far the log end is behind
the high watermark: 0, but for a follower that has lost its tail. Logs are never moved between directories, so none is
a future one. A directory whose disk has failed is named with KAFKA_STORAGE_ERROR and nothing else.

Tagged fields are ours, and other clients skip them. Of a directory: why it takes no records, if its disk is full or
read-only. Of a log: the ranges of offsets that it had and lacks, each as its start and its end (exclusive); why a
follower no longer copies, or why the broker does not serve the log. Also how far a comparison with its leader is that
was asked for. Of a request: that the logs it names are to be compared with their leaders', as far as this broker
follows; the answer does not wait for that (``replication.comparison``). Another one asks instead for what the broker
has for the recovery of the registry, and may have it stand still from then on (``broker.recovery_answer``).

v2  flexible
v3  error code for the whole answer
v4  total and usable bytes of the file system
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.replication.comparison import Comparison
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import ClusterAuthorizationFailed, KafkaliteError, KafkaStorageError
from spark_kafkalite.log.files.fs import Space
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.slices import Work, filled, freed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(ApiKey.DESCRIBE_LOG_DIRS, 1, 4)
async def handle(
    context: BrokerContext, exchange: Exchange, message: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Describe every directory, with all partitions or those asked for."""
    # A comparison reads whole logs, here and at their leaders.
    wanted = Operation.ALTER if message.stands_still or message.compares else Operation.DESCRIBE
    if not exchange.may(wanted, ResourceType.CLUSTER):
        return DescribeLogDirsResponse(error_code=ClusterAuthorizationFailed.code)
    if message.wants_host_logs:
        return await _host_logs(context, stands_still=message.stands_still)
    room = await _room(context)
    return DescribeLogDirsResponse(results=await context.work(exchange, _described(context, message, room)))


async def _host_logs(context: BrokerContext, *, stands_still: bool) -> DescribeLogDirsResponse:
    if context.recovery_answer is None:
        own = "this broker has a registry of its own: stop it, and have that made again by kafkalite registry rebuild"
        return DescribeLogDirsResponse(why_no_host_logs=own)
    try:
        return DescribeLogDirsResponse(host_logs=await context.recovery_answer.encoded(stands_still=stands_still))
    except KafkaliteError as error:
        return DescribeLogDirsResponse(why_no_host_logs=str(error))


def _described(
    context: BrokerContext, message: DescribeLogDirsRequest, room: Mapping[str, Space]
) -> Work[list[DescribeLogDirsResult]]:
    asked: set[TopicPartition] | None = None
    if message.topics is not None:
        named = (TopicPartition(topic.topic, number) for topic in message.topics for number in topic.partitions)
        asked = yield from filled(set(), named)
    by_directory: dict[str, list[Partition]] = defaultdict(list)
    for partition in context.replicas:
        if asked is None or partition.topic_partition in asked:
            by_directory[partition.log.disk.path].append(partition)
    if message.compares and context.comparison is not None:
        context.comparison.compare_now(each.topic_partition for here in by_directory.values() for each in here)
    refused: dict[str, dict[TopicPartition, KafkaStorageError]] = defaultdict(dict)
    for key, why in context.replicas.refused.items():
        yield None
        path = context.logs.directory_of(key)
        if path is not None and (asked is None or key in asked):
            refused[path][key] = why
    if asked is not None:
        yield from freed(asked)
    results = []
    for directory in context.logs.directories:
        answer = DescribeLogDirsResult(log_dir=os.path.abspath(directory.path))
        results.append(answer)
        if directory.offline is not None:
            answer.error_code = KafkaStorageError.code
            continue
        answer.refusal = directory.refusal
        answer.topics = yield from _topics(by_directory[directory.path], refused[directory.path], context.comparison)
        space = room.get(directory.path)
        if space is not None:
            answer.total_bytes, answer.usable_bytes = space.total_bytes, space.free_bytes
    return results


async def _room(context: BrokerContext) -> dict[str, Space]:
    """Return the room of each directory's file system, where it reports it; asked in a thread, because a disk may
    hang."""
    fs, paths = context.logs.fs, [directory.path for directory in context.logs.directories]

    def ask() -> dict[str, Space]:
        found = {}
        for path in paths:
            with contextlib.suppress(OSError):
                found[path] = fs.space(path)
        return found

    return await context.io.run(ask)


def _topics(
    partitions: list[Partition], refused: Mapping[TopicPartition, KafkaStorageError], comparison: Comparison | None
) -> Work[list[DescribeLogDirsTopic]]:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for partition in sorted(partitions, key=lambda each: each.topic_partition):
        yield None
        log, role = partition.log, partition.role
        asked = None if comparison is None else comparison.asked(partition.topic_partition)
        state, text = asked or (None, None)
        by_topic[partition.topic_partition.topic].append(
            DescribeLogDirsPartition(
                partition_index=partition.topic_partition.partition,
                partition_size=log.size_bytes,
                offset_lag=max(partition.high_watermark - log.log_end_offset, 0),
                damaged_offsets=[int(offset) for each in log.damaged_ranges for offset in each],
                why_stopped=role.why_stopped if isinstance(role, Follower) else None,
                comparison_state=state,
                comparison=text,
            )
        )
    for (topic, number), why in sorted(refused.items()):
        yield None
        by_topic[topic].append(DescribeLogDirsPartition(partition_index=number, why_stopped=str(why)))
    return [DescribeLogDirsTopic(name=name, partitions=each) for name, each in by_topic.items()]
