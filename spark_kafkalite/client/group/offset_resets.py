"""Where a reset moves a group's offsets: Kafka's reset scenarios, as values; and the CSV that holds such offsets.

Pure: what has to be asked of brokers (the bounds of logs, offsets at a time, committed offsets) comes in, a plan goes
out, one :class:`PlannedReset` a partition. Committing the plan is the caller's. Used for groups on brokers and in the
registry alike, and by ``offsets rewind``.

Rules, as ``kafka-consumer-groups --reset-offsets`` has them: an offset outside the log becomes its nearest end; a time
after the last record becomes the end; ``to-current`` of a partition without a committed offset becomes the end;
``shift-by`` needs one. Unlike there, each such correction is written into the plan, with its partition.

CSV: ``topic,partition,offset`` for one group, ``group,topic,partition,offset`` for several, one partition a line,
UTF-8; a heading and empty lines are skipped.
Source: org.apache.kafka.tools.consumer.group.ConsumerGroupCommand, OffsetsUtils.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.printable import first_of
from spark_kafkalite.times import moment_ms

_INT64_MAX: Final = 2**63 - 1
_INT32_MAX: Final = 2**31 - 1


class ResetKind(Enum):
    """The scenarios; the values are Kafka's options without their dashes."""

    TO_EARLIEST = "to-earliest"
    TO_LATEST = "to-latest"
    TO_OFFSET = "to-offset"
    TO_DATETIME = "to-datetime"
    BY_DURATION = "by-duration"
    SHIFT_BY = "shift-by"
    TO_CURRENT = "to-current"
    FROM_FILE = "from-file"


@dataclass(frozen=True, slots=True)
class Reset:
    """One scenario with its number.

    ``value`` is an offset (TO_OFFSET), milliseconds since the epoch (TO_DATETIME, BY_DURATION: the duration has been
    taken from now) or a signed count of records (SHIFT_BY); 0 for the others. ``offsets`` are those of FROM_FILE.
    """

    kind: ResetKind
    value: int = 0
    offsets: Mapping[TopicPartition, int] | None = None

    @property
    def timestamp_ms(self) -> int | None:
        """The time to look offsets up for, None where none is needed."""
        return self.value if self.kind in (ResetKind.TO_DATETIME, ResetKind.BY_DURATION) else None


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """What a reset does to one partition. ``old`` None: nothing was committed; ``note`` is how the offset was
    corrected."""

    topic_partition: TopicPartition
    old: int | None
    new: int
    note: str = ""

    @property
    def change(self) -> int | None:
        """By how many offsets it moves, None where nothing was committed."""
        return None if self.old is None else self.new - self.old


def plan(
    reset: Reset,
    bounds: Mapping[TopicPartition, LogBounds],
    committed: Mapping[TopicPartition, int],
    at_time: Mapping[TopicPartition, int | None] | None = None,
) -> list[PlannedReset]:
    """Return what the reset does to each partition of ``bounds``, in order.

    ``at_time`` has the first offset at or after ``reset.timestamp_ms``, None where there is none; only scenarios with
    a time need it. Raises ConfigError for a shift of partitions that have no committed offset.
    """
    if reset.kind is ResetKind.SHIFT_BY and (without := sorted(set(bounds) - set(committed))):
        raise ConfigError(
            f"shift-by {reset.value:+d}: nothing is committed for {listed(without)}, so there is nothing to shift; "
            "name only the partitions that have an offset, or choose another scenario such as to-earliest"
        )
    return [_planned(reset, each, bounds[each], committed.get(each), at_time or {}) for each in sorted(bounds)]


def _planned(
    reset: Reset,
    topic_partition: TopicPartition,
    bounds: LogBounds,
    old: int | None,
    at_time: Mapping[TopicPartition, int | None],
) -> PlannedReset:
    wanted, note = bounds.end_offset, ""
    match reset.kind:
        case ResetKind.TO_EARLIEST:
            wanted = bounds.start_offset
        case ResetKind.TO_LATEST:
            pass
        case ResetKind.TO_OFFSET:
            wanted = reset.value
        case ResetKind.SHIFT_BY:
            wanted = (old or 0) + reset.value
        case ResetKind.FROM_FILE:
            wanted = (reset.offsets or {})[topic_partition]
        case ResetKind.TO_CURRENT:
            if old is None:
                note = "nothing committed: the end"
            else:
                wanted = old
        case ResetKind.TO_DATETIME | ResetKind.BY_DURATION:
            found = at_time[topic_partition]
            if found is None:
                note = "no record that late: the end"
            else:
                wanted = found
    new = min(max(wanted, bounds.start_offset), bounds.end_offset)
    if new > wanted:
        note = f"{wanted} is before the log's start"
    elif new < wanted:
        note = f"{wanted} is after the log's end"
    return PlannedReset(topic_partition, old, new, note)


