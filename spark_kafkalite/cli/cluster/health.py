"""Whether a cluster serves all of its partitions: what ``cluster status`` counts, and ``cluster wait`` waits for.

Metadata names the brokers, leaders and replicas. The command also connects to each of these brokers, because the other
brokers do not notice a dead one while the registry is unavailable.

The exit code is the severity. 1 is also the exit code of a command that fails; with ``--exit-code`` every failure to
get an answer is 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from spark_kafkalite.cli.cluster.reachable import can_connect
from spark_kafkalite.cli.options import reachable_admin
from spark_kafkalite.cli.rights import NOT_DESCRIBED
from spark_kafkalite.errors import (
    BrokerUnreachable,
    ClusterAuthorizationFailed,
    ConfigError,
    KafkaError,
    KafkaliteError,
)
from spark_kafkalite.model import TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin, ClusterDescription
    from spark_kafkalite.client.admin.configs import ConfigEntry
    from spark_kafkalite.client.admin.reassignments import Reassignment
    from spark_kafkalite.client.network.metadata import PartitionInfo

HEALTHY: Final = 0
UNDER_REPLICATED: Final = 1
OFFLINE: Final = 3
NO_ANSWER: Final = 4

# The settings of topics that are asked for: the first decides about acks=all, the second about warnings.
TOPIC_SETTINGS: Final = ("min.insync.replicas", "unclean.leader.election.enable")
_CONNECTED_AT_ONCE: Final = 32
_LISTED_MS: Final = 10_000


class NoAnswer(click.ClickException):
    """No broker answers what it was asked."""

    exit_code = NO_ANSWER


@dataclass(frozen=True, slots=True)
class Health:
    """The brokers and partitions of a cluster, as the broker that answered knows them."""

    cluster: ClusterDescription
    partitions: Mapping[TopicPartition, PartitionInfo]
    # The settings of each topic, as far as TOPIC_SETTINGS names them.
    settings: Mapping[str, Mapping[str, ConfigEntry]]
    # Partitions that have fewer replicas in sync than acks=all needs, which their leaders refuse therefore.
    refusing: list[TopicPartition]
    # Live brokers, as far as the broker that was asked knows, that cannot be connected to from here.
    unreachable: set[int]
    # Whether the client may describe the cluster. If not, it may not see all topics either.
    may_describe: bool
    # The reassignments in progress; none where the controller does not list them.
    moving: Mapping[TopicPartition, Reassignment]

    @property
    def live(self) -> set[int]:
        return {node.node_id for node in self.cluster.brokers}

    @property
    def broker_ids(self) -> list[int]:
        """All brokers that live or have replicas."""
        replicas = {broker for info in self.partitions.values() for broker in info.replicas}
        return sorted(replicas | self.live)

    def leaderless(self) -> list[TopicPartition]:
        live = self.live
        return [key for key, info in self.partitions.items() if info.leader not in live]

    def under_replicated(self) -> list[TopicPartition]:
        return [key for key, info in self.partitions.items() if set(info.isr) != set(info.replicas)]

    def unanswered(self) -> list[TopicPartition]:
        """Return the partitions whose leader is named, and cannot be connected to."""
        return [key for key, info in self.partitions.items() if info.leader in self.unreachable]

    @property
    def exit_code(self) -> int:
        """The code of the worst that was found; HEALTHY where all partitions are led and in sync.

        A client that may not describe the cluster does not know that: NO_ANSWER.
        """
        if self.leaderless() or self.unanswered() or self.refusing:
            return OFFLINE
        if self.under_replicated() or self.unreachable or self.cluster.controller_id < 0:
            return UNDER_REPLICATED
        return HEALTHY if self.may_describe else NO_ANSWER

    def text(self) -> str:
        """Return one line about what keeps the cluster from being healthy."""
        found = (
            (len(self.leaderless()), "without a live leader"),
            (len(self.refusing), "refuse acks=all"),
            (len(self.under_replicated()), "under-replicated"),
        )
        parts = [f"{count} of {len(self.partitions)} partitions {what}" for count, what in found if count]
        if self.unreachable:
            parts.append(f"no connection to broker {', '.join(map(str, sorted(self.unreachable)))}")
        if self.cluster.controller_id < 0:
            parts.append("no controller is known")
        if not self.may_describe:
            parts.append(NOT_DESCRIBED)
        return "; ".join(parts) or f"all {len(self.partitions)} partitions are led and in sync"


def find_health(admin: Admin) -> Health:
    """Ask a cluster for its brokers, partitions and the settings that decide about acks=all."""
    cluster = admin.describe_cluster()
    topics = admin.describe_topics()
    partitions = {
        TopicPartition(name, each.partition): each for name, info in topics.items() for each in info.partitions
    }
    settings = admin.describe_topic_settings(topics, TOPIC_SETTINGS)
    unreachable = _unreachable(cluster)
    moving, may_describe = _moving(admin, cluster, unreachable)
    required = required_replicas(partitions, settings, moving)
    refusing = [key for key, info in partitions.items() if len(info.isr) < required.get(key, 0)]
    return Health(cluster, partitions, settings, refusing, unreachable, may_describe, moving)


def _moving(
    admin: Admin, cluster: ClusterDescription, unreachable: set[int]
) -> tuple[Mapping[TopicPartition, Reassignment], bool]:
    """Return the reassignments in progress, and whether the client may describe the cluster, which listing them needs.

    Only the controller lists them: none are known while it cannot be connected to.
    """
    if cluster.controller_id in unreachable:
        return {}, True
    try:
        return admin.list_partition_reassignments(timeout_ms=_LISTED_MS), True
    except ClusterAuthorizationFailed:
        return {}, False
    except (KafkaError, BrokerUnreachable):
        # Brokers of earlier versions, and of other projects, may not list any, and the controller may have just ended.
        return {}, True


def required_replicas(
    partitions: Mapping[TopicPartition, PartitionInfo],
    settings: Mapping[str, Mapping[str, ConfigEntry]],
    moving: Mapping[TopicPartition, Reassignment],
) -> dict[TopicPartition, int]:
    """Return how many replicas in sync acks=all needs, for the partitions whose settings are known."""
    found = {}
    for key, info in partitions.items():
        entry = settings.get(key.topic, {}).get(TOPIC_SETTINGS[0])
        # The replicas that a reassignment adds are not counted until it has ended.
        added = len(moving[key].adding) if key in moving else 0
        if entry is not None:
            found[key] = min(int(entry.value or 1), max(len(info.replicas) - added, 1))
    return found


def _unreachable(cluster: ClusterDescription) -> set[int]:
    """Return the brokers that cannot be connected to from here."""
    with ThreadPoolExecutor(_CONNECTED_AT_ONCE) as threads:
        found = threads.map(lambda node: can_connect(node.host, node.port), cluster.brokers)
        return {node.node_id for node, connects in zip(cluster.brokers, found, strict=True) if not connects}


@contextmanager
def failures_as_no_answer() -> Iterator[None]:
    """Turn what keeps the brokers from answering into NoAnswer (exit code 4); wrong settings stay ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except KafkaliteError as error:
        raise NoAnswer(str(error)) from error


def health_of(settings: Mapping[str, object]) -> Health:
    """Connect to the cluster that client settings name, and return its health.

    Raises NoAnswer (exit code 4) if no broker answers, ConfigError for wrong settings.
    """
    with failures_as_no_answer(), reachable_admin(settings) as admin:
        return find_health(admin)
