"""Administration: topics, partitions, settings, offsets by time, and what the cluster looks like.

Every call is one request to the right broker, repeated until ``default.api.timeout.ms`` for errors that pass (a
controller that moved, a leader being elected). Calls for several topics return what happened to each; when any failed,
the first error is raised after all have been tried, with the others named in its text. Topics that a call has just made
or removed may take a moment to be seen by all brokers; calls wait until the broker that they ask sees it.

Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from spark_kafkalite.client.cluster import EARLIEST, LATEST, MAX_TIMESTAMP, ClusterClient, OffsetAndTimestamp
from spark_kafkalite.client.config import admin_config
from spark_kafkalite.client.connection import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
)
from spark_kafkalite.client.metadata import Node, TopicInfo
from spark_kafkalite.client.retry import Backoff, Deadline, is_retriable, needs_refresh
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    ConfigError,
    KafkaError,
    KafkaliteError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from spark_kafkalite.model import IsolationLevel, TopicPartition, topic_name_problem
from spark_kafkalite.wire.error_codes import error_for
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
from spark_kafkalite.wire.messages.describe_cluster import DescribeClusterRequest
from spark_kafkalite.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "Admin", "ClusterDescription", "ConfigEntry", "NewTopic"]

# A topic of the same name that somebody makes anew at once must not hold up delete_topics() for long.
_GONE_WITHIN_MS: Final = 3_000
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
_SOURCES: Final = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default broker",
    4: "static broker",
    5: "default",
    6: "group",
}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 takes the broker's default; ``assignments`` (partition: brokers) replaces both numbers."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or broker. ``source`` says where the value comes from; ``value`` is None when secret."""

    name: str
    value: str | None
    source: str
    read_only: bool
    is_sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The live brokers, which of them is the controller (-1: not known), and the cluster's id."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Node, ...]


