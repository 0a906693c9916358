"""Decides when a day or hour directory is complete, from the positions up to which the partitions were read. Pure.

A partition has *passed* a time when the job expects no older records from it any more. Two rules set this time:

- The run read the partition to the log's end, and looked up that end at some time. The partition has passed this time
  minus the grace, which allows for delayed records.
- The run read a record with some event time. The partition has passed this time minus the grace.

The second rule is for runs that stop before the log's end. It limits event times to the clock's time: otherwise one
record from 2099 would complete every directory. So a partition without new records delays no directory, and a partition
with a large lag does.

A directory is complete when every partition of its topic has passed the directory's end. The run then writes a
``_SUCCESS`` file into it, as Hadoop's jobs do. Later records for it are late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo

from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.manifests.manifest import LoadedRange, LoadedTopic, PublishedFile
from spark_kafkalite.model import TopicPartition

LatePolicy = Literal["append", "late-dir", "reopen"]

SUCCESS: Final = "_SUCCESS"
LATE_DIRECTORY: Final = "_late"
_LABELS: Final = re.compile(r"day=(\d{4}-\d{2}-\d{2})(?:/hour=(\d{2}))?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Directories:
    """What a run changes about day and hour directories: its topics with their times, completed and reopened ones."""

    topics: Mapping[str, LoadedTopic]
    completed: tuple[str, ...] = ()
    reopened: tuple[str, ...] = ()


def placed(
    files: Iterable[PublishedFile], is_complete: Callable[[str], bool], policy: LatePolicy
) -> tuple[PublishedFile, ...]:
    """Mark the files of complete directories as late, set their final paths by ``policy``, and return all files."""
    known: dict[str, bool] = {}
    found = []
    for file in files:
        late = known.setdefault(file.directory, "/" in file.directory and is_complete(file.directory))
        final = file.final
        if late and policy == "late-dir":
            topic, _, rest = final.partition("/")
            final = f"{topic}/{LATE_DIRECTORY}/{rest}"
        found.append(replace(file, late=late, final=final))
    return tuple(found)


def advanced(
    plan: LoadPlan,
    ranges: Sequence[LoadedRange],
    files: Sequence[PublishedFile],
    policy: LatePolicy,
    grace_ms: int,
    time_zone: str,
    *,
    by_record_time: bool = True,
) -> Directories:
    """Return the times that the plan's topics have passed after this run, and the directories that this completes.

    Without ``by_record_time`` another time than the records' timestamps selects the directories. Then a partition has
    certainly reached only the beginning of its latest directory.
    """
    if by_record_time:
        largest = {TopicPartition(each.topic, each.partition): each.max_timestamp for each in ranges}
    else:
        largest = _latest_beginnings_ms(files, time_zone)
    topics: dict[str, LoadedTopic] = {}
    completed: list[str] = []
    reopened = tuple(sorted({file.directory for file in files if file.late})) if policy == "reopen" else ()
    for topic, loaded in plan.topics.items():
        passed = {}
        for partition in loaded.next_offsets:
            tp = TopicPartition(topic, partition)
            found = passed_ms(
                loaded.passed_ms.get(partition),
                plan.ended_at_ms,
                grace_ms,
                at_end=tp in plan.at_end,
                largest_event_ms=largest.get(tp),
            )
            if found is not None:
                passed[partition] = found
        held = {file.directory for file in files if file.topic == topic and (not file.late or policy == "reopen")}
        waiting = {each for each in {*loaded.open_directories, *held} if ends_at_ms(each, time_zone) is not None}
        done = complete_directories(waiting, loaded.next_offsets, passed, time_zone)
        completed += done
        topics[topic] = replace(loaded, passed_ms=passed, open_directories=tuple(sorted(waiting - set(done))))
    return Directories(topics, tuple(completed), reopened)


def passed_ms(
    before: int | None, ended_at_ms: int, grace_ms: int, *, at_end: bool, largest_event_ms: int | None
) -> int | None:
    """Return the time that a partition has passed, in ms since the epoch; None if it has passed no time.

    ``before``: the time passed before the run. ``ended_at_ms``: when the run looked up the log's end. ``at_end``:
    whether the run reads up to that end. ``largest_event_ms``: the largest event time that the run read, or None.
    """
    known = [] if before is None else [before]
    if at_end:
        known.append(ended_at_ms - grace_ms)
    if largest_event_ms is not None:
        known.append(min(largest_event_ms, ended_at_ms) - grace_ms)
    # Manifests contain no times before 1970.
    return max((each for each in known if each >= 0), default=None)


def ends_at_ms(directory: str, time_zone: str) -> int | None:
    """Return the end, in ms since the epoch, of the day or hour in which a directory's path ends, or None."""
    return _boundary_ms(directory, time_zone, 1)


def _latest_beginnings_ms(files: Iterable[PublishedFile], time_zone: str) -> dict[TopicPartition, int | None]:
    latest: dict[TopicPartition, int | None] = {}
    for file in files:
        begins = _boundary_ms(file.directory, time_zone, 0)
        for part in file.parts if begins is not None else ():
            tp = TopicPartition(file.topic, part.partition)
            latest[tp] = max(begins or 0, latest.get(tp) or 0)
    return latest


def _boundary_ms(directory: str, time_zone: str, later: int) -> int | None:
    """Return when the day or hour of a directory begins; with ``later`` 1, when the next one begins."""
    found = _LABELS.search(directory)
    if found is None:
        return None
    day, hour = found.groups()
    try:
        begins = datetime.fromisoformat(day) + timedelta(hours=int(hour or 0))
        # In local time: a repeated hour, and a day of 23 or 25 hours, end where the next one begins.
        moment = begins + later * (timedelta(hours=1) if hour else timedelta(days=1))
        return int(moment.replace(tzinfo=ZoneInfo(time_zone)).astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        # The calendar's first and last day.
        return None


def complete_directories(
    directories: Iterable[str], partitions: Iterable[int], passed: Mapping[int, int], time_zone: str
) -> tuple[str, ...]:
    """Return those of a topic's directories whose end every partition of the topic has passed, sorted."""
    if any(partition not in passed for partition in partitions):
        return ()
    all_passed = min((passed[partition] for partition in partitions), default=None)
    if all_passed is None:
        return ()
    return tuple(
        sorted(
            each for each in set(directories) if (end := ends_at_ms(each, time_zone)) is not None and end <= all_passed
        )
    )
