"""Administration of reassignments: which brokers are to have which partitions (KIP-455)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import KafkaError
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafkalite.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from spark_kafkalite.wire.rights import refusal


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress: all replicas, those of them that come, and those that go."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]

    @property
    def targets(self) -> tuple[BrokerId, ...]:
        """The replicas that the partition is to have in the end."""
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        """The replicas that are not added."""
        return tuple(each for each in self.replicas if each not in self.adding)


class ReassignmentAdmin(AdminRequests):
    """The calls of an administrator that have to do with reassignments."""

    def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Have partitions moved to other brokers, the preferred leader first; None cancels the reassignment of one.

        Returns each partition's outcome, None or why it is refused, when the reassignments have begun; they go on by
        themselves (:meth:`list_partition_reassignments`). A new one replaces the one in progress.
        """
        by_topic: dict[str, list[ReassignablePartition]] = defaultdict(list)
        for (topic, number), replicas in targets.items():
            wanted = None if replicas is None else list(replicas)
            by_topic[topic].append(ReassignablePartition(partition_index=number, replicas=wanted))
        deadline = self._deadline(timeout_ms)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._broker_timeout_ms(deadline),
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[ReassignableTopic(name=name, partitions=parts) for name, parts in by_topic.items()],
        )
        answer: Any = self._retried(partial(self._alter_reassignments, request, deadline), deadline)
        return {
            key: refusal(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS, each.error_code, f"{key}: {each.error_message or 'refused'}"
            )
            if each.error_code
            else None
            for topic in answer.responses
            for each in topic.partitions
            for key in (TopicPartition(topic.name, each.partition_index),)
        }

    def _alter_reassignments(self, request: AlterPartitionReassignmentsRequest, deadline: Deadline) -> Any:
        answer = self._cluster.request_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, deadline)
        if answer.error_code:
            raise refusal(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                answer.error_code,
                answer.error_message or "no reassignment was changed",
            )
        return answer

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress, of these partitions or of all."""
        topics: list[ListPartitionReassignmentsTopics] | None = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = defaultdict(list)
            for topic, number in partitions:
                by_topic[topic].append(number)
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
                for name, numbers in by_topic.items()
            ]
        deadline = self._deadline(timeout_ms)
        request = ListPartitionReassignmentsRequest(timeout_ms=self._broker_timeout_ms(deadline), topics=topics)

        def ask() -> Any:
            answer = self._cluster.request_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, request, deadline)
            if answer.error_code:
                raise refusal(
                    ApiKey.LIST_PARTITION_REASSIGNMENTS,
                    answer.error_code,
                    answer.error_message or "reassignments cannot be listed",
                )
            return answer

        answer: Any = self._retried(ask, deadline)
        return {
            TopicPartition(topic.name, each.partition_index): Reassignment(
                tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
            )
            for topic in answer.topics
            for each in topic.partitions
        }
