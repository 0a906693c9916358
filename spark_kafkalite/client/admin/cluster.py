"""What a cluster consists of: its brokers and its topics.

The part of :class:`spark_kafkalite.client.admin.admin.Admin` that only reads, and that loads little: a command that
lists topics needs no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.client.network.metadata import Node, TopicInfo
from spark_kafkalite.errors import ConfigError, UnknownTopicOrPartition, UnsupportedVersion
from spark_kafkalite.model import topic_name_problem
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.messages.describe_cluster import DescribeClusterRequest
from spark_kafkalite.wire.rights import refusal


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The live brokers, which of them is the controller (-1: not known), and the cluster's id.

    ``versions`` has the program's version of each broker that names it: no Apache Kafka does, and no older broker.
    """

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Node, ...]
    versions: Mapping[int, str] = field(default_factory=dict)


class ClusterAdmin(AdminRequests):
    """The calls that show topics and brokers."""

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
                raise refusal(ApiKey.METADATA, code, f"topic {name} cannot be described")
        return {name: found[name] for name in wanted}

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """Return the brokers, the controller and the cluster's id."""
        deadline = self._deadline(timeout_ms)
        try:
            answer = self._cluster.request_any(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), deadline)
        except UnsupportedVersion:
            snapshot = self._cluster.refresh([], deadline)
            return ClusterDescription(snapshot.cluster_id, snapshot.controller_id, tuple(snapshot.nodes.values()))
        if answer.error_code:
            raise refusal(ApiKey.DESCRIBE_CLUSTER, answer.error_code, answer.error_message)
        brokers = sorted(answer.brokers, key=lambda broker: broker.broker_id)
        return ClusterDescription(
            answer.cluster_id,
            answer.controller_id,
            tuple(Node(each.broker_id, each.host, each.port, each.rack) for each in brokers),
            {each.broker_id: each.software_version for each in brokers if each.software_version},
        )
