"""Administration of replicas: which replicas may lead a partition, what each replica's log has, and elections.

The base of :class:`spark_kafkalite.client.admin.admin.Admin` for these calls.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import KafkaError, KafkaliteError, UnsupportedVersion
from spark_kafkalite.model import DEBUGGING_REPLICA_ID, LATEST_TIMESTAMP, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.describe_topic_partitions import (
    CursorRequest,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from spark_kafkalite.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from spark_kafkalite.wire.rights import refusal

_PREFERRED: Final = 0
_UNCLEAN: Final = 1
# Of brokers of ours alone: unclean, with the replicas that the request names.
_CHOSEN: Final = 100
# Of one answer to DescribeTopicPartitions; brokers give at most this many by default.
_PAGE_PARTITIONS: Final = 2000


Ranges = tuple[tuple[int, int], ...]
NOTHING: Final[Mapping[TopicPartition, Ranges]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EligibleReplicas:
    """Replicas that may lead though they have left the ISR, because it was smaller than min.insync.replicas (KIP-966).

    ``last_known`` are those that were eligible last and cannot be trusted any more; only an operator can elect them.
    """

    eligible: tuple[int, ...]
    last_known: tuple[int, ...]
    # Why nobody leads the partition; None where somebody does, or the broker does not say.
    leaderless: Leaderless | None = None


@dataclass(frozen=True, slots=True)
class Leaderless:
    """A partition without a leader: why, what its replicas' logs have, and what an operator is to do.

    ``best`` is the replica that an unclean election takes (None: no replica is live). ``losses`` has for each live
    replica what is lost, or may be, if that one leads. ``replicas`` is the broker's text, one object a replica.
    """

    reason: str
    remedy: str
    leader_epoch: int
    best: int | None
    losses: Mapping[int, tuple[str, ...]]
    replicas: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, text: str | None) -> Leaderless | None:
        """Return the broker's report; None where it is empty or cannot be read."""
        try:
            fields = json.loads(text or "")
            losses = {int(broker): tuple(map(str, told)) for broker, told in fields["losses"].items()}
            replicas = tuple(dict(each) for each in fields["replicas"])
            best = fields["best"]
            return cls(
                str(fields["reason"]),
                str(fields["remedy"]),
                int(fields["leaderEpoch"]),
                None if best is None else int(best),
                losses,
                replicas,
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


class ReplicaAdmin(AdminRequests):
    """The calls of an administrator that have to do with replicas."""

    def eligible_replicas(
        self, topics: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, EligibleReplicas]:
        """Return the eligible replicas of every partition of these topics; unknown topics are left out.

        Raises UnsupportedVersion when the broker does not know of any (Apache Kafka before 3.8).
        """
        deadline = self._deadline(timeout_ms)
        names = sorted(set(topics))
        found: dict[TopicPartition, EligibleReplicas] = {}
        cursor: CursorRequest | None = None
        while names:
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in names],
                response_partition_limit=_PAGE_PARTITIONS,
                cursor=cursor,
            )
            ask = partial(self._cluster.request_any, ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, deadline)
            answer: Any = self._retried(ask, deadline)
            for topic in answer.topics:
                for each in topic.partitions:
                    found[TopicPartition(topic.name, each.partition_index)] = EligibleReplicas(
                        tuple(each.eligible_leader_replicas or ()),
                        tuple(each.last_known_elr or ()),
                        Leaderless.read(each.why_leaderless),
                    )
            if answer.next_cursor is None:
                break
            cursor = CursorRequest(
                topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
            )
            names = [name for name in names if name >= cursor.topic_name]
        return found

    def replica_ends(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, dict[int, int | KafkaliteError]]:
        """Return each replica's log end offset from its own broker, or the error why it is missing.

        Brokers that are not live are left out. For a partition without a leader, the ends show how many records each
        election would lose.
        """
        deadline = self._deadline(timeout_ms)
        wanted = [TopicPartition(*each) for each in partitions]
        live = self._cluster.refresh({each.topic for each in wanted}, deadline).nodes
        found: dict[TopicPartition, dict[int, int | KafkaliteError]] = {each: {} for each in wanted}
        by_broker: dict[int, list[TopicPartition]] = defaultdict(list)
        for topic_partition in wanted:
            info = self._cluster.snapshot.partition(topic_partition)
            for broker in () if info is None else info.replicas:
                if broker in live:
                    by_broker[broker].append(topic_partition)
        for broker, hosted in by_broker.items():
            try:
                ends: dict[TopicPartition, int | KafkaliteError] = self._ends_at(broker, hosted, deadline)
            except KafkaliteError as error:
                ends = dict.fromkeys(hosted, error)
            for topic_partition, end in ends.items():
                found[topic_partition][broker] = end
        return found

    def _ends_at(
        self, broker: int, partitions: list[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, int | KafkaliteError]:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            by_topic[topic].append(number)
        request = ListOffsetsRequest(
            # Who asks so is answered by any replica, with the end of its log.
            replica_id=DEBUGGING_REPLICA_ID,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=number, timestamp=LATEST_TIMESTAMP) for number in numbers
                    ],
                )
                for topic, numbers in by_topic.items()
            ],
        )
        answer = self._cluster.request_to(broker, ApiKey.LIST_OFFSETS, request, deadline)
        found: dict[TopicPartition, int | KafkaliteError] = {}
        for topic in answer.topics:
            for item in topic.partitions:
                topic_partition = TopicPartition(topic.name, item.partition_index)
                found[topic_partition] = (
                    refusal(ApiKey.LIST_OFFSETS, item.error_code, f"{topic_partition} on broker {broker}")
                    if item.error_code
                    else item.offset
                )
        return found

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        unclean: bool = False,
        chosen: Mapping[TopicPartition, tuple[int, int]] | None = None,
        accepted: Mapping[TopicPartition, Ranges] = NOTHING,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Have leaders elected and return each partition's outcome: None, or why there was no election.

        Without ``unclean``: the preferred replica, the first one, if it is in sync. With it: the live replica with the
        best log, of a partition that has no leader, which loses what that replica lacks; brokers wait up to ten seconds
        for what their logs have. Without ``partitions``: of all, and only those are in the result that were elected, or
        should have been. ``chosen`` takes the place of both: for each partition the replica that is to lead, whatever
        its log has, and the leader epoch that :class:`Leaderless` has shown; a later one is refused. ``accepted``: the
        ranges of offsets, ends exclusive, that the log of a chosen replica lacks and that are to be passed over from
        now on, as lost. With them the replica may lead already.
        """
        deadline = self._deadline(timeout_ms)
        if chosen is not None:
            return self._elected(_chosen_request(chosen, accepted), deadline)
        by_topic: dict[str, list[int]] | None = None
        if partitions is not None:
            by_topic = defaultdict(list)
            for topic, number in partitions:
                by_topic[topic].append(number)
        request = ElectLeadersRequest(
            election_type=_UNCLEAN if unclean else _PREFERRED,
            topic_partitions=None
            if by_topic is None
            else [TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()],
        )
        return self._elected(request, deadline)

    def _elected(self, request: ElectLeadersRequest, deadline: Deadline) -> dict[TopicPartition, KafkaError | None]:
        request.timeout_ms = self._broker_timeout_ms(deadline)
        answer = self._retried(partial(self._elect, request, deadline), deadline)
        outcomes: dict[TopicPartition, KafkaError | None] = {}
        for topic_result in answer.replica_election_results:
            for result in topic_result.partition_result:
                topic_partition = TopicPartition(topic_result.topic, result.partition_id)
                outcomes[topic_partition] = (
                    refusal(
                        ApiKey.ELECT_LEADERS,
                        result.error_code,
                        f"{topic_partition}: {result.error_message or 'no leader was elected'}",
                    )
                    if result.error_code
                    else None
                )
        return outcomes

    def _elect(self, request: ElectLeadersRequest, deadline: Deadline) -> Any:
        try:
            answer = self._cluster.request_controller(ApiKey.ELECT_LEADERS, request, deadline)
        except UnsupportedVersion as error:
            raise UnsupportedVersion(f"the cluster's brokers hold no elections on request: {error}") from error
        if answer.error_code:
            raise refusal(ApiKey.ELECT_LEADERS, answer.error_code, "no leaders were elected")
        return answer


def _chosen_request(
    chosen: Mapping[TopicPartition, tuple[int, int]], accepted: Mapping[TopicPartition, Ranges]
) -> ElectLeadersRequest:
    topics: dict[str, TopicPartitions] = {}
    for (name, number), (broker, leader_epoch) in chosen.items():
        topic = topics.setdefault(name, TopicPartitions(topic=name))
        topic.partitions.append(number)
        topic.desired_leaders.append(broker)
        topic.seen_leader_epochs.append(leader_epoch)
        for start, end in accepted.get(TopicPartition(name, number), ()):
            topic.accepted_offsets += number, start, end
    return ElectLeadersRequest(election_type=_CHOSEN, topic_partitions=list(topics.values()))