class Admin:
    """Administers a cluster. Use it as a context manager, or call :meth:`close`."""

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, clock: Clock = SYSTEM_CLOCK, **keywords: object
    ) -> None:
        """``settings`` have Kafka's names; ``keywords`` are the same in snake case (``bootstrap_servers=...``)."""
        self.config = admin_config(settings, keywords)
        self._clock = clock
        self._cluster = ClusterClient(self.config, clock)

    def __repr__(self) -> str:
        return f"Admin({self._cluster!r})"

    @property
    def cluster(self) -> ClusterClient:
        """The underlying view of the cluster, for other parts of this package."""
        return self._cluster

    # Topics ---------------------------------------------------------------------------------------------------------

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
        InvalidReplicationFactor (38), InvalidConfig (40) and what else the broker says.
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
        self._for_each(CREATE_TOPICS, list(wanted), request, lambda a: a.topics, deadline, "create topic", ignored)
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

        self._for_each(DELETE_TOPICS, wanted, request, lambda a: a.responses, deadline, "delete topic")
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
            CREATE_PARTITIONS, list(counts), request, lambda a: a.results, deadline, "add partitions to topic"
        )
        if not validate_only:
            for name, count in counts.items():
                self._wait_for_leaders(name, deadline, count)

    def list_topics(self, *, include_internal: bool = False, timeout_ms: int | None = None) -> list[str]:
        """Return the names of all topics, in order."""
        topics = self._cluster.all_topics(self._deadline(timeout_ms))
        return sorted(name for name, info in topics.items() if include_internal or not info.is_internal)

    def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, TopicInfo]:
        """Return partitions, leaders and replicas of the named topics, or of all.

        Raises UnknownTopicOrPartition (3) naming those that do not exist.
        """
        deadline = self._deadline(timeout_ms)
        if names is None:
            return dict(sorted(self._cluster.all_topics(deadline).items()))
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            problem = topic_name_problem(name)
            if problem:
                raise ConfigError(problem)
        found = self._cluster.refresh(wanted, deadline).topics if wanted else {}
        missing = [
            name for name in wanted if name not in found or found[name].error_code == UnknownTopicOrPartition.code
        ]
        if missing:
            raise UnknownTopicOrPartition(f"no such topic: {', '.join(missing)}")
        for name in wanted:
            code = found[name].error_code
            if code and not error_for(code).retriable:
                raise error_for(code, f"topic {name} cannot be described")
        return {name: found[name] for name in wanted}

    # Settings, offsets, cluster -------------------------------------------------------------------------------------

    def describe_configs(
        self, *, topic: str | None = None, broker_id: int | None = None, timeout_ms: int | None = None
    ) -> dict[str, ConfigEntry]:
        """Return all settings of a topic, or of a broker, under their names."""
        if (topic is None) == (broker_id is None):
            raise ConfigError("describe_configs: give either topic or broker_id")
        deadline = self._deadline(timeout_ms)
        is_topic = topic is not None
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE if is_topic else BROKER_RESOURCE,
                    resource_name=topic if topic is not None else str(broker_id),
                    configuration_keys=None,
                )
            ],
            include_synonyms=False,
            include_documentation=True,
        )

        def ask() -> dict[str, ConfigEntry]:
            if broker_id is None:
                answer = self._cluster.request_any(DESCRIBE_CONFIGS, request, deadline)
            else:
                self._cluster.refresh([], deadline)
                answer = self._cluster.request_to(broker_id, DESCRIBE_CONFIGS, request, deadline)
            result = answer.results[0]
            if result.error_code:
                what = f"topic {topic}" if is_topic else f"broker {broker_id}"
                raise error_for(result.error_code, result.error_message or f"settings of {what} cannot be described")
            return {each.name: _config_entry(each) for each in result.configs}

        return self._retried(ask, deadline)  # type: ignore[no-any-return]

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return offsets by time (ms), or for EARLIEST (-2), LATEST (-1), MAX_TIMESTAMP (-3); None for none."""
        wanted = {TopicPartition(*each): timestamp for each, timestamp in timestamps.items()}
        return self._cluster.offsets_for(wanted, self._deadline(timeout_ms), isolation=isolation)

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Return the brokers, the controller and the cluster's id."""
        deadline = self._deadline(timeout_ms)
        try:
            answer = self._cluster.request_any(DESCRIBE_CLUSTER, DescribeClusterRequest(), deadline)
        except UnsupportedVersion:
            snapshot = self._cluster.refresh([], deadline)
            return ClusterDescription(snapshot.cluster_id, snapshot.controller_id, tuple(snapshot.nodes.values()))
        if answer.error_code:
            raise error_for(answer.error_code, answer.error_message)
        brokers = sorted(answer.brokers, key=lambda broker: broker.broker_id)
        return ClusterDescription(
            answer.cluster_id,
            answer.controller_id,
            tuple(Node(each.broker_id, each.host, each.port, each.rack) for each in brokers),
        )

    # How a request is made ------------------------------------------------------------------------------------------

    def _for_each(
        self,
        api_key: int,
        names: list[str],
        request: Callable[[list[str]], Any],
        results_of: Callable[[Any], Iterable[Any]],
        deadline: Deadline,
        doing: str,
        ignored: tuple[int, ...] = (),
    ) -> None:
        """Have the controller do something with each name; names whose error passes are tried again.

        Raises the first error; the text names all of them.
        """
        left = list(names)
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        failed: dict[str, KafkaError] = {}
        while left:
            passing: dict[str, KafkaError] = {}
            answer = self._retried(partial(self._ask_controller, api_key, request, left, deadline), deadline)
            for result in results_of(answer):
                if not result.error_code or result.error_code in ignored:
                    continue
                error = error_for(
                    result.error_code, f"cannot {doing} {result.name}: {result.error_message or 'refused'}"
                )
                if error.retriable and result.error_code not in _FINAL_FOR_TOPICS:
                    passing[result.name] = error
                else:
                    failed[result.name] = error
            pause_s = backoff.next_s()
            if passing and deadline.left_s() <= pause_s:
                failed.update(passing)
                break
            left = list(passing)
            if left:
                self._cluster.pause(pause_s)
                self._cluster.refresh([], deadline)
        if failed:
            first, *others = failed.values()
            if others:
                raise type(first)("; ".join(str(error) for error in (first, *others)))
            raise first

    def _ask_controller(
        self, api_key: int, request: Callable[[list[str]], Any], names: list[str], deadline: Deadline
    ) -> Any:
        return self._cluster.request_controller(api_key, request(names), deadline)

    def _retried(self, ask: Callable[[], Any], deadline: Deadline) -> Any:
        backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        while True:
            try:
                return ask()
            except KafkaliteError as error:
                pause_s = backoff.next_s()
                final = isinstance(error, UnknownTopicOrPartition) or not is_retriable(error)
                if final or deadline.left_s() <= pause_s:
                    raise
                self._cluster.pause(pause_s)
                if needs_refresh(error):
                    self._cluster.refresh([], deadline)

    def _deadline(self, timeout_ms: int | None) -> Deadline:
        return Deadline.after_ms(self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms, self._clock)

    def _broker_timeout_ms(self, deadline: Deadline) -> int:
        """How long the broker may take: its answer must come before the request times out here."""
        return max(1, int(min(deadline.left_s() * 1000, self.config.request_timeout_ms) * 0.9))

    def close(self) -> None:
        """Close all connections. May be called more than once, and from any thread."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# Retriable for a producer that has just seen the topic; here it means that there is none, and a timeout that the work
# goes on inside the broker, so that a second try would only find it done.
_FINAL_FOR_TOPICS: Final = frozenset({UnknownTopicOrPartition.code, RequestTimedOut.code})


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


def _config_entry(received: Any) -> ConfigEntry:
    return ConfigEntry(
        received.name,
        received.value,
        _SOURCES.get(received.config_source, f"source {received.config_source}"),
        received.read_only,
        received.is_sensitive,
        received.documentation,
    )
