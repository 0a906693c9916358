"""Administration: topics, partitions, settings, groups, offsets by time, and what the cluster looks like.

Every call is one request to the right broker, repeated until ``default.api.timeout.ms`` for errors that pass (a
controller that moved, a leader being elected). Calls for several topics return what happened to each; when any failed,
the first error is raised after all have been tried, with the others named in its text. Topics that a call has just made
or removed may take a moment to be seen by all brokers; calls wait until the broker that they ask sees it.

Thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spark_kafkalite.client.admin.acls import AclAdmin
from spark_kafkalite.client.admin.cluster import ClusterAdmin, ClusterDescription
from spark_kafkalite.client.admin.configs import ConfigAdmin, ConfigChange, ConfigEntry
from spark_kafkalite.client.admin.groups import GroupAdmin, GroupListing
from spark_kafkalite.client.admin.logs import LogAdmin, LogDirInfo, ReplicaInfo
from spark_kafkalite.client.admin.quotas import EntityQuotas, QuotaAdmin
from spark_kafkalite.client.admin.reassignments import Reassignment, ReassignmentAdmin
from spark_kafkalite.client.admin.replicas import EligibleReplicas, ReplicaAdmin
from spark_kafkalite.client.admin.users import UserAdmin
from spark_kafkalite.client.group.administration import GroupDescription, MemberDescription
from spark_kafkalite.client.group.lag import PartitionLag
from spark_kafkalite.client.network.retry import Backoff, Deadline
from spark_kafkalite.errors import ConfigError, RequestTimedOut, TopicAlreadyExists
from spark_kafkalite.model import topic_name_problem
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafkalite.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

__all__ = [
    "Admin",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "EligibleReplicas",
    "EntityQuotas",
    "GroupDescription",
    "GroupListing",
    "LogDirInfo",
    "MemberDescription",
    "NewTopic",
    "PartitionLag",
    "Reassignment",
    "ReplicaInfo",
]

# A topic of the same name that somebody makes anew at once must not hold up delete_topics() for long.
_GONE_WITHIN_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 takes the broker's default; ``assignments`` (partition: brokers) replaces both numbers."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class Admin(
    ClusterAdmin, ConfigAdmin, QuotaAdmin, LogAdmin, GroupAdmin, ReplicaAdmin, ReassignmentAdmin, UserAdmin, AclAdmin
):
    """Administers a cluster. Use it as a context manager, or call :meth:`close`."""

    def create_topics(
        self,
        topics: Iterable[NewTopic | str],
        *,
        validate_only: bool = False,
        if_not_exists: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Create topics and wait until their partitions have leaders; with ``validate_only`` only check the requests.

        Raises TopicAlreadyExists (36; not with ``if_not_exists``), InvalidTopic (17), InvalidPartitions (37),
        InvalidReplicationFactor (38), InvalidConfig (40) and the broker's other errors.
        """
        wanted = {topic.name: topic for topic in (NewTopic(t) if isinstance(t, str) else t for t in topics)}
        deadline = self._deadline(timeout_ms)

        def request(names: list[str]) -> Any:
            return CreateTopicsRequest(
                topics=[_creatable(wanted[name]) for name in names],
                timeout_ms=self._broker_timeout_ms(deadline),
                validate_only=validate_only,
            )

        ignored = (TopicAlreadyExists.code,) if if_not_exists else ()
        self._for_each(
            ApiKey.CREATE_TOPICS, list(wanted), request, lambda a: a.topics, deadline, "create topic", ignored
        )
        if not validate_only:
            for name in wanted:
                self._wait_for_leaders(name, deadline)

    def create_topic(
        self,
        name: str,
        num_partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> None:
        """Create one topic; see :meth:`create_topics`."""
        self.create_topics(
            [NewTopic(name, num_partitions, replication_factor, dict(configs or {}))], if_not_exists=if_not_exists
        )

    def _wait_for_leaders(self, name: str, deadline: Deadline, count: int = 1) -> None:
        backoff = Backoff(20, self.config.retry_backoff_max_ms)
        while True:
            info = self._cluster.refresh([name], deadline).topics.get(name)
            partitions = () if info is None or info.error_code else info.partitions
            if len(partitions) >= count and all(each.leader >= 0 for each in partitions):
                return
            pause_s = backoff.next_s()
            if deadline.left_s() <= pause_s:
                raise RequestTimedOut(
                    f"topic {name}: the cluster has done it, but not all partitions have a leader yet"
                )
            self._cluster.pause(pause_s)

    def delete_topics(self, names: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete topics with all their records. Raises UnknownTopicOrPartition (3), TopicDeletionDisabled (73)."""
        wanted = list(dict.fromkeys(names))
        deadline = self._deadline(timeout_ms)

        def request(left: list[str]) -> Any:
            # Which of the two fields is sent depends on the version.
            return DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in left],
                topic_names=left,
                timeout_ms=self._broker_timeout_ms(deadline),
            )

        self._for_each(ApiKey.DELETE_TOPICS, wanted, request, lambda a: a.responses, deadline, "delete topic")
        self._wait_until_gone(wanted, deadline)

    def _wait_until_gone(self, names: list[str], deadline: Deadline) -> None:
        """Wait a moment until brokers no longer show the topics; that some still do is no error."""
        deadline = deadline.earlier_of(_GONE_WITHIN_MS)
        backoff = Backoff(10, self.config.retry_backoff_max_ms)
        while True:
            topics = self._cluster.refresh(names, deadline).topics
            if all(name not in topics or topics[name].error_code for name in names):
                return
            pause_s = backoff.next_s()
            if deadline.left_s() <= pause_s:
                return
            self._cluster.pause(pause_s)

    def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Raise topics' numbers of partitions to ``counts``; ``assignments`` are the brokers of each added partition.

        Raises InvalidPartitions (37) when a topic would not get more, UnknownTopicOrPartition (3).
        """
        deadline = self._deadline(timeout_ms)

        def request(names: list[str]) -> Any:
            return CreatePartitionsRequest(
                topics=[
                    CreatePartitionsTopic(
                        name=name, count=counts[name], assignments=_assignments((assignments or {}).get(name))
                    )
                    for name in names
                ],
                timeout_ms=self._broker_timeout_ms(deadline),
                validate_only=validate_only,
            )

        self._for_each(
            ApiKey.CREATE_PARTITIONS, list(counts), request, lambda a: a.results, deadline, "add partitions to topic"
        )
        if not validate_only:
            for name, count in counts.items():
                self._wait_for_leaders(name, deadline, count)


def _creatable(topic: NewTopic) -> CreatableTopic:
    problem = topic_name_problem(topic.name)
    if problem:
        raise ConfigError(problem)
    assigned = bool(topic.assignments)
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned else topic.num_partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in sorted(topic.assignments.items())
        ],
        configs=[CreatableTopicConfig(name=name, value=str(value)) for name, value in topic.configs.items()],
    )


def _assignments(brokers: Sequence[Sequence[int]] | None) -> list[CreatePartitionsAssignment] | None:
    return None if brokers is None else [CreatePartitionsAssignment(broker_ids=list(each)) for each in brokers]
