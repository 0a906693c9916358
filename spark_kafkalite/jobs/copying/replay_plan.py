"""Which offsets a replay reads: the range that was asked for, by offsets, by times or by the batches of a query.

Pure but for the files of a checkpoint, which the caller opens. A batch of a query begins where the one before it ends,
and the first where the query began (see ``spark/checkpoints/checkpoint_files.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from spark_kafkalite.jobs.load.planning import LoadPlan, PlanError, TopicLogs
from spark_kafkalite.manifests.manifest import LoadedTopic
from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.checkpoints.checkpoint_files import (
    QueryCheckpoint,
    QueryCheckpointError,
    SourceOffset,
    offsets_path,
)
from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.spark.options.positions import EARLIEST, LATEST
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange, Offsets


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: ``offsets`` by partition, the log's own end where none is named.

    ``name`` is what errors call it. With ``by_offset`` the offset is put behind the name, because the user gave it, or
    can look it up; a time is named as it was given.
    """

    name: str
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    by_offset: bool = True

    def shown(self, offset: int) -> str:
        """Return the text for the bound in errors, in a partition where it is at this offset."""
        return f"{self.name} {offset}" if self.by_offset else self.name


def bound_of_offsets(
    name: str, topic: str, offsets: Mapping[int, int], logs: Mapping[TopicPartition, LogBounds]
) -> Bound:
    """Return a bound given by partition, in which -2 is the earliest offset of the log and -1 its end."""

    def resolved(item: TopicPartition, offset: int) -> int:
        log = logs.get(item)
        return offset if log is None else {EARLIEST: log.start_offset, LATEST: log.end_offset}.get(offset, offset)

    named = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
    return Bound(name, {item: resolved(item, offset) for item, offset in named.items()})


def bound_of_time(
    option: str,
    timestamp_ms: int,
    found: Mapping[TopicPartition, int | None],
    logs: Mapping[TopicPartition, LogBounds],
) -> Bound:
    """Return the bound of a time: ``found`` are the offsets of the first records at or after it, None past the last.

    A record that arrives after the look-up is past the end.
    """
    offsets = {
        item: logs[item].end_offset if at is None else min(max(at, logs[item].start_offset), logs[item].end_offset)
        for item, at in found.items()
    }
    return Bound(f"the time of {option}, {shown_time(timestamp_ms)},", offsets, by_offset=False)


def shown_time(timestamp_ms: int) -> str:
    """Return a time as people read it; as milliseconds where Python's calendar ends before it."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


# Batches of a query ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryBatches:
    """Batches of a query: from the start of ``first``, until the end of ``last`` where that is given."""

    first: int
    last: int | None = None


def bounds_of_batches(
    checkpoint: QueryCheckpoint, topic: str, span: QueryBatches | None, logs: Mapping[TopicPartition, LogBounds]
) -> tuple[Bound, Bound | None]:
    """Return where a query began its batches, by default the last finished one, and where it ended them.

    A partition that joined after the first batch begins at the start of its log; one that joined after the last batch
    ends there. Raises QueryCheckpointError for batches, or a start, that the checkpoint does not hold.
    """
    root = checkpoint.files.root
    if span is None:
        if checkpoint.committed is None:
            raise QueryCheckpointError(f"{root}: no batch of the query is finished; name one with --batch 0")
        span = QueryBatches(checkpoint.committed)
    # Looked at also where it is not needed, so that a batch that was never planned is no start.
    first = checkpoint.batch(span.first).sources
    if span.first == 0:
        begins = _offsets_of(root, 0, topic, first, initial=True)
    else:
        begins = _offsets_of(root, span.first - 1, topic, checkpoint.batch(span.first - 1).sources)
    start = {item: begins.get(item, log.start_offset) for item, log in logs.items()}
    start_bound = Bound(f"the start of batch {span.first} of {root}, offset", start)
    if span.last is None:
        return start_bound, None
    ends = _offsets_of(root, span.last, topic, checkpoint.batch(span.last).sources)
    end = {item: ends.get(item, start[item]) for item in logs}
    return start_bound, Bound(f"the end of batch {span.last} of {root}, offset", end)


def _offsets_of(
    root: str, batch_id: int, topic: str, sources: tuple[SourceOffset, ...], *, initial: bool = False
) -> Offsets:
    """Return the offsets of a topic's partitions in a batch, from the source of the query that reads it."""
    path = f"{root}/{offsets_path(batch_id)}"
    read = {tp.topic for each in sources for tp in each.offsets or ()}
    if topic not in read:
        raise QueryCheckpointError(
            f"{path}: no source of the query reads topic {topic}; they read {listed(sorted(read)) or 'no topic'}"
        )
    found: list[Offsets] = []
    for number, each in enumerate(sources):
        if not any(tp.topic == topic for tp in each.offsets or ()):
            continue
        offsets = each.initial if initial else each.offsets
        if offsets is None:
            raise QueryCheckpointError(
                f"{path}: the offset of source {number} does not hold where the query began, as with Spark's own "
                "source; begin with batch 1, or give --from-offsets"
            )
        found.append({tp: offset for tp, offset in offsets.items() if tp.topic == topic})
    if any(each != found[0] for each in found):
        raise QueryCheckpointError(
            f"{path}: several sources of the query read topic {topic}, up to different offsets; take them from "
            "'kafkalite offsets export' and give --from-offsets"
        )
    return found[0]


# The plan -------------------------------------------------------------------------------------------------------------


def plan_replay(start: Bound, end: Bound, logs: TopicLogs) -> LoadPlan:
    """Return the ranges between two bounds; partitions that a bound does not name begin or end with their log.

    Raises PlanError when a bound lies outside the log, or the start beyond the end.
    """
    unknown = sorted(str(item) for item in {*start.offsets, *end.offsets} - set(logs.bounds))
    if unknown:
        raise PlanError(f"no such partition: {', '.join(unknown)}")
    ranges: list[OffsetRange] = []
    topics: dict[str, LoadedTopic] = {}
    for tp, log in sorted(logs.bounds.items()):
        first = start.offsets.get(tp, log.start_offset)
        until = end.offsets.get(tp, log.end_offset)
        for bound, offset in ((start, first), (end, until)):
            if not log.start_offset <= offset <= log.end_offset:
                raise PlanError(
                    f"{tp}: {bound.shown(offset)} is not in the log, which holds offsets {log.start_offset} to "
                    f"{log.end_offset} (exclusive); give offsets in it, of which -2 is the earliest and -1 the end"
                )
        if first > until:
            raise PlanError(f"{tp}: {start.shown(first)} lies beyond {end.shown(until)}; swap them, or move one")
        if first < until:
            ranges.append(OffsetRange(tp, first, until))
        before = topics.get(tp.topic, LoadedTopic(logs.topic_ids.get(tp.topic), {}))
        topics[tp.topic] = LoadedTopic(before.topic_id, {**before.next_offsets, tp.partition: until})
    return LoadPlan(tuple(ranges), topics)
