"""The sink's checks before it writes: that brokers answer and the topic exists.

A batch write fails soon, because a user waits. A streaming write checks again before every batch. So it waits for
unavailable brokers as long as a producer does: for ``brokersUnreachableTimeout``, which is the producer's
``kafka.max.block.ms`` (a minute).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from spark_kafkalite.client.config import parse_address
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline, is_retriable
from spark_kafkalite.errors import AdvertisedUnreachable, KafkaliteError, NoBrokerThere, UnknownTopicOrPartition
from spark_kafkalite.spark.cluster_errors import patience_ms, unreachable
from spark_kafkalite.spark.conditions import TOPIC_NOT_FOUND, option_error
from spark_kafkalite.spark.options.options import WriterOptions
from spark_kafkalite.spark.workers.connections import cluster_for, writing_config

_LOG = logging.getLogger("spark_kafkalite.spark")

_SOON_MS: Final = 10_000
_ATTEMPT_MS: Final = 5_000
_PAUSE_S: Final = 0.2


def check_sink(options: WriterOptions, *, patient: bool) -> None:
    """Raise SparkConditionError when no broker answers, or a topic of the options is not there and is not created."""
    config = writing_config(options.client)
    timeout_ms = config.max_block_ms if patient else min(_SOON_MS, config.max_block_ms)
    cluster = cluster_for(config.client, options.client)
    deadline = Deadline.after_ms(timeout_ms)
    is_given = "max.block.ms" in options.client
    named = [("topic", options.topic)]
    if options.quarantine_topic is not None:
        named.append(("quarantineTopic", options.quarantine_topic))
    for option, topic in named:
        while True:
            try:
                _ask(cluster, topic, deadline.earlier_of(_ATTEMPT_MS))
                break
            except KafkaliteError as error:
                left_s = deadline.left_s()
                if isinstance(error, UnknownTopicOrPartition) and left_s < _PAUSE_S:
                    problem = f"{error}; create it, or correct the name"
                    raise option_error(TOPIC_NOT_FOUND, option, topic, problem) from None
                # No process of a stream has reached the cluster before, so a broker that restarts looks like a wrong
                # door.
                passes = is_retriable(error) or (patient and isinstance(error, NoBrokerThere))
                most_ms = patience_ms(error, timeout_ms, is_given)
                is_hopeless = timeout_ms - left_s * 1000 >= most_ms
                if not passes or is_hopeless or left_s < _PAUSE_S:
                    time_text = (
                        f"{most_ms / 1000:.0f} s (kafka.max.block.ms={timeout_ms}, see brokersUnreachableTimeout)"
                    )
                    given_up = time_text if passes and patient else None
                    raise unreachable(error, options.client, options.target, given_up) from None
                _LOG.warning("the sink cannot reach the brokers, %.0f s left: %s", left_s, error)
            time.sleep(_PAUSE_S)


def _ask(cluster: ClusterClient, topic: str | None, deadline: Deadline) -> None:
    if topic is None:
        brokers = set(cluster.refresh([], deadline).nodes)
    else:
        info = cluster.topic(topic, deadline, allow_auto_create=True)
        brokers = {each.leader for each in info.partitions if each.leader >= 0}
    _reach_one(cluster, sorted(brokers), deadline)


def _reach_one(cluster: ClusterClient, brokers: list[int], deadline: Deadline) -> None:
    """Raise AdvertisedUnreachable if none of these brokers can be reached at its advertised address.

    Otherwise the write would fail only after the time that a delivery may take. If ``bootstrap.servers`` has the same
    address, or an advertised address was reached before, this checks nothing: a stream asks before each batch.
    """
    if cluster.has_reached_advertised:
        return
    given = set(map(parse_address, cluster.config.bootstrap_servers))
    nodes = cluster.snapshot.nodes
    if any((nodes[each].host, nodes[each].port) in given for each in brokers if each in nodes):
        return
    failures: list[KafkaliteError] = []
    for number, broker in enumerate(brokers):
        try:
            share_ms = deadline.left_s() * 1000 / (len(brokers) - number)
            cluster.connect(broker, deadline.earlier_of(share_ms)).close()
            return
        except AdvertisedUnreachable as error:
            failures.append(error)
    if failures:
        raise failures[0]
