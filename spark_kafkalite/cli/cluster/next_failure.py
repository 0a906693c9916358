"""What stops if one more broker fails, and which brokers do not lead what they should. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafkalite.model import INTERNAL_TOPICS, TopicPartition
from spark_kafkalite.printable import first_of

if TYPE_CHECKING:
    from spark_kafkalite.client.network.metadata import PartitionInfo

_NAMED: Final = 3
_BROKERS: Final = 10


class Stops(NamedTuple):
    """The partitions that stop with one broker: those without another leader, and those that then refuse acks=all."""

    leaderless: list[TopicPartition]
    refusing: list[TopicPartition]

    def text(self) -> str:
        """Return what stops, for a line."""
        parts = [
            f"{len(keys)} partitions {what} ({_some(keys)})"
            for keys, what in ((self.leaderless, "have no leader"), (self.refusing, "refuse acks=all"))
            if keys
        ]
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        leaderless, refusing = (
            [{"topic": key.topic, "partition": key.partition} for key in keys]
            for keys in (self.leaderless, self.refusing)
        )
        return {"leaderless": leaderless, "refusingAcksAll": refusing}


def stops_without(
    broker: int,
    partitions: Mapping[TopicPartition, PartitionInfo],
    required: Mapping[TopicPartition, int],
    live: Collection[int],
) -> Stops:
    """Return what stops if a live broker fails; not what has stopped already.

    ``required`` is how many replicas in sync ``acks=all`` needs, by partition; those that it lacks are not counted.
    """
    stops = Stops([], [])
    for key, info in partitions.items():
        if broker not in info.isr or info.leader not in live:
            continue
        left = sum(each in live for each in info.isr) - 1
        if left <= 0:
            stops.leaderless.append(key)
        elif left < required.get(key, 1) <= left + 1:
            stops.refusing.append(key)
    return stops


class Preferred(NamedTuple):
    """Of how many partitions a broker is the first replica, and how many of these it leads."""

    partitions: int
    led: int


def preferred(broker: int, partitions: Mapping[TopicPartition, PartitionInfo]) -> Preferred:
    """Return how much a broker leads of what it should. Kafka's imbalance is the part that it does not lead."""
    infos = [info for info in partitions.values() if info.replicas and info.replicas[0] == broker]
    return Preferred(len(infos), sum(info.leader == broker for info in infos))


def skew_text(live: Collection[int], partitions: Mapping[TopicPartition, PartitionInfo]) -> str:
    """Return a line about the live brokers that do not lead all that they should; empty where all do."""
    found = {broker: preferred(broker, partitions) for broker in sorted(live)}
    skewed = [
        f"broker {broker} leads {each.led} of {each.partitions}"
        for broker, each in found.items()
        if each.led < each.partitions
    ]
    if not skewed:
        return ""
    shown = first_of(skewed, _BROKERS, "brokers")
    return f"Leaders that are not first replicas: {shown}: kafkalite cluster elect --preferred"


def _some(keys: list[TopicPartition]) -> str:
    # Internal topics are many partitions, and nobody's first question.
    ordered = sorted(keys, key=lambda key: (key.topic in INTERNAL_TOPICS, key))
    return first_of(ordered, _NAMED)
