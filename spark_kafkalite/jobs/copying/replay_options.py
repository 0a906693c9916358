"""The options of the replay job for the range to read: their types, their combinations, and the plan of the range."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

import click

from spark_kafkalite.client.admin.admin import Admin
from spark_kafkalite.jobs.copying import replay_run
from spark_kafkalite.jobs.copying.replay_plan import (
    Bound,
    QueryBatches,
    bound_of_offsets,
    bound_of_time,
    bounds_of_batches,
    plan_replay,
    shown_time,
)
from spark_kafkalite.jobs.copying.streaming import check_topic_id
from spark_kafkalite.jobs.load.planning import LoadPlan, PlanError, TopicLogs
from spark_kafkalite.jobs.load.time_range import TimeRange
from spark_kafkalite.jobs.program.session import reachable_files, start_session
from spark_kafkalite.model import IsolationLevel, LogBounds, TopicPartition
from spark_kafkalite.spark.checkpoints.checkpoint_files import QueryCheckpoint
from spark_kafkalite.spark.conditions import listed
from spark_kafkalite.times import moment_ms

FROM_OFFSETS: Final = (
    'First offset of every partition: \'{"0": 120, "1": 80}\'; -2 is the earliest offset there is, -1 the end.'
)
# A group's name may be anything; this one is also typed, shown and put into headers.
_RUN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Instant(click.ParamType[int]):
    """Milliseconds since the epoch, or an ISO 8601 time; a time without a zone is UTC."""

    name = "MS_OR_ISO"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return moment_ms(str(value))
        except ValueError:
            self.fail(
                f"{str(value)!r} is neither milliseconds since the epoch nor an ISO 8601 time of 1970 or later",
                param,
                ctx,
            )


class PartitionOffsets(click.ParamType[dict[int, int]]):
    """Offsets by partition as JSON: {"0": 120, "1": 80}. -2 is the earliest one, -1 the end, as in Spark's source."""

    name = "JSON"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[int, int]:
        if isinstance(value, dict):
            return value
        try:
            document = json.loads(str(value))
            return {int(partition): int(offset) for partition, offset in document.items()}
        except (ValueError, AttributeError, TypeError):
            self.fail(f'{value!r} is not of the form {{"PARTITION": OFFSET, ...}}', param, ctx)


