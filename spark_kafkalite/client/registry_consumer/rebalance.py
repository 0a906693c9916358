"""Which thread reads which partition in a group without a master: Algorithm 1 of the paper, over consumer threads.
Pure.

Every consumer computes the same from the same registry. For each topic, its partitions are sorted by the broker of
their first replica and then by number, so that those of one broker lie together. The threads of all consumers that read
the topic are sorted by their names, and each thread takes a range of partitions. The first ``partitions mod threads``
threads take one more: with the plain quotient, as the paper prints it, no thread would read the remainder.

Consumers that saw different states of the registry may compute overlapping ranges. Nothing here prevents that: the
owner nodes do, of which there can be only one a partition.
Source: kafka.consumer.RangeAssignor of Apache Kafka 0.8.2 (which sorts partitions by number only).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

from spark_kafkalite.client.registry_consumer.topic_filters import allows
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.registry.consumer_nodes import ConsumerRegistration, SubscriptionPattern, thread_id

_LOG = logging.getLogger("spark_kafkalite.client")

# Of each partition its replicas, the preferred leader first.
Partitions = Mapping[int, Sequence[int]]


def streams_of(registration: ConsumerRegistration, topic: str, *, exclude_internal: bool = True) -> int:
    """Return in how many streams a consumer reads a topic, 0 when it does not."""
    if registration.pattern is SubscriptionPattern.STATIC:
        return registration.subscription.get(topic, 0)
    if exclude_internal and topic in INTERNAL_TOPICS:
        return 0
    ((pattern, streams),) = registration.subscription.items()
    try:
        return streams if allows(registration.pattern, pattern, topic) else 0
    except re.error as error:
        # Another consumer's, whose language takes more. It gets nothing from us, and we nothing that it owns.
        _LOG.warning("the topic filter %r of a consumer of this group cannot be evaluated: %s", pattern, error)
        return 0


def topics_of(registration: ConsumerRegistration, topics: Iterable[str], *, exclude_internal: bool = True) -> list[str]:
    """Return those of ``topics`` that a consumer reads, sorted."""
    return sorted(each for each in topics if streams_of(registration, each, exclude_internal=exclude_internal))


def sorted_partitions(partitions: Partitions) -> list[int]:
    """Return the partitions' numbers by first replica, then number."""
    return sorted(partitions, key=lambda number: (next(iter(partitions[number]), -1), number))


def range_assignment(partitions: Sequence[int], threads: Sequence[str]) -> dict[int, str]:
    """Deal ranges of ``partitions`` to ``threads``, both in the order given: partition to thread."""
    assigned: dict[int, str] = {}
    if not threads:
        return assigned
    share, remainder = divmod(len(partitions), len(threads))
    start = 0
    for index, thread in enumerate(threads):
        until = start + share + (1 if index < remainder else 0)
        assigned.update(dict.fromkeys(partitions[start:until], thread))
        start = until
    return assigned


def assignment(
    consumers: Mapping[str, ConsumerRegistration], topics: Mapping[str, Partitions], *, exclude_internal: bool = True
) -> dict[TopicPartition, str]:
    """Return the thread that reads each partition of ``topics``; topics without readers are left out."""
    assigned: dict[TopicPartition, str] = {}
    for topic, partitions in topics.items():
        threads = sorted(
            thread_id(consumer_id, number)
            for consumer_id, registration in consumers.items()
            for number in range(streams_of(registration, topic, exclude_internal=exclude_internal))
        )
        for number, thread in range_assignment(sorted_partitions(partitions), threads).items():
            assigned[TopicPartition(topic, number)] = thread
    return assigned


def assignment_of(
    consumer_id: str,
    consumers: Mapping[str, ConsumerRegistration],
    topics: Mapping[str, Partitions],
    *,
    exclude_internal: bool = True,
) -> dict[TopicPartition, str]:
    """Return one consumer's part of :func:`assignment`."""
    registration = consumers.get(consumer_id)
    if registration is None:
        return {}
    own = topics_of(registration, topics, exclude_internal=exclude_internal)
    threads = {
        thread_id(consumer_id, number)
        for topic in own
        for number in range(streams_of(registration, topic, exclude_internal=exclude_internal))
    }
    whole = assignment(consumers, {topic: topics[topic] for topic in own}, exclude_internal=exclude_internal)
    return {each: thread for each, thread in whole.items() if thread in threads}
