"""DescribeTopicPartitions (key 75), version 0: topics page by page, in the order of their names.

An answer holds at most as many partitions as the request's limit and ``max.request.partition.size.limit`` allow (at
least one), and at most as many topics as the latter, which bounds the work also where most topics are unknown. Where
it ends early, its cursor names topic and partition that the next request goes on from: earlier topics are left out of
its answer, as are the earlier partitions of the cursor's topic.

No topics named means all topics. A topic that is named twice is described once; one that does not exist has its own
error and is not created. A cursor that is none of the topics named, or has a negative partition, is INVALID_REQUEST for
every topic. Eligible leader replicas that are not trusted any more are not kept: that list is empty.

A partition without a leader has the reason, and what its replicas' logs have, in a tagged field of our own
(``requests.leaderless``), which other clients skip.

Source: KIP-966, kafka.server.handlers.DescribeTopicPartitionsRequestHandler of Apache Kafka 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.leaderless import is_leaderless, read_reports, why_leaderless
from spark_kafkalite.errors import (
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    ListenerNotFound,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition, topic_name_problem
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState
from spark_kafkalite.registry.cluster.log_report_reads import LogReportReads
from spark_kafkalite.slices import Work, filled
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_topic_partitions import (
    CursorRequest,
    CursorResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

# Names looked at, and partitions described, in a fraction of a millisecond.
_NAMES_AT_ONCE = 1000
_PARTITIONS_AT_ONCE = 100


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0)
def handle(
    context: BrokerContext, exchange: Exchange, message: DescribeTopicPartitionsRequest
) -> Work[DescribeTopicPartitionsResponse]:
    """Describe a page of topics."""
    # One snapshot for the whole page, which is immutable.
    cluster = context.cluster
    cursor = message.cursor or CursorRequest()
    most = context.config["max.request.partition.size.limit"]
    asked = yield from filled([], (topic.name for topic in message.topics))
    forbidden: list[str] = []
    if exchange.has_limits:
        asked, forbidden = yield from _visible(exchange, asked or cluster.topics, is_named=bool(asked))
    elif not asked:
        asked = list(cluster.topics)
    if message.cursor is not None and (
        cursor.partition_index < 0
        or (message.topics and cursor.topic_name not in asked and cursor.topic_name not in forbidden)
    ):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(error_code=InvalidRequest.code, name=topic.name)
                for topic in message.topics[:most]
            ]
        )
    names = yield from _first_names(asked, cursor.topic_name, most + 1)
    left = max(min(message.response_partition_limit, most), 1)
    answer = DescribeTopicPartitionsResponse()
    # In the order in which they were asked for: sorting a quarter of a million would take long.
    refusals: list[DescribeTopicPartitionsResponseTopic] = yield from filled(
        [],
        (
            DescribeTopicPartitionsResponseTopic(error_code=TopicAuthorizationFailed.code, name=name)
            for name in forbidden
            if name >= cursor.topic_name
        ),
    )
    reads: LogReportReads | None = None
    has_read, recovers = False, context.topic_settings.recovers_by_itself
    for name in names:
        if left == 0 or len(answer.topics) == most:
            answer.next_cursor = CursorResponse(topic_name=name, partition_index=0)
            break
        topic = cluster.topics.get(name)
        described = DescribeTopicPartitionsResponseTopic(
            name=name,
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=exchange.operations_on(ResourceType.TOPIC, name),
        )
        answer.topics.append(described)
        if topic is None:
            described.error_code = (InvalidTopic if topic_name_problem(name) else UnknownTopicOrPartition).code
            if len(answer.topics) % _PARTITIONS_AT_ONCE == 0:
                yield None
            continue
        described.topic_id = topic.topic_id
        first = cursor.partition_index if name == cursor.topic_name else 0
        wanted = ((number, state) for number, state in topic.partitions.items() if number >= first)
        for number, state in islice(wanted, left):
            described.partitions.append(
                _described(context, exchange.session, cluster, TopicPartition(name, number), topic.topic_id, state)
            )
            if is_leaderless(state, cluster):
                if not has_read:
                    has_read = True
                    reads = yield from read_reports(context)
                key = TopicPartition(name, number)
                described.partitions[-1].why_leaderless = why_leaderless(
                    key, state, cluster, reads, recovers=recovers(key.topic)
                )
                yield None
            left -= 1
            if left % _PARTITIONS_AT_ONCE == 0:
                yield None
        following = next(wanted, None)
        if following is not None:
            answer.next_cursor = CursorResponse(topic_name=name, partition_index=following[0])
            break
    answer.topics += refusals
    return answer


def _visible(exchange: Exchange, names: Iterable[str], *, is_named: bool) -> Work[tuple[list[str], list[str]]]:
    """Return which topics the client may describe, and which of those that it named it may not."""
    visible: list[str] = []
    forbidden: dict[str, None] = {}
    for name in names:
        yield None
        if exchange.may(Operation.DESCRIBE, ResourceType.TOPIC, name, is_probe=not is_named):
            visible.append(name)
        elif is_named:
            forbidden[name] = None
    return visible, list(forbidden)


def _first_names(names: list[str], start: str, count: int) -> Work[list[str]]:
    """Return the first ``count`` names from ``start`` on, sorted, each once, without sorting all of them at once."""
    first: list[str] = []
    for position in range(0, len(names), _NAMES_AT_ONCE):
        piece = {name for name in names[position : position + _NAMES_AT_ONCE] if name >= start}
        first = sorted(piece.union(first))[:count]
        yield None
    return first


def _described(
    context: BrokerContext,
    session: Session,
    cluster: ClusterState,
    key: TopicPartition,
    topic_id: bytes,
    state: PartitionState,
) -> DescribeTopicPartitionsResponsePartition:
    error_code = 0
    leader = cluster.brokers.get(state.leader)
    if leader is None or not context.replicas.serves(key, topic_id):
        error_code = LeaderNotAvailable.code
    elif context.address_of(leader, session) is None:
        error_code = ListenerNotFound.code
    offline = context.config.broker_id if context.replicas.is_offline(key) else None
    return DescribeTopicPartitionsResponsePartition(
        error_code=error_code,
        partition_index=key.partition,
        leader_id=-1 if error_code else state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.eligible),
        last_known_elr=[],
        offline_replicas=[each for each in state.replicas if each not in cluster.brokers or each == offline],
    )