class Batches(click.ParamType[QueryBatches]):
    """Batches of a query: the one to begin with, N, or the first and the last, N..M."""

    name = "N[..M]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> QueryBatches:
        if isinstance(value, QueryBatches):
            return value
        matched = re.fullmatch(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?", str(value))
        if matched is None:
            self.fail(f"{str(value)!r} is neither the number of a batch nor two of them as in 5..9", param, ctx)
        span = QueryBatches(int(matched[1]), None if matched[2] is None else int(matched[2]))
        if span.last is not None and span.last < span.first:
            self.fail(f"{str(value)!r} ends with batch {span.last}, before it begins: swap them", param, ctx)
        return span


def run_id_option(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return a run id that can be part of a group's name and of a header."""
    if value is not None and not _RUN_ID.fullmatch(value):
        raise click.BadParameter(f"{value!r}: must be 1 to 100 letters, digits, '.', '_' and '-'", ctx, param)
    return value


def exactly_one(given: Mapping[str, object]) -> None:
    """Raise UsageError unless one of these options has a value."""
    if sum(value is not None for value in given.values()) != 1:
        *others, last = given
        raise click.UsageError(f"give exactly one of {', '.join(others)} and {last}")


@dataclass(frozen=True, slots=True)
class AskedRange:
    """The range as the user gave it; timestamps in ms since the epoch."""

    topic: str
    from_timestamp: int | None = None
    from_offsets: dict[int, int] | None = None
    from_checkpoint: str | None = None
    span: QueryBatches | None = None
    to_timestamp: int | None = None
    to_offsets: dict[int, int] | None = None
    exact_time: bool = False

    def check(self) -> None:
        """Raise UsageError for options that do not go together."""
        exactly_one(
            {
                "--from-timestamp": self.from_timestamp,
                "--from-offsets": self.from_offsets,
                "--from-checkpoint": self.from_checkpoint,
            }
        )
        if self.span is not None and self.from_checkpoint is None:
            raise click.UsageError("--batch needs --from-checkpoint DIR")
        ends: dict[str, object] = {"--to-timestamp": self.to_timestamp, "--to-offsets": self.to_offsets}
        if self.span is not None and self.span.last is not None:
            ends[f"--batch {self.span.first}..{self.span.last}"] = self.span
        given = [name for name, value in ends.items() if value is not None]
        if len(given) > 1:
            raise click.UsageError(f"give {' or '.join(given)}, not both")
        begin, end = self.from_timestamp, self.to_timestamp
        if begin is not None and end is not None and begin >= end:
            raise click.UsageError(
                f"--from-timestamp {shown_time(begin)} is not before --to-timestamp {shown_time(end)}: swap them"
            )
        if self.exact_time and begin is None and end is None:
            raise click.UsageError("--exact-time needs --from-timestamp, --to-timestamp or both")

    @property
    def times(self) -> TimeRange | None:
        """The time range, None where no time was given."""
        if self.from_timestamp is None and self.to_timestamp is None:
            return None
        return TimeRange(self.from_timestamp, self.to_timestamp)

    @property
    def written_times(self) -> TimeRange | None:
        """The time range that every record that is written must be in, None where the offsets alone decide."""
        return self.times if self.exact_time else None

    def digest(self) -> str:
        """Return a text that identifies this range."""
        span = None if self.span is None else [self.span.first, self.span.last]
        asked: dict[str, object] = {
            "from": [self.from_timestamp, _sorted(self.from_offsets), self.from_checkpoint, span],
            "to": [self.to_timestamp, _sorted(self.to_offsets)],
        }
        if self.exact_time:
            asked["exact_time"] = True
        return replay_run.digest(asked)

    def plan(self, admin: Admin, logs: TopicLogs) -> LoadPlan:
        """Return the ranges, of which the logs hold every offset. Raises PlanError, QueryCheckpointError.

        With ``exact_time`` they reach beyond the first record after the range, because later offsets may have records
        of the range.
        """
        bounds = logs.bounds
        end: Bound | None = None
        if self.from_checkpoint is not None:
            files = reachable_files(start_session("kafkalite replay"), "--from-checkpoint", self.from_checkpoint)
            checkpoint = QueryCheckpoint.open(files)
            check_topic_id(files, self.topic, logs.topic_ids.get(self.topic), "give the checkpoint of a later query")
            start, end = bounds_of_batches(checkpoint, self.topic, self.span, bounds)
        elif self.from_offsets is not None:
            check_all_named(self.topic, bounds, self.from_offsets)
            start = bound_of_offsets("--from-offsets", self.topic, self.from_offsets, bounds)
        else:
            start = _at_time(admin, bounds, "--from-timestamp", cast(int, self.from_timestamp))
        if self.to_timestamp is not None and not self.exact_time:
            end = _at_time(admin, bounds, "--to-timestamp", self.to_timestamp)
        elif self.to_offsets is not None:
            end = bound_of_offsets("--to-offsets", self.topic, self.to_offsets, bounds)
        plan = plan_replay(start, end or Bound("the end of the log, offset"), logs)
        if not plan.ranges:
            click.echo(nothing_to_replay(self.topic, bounds, start.offsets, self.from_timestamp), err=True)
        return replace(plan, times=self.written_times)


def _sorted(offsets: dict[int, int] | None) -> list[tuple[int, int]] | None:
    return None if offsets is None else sorted(offsets.items())


def _at_time(admin: Admin, bounds: Mapping[TopicPartition, LogBounds], option: str, timestamp_ms: int) -> Bound:
    found = admin.list_offsets(dict.fromkeys(bounds, timestamp_ms), isolation=IsolationLevel.READ_COMMITTED)
    return bound_of_time(
        option, timestamp_ms, {tp: None if at is None else at.offset for tp, at in found.items()}, bounds
    )


def check_all_named(topic: str, bounds: Mapping[TopicPartition, LogBounds], offsets: Mapping[int, int]) -> None:
    """Raise PlanError when ``--from-offsets`` leaves a partition out, as Spark's source does."""
    lacking = [item for item in sorted(bounds) if item.partition not in offsets]
    if lacking:
        raise PlanError(
            f"--from-offsets names not every partition of topic {topic}: it lacks {listed(lacking)}; add each with the "
            f'offset to begin with, as "{lacking[0].partition}": OFFSET, in which -2 is the earliest and -1 the end, '
            "which replays no record of it"
        )


def nothing_to_replay(
    topic: str,
    bounds: Mapping[TopicPartition, LogBounds],
    starts: Mapping[TopicPartition, int],
    from_timestamp: int | None,
) -> str:
    """Return why no partition has a range."""
    if all(log.start_offset == log.end_offset for log in bounds.values()):
        return f"nothing to replay: topic {topic} holds no records"
    if from_timestamp is not None and all(starts[item] == log.end_offset for item, log in bounds.items()):
        return f"nothing to replay: topic {topic} holds no record of {shown_time(from_timestamp)} or later"
    return f"nothing to replay: topic {topic} holds records, but none between the start and the end that were given"
