"""How a starting broker joins the cluster: what it checks and waits for between its registration and its first client.

The broker reports problems of the cluster to the operator: an address that another broker has, and partitions for which
no leader can be elected. ``start`` adds default settings under which the cluster may lose an acknowledged record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from spark_kafkalite.addresses import address_text
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import BrokerId
from spark_kafkalite.printable import first_of
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.controller.best_log import named_brokers
from spark_kafkalite.registry.controller.election import elect, needs_election, why_leaderless

logger: Final = logging.getLogger(__name__)

# How long the broker waits for the first elections. After that it serves the partitions that have a leader.
_FIRST_LEADERS_S: Final = 30.0
_SHOWN_PARTITIONS: Final = 10
_SHOWN_REASONS: Final = 10
# For a partition whose possible leaders are all registered, but none can prove that its log is complete.
_ELECT: Final = "kafkalite cluster elect --unclean has the best of their logs lead"
_BY_ITSELF: Final = f"the log that contains all others leads by itself when all are registered; if none does, {_ELECT}"


def check_addresses(broker_id: int, cluster: ClusterState) -> None:
    """Raise ConfigError if a broker that registered earlier has an address of this one.

    Clients could not distinguish the two brokers. Source: kafka.server.KafkaServer.createBrokerInfo of Apache Kafka
    3.9.
    """
    me = cluster.brokers.get(BrokerId(broker_id))
    if me is None:
        # This broker has lost its session meanwhile.
        return
    mine = set(me.listeners.values())
    for other in cluster.brokers.values():
        if other.epoch < me.epoch and (both := mine & set(other.listeners.values())):
            addresses = ", ".join(sorted(address_text(*address) for address in both))
            raise ConfigError(
                f"broker {broker_id} would be advertised at {addresses}, where broker {other.broker_id} is registered: "
                "correct advertised.listeners (or listeners) of one of them. If that broker has died and this one "
                "takes its place, give this one its broker.id, or start it again once its session has ended"
            )


async def wait_for_leaders(broker_id: int, view: ClusterView, replicas: Replicas) -> None:
    """Wait until this broker serves the partitions that it leads. Log a warning and continue after a time limit."""

    def all_led() -> bool:
        return replicas.is_idle and all(
            partition.leader != broker_id or replicas.leads_or_failed(name, number)
            for name, topic in view.state.topics.items()
            for number, partition in topic.partitions.items()
            if broker_id in partition.replicas
        )

    if not await replicas.wait_until(all_led, _FIRST_LEADERS_S):
        logger.warning("some partitions have no leader after %.0f s; serving the others", _FIRST_LEADERS_S)


def tell_of_leaderless(
    broker_id: int,
    cluster: ClusterState,
    allows_unclean_election: Callable[[str], bool],
    recovers_by_itself: Callable[[str], bool],
) -> None:
    """Log a warning about partitions for which no leader can be elected, with reason and remedy.

    Partitions whose election is only pending are not included.
    """
    leaderless: dict[tuple[str, str], list[str]] = {}
    for name, topic in cluster.topics.items():
        for number, partition in topic.partitions.items():
            if (
                broker_id in partition.replicas
                and needs_election(partition, cluster.brokers)
                and elect(partition, cluster.brokers, unclean=allows_unclean_election(name)).leader < 0
            ):
                away = [each for each in (*partition.isr, *partition.eligible) if each not in cluster.brokers]
                without = _BY_ITSELF if recovers_by_itself(name) else _ELECT
                remedy = f"start {named_brokers(dict.fromkeys(away))}" if away else without
                why = why_leaderless(partition, cluster.brokers)
                leaderless.setdefault((why, remedy), []).append(f"{name}-{number}")
    for (why, remedy), keys in list(leaderless.items())[:_SHOWN_REASONS]:
        logger.warning(
            "partitions without a leader: %s, because %s; %s, or see kafkalite cluster status",
            first_of(keys, _SHOWN_PARTITIONS),
            why,
            remedy,
        )
