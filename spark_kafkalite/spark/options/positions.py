"""Places in logs, as the source's options name them: for all partitions, for a topic's, or for a single one.

Owns the forms in which one place is written (words, offsets, times, ``last:N``) and what they need of a log. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.times import moment_ms

# Offsets that name places, in the options' JSON. Source: Spark's KafkaOffsetRangeLimit.
EARLIEST: Final = -2
LATEST: Final = -1
LONG_MAX: Final = 2**63 - 1
# What names all other topics, or all other partitions of a topic.
ALL_OTHERS: Final = "*"


class PositionKind(Enum):
    """How a place is given."""

    OFFSET = "offset"
    EARLIEST = "earliest"
    LATEST = "latest"
    # So many offsets before the end.
    LAST = "last"
    # Milliseconds since the epoch.
    TIME = "time"
    # Milliseconds before the read begins.
    AGO = "ago"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log; each :class:`PositionKind` defines what ``number`` counts."""

    kind: PositionKind
    number: int = 0


AT_EARLIEST: Final = Position(PositionKind.EARLIEST)
AT_LATEST: Final = Position(PositionKind.LATEST)

_LAST: Final = re.compile(r"last:([0-9]{1,18})")
_DURATION: Final = re.compile(r"([0-9]{1,15})\s*(us|ms|s|m|min|h|d)?")
_UNIT_MS: Final = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def word_position(text: str) -> Position | None:
    """Return the place that a word names: earliest, latest or last:N, in any case; None for all else."""
    word = text.strip().lower()
    if word in (PositionKind.EARLIEST.value, PositionKind.LATEST.value):
        return Position(PositionKind(word))
    last = _LAST.fullmatch(word)
    return Position(PositionKind.LAST, int(last[1])) if last is not None else None


def offset_position(value: object) -> Position | None:
    """Return the place that a value in JSON names: an offset, -2 (earliest), -1 (latest) or a word; None otherwise."""
    if isinstance(value, str):
        return word_position(value)
    if not isinstance(value, int) or isinstance(value, bool) or not EARLIEST <= value <= LONG_MAX:
        return None
    if value >= 0:
        return Position(PositionKind.OFFSET, value)
    return AT_EARLIEST if value == EARLIEST else AT_LATEST


def time_position(value: object) -> Position | None:
    """Return the place that a time names: ms since the epoch, ISO 8601 (UTC without a zone), or ``-10m``: that long
    before the read begins. None for all else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Position(PositionKind.TIME, value) if 0 <= value <= LONG_MAX else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.startswith("-"):
        ago = time_span_ms(text.removeprefix("-"))
        # Without a unit it would be a negative number of milliseconds since the epoch, which is no time.
        return None if ago is None or text[-1].isdecimal() else Position(PositionKind.AGO, ago)
    try:
        moment = moment_ms(text)
    except (ValueError, OverflowError):
        return None
    return Position(PositionKind.TIME, moment)


def time_span_ms(text: str) -> int | None:
    """Return a Spark time string (``15m``, ``300s``, plain milliseconds) in ms, None where it is none. Source:
    JavaUtils.timeStringAs."""
    matched = _DURATION.fullmatch(text.strip().lower())
    return None if matched is None else int(int(matched[1]) * _UNIT_MS[matched[2] or "ms"])


@dataclass(frozen=True, slots=True)
class Positions:
    """A place for each partition: its own, else its topic's, else the one for all."""

    everywhere: Position | None = None
    topics: Mapping[str, Position] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, Position] = field(default_factory=dict)

    @property
    def is_by_partition(self) -> bool:
        """Whether single partitions are named, and nothing else."""
        return bool(self.partitions) and not self.topics and self.everywhere is None

    def of(self, tp: TopicPartition) -> Position | None:
        """Return a partition's place, None when nothing names one."""
        own = self.partitions.get(tp)
        return own if own is not None else self.topics.get(tp.topic, self.everywhere)

    def lacking(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those partitions for which no place is named."""
        return sorted(tp for tp in partitions if self.of(tp) is None)

    def beside(self, partitions: Iterable[TopicPartition]) -> list[str]:
        """Return what is named and not among these partitions: single ones, and topics."""
        there = set(partitions)
        topics = {tp.topic for tp in there}
        extra = [str(tp) for tp in sorted(self.partitions) if tp not in there]
        return extra + [f"topic {topic}" for topic in sorted(self.topics) if topic not in topics]

    def named(self, kind: PositionKind) -> list[str]:
        """Return what has a place of this kind, in the words of an error: "" stands for all partitions."""
        found = [""] if self.everywhere is not None and self.everywhere.kind is kind else []
        found += [f"topic {topic}" for topic, each in sorted(self.topics.items()) if each.kind is kind]
        return found + [str(tp) for tp, each in sorted(self.partitions.items()) if each.kind is kind]
