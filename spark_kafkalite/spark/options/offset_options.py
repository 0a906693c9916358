"""The source's options about offsets: which partitions to read, from which positions, and to which positions.

This module parses and checks the forms of these options (lists, patterns, JSON), and of durations and sizes. The module
:mod:`.positions` defines a single position, :mod:`.options` the set of options. Pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from spark_kafkalite.model import TopicPartition, topic_name_problem
from spark_kafkalite.spark.conditions import INVALID_OPTION, listed, option_error
from spark_kafkalite.spark.options.positions import (
    ALL_OTHERS,
    LONG_MAX,
    Position,
    PositionKind,
    Positions,
    offset_position,
    time_position,
    time_span_ms,
    word_position,
)

_SIZE: Final = re.compile(r"([0-9]{1,19})(b?|[kmgtp]b?)")
_SIZE_SHIFTS: Final = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


@dataclass(frozen=True, slots=True)
class ConsumerStrategy:
    """Which partitions to read. ``kind`` selects one of the other fields."""

    kind: Literal["subscribe", "subscribePattern", "assign"]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def names_topic(self, topic: str) -> bool:
        """Whether the strategy reads the topic, or some of its partitions, if it exists."""
        if self.kind == "subscribePattern":
            # Unanchored, as in the JVM connector.
            return re.search(self.pattern, topic) is not None
        return topic in self.topics or any(tp.topic == topic for tp in self.partitions)

    def unnamed(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return those of the partitions that the strategy would not read, also if they exist."""
        if self.kind == "assign":
            return set(partitions) - set(self.partitions)
        named = {topic for topic in {tp.topic for tp in partitions} if self.names_topic(topic)}
        return {tp for tp in partitions if tp.topic not in named}

    def __str__(self) -> str:
        if self.kind == "subscribe":
            return f"subscribe={','.join(self.topics)}"
        if self.kind == "subscribePattern":
            return f"subscribePattern={self.pattern}"
        return f"assign={', '.join(map(str, self.partitions))}"


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Where a read starts or ends, before it is resolved. ``option`` is the option's name, ``text`` its value.

    ``positions`` None: at the committed offsets of a group.
    """

    option: str
    text: str
    positions: Positions | None

    @property
    def committed(self) -> bool:
        """Whether the read starts at the committed offsets of a group."""
        return self.positions is None

    @property
    def is_by_time(self) -> bool:
        """Whether the option is one whose JSON contains times."""
        return "Timestamp" in self.option


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


def offset_spec(
    given: Mapping[str, Any], timestamp: str, timestamps: str, offsets: str, notes: list[str]
) -> OffsetSpec | None:
    """Return where a read starts or ends, or None without an option for it.

    A time for all partitions has precedence over times per partition, and these over offsets. The function adds
    warnings to ``notes``. Raises SparkConditionError for an invalid value.
    """
    present = [name for name in (timestamp, timestamps, offsets) if name in given]
    if not present:
        return None
    chosen, ignored = present[0], present[1:]
    # Ignored options are checked, too: otherwise their errors would appear only after the user removes the other one.
    specs = {name: _one_spec(name, given[name], timestamp, timestamps) for name in present}
    for name in ignored:
        notes.append(f"option {name} is ignored, because {chosen} is set and wins over it")
    return specs[chosen]


def new_partition_start(option: str, text: str) -> OffsetSpec:
    """Return where a query starts to read new partitions: at earliest, at latest, or at a time."""
    position = word_position(text)
    if position is None or position.kind is PositionKind.LAST:
        position = time_position(text)
    if position is None:
        raise option_error(INVALID_OPTION, option, text, f"neither earliest nor latest, nor a time: {_TIMES}")
    return OffsetSpec(option, text.strip(), Positions(position))


def _one_spec(name: str, value: str, timestamp: str, timestamps: str) -> OffsetSpec:
    text = value.strip()
    if name == timestamp:
        position = time_position(text)
        if position is None:
            raise option_error(INVALID_OPTION, name, value, f"not a time; give {_TIMES}")
        return OffsetSpec(name, text, Positions(position))
    if name == timestamps:
        return OffsetSpec(name, text, _named_positions(name, text, time_position, f"a time: {_TIMES}"))
    if text.lower() == "committed" and name == "startingOffsets":
        return OffsetSpec(name, text, None)
    everywhere = word_position(text)
    if everywhere is not None:
        positions = Positions(everywhere)
    else:
        positions = _named_positions(
            name, text, offset_position, "a whole number from -2 up, or one of earliest, latest, last:N"
        )
    if name == "endingOffsets":
        _check_ends(name, text, positions)
    return OffsetSpec(name, text, positions)


def _check_ends(name: str, text: str, positions: Positions) -> None:
    for kind, wrong in (
        (PositionKind.EARLIEST, "at earliest (-2)"),
        (PositionKind.LAST, "so many offsets before its end (last:N)"),
    ):
        named = positions.named(kind)
        if named:
            where = f" for {listed(named)}" if named[0] else ""
            raise option_error(
                INVALID_OPTION, name, text, f"a batch cannot end {wrong}{where}; use latest, -1 or an offset"
            )


def _named_positions(option: str, text: str, read: Callable[[object], Position | None], allowed: str) -> Positions:
    """Return the positions in JSON: for each topic one for all its partitions, or one by partition.

    ``*`` stands for all other topics or partitions.
    """
    parsed = _json_object(option, text, '{"topic":{"0":23,"1":-2}}')
    topics: dict[str, Position] = {}
    partitions: dict[TopicPartition, Position] = {}
    for topic, value in parsed.items():
        if isinstance(value, dict) and topic != ALL_OTHERS:
            for number, each in value.items():
                if number != ALL_OTHERS and not number.isdecimal():
                    raise option_error(
                        INVALID_OPTION, option, text, f"{topic}-{number}: a partition is a number, or * for all others"
                    )
                position = read(each)
                if position is None:
                    raise option_error(
                        INVALID_OPTION, option, text, f"{topic}-{number}: {each!r} is not allowed; give {allowed}"
                    )
                if number == ALL_OTHERS:
                    topics[topic] = position
                elif (partition := TopicPartition(topic, int(number))) in partitions:
                    raise option_error(INVALID_OPTION, option, text, f"{partition} is named twice; name it once")
                else:
                    partitions[partition] = position
            continue
        position = read(value)
        if position is None:
            shape = "" if topic == ALL_OTHERS else f' or partitions and numbers, as in {{"{topic}":{{"0":23}}}}'
            raise option_error(INVALID_OPTION, option, text, f"{topic} needs {allowed};{shape}".removesuffix(";"))
        topics[topic] = position
    everywhere = topics.pop(ALL_OTHERS, None)
    if everywhere is None and not topics and not partitions:
        raise option_error(INVALID_OPTION, option, text, 'names no partition; give JSON such as {"topic":{"0":23}}')
    return Positions(everywhere, topics, partitions)


_WORDS: Final = {
    "startingOffsets": "neither earliest, latest, last:N nor committed, and ",
    "endingOffsets": "not latest, and ",
}
_TIMES: Final = (
    "milliseconds since 1970, a date and time such as 2026-01-31T12:00:00Z (UTC without a zone), or a time before now, "
    "such as -10m (us, ms, s, m, h or d)"
)


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    twice: list[str] = []

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in pairs)
        twice.extend(name for name, count in counts.items() if count > 1)
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=read)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise option_error(
            INVALID_OPTION, option, text, f"{_WORDS.get(option, '')}not a JSON object; write it as in {example}"
        )
    if twice:
        named = ", ".join(map(repr, dict.fromkeys(twice)))
        raise option_error(INVALID_OPTION, option, text, f"{named} is named twice in one object; name each once")
    return parsed


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def duration_ms(option: str, text: str) -> int:
    """Return a Spark time string (``15m``, ``300s``, plain milliseconds) in ms. Source: JavaUtils.timeStringAs."""
    span = time_span_ms(text)
    if span is None:
        raise option_error(INVALID_OPTION, option, text, "not a time; write a number and one of us, ms, s, m, h, d")
    return span


def size_bytes(option: str, text: str) -> int:
    """Return a Spark size string (``10g``, ``64m``, plain bytes) in bytes, at least 1.

    Source: JavaUtils.byteStringAs.
    """
    matched = _SIZE.fullmatch(text.strip().lower())
    size = 0 if matched is None else int(matched[1]) << _SIZE_SHIFTS[matched[2][:1]]
    if not 1 <= size <= LONG_MAX:
        raise option_error(
            INVALID_OPTION,
            option,
            text,
            f"not a size from 1 to {LONG_MAX} bytes; write a whole number and one of b, k, m, g, t, p, such as 64m",
        )
    return size
