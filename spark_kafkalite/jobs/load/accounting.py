"""Accounts for every offset of a plan: compares the files' rows with the counts of the reading tasks. Pure.

The run counts the rows in the files. The readers count the offsets without a row from the batches of the log. Neither
number is derived from the other. If they do not add up to the plan, the run publishes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.jobs.load.planning import DataLossError, LoadPlan
from spark_kafkalite.manifests.manifest import FilePart, LoadedRange, PublishedFile
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

if TYPE_CHECKING:
    from spark_kafkalite.jobs.load.load_source import RangeAccount

HolePolicy = Literal["fail", "accept"]


class AuditError(KafkaliteError):
    """The files do not hold what the plan asked for."""


def check_accounts(
    plan: LoadPlan,
    accounts: Iterable[RangeAccount],
    files: Iterable[PublishedFile],
    quarantined: Mapping[TopicPartition, int] | None = None,
) -> tuple[LoadedRange, ...]:
    """Return the account of the plan's offsets, a range for each partition.

    ``quarantined`` counts the records in quarantine, which are not in the files. Raises AuditError if a planned range
    does not have exactly one account, if a file contains an unplanned range, or if an offset is unaccounted for.
    """
    found = _by_planned_range(plan, accounts)
    in_files = _rows_by_partition(plan, files)
    lost = {TopicPartition(each.topic, each.partition): each for each in plan.lost}
    begins: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for each in plan.ranges:
        begins[each.topic_partition], ends[each.topic_partition] = each.start_offset, each.end_offset
    for tp, gone in lost.items():
        begins[tp] = gone.start
        ends.setdefault(tp, gone.until)
    ranges = []
    for tp, start in sorted(begins.items()):
        of_partition = [account for each, account in found.items() if each.topic_partition == tp]
        held_back = (quarantined or {}).get(tp, 0)
        smallest = [each.min_timestamp for each in of_partition if each.min_timestamp is not None]
        largest = [each.max_timestamp for each in of_partition if each.max_timestamp is not None]
        loaded = LoadedRange(
            topic=tp.topic,
            partition=tp.partition,
            start=start,
            next_offset=ends[tp],
            lost=lost[tp].offsets if tp in lost else 0,
            control=sum(each.control for each in of_partition),
            aborted=sum(each.aborted for each in of_partition),
            removed=sum(each.removed for each in of_partition),
            records=in_files.get(tp, 0) + held_back,
            outside=sum(each.outside for each in of_partition),
            quarantined=held_back,
            size_bytes=sum(each.size_bytes for each in of_partition),
            min_timestamp=min(smallest, default=None),
            max_timestamp=max(largest, default=None),
        )
        if loaded.difference:
            raise AuditError(
                f"{tp}: offsets {start} to {ends[tp] - 1} were planned, which are {ends[tp] - start}; accounted for "
                f"are {loaded.records} records ({sum(each.present for each in of_partition)} in the log), "
                f"{loaded.control} control records, {loaded.aborted} aborted, {loaded.removed} removed, "
                f"{loaded.outside} outside of the time range and {loaded.lost} lost: "
                f"{abs(loaded.difference)} {'are missing' if loaded.difference > 0 else 'too many'}; nothing was "
                "published"
            )
        ranges.append(loaded)
    return tuple(ranges)


def with_late(ranges: Iterable[LoadedRange], files: Iterable[PublishedFile]) -> tuple[LoadedRange, ...]:
    """Return the ranges with the number of their records in late files."""
    late: dict[tuple[str, int], int] = {}
    for file in files:
        for part in file.parts if file.late else ():
            late[file.topic, part.partition] = late.get((file.topic, part.partition), 0) + part.records
    return tuple(replace(each, late=late.get((each.topic, each.partition), 0)) for each in ranges)


def _by_planned_range(plan: LoadPlan, accounts: Iterable[RangeAccount]) -> dict[OffsetRange, RangeAccount]:
    planned = {
        (*each.topic_partition, each.start_offset, each.end_offset): each
        for ranges in plan.planned_tasks
        for each in ranges
    }
    found: dict[OffsetRange, RangeAccount] = {}
    for account in accounts:
        each = planned.get((account.topic, account.partition, account.start, account.until))
        if each is None or each in found:
            what = "was not planned" if each is None else "was read twice"
            raise AuditError(
                f"{account.topic}-{account.partition}: the range from {account.start} to {account.until - 1} {what}; "
                "nothing was published"
            )
        found[each] = account
    lacking = [each for each in planned.values() if each not in found]
    if lacking:
        raise AuditError(f"{lacking[0]} was planned and not read, one of {len(lacking)}; nothing was published")
    return found


def _rows_by_partition(plan: LoadPlan, files: Iterable[PublishedFile]) -> dict[TopicPartition, int]:
    planned = {each.topic_partition: each for each in plan.ranges}
    counted: dict[TopicPartition, int] = {}
    for file in files:
        for part in file.parts:
            tp = TopicPartition(file.topic, part.partition)
            _check_bounds(file, part, planned.get(tp))
            counted[tp] = counted.get(tp, 0) + part.records
    return counted


def _check_bounds(file: PublishedFile, part: FilePart, asked: OffsetRange | None) -> None:
    if asked is not None and asked.start_offset <= part.first_offset <= part.last_offset < asked.end_offset:
        return
    bounds = (
        "the plan does not name it" if asked is None else f"planned were {asked.start_offset} to {asked.end_offset - 1}"
    )
    raise AuditError(
        f"{file.staged} holds offsets {part.first_offset} to {part.last_offset} of {file.topic}-{part.partition}: "
        f"{bounds}; nothing was published"
    )


def check_holes(ranges: Iterable[LoadedRange], compacted: Iterable[str]) -> None:
    """Raise DataLossError for offsets that no batch contains, in a topic that is neither compacted nor transactional.

    ``compacted``: the topics whose ``cleanup.policy`` includes compact. A range is transactional if it contains control
    records or aborted records.
    """
    known = set(compacted)
    for each in ranges:
        if each.removed and each.topic not in known and not each.control and not each.aborted:
            raise DataLossError(
                f"{each.topic}-{each.partition}: {each.removed} of the offsets from {each.start} to "
                f"{each.next_offset - 1} are not in the log, though the topic is neither compacted nor transactional: "
                "records may be lost; nothing was published. Check the brokers' logs (kafkalite dump-log --check), or "
                "run with --on-hole accept to load what there is"
            )
