"""What ``kafkalite offsets`` does with a streaming query's checkpoint: shows, compares and rewinds it.

``spark.checkpoints.checkpoint_files`` describes a checkpoint, and ``checkpoint_moves`` the changes to it. A path
without a scheme is a local one; any other file system is reached through Hadoop, which needs PySpark and Java.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import click

from spark_kafkalite.cli.groups.options import Places, chosen_topics, is_wanted, no_such_group, offsets_of
from spark_kafkalite.cli.groups.reset_scenarios import said_dry_run
from spark_kafkalite.cli.groups.resets import count_of_offsets, plan_rows, plan_with_brokers, print_plan, still_there
from spark_kafkalite.cli.output import echo, print_json, print_rows, print_table, said, warn
from spark_kafkalite.client.group.offset_resets import PlannedReset, Reset, only_backwards
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.version import install_command

if TYPE_CHECKING:
    from spark_kafkalite.spark.checkpoints.checkpoint_files import QueryCheckpoint, SourceOffset

Function = TypeVar("Function", bound=Callable[..., Any])
Topics = Mapping[str, set[int] | None]
# What tells rows apart beside their partition (nothing, or a source), the partition, and its offset on either side.
Difference = tuple[tuple[object, ...], TopicPartition, int | None, int | None]


def owner_options(function: Function) -> Function:
    """Add --group and --checkpoint, of which exactly one is to be given; above place_options."""

    @wraps(function)
    def checked(*, group: str | None, checkpoint: str | None, **others: Any) -> Any:
        if (group is None) == (checkpoint is None):
            raise click.UsageError("name the group with --group NAME, or the query with --checkpoint DIR")
        if checkpoint is not None and others["zookeeper"] is not None:
            raise click.UsageError("--checkpoint and --zookeeper exclude each other: no checkpoint is in a registry")
        return function(group=group, checkpoint=checkpoint, **others)

    checkpoint_option = click.option(
        "--checkpoint",
        metavar="DIR",
        help="The query with this checkpointLocation: a local path, or a URI such as hdfs://HOST:PORT/PATH.",
    )
    return click.option("--group", metavar="NAME", help="The group.")(checkpoint_option(cast("Function", checked)))


source_option = click.option(
    "--source",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --checkpoint: only this source of the query, counted from 0.",
)


def batch_option(name: str, what: str) -> Callable[[Function], Function]:
    """Add an option that names a batch of the query; ``what`` is its purpose."""
    return click.option(name, type=click.IntRange(min=0), metavar="N", help=f"With --checkpoint: {what}")


def only_with_checkpoint(given: Mapping[str, bool]) -> None:
    """Raise UsageError for options that make no sense with a group."""
    for option, is_given in given.items():
        if is_given:
            raise click.UsageError(f"{option} needs --checkpoint DIR")


@contextmanager
def opened(location: str) -> Iterator[QueryCheckpoint]:
    """Open a checkpoint. Raises QueryCheckpointError; ClickException if its file system cannot be reached."""
    from spark_kafkalite.manifests.files import local_files
    from spark_kafkalite.spark.checkpoints.checkpoint_files import QueryCheckpoint

    scheme = urlsplit(location).scheme
    if scheme in ("", "file"):
        yield QueryCheckpoint.open(local_files(location))
        return
    if importlib.util.find_spec("pyspark") is None:
        raise click.ClickException(
            f"--checkpoint {location}: file systems of Hadoop are reached through Spark, which is not installed: "
            f"{install_command('spark')}, or copy the directory to this host"
        )
    from spark_kafkalite.jobs.program.session import failures_in_one_line, reachable_files, start_session

    with failures_in_one_line():
        yield QueryCheckpoint.open(reachable_files(start_session("kafkalite offsets"), "--checkpoint", location))


def kafka_offsets(sources: Sequence[SourceOffset], topics: Topics) -> dict[int, dict[TopicPartition, int]]:
    """Return the wanted offsets of each source that is Kafka's, by the source's number in the query."""
    return {
        number: {tp: offset for tp, offset in sorted(each.offsets.items()) if is_wanted(tp, topics)}
        for number, each in enumerate(sources)
        if each.offsets is not None
    }


def warn_of_others(sources: Sequence[SourceOffset]) -> None:
    """Name the sources that are left alone."""
    for number, each in enumerate(sources):
        if each.offsets is None:
            shown = each.text if len(each.text) <= 80 else f"{each.text[:80]}..."
            warn(f"source {number} is not Kafka's and is left alone; its offset is {shown}")


# Showing --------------------------------------------------------------------------------------------------------------


def show_checkpoint(location: str, places: Places, topics: Topics, *, as_json: bool) -> None:
    """Print where the last finished and the planned batch end, with the lag when brokers are named."""
    with opened(location) as checkpoint:
        committed, planned = (
            () if batch_id is None else checkpoint.batch(batch_id).sources
            for batch_id in (checkpoint.committed, checkpoint.planned)
        )
        finished_at, planned_at = kafka_offsets(committed, topics), kafka_offsets(planned, topics)
    rows = [
        (number, tp, finished_at.get(number, {}).get(tp), planned_at.get(number, {}).get(tp))
        for number in sorted({*finished_at, *planned_at})
        for tp in sorted({*finished_at.get(number, {}), *planned_at.get(number, {})})
    ]
    lags = places.admin.lag_behind({tp: None for _, tp, _, _ in rows}) if rows and places.brokers_given else None
    cells = []
    for number, tp, at, until in rows:
        row: dict[str, object] = {"source": number, "topic": tp.topic, "partition": tp.partition}
        row |= {"committed_offset": at, "planned_offset": until}
        if lags is not None:
            start, end = lags[tp].log_start_offset, lags[tp].log_end_offset
            lag = None if end is None or at is None else end - at
            row |= {"log_start_offset": start, "log_end_offset": end, "lag": lag}
        cells.append(row)
    last = committed or planned
    if as_json:
        print_json(
            {
                "query_id": checkpoint.query_id,
                "committed_batch": checkpoint.committed,
                "planned_batch": checkpoint.planned,
                "offsets": cells,
                "other_sources": [
                    {"source": number, "offset": each.text} for number, each in enumerate(last) if each.offsets is None
                ],
            }
        )
        return
    warn_of_others(last)
    finished = "no batch is finished" if checkpoint.committed is None else f"batch {checkpoint.committed} is finished"
    waiting = "" if checkpoint.planned is None else f", batch {checkpoint.planned} is planned and not finished"
    said(f"query {checkpoint.query_id or 'without id'}: {finished}{waiting}")
    print_rows(cells)


def diff_checkpoint(
    location: str,
    places: Places,
    topics: Topics,
    batch: int | None,
    with_batch: int | None,
    with_group: str | None,
    *,
    as_json: bool,
) -> int:
    """Print where the ends of two batches, or of a batch and a group, differ; return 1 when they do."""
    if with_batch is not None and with_group is not None:
        raise click.UsageError("--with-batch and --with-group exclude each other")
    with opened(location) as checkpoint:
        last = checkpoint.committed if checkpoint.planned is None else checkpoint.planned
        right = last if batch is None else batch
        assert right is not None  # one of the two is there
        left = max(right - 1, 0) if with_batch is None else with_batch
        sources = checkpoint.batch(right).sources
        found = kafka_offsets(sources, topics)
        others = {} if with_group is not None else kafka_offsets(checkpoint.batch(left).sources, topics)
    names = (f"batch {left}", f"batch {right}")
    if with_group is not None:
        store = places.at_coordinator(with_group)
        of_group = {tp: each.offset for tp, each in offsets_of(store, topics).items()}
        if not of_group and not store.exists():
            raise no_such_group(with_group, store.place)
        for number, offsets in found.items():
            # A group may have offsets of other topics, too, which the query does not read.
            read = {tp.topic for tp in offsets}
            others[number] = {tp: offset for tp, offset in of_group.items() if tp.topic in read}
        names = (f"group {with_group}", f"batch {right}")
    warn_of_others(sources)
    rows: list[Difference] = [
        ((number,), tp, before, after)
        for number in sorted({*found, *others})
        for tp in sorted({*found.get(number, {}), *others.get(number, {})})
        if (before := others.get(number, {}).get(tp)) != (after := found.get(number, {}).get(tp))
    ]
    return print_differences(rows, ("SOURCE",), names, as_json=as_json)


def print_differences(rows: Sequence[Difference], more: Sequence[str], names: tuple[str, str], *, as_json: bool) -> int:
    """Print where offsets differ, with columns ``more`` in front; return 1 when they do."""
    first, second = names
    if as_json:
        print_json(
            [
                {
                    **dict(zip((each.lower() for each in more), keys, strict=True)),
                    "topic": tp.topic,
                    "partition": tp.partition,
                    first: left,
                    second: right,
                }
                for keys, tp, left, right in rows
            ]
        )
    elif rows:
        print_table(
            (*more, "TOPIC", "PARTITION", *(f"OFFSET IN {name}" for name in names), "DIFFERENCE"),
            [
                (
                    *(*keys, tp.topic, tp.partition),
                    *("-" if cell is None else cell for cell in (left, right)),
                    "-" if left is None or right is None else f"{right - left:+d}",
                )
                for keys, tp, left, right in rows
            ],
        )
    else:
        echo(f"The offsets in {first} and {second} are the same.")
    return 1 if rows else 0


# Rewinding ------------------------------------------------------------------------------------------------------------


def rewind_checkpoint(
    location: str,
    places: Places,
    reset: Reset | None,
    *,
    topics: tuple[str, ...],
    all_topics: bool,
    source: int | None,
    forward: bool,
    drop_planned: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Take a query back, and forward only if asked; ``reset`` None: only drop its planned batch."""
    from spark_kafkalite.spark.checkpoints.checkpoint_moves import carry_out, moved, recently_changed, standing

    if reset is None and (topics or all_topics or source is not None or forward):
        raise click.UsageError(
            "--drop-planned alone moves no partition; give the target with an option such as --to-offset"
        )
    wanted = {} if reset is None else chosen_topics(topics, all_topics)
    with opened(location) as checkpoint:
        sources = standing(checkpoint)
        found = _of_source(kafka_offsets(sources, wanted), source, location)
        # Told before the brokers are asked, and before anything is shown.
        moved(checkpoint, {}, drop_planned=drop_planned)
        planned = {} if reset is None else _plans(places, reset, found, wanted, location, forward=forward)
        if drop_planned and checkpoint.planned is None:
            said(f"{location} has no planned batch to drop")
        positions = {
            number: {each.topic_partition: each.new for each in plans} for number, plans in planned.items() if plans
        }
        change = moved(checkpoint, positions, drop_planned=drop_planned)
        has_work = bool(positions) or checkpoint.planned is not None
        empty_batch = max({**change.added, **change.replaced}) if has_work else None
        if not as_json:
            warn_of_others(sources)
            print_plan(plan_rows(planned, "source"))
        copy = None
        if execute and has_work:
            copy = carry_out(checkpoint, change, SYSTEM_CLOCK.wall_ms())
            count = sum(len(each) for each in planned.values())
            said(
                f"{count_of_offsets(count)} of {location} moved; the query runs batch {empty_batch} without records "
                f"first, then goes on; copies of the files that were replaced are in {copy}"
            )
        elif execute:
            said("nothing was changed: nothing goes back")
        else:
            if (reason := recently_changed(checkpoint, SYSTEM_CLOCK.wall_ms())) is not None:
                warn(f"--execute would be refused: {reason}")
            said_dry_run()
    if as_json:
        print_json(
            {
                "executed": execute and has_work,
                "empty_batch": empty_batch,
                "copy": copy,
                "offsets": plan_rows(planned, "source"),
            }
        )


