"""ElectLeaders (key 43), versions 0 to 2: elections on request, answered when the controller knows their outcome.

v0  preferred leaders only
v1  the type of the election: 0 preferred, 1 unclean; an error for the whole request
v2  flexible

No partitions at all (null) means all of them; of these, the answer leaves out those that need no election. An unclean
election is held only where there is no leader, and may lose records: clients ask their users first.
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, KafkaError, NotController
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.slices import Work, counted, filled, freed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED, _UNCLEAN = 0, 1


@handles(ApiKey.ELECT_LEADERS, 0, 2)
async def handle(context: BrokerContext, exchange: Exchange, message: ElectLeadersRequest) -> ElectLeadersResponse:
    """Hold elections, here or at the controller; each partition has its own outcome."""
    wanted: list[TopicPartition] | None = None
    if message.topic_partitions is not None:
        wanted = await context.work(exchange, _wanted(message))
    try:
        if message.election_type not in (_PREFERRED, _UNCLEAN):
            raise InvalidRequest(
                f"an election of type {message.election_type}; there are 0 (preferred) and 1 (unclean)"
            )
        answer: ElectLeadersResponse | None = await context.topics.controller_link.hand_on(
            message, exchange.api_version, _is_refused, exchange.session
        )
        if answer is not None:
            return answer
        outcomes = await context.topics.elect(
            wanted, timeout_s=max(message.timeout_ms, 0) / 1000, unclean=message.election_type == _UNCLEAN
        )
        code = 0
    except KafkaError as error:
        refused, code = error.with_traceback(None), error.code
        outcomes = await context.work(exchange, filled({}, ((each, refused) for each in wanted or ())))
    if wanted:
        await context.work(exchange, freed(wanted))
    return await context.work(exchange, _answer(outcomes, code))


def _is_refused(answer: ElectLeadersResponse) -> bool:
    return answer.error_code == NotController.code or any(
        part.error_code == NotController.code
        for topic in answer.replica_election_results
        for part in topic.partition_result
    )


def _wanted(message: ElectLeadersRequest) -> Work[list[TopicPartition]]:
    once = yield from counted(
        TopicPartition(topic.topic, number) for topic in message.topic_partitions or () for number in topic.partitions
    )
    listed: list[TopicPartition] = yield from filled([], once)
    yield from freed(once)
    return listed


def _answer(outcomes: dict[TopicPartition, KafkaError | None], code: int) -> Work[ElectLeadersResponse]:
    """Answer each partition once; the outcomes are used up."""
    topics: dict[str, ReplicaElectionResult] = {}
    for (name, number), error in outcomes.items():
        result = PartitionResult(partition_id=number)
        if error is not None:
            result.error_code, result.error_message = error.code, str(error)
        topics.setdefault(name, ReplicaElectionResult(topic=name)).partition_result.append(result)
        yield None
    yield from freed(outcomes)
    return ElectLeadersResponse(error_code=code, replica_election_results=list(topics.values()))