def only_backwards(planned: Iterable[PlannedReset]) -> list[PlannedReset]:
    """Return the plan without those that would go forward or have nothing to go back from: for a rewind."""
    return [each for each in planned if each.change is not None and each.change < 0]


def listed(partitions: Iterable[TopicPartition], most: int = 10) -> str:
    """Return partitions as text, ``t-0, t-1 and 5 more``."""
    return first_of(list(partitions), most)


# Texts ---------------------------------------------------------------------------------------------------------------

_DURATION = re.compile(
    r"P(?=.)(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:[.,]\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_SHORT_DURATION = re.compile(
    r"(?=.)(?:(?P<weeks>\d+)w)?(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?"
    r"(?:(?P<seconds>\d+(?:\.\d{1,9})?)s)?",
    re.IGNORECASE,
)
_UNITS_MS: Final = {"weeks": 604_800_000, "days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of an ISO 8601 duration (``P1DT2H``) or a short one (``26h``, ``1d2h``).

    Raises ConfigError for anything else; years and months are none, because they have no fixed length.
    """
    match = _DURATION.fullmatch(text.strip()) or _SHORT_DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"{text!r} is not a duration: write it like P7D, PT1H30M or PT10S (days D, then T, hours H, minutes M, "
            "seconds S), or like 7d, 90m, 1h30m"
        )
    return round(
        sum(float(amount.replace(",", ".")) * _UNITS_MS[unit] for unit, amount in match.groupdict().items() if amount)
    )


def parse_datetime_ms(text: str) -> int:
    """Return a date and time (UTC without a zone), or a number of milliseconds, as milliseconds since the epoch.

    Raises ConfigError for anything else.
    """
    try:
        return moment_ms(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is neither a date and time such as 2026-01-31T12:00:00.000 (UTC without a zone; "
            "2026-01-31T12:00:00+02:00 with one) of 1970 or later, nor milliseconds since 1970"
        ) from None


_FORM: Final = "topic,partition,offset, or group,topic,partition,offset"


def read_csv(text: str, name: str, groups: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return the offsets of each group in a CSV; lines without a group belong to the only one of ``groups``.

    ``name`` is the file's, for errors. Raises ConfigError naming the line: not of the form, a partition named twice, a
    group that was not asked for, no group where there are several, no line at all.
    """
    wanted = list(groups)
    found: dict[str, dict[TopicPartition, int]] = {}
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for fields in reader:
            row = [each.strip() for each in fields]
            where = f"{name}, line {reader.line_num}"
            if not any(row) or (not found and _is_heading(row)):
                continue
            group, topic_partition, offset = _parse_row(row, where, wanted)
            of_group = found.setdefault(group, {})
            if topic_partition in of_group:
                raise ConfigError(f"{where}: {topic_partition} is named a second time for group {group!r}")
            of_group[topic_partition] = offset
    except csv.Error as error:
        raise ConfigError(f"{name}, line {reader.line_num}: not CSV: {error}; lines are {_FORM}") from None
    if not found:
        raise ConfigError(f"{name}: no offsets in it; lines are {_FORM}")
    return found


def _is_heading(row: list[str]) -> bool:
    return [each.lower() for each in row[-3:-1]] == ["topic", "partition"]


def _parse_row(row: list[str], where: str, groups: list[str]) -> tuple[str, TopicPartition, int]:
    shown = ",".join(row)
    if len(row) not in (3, 4):
        raise ConfigError(f"{where}: {shown!r} has {len(row)} fields; lines are {_FORM}")
    *group, topic, partition_text, offset_text = row
    if group:
        if group[0] not in groups:
            raise ConfigError(f"{where}: group {group[0]!r} is not among those asked for: {', '.join(groups)}")
    elif len(groups) != 1:
        raise ConfigError(f"{where}: {shown!r} names no group, and there are several: {', '.join(groups)}")
    partition = _number(partition_text, "partition", _INT32_MAX, where)
    offset = _number(offset_text, "offset", _INT64_MAX, where)
    if not topic:
        raise ConfigError(f"{where}: {shown!r} names no topic; lines are {_FORM}")
    return (group[0] if group else groups[0]), TopicPartition(topic, partition), offset


def _number(text: str, what: str, maximum: int, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > maximum:
        raise ConfigError(f"{where}: the {what} {text!r} is not a number from 0 to {maximum}; lines are {_FORM}")
    return int(text)


def write_csv(offsets: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Return offsets by group as CSV, without a heading as Kafka writes it; :func:`read_csv` reads it back."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, of_group in offsets.items():
        for (topic, partition), offset in sorted(of_group.items()):
            writer.writerow(((group,) if len(offsets) > 1 else ()) + (topic, partition, offset))
    return out.getvalue()
