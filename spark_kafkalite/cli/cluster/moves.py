"""The reassignments in progress, and the throttles that there are: what ``cluster status`` shows of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_kafkalite.cli.cluster.reassignment_room import shown_bytes, sizes_of
from spark_kafkalite.cli.cluster.reassignment_throttle import LISTS, rates_of
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import UNLIMITED_RATE, TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.admin.logs import LogDirInfo
    from spark_kafkalite.client.admin.reassignments import Reassignment

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class MovesInProgress:
    """What moves, and what slows it.

    ``sizes`` are the bytes of replicas by partition and broker, ``rates`` the throttles of brokers as leaders and as
    followers, ``listed`` the topics that name throttled replicas.
    """

    moving: Mapping[TopicPartition, Reassignment]
    sizes: Mapping[TopicPartition, Mapping[int, int]]
    rates: Mapping[int, tuple[int, int]]
    listed: Collection[str]

    def copied(self, key: TopicPartition) -> tuple[int, int]:
        """Return the bytes that the added replicas of a partition have, and that they are to have."""
        adding, sizes = self.moving[key].adding, self.sizes.get(key, {})
        return sum(sizes.get(each, 0) for each in adding), max(sizes.values(), default=0) * len(adding)

    def lines(self) -> Iterator[str]:
        """Yield what there is to show; nothing where nothing moves or is throttled."""
        if self.moving:
            every = [self.copied(key) for key in self.moving]
            copied, whole = (sum(each) for each in zip(*every, strict=True))
            yield f"Reassignments in progress: {len(self.moving)}, {_progress(copied, whole)}"
        for key in sorted(self.moving)[:_SHOWN]:
            move = self.moving[key]
            listed = [",".join(map(str, each)) for each in (move.origin, move.targets)]
            yield f"  {key}: from {listed[0]} to {listed[1]}, {_progress(*self.copied(key))}"
        if len(self.moving) > _SHOWN:
            yield f"  and {len(self.moving) - _SHOWN} more: kafkalite cluster status --json names all"
        yield from self._throttles()

    def _throttles(self) -> Iterator[str]:
        topics = ", ".join(sorted(self.listed)[:_SHOWN])
        if self.rates:
            rates = ", ".join(
                f"broker {broker} {shown_bytes(min(each))}/s" for broker, each in sorted(self.rates.items())[:_SHOWN]
            )
            if not self.listed:
                rates += "; no topic names throttled replicas, so this has no effect"
            yield f"Throttles: {rates}"
        if self.listed and not self.moving:
            effect = (
                "which slow down replicas that are not in sync" if self.rates else "without effect, as no rate is set"
            )
            yield (
                f"Throttled replicas, although nothing moves: topic {topics}, {effect}: kafkalite cluster reassign "
                "--cancel removes them"
            )

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "reassignments": [
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "replicas": list(move.replicas),
                    "adding": list(move.adding),
                    "removing": list(move.removing),
                    "copiedBytes": self.copied(key)[0],
                    "totalBytes": self.copied(key)[1],
                }
                for key, move in sorted(self.moving.items())
            ],
            "throttles": {
                "brokers": [
                    {"id": broker, "leaderBytesPerSecond": _rate(leads), "followerBytesPerSecond": _rate(follows)}
                    for broker, (leads, follows) in sorted(self.rates.items())
                ],
                "topics": sorted(self.listed),
            },
        }


def _rate(rate: int) -> int | None:
    return rate if rate < UNLIMITED_RATE else None


def _progress(copied: int, whole: int) -> str:
    return f"{shown_bytes(copied)} of {shown_bytes(whole)} copied"


def moves_of(
    admin: Admin,
    moving: Mapping[TopicPartition, Reassignment],
    directories: Mapping[int, Sequence[LogDirInfo]],
    topics: Collection[str],
    brokers: Collection[int],
) -> MovesInProgress:
    """Ask for the throttles. ``directories`` have the logs of what moves; a broker that does not answer is left out."""
    listed: set[str] = set()
    with suppress(KafkaliteError):
        for topic, entries in admin.describe_topic_settings(topics, LISTS).items():
            if any(name in entries and entries[name].value for name in LISTS):
                listed.add(topic)
    return MovesInProgress(moving, sizes_of(directories), rates_of(admin, brokers), listed)
