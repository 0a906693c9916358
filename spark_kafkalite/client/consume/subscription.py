"""What a consumer is to read: topics by name, topics that match a pattern, or partitions. Pure.

A pattern must match the whole name, as in Kafka's Java consumer. Kafka's own topics match none while
``exclude.internal.topics`` holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from spark_kafkalite.client.network.metadata import ClusterSnapshot
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition, topic_name_problem

Partitions = Iterable[TopicPartition | tuple[str, int]]


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """``topics``, or those that match ``pattern``."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    exclude_internal: bool = True

    def __str__(self) -> str:
        return ", ".join(sorted(self.topics)) if self.pattern is None else f"pattern {self.pattern.pattern!r}"

    def names(self, snapshot: ClusterSnapshot) -> frozenset[str]:
        """Return the topics to ask the group for; with a pattern, those that the snapshot has."""
        if self.pattern is None:
            return self.topics
        return frozenset(
            name
            for name, topic in snapshot.topics.items()
            if not topic.error_code
            and topic.partitions
            and self.pattern.fullmatch(name)
            and not (self.exclude_internal and (topic.is_internal or name in INTERNAL_TOPICS))
        )


def select_topics(
    topics: Iterable[str] | None, pattern: str | re.Pattern[str] | None, *, exclude_internal: bool
) -> TopicSelection:
    """Check what a user wants to subscribe to. Raises ConfigError."""
    if (topics is None) == (pattern is None):
        raise ConfigError("subscribe() takes either topics or a pattern")
    if pattern is not None:
        try:
            return TopicSelection(pattern=re.compile(pattern), exclude_internal=exclude_internal)
        except re.error as error:
            raise ConfigError(f"subscribe() to pattern {pattern!r}: not a regular expression: {error}") from None
    if isinstance(topics, str):
        raise ConfigError(f"subscribe({topics!r}): give a list of topics, or pattern=...")
    names = frozenset(topics or ())
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"subscribe(): {name!r} is not a topic name")
        if (problem := topic_name_problem(name)) is not None:
            raise ConfigError(f"subscribe(): {problem}")
    return TopicSelection(names)


def as_partitions(partitions: Partitions | str) -> list[TopicPartition]:
    """Return the partitions that a user has named, as such or as tuples. Raises ConfigError for anything else."""
    if isinstance(partitions, (str, TopicPartition)):
        # Both can be iterated over, and what comes out says little.
        raise ConfigError(
            f"{partitions!r} is not a list of partitions: give one, such as [TopicPartition('events', 0)]"
        )
    found = []
    for each in partitions:
        match each:
            case (str(topic), partition) if hasattr(partition, "__index__"):
                found.append(TopicPartition(topic, partition))
            case _:
                raise ConfigError(f"{each!r} is not a partition: give one such as TopicPartition('events', 0)")
    return found


def partition_counts(snapshot: ClusterSnapshot, topics: Iterable[str]) -> dict[str, int]:
    """Return how many partitions those of the topics have that exist."""
    counts: dict[str, int] = {}
    for name in topics:
        topic = snapshot.topics.get(name)
        if topic is not None and not topic.error_code and topic.partitions:
            counts[name] = len(topic.partitions)
    return counts
