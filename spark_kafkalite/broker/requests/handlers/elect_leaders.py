"""ElectLeaders (key 43), versions 0 to 2: elections on request, answered when the controller knows their outcome.

v0  preferred leaders only
v1  the type of the election: 0 preferred, 1 unclean; an error for the whole request
v2  flexible

No partitions at all (null) means all of them; of these, the answer leaves out those that need no election. An unclean
election is held only where there is no leader, and may lose records: clients ask their users first. It waits up to ten
seconds for what the live replicas report of their logs, and takes the best one.

An election of type 100 is ours: unclean, and of the replicas that the request names in tagged fields, one for each
partition, with the leader epoch that the client has seen. A broker of an earlier version refuses the type. Another
field has the ranges of offsets that such a replica's log lacks and that are accepted as lost, by threes: partition,
start offset, end offset (exclusive). With any, a replica that leads already is elected again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_kafkalite.acls import Operation, ResourceType
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.administrative_log import MOST_NAMED, log_change, some_of
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, KafkaError, NotController
from spark_kafkalite.model import BrokerId, LeaderEpoch, TopicPartition
from spark_kafkalite.registry.accepted_damage import MOST_RANGES, Ranges, checked_ranges
from spark_kafkalite.registry.controller.controller import Chosen
from spark_kafkalite.slices import Work, counted, filled, freed
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

_PREFERRED, _UNCLEAN = 0, 1
# Not one of Kafka's: unclean, with the replicas that the tagged fields name.
_CHOSEN = 100
# Numbers of accepted offsets that are read in one piece; a multiple of three.
_RANGES_AT_ONCE = 3_000


@handles(ApiKey.ELECT_LEADERS, 0, 2)
async def handle(context: BrokerContext, exchange: Exchange, message: ElectLeadersRequest) -> ElectLeadersResponse:
    """Hold elections, here or at the controller; each partition has its own outcome."""
    wanted: list[TopicPartition] | None = None
    if message.topic_partitions is not None:
        wanted = await context.work(exchange, _wanted(message))
    try:
        exchange.require(Operation.ALTER, ResourceType.CLUSTER)
        if message.election_type not in (_PREFERRED, _UNCLEAN, _CHOSEN):
            raise InvalidRequest(
                f"an election of type {message.election_type}; there are 0 (preferred) and 1 (unclean)"
            )
        chosen: dict[TopicPartition, Chosen] = {}
        if message.election_type == _CHOSEN:
            chosen = await context.work(exchange, _chosen(message))
        answer: ElectLeadersResponse | None = await context.topics.controller_link.hand_on(
            message, exchange.api_version, _is_refused, exchange.session
        )
        if answer is not None:
            await context.work(exchange, _logged(exchange, message, _elected_by_controller(answer)))
            return answer
        outcomes = await context.topics.elect(
            wanted,
            timeout_s=max(message.timeout_ms, 0) / 1000,
            unclean=message.election_type != _PREFERRED,
            chosen=chosen,
        )
        code = 0
    except KafkaError as error:
        refused, code = error.with_traceback(None), error.code
        outcomes = await context.work(exchange, filled({}, ((each, refused) for each in wanted or ())))
    if wanted:
        await context.work(exchange, freed(wanted))
    elected = (key if error is None else None for key, error in outcomes.items())
    await context.work(exchange, _logged(exchange, message, elected))
    return await context.work(exchange, _answer(outcomes, code))


def _elected_by_controller(answer: ElectLeadersResponse) -> Iterator[TopicPartition | None]:
    for topic in answer.replica_election_results:
        for part in topic.partition_result:
            yield None if part.error_code else TopicPartition(topic.topic, part.partition_id)


def _logged(exchange: Exchange, message: ElectLeadersRequest, elected: Iterable[TopicPartition | None]) -> Work[None]:
    """Write which leaders were elected, None being one that was not; the controller has a line with the leader of
    each."""
    named: list[TopicPartition] = []
    count = 0
    for key in elected:
        yield None
        if key is not None:
            count += 1
            if count <= MOST_NAMED:
                named.append(key)
    if count:
        kind = "preferred" if message.election_type == _PREFERRED else "unclean"
        log_change(exchange, "%s leaders of %d partitions have been elected: %s", kind, count, some_of(named, count))


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


def _chosen(message: ElectLeadersRequest) -> Work[dict[TopicPartition, Chosen]]:
    """Return the replicas that are to lead. Raises InvalidRequest unless there is one for each partition."""
    if message.topic_partitions is None:
        raise InvalidRequest("an election of chosen replicas of all partitions: name each with its replica")
    found: dict[TopicPartition, Chosen] = {}
    for topic in message.topic_partitions:
        numbers, leaders, epochs = topic.partitions, topic.desired_leaders, topic.seen_leader_epochs
        if not len(numbers) == len(leaders) == len(epochs):
            raise InvalidRequest(
                f"{topic.topic}: {len(leaders)} replicas and {len(epochs)} leader epochs for {len(numbers)} partitions"
            )
        accepted = yield from _accepted(topic)
        for number, leader, epoch in zip(numbers, leaders, epochs, strict=True):
            if (key := TopicPartition(topic.topic, number)) in found:
                raise InvalidRequest(f"{key} is named twice")
            found[key] = Chosen(BrokerId(leader), LeaderEpoch(epoch), accepted.pop(number, ()))
            yield None
        if accepted:
            raise InvalidRequest(f"{topic.topic}: offsets of partition {min(accepted)}, which is not among those named")
    return found


def _accepted(topic: TopicPartitions) -> Work[dict[int, Ranges]]:
    """Return the ranges of offsets that are accepted as lost, by partition. Raises InvalidRequest."""
    numbers = topic.accepted_offsets
    if len(numbers) % 3 or len(numbers) > 3 * MOST_RANGES * len(topic.partitions):
        raise InvalidRequest(
            f"{topic.topic}: {len(numbers)} numbers are not ranges of offsets by threes, at most {MOST_RANGES} of each "
            "partition"
        )
    listed: dict[int, list[tuple[int, int]]] = {}
    for at in range(0, len(numbers), 3):
        listed.setdefault(numbers[at], []).append((numbers[at + 1], numbers[at + 2]))
        if at % _RANGES_AT_ONCE == 0:
            yield None
    found: dict[int, Ranges] = {}
    for number, ranges in listed.items():
        try:
            found[number] = checked_ranges(ranges)
        except ValueError as error:
            raise InvalidRequest(f"{topic.topic}-{number}: {error}") from None
        yield None
    return found


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
