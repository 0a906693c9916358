"""The source's options about offsets: which partitions to read, from where, until where, and how long.

Owns the forms in which users write that (lists, patterns, JSON, times) and their checks; :mod:`.options` owns which
options there are. An offset in JSON may be -2 (earliest) or -1 (latest). Pure.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from spark_kafkalite.model import TopicPartition, topic_name_problem
from spark_kafkalite.spark.conditions import INVALID_OPTION, option_error

_LOG = logging.getLogger("spark_kafkalite.spark")

# Offsets that name places, in the options' JSON. Source: Spark's KafkaOffsetRangeLimit.
EARLIEST: Final = -2
LATEST: Final = -1
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ConsumerStrategy:
    """Which partitions to read. ``kind`` says which of the other fields counts."""

    kind: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.kind == "subscribe":
            return f"subscribe={','.join(self.topics)}"
        if self.kind == "subscribePattern":
            return f"subscribePattern={self.pattern}"
        return f"assign={', '.join(map(str, self.partitions))}"


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Where to start or end, before it is resolved. ``option`` names the option it comes from.

    Exactly one of: ``sentinel`` (EARLIEST or LATEST for every partition), ``offsets`` (per partition, sentinels
    allowed), ``timestamp_ms`` (for every partition), ``timestamps`` (per partition, ms), ``committed`` (a group's).
    """

    option: str
    text: str
    sentinel: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp_ms: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    committed: bool = False


def subscription_of(given: Mapping[str, Any]) -> ConsumerStrategy:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) != 1:
        said = "all missing" if not chosen else f"{' and '.join(chosen)} are both set"
        value = None if not chosen else _as_text(given[chosen[0]])
        raise option_error(
            INVALID_OPTION,
            chosen[0] if chosen else "subscribe",
            value,
            f"{said}; set exactly one of subscribe, subscribePattern and assign",
        )
    name = chosen[0]
    value = given[name]
    if name == "subscribe":
        if not value:
            raise option_error(INVALID_OPTION, name, "", "names no topic; give topic names with commas between them")
        for topic in value:
            _check_topic(name, _as_text(value), topic)
        return ConsumerStrategy("subscribe", topics=tuple(dict.fromkeys(value)))
    if name == "subscribePattern":
        if not value:
            raise option_error(INVALID_OPTION, name, "", "an empty pattern; give a regular expression for topic names")
        try:
            re.compile(value)
        except re.error as error:
            raise option_error(INVALID_OPTION, name, value, f"not a regular expression ({error}); correct it") from None
        return ConsumerStrategy("subscribePattern", pattern=value)
    return ConsumerStrategy("assign", partitions=_assigned(value))


def _as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _check_topic(option: str, value: str, topic: str) -> None:
    if problem := topic_name_problem(topic):
        raise option_error(INVALID_OPTION, option, value, f"{problem}; correct the name")


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    parsed = _json_object("assign", text, '{"topic":[0,1]}')
    partitions: list[TopicPartition] = []
    for topic, numbers in parsed.items():
        _check_topic("assign", text, topic)
        if not isinstance(numbers, list) or not all(_is_int(number) and number >= 0 for number in numbers):
            raise option_error(
                INVALID_OPTION, "assign", text, f'{topic} needs a list of partition numbers, as in {{"{topic}":[0,1]}}'
            )
        partitions += [TopicPartition(topic, number) for number in numbers]
    if not partitions:
        raise option_error(INVALID_OPTION, "assign", text, 'names no partition; give JSON such as {"topic":[0,1]}')
    return tuple(sorted(set(partitions)))


def offset_spec(given: Mapping[str, Any], timestamp: str, timestamps: str, offsets: str) -> OffsetSpec | None:
    """Return where to start or end: one time for all wins over times per partition, and those over offsets."""
    present = [name for name in (timestamp, timestamps, offsets) if name in given]
    if not present:
        return None
    chosen, ignored = present[0], present[1:]
    # Checked even when they lose: a wrong value should not wait to be found until the winner is taken away.
    specs = {name: _one_spec(name, given[name], timestamp, timestamps) for name in present}
    for name in ignored:
        _LOG.warning("option %s is ignored, because %s is set and wins over it", name, chosen)
    return specs[chosen]


def _one_spec(name: str, value: Any, timestamp: str, timestamps: str) -> OffsetSpec:
    if name == timestamp:
        return OffsetSpec(name, str(value), timestamp_ms=value)
    if name == timestamps:
        return OffsetSpec(name, value, timestamps=_per_partition(name, value, minimum=0))
    text = value.strip()
    if text.lower() == "committed" and name == "startingOffsets":
        return OffsetSpec(name, text, committed=True)
    if text.lower() in ("earliest", "latest"):
        sentinel = EARLIEST if text.lower() == "earliest" else LATEST
        spec = OffsetSpec(name, text, sentinel=sentinel)
    else:
        spec = OffsetSpec(name, text, offsets=_per_partition(name, text, minimum=EARLIEST))
    if name == "endingOffsets":
        at_start = [str(tp) for tp, offset in (spec.offsets or {}).items() if offset == EARLIEST]
        if spec.sentinel == EARLIEST or at_start:
            where = f" for {', '.join(at_start)}" if at_start else ""
            raise option_error(
                INVALID_OPTION, name, text, f"a batch cannot end at earliest (-2){where}; use latest, -1 or an offset"
            )
    return spec


def _per_partition(option: str, text: str, minimum: int) -> dict[TopicPartition, int]:
    parsed = _json_object(option, text, '{"topic":{"0":23,"1":-2}}')
    found: dict[TopicPartition, int] = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            raise option_error(
                INVALID_OPTION, option, text, f'{topic} needs partitions and numbers, as in {{"{topic}":{{"0":23}}}}'
            )
        for partition, number in numbers.items():
            if not partition.isdecimal() or not _is_int(number) or not minimum <= number <= _LONG_MAX:
                raise option_error(
                    INVALID_OPTION,
                    option,
                    text,
                    f"{topic}-{partition}: {number!r} is not allowed; give a whole number from {minimum} up",
                )
            found[TopicPartition(topic, int(partition))] = number
    if not found:
        raise option_error(INVALID_OPTION, option, text, 'names no partition; give JSON such as {"topic":{"0":23}}')
    return found


_WORDS: Final = {
    "startingOffsets": "neither earliest, latest nor committed, and ",
    "endingOffsets": "not latest, and ",
}


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise option_error(
            INVALID_OPTION, option, text, f"{_WORDS.get(option, '')}not a JSON object; write it as in {example}"
        )
    return parsed


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_DURATION = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_UNIT_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(option: str, text: str) -> int:
    """Return a Spark time string (``15m``, ``300s``, plain milliseconds) in ms. Source: JavaUtils.timeStringAs."""
    matched = _DURATION.fullmatch(text.strip().lower())
    if matched is None:
        raise option_error(INVALID_OPTION, option, text, "not a time; write a number and one of us, ms, s, m, h, d")
    return int(int(matched[1]) * _UNIT_MS[matched[2] or "ms"])