def _of_source(
    found: dict[int, dict[TopicPartition, int]], source: int | None, location: str
) -> dict[int, dict[TopicPartition, int]]:
    if source is None:
        return found
    if source not in found:
        numbers = ", ".join(map(str, found)) or "none"
        raise ConfigError(f"--source {source}: not a Kafka source of {location}; those are {numbers}")
    return {source: found[source]}


def _plans(
    places: Places,
    reset: Reset,
    found: dict[int, dict[TopicPartition, int]],
    wanted: Topics,
    location: str,
    *,
    forward: bool,
) -> dict[int, list[PlannedReset]]:
    read = {tp for offsets in found.values() for tp in offsets}
    for topic, numbers in wanted.items():
        of_topic = {tp.partition for tp in read if tp.topic == topic}
        if missing := (numbers or set()) - of_topic if of_topic else {-1}:
            which = "" if missing == {-1} else f", partition {', '.join(map(str, sorted(missing)))}"
            raise ConfigError(f"--topic {topic}{which}: the query of {location} does not read it; 'kafkalite offsets "
                              "show --checkpoint DIR' lists what it reads")  # fmt: skip
    plans: dict[int, list[PlannedReset]] = {}
    for number, offsets in found.items():
        there = still_there(places, f"source {number}", offsets)
        every = plan_with_brokers(places, reset, there, offsets)
        plans[number] = [each for each in every if each.change] if forward else only_backwards(every)
        left = len(every) - len(plans[number])
        if left:
            how = "move" if forward else "go back"
            said(f"{count_of_offsets(left)} of source {number} would not {how}: left alone")
    return plans
