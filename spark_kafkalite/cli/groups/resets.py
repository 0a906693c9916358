"""``kafkalite groups reset-offsets`` and ``copy-offsets``: plan new offsets for groups, print the plan, and set them.

The commands change offsets only with --execute. They print the plan in any case: as a table, as JSON, or as CSV, which
``--from-file`` reads. With --execute they check all groups before they change the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from spark_kafkalite.cli.groups.options import (
    Places,
    all_groups_option,
    all_topics_option,
    chosen_groups,
    chosen_topics,
    group_option,
    no_such_group,
    parse_topics,
    place_options,
    topic_option,
)
from spark_kafkalite.cli.groups.reset_scenarios import (
    check_execute,
    chosen_reset,
    execute_options,
    said_dry_run,
    scenario_options,
)
from spark_kafkalite.cli.options import existing_partitions
from spark_kafkalite.cli.output import print_json, print_rows, said, warn
from spark_kafkalite.client.group.offset_resets import (
    PlannedReset,
    Reset,
    plan,
    read_csv,
    write_csv,
)
from spark_kafkalite.client.offset_stores.store import GroupStore, refuse_if_members
from spark_kafkalite.errors import ConfigError, GroupIdNotFound
from spark_kafkalite.model import CommittedOffset, LogBounds, TopicPartition

_EPILOG = """\b
Examples:
  kafkalite groups reset-offsets --group billing --topic events --to-earliest
  kafkalite groups reset-offsets --group billing --topic events:0,1 --to-offset 1000 --execute
  kafkalite groups reset-offsets --group billing --all-topics --by-duration PT2H --execute

\b
Examples with a file:
  kafkalite groups reset-offsets --group billing --all-topics --to-current --export > billing.csv
  kafkalite groups reset-offsets --group billing --from-file billing.csv --execute
"""


@click.command("reset-offsets", epilog=_EPILOG)
@group_option
@all_groups_option
@topic_option
@all_topics_option
@scenario_options
@click.option(
    "--from-file", metavar="FILE", help="To the offsets in a CSV file: topic,partition,offset, or with group in front."
)
@execute_options
@click.option(
    "--export",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Print CSV instead of the table, or write it to FILE in addition to the table.",
)
@place_options
def reset_offsets(
    groups: tuple[str, ...],
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    from_file: str | None,
    dry_run: bool,
    execute: bool,
    export: str | None,
    places: Places,
    as_json: bool,
    **scenario: Any,
) -> None:
    """Move the offsets of groups without members. The command prints the new offsets; --execute sets them.

    An offset outside the log moves to the log's nearest end. After a move back the group reads records again, after a
    move forward it skips records.
    """
    names = chosen_groups(groups, all_groups)
    reset = chosen_reset(from_file=from_file, **scenario)
    check_execute(dry_run, execute)
    if from_file is not None and (topics or all_topics):
        raise click.UsageError("--from-file names its own partitions: leave out --topic and --all-topics")
    wanted = chosen_topics(topics, all_topics) if from_file is None else {}
    every = places.groups() if names is None else names
    from_csv = _read_file(from_file, every) if from_file is not None else None
    stores = {group: places.store(group) for group in (every if from_csv is None else from_csv)}
    plans = {group: planned_resets(places, store, reset, wanted, from_csv) for group, store in stores.items()}
    carry_out(stores, plans, lambda group: _resets(plans[group]), execute=execute, as_json=as_json, export=export)


def _resets(planned: Iterable[PlannedReset]) -> dict[TopicPartition, CommittedOffset]:
    return {each.topic_partition: CommittedOffset(each.new) for each in planned}


def _read_file(path: str, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--from-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--from-file {path}: not UTF-8 text") from None
    return read_csv(text, f"--from-file {path}", groups)


def planned_resets(
    places: Places,
    store: GroupStore,
    reset: Reset,
    topics: dict[str, set[int] | None],
    from_csv: Mapping[str, Mapping[TopicPartition, int]] | None = None,
) -> list[PlannedReset]:
    """Return the plan for one group: for the partitions of ``topics``, of the file, or else all with an offset."""
    group = store.group_id
    committed = {each: found.offset for each, found in store.read().items()}
    if from_csv is not None:
        reset = Reset(reset.kind, offsets=from_csv[group])
        of_file: dict[str, set[int]] = {}
        for topic, number in from_csv[group]:
            of_file.setdefault(topic, set()).add(number)
        partitions = existing_partitions(places.admin, of_file)
    elif topics:
        partitions = existing_partitions(places.admin, topics)
    else:
        partitions = still_there(places, f"group {group}", committed)
        if not committed:
            if not store.exists():
                raise no_such_group(group, store.place)
            raise GroupIdNotFound(f"group {group!r} has no offsets in {store.place}: name the topics with --topic")
    planned = plan_with_brokers(places, reset, partitions, committed)
    if not committed and not store.exists():
        # It comes into being with its first offset: nobody but the reader can tell that from a slip.
        return [replace(each, note="; ".join(filter(None, ("new group", each.note)))) for each in planned]
    return planned


def plan_with_brokers(
    places: Places, reset: Reset, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
) -> list[PlannedReset]:
    """Ask the brokers what the scenario needs and return its plan."""
    from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    admin = places.admin
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
    bounds = {
        each: LogBounds(start.offset, end.offset)
        for each in partitions
        if (start := starts[each]) is not None and (end := ends[each]) is not None
    }
    at_time: dict[TopicPartition, int | None] = {}
    if reset.timestamp_ms is not None:
        found = admin.list_offsets(dict.fromkeys(partitions, reset.timestamp_ms))
        at_time = {each: None if answer is None else answer.offset for each, answer in found.items()}
    return plan(reset, bounds, committed, at_time)


def still_there(places: Places, whose: str, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that exist; report which do not, and that ``whose`` offset stays."""
    wanted = list(partitions)
    infos = places.admin.describe_topics() if wanted else {}
    there = {TopicPartition(name, each.partition) for name, info in infos.items() for each in info.partitions}
    for each in wanted:
        if each not in there:
            warn(f"{each}: there is no such partition any more; the offset of {whose} stays as it is")
    return [each for each in wanted if each in there]


def carry_out(
    stores: Mapping[str, GroupStore],
    plans: Mapping[str, Sequence[PlannedReset]],
    offsets_of: Callable[[str], Mapping[TopicPartition, CommittedOffset]],
    *,
    execute: bool,
    as_json: bool,
    export: str | None = None,
) -> None:
    """Show the plans and, with ``execute``, commit ``offsets_of`` each group.

    JSON comes at the end and has the result; tables and CSV come first. Raises NonEmptyGroup, before anything is
    changed, if one of the groups has members.
    """
    new = {group: {each.topic_partition: each.new for each in planned} for group, planned in plans.items()}
    if export is not None and export != "-":
        Path(export).write_text(write_csv(new), encoding="utf-8")
    if export == "-" and not as_json:
        click.echo(write_csv(new), nl=False)
    elif not as_json:
        print_plan(plan_rows(plans))
    if execute:
        for group in plans:
            refuse_if_members(stores[group], "its offsets cannot be moved")
        for group in plans:
            stores[group].alter(offsets_of(group))
            said(f"{count_of_offsets(len(plans[group]))} of group {group} set")
    else:
        _warn_of_refusals(stores, plans)
    if as_json:
        print_json({"executed": execute, "offsets": plan_rows(plans)})


def plan_rows(plans: Mapping[Any, Sequence[PlannedReset]], owner: str = "group") -> list[dict[str, Any]]:
    """Return a row for each partition, Kafka's columns first; ``owner`` is what has the offsets, named by the keys."""
    return [
        {
            owner: name,
            "topic": each.topic_partition.topic,
            "partition": each.topic_partition.partition,
            "new_offset": each.new,
            "old_offset": each.old,
            "change": each.change,
            "note": each.note or None,
        }
        for name, planned in plans.items()
        for each in planned
    ]


def print_plan(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of :func:`plan_rows` as a table."""
    print_rows(
        [
            {**row, "change": f"{row['change']:+d}" if row["change"] else row["change"], "note": row["note"] or ""}
            for row in rows
        ]
    )


def _warn_of_refusals(stores: Mapping[str, GroupStore], plans: Mapping[str, Sequence[PlannedReset]]) -> None:
    for group in plans:
        count = len(stores[group].members())
        if count:
            members = "1 live member" if count == 1 else f"{count} live members"
            warn(f"group {group} has {members}: --execute will be refused until its consumers are stopped")
    said_dry_run()


def count_of_offsets(count: int) -> str:
    """Return a number of offsets for people."""
    return "1 offset" if count == 1 else f"{count} offsets"


@click.command("copy-offsets")
@click.option("--group", required=True, metavar="NAME", help="The group to copy from.")
@click.option("--to-group", required=True, metavar="NAME", help="The group to copy to; it may be new.")
@topic_option
@execute_options
@place_options
def copy_offsets(
    group: str,
    to_group: str,
    topics: tuple[str, ...],
    dry_run: bool,
    execute: bool,
    places: Places,
    as_json: bool,
) -> None:
    """Give one group the offsets of another. Shows what it would do; --execute does it.

    The group that is copied from may be at work; the one that is copied to must have no members. Between registry and
    brokers, 'kafkalite offsets migrate' copies.
    """
    check_execute(dry_run, execute)
    if group == to_group:
        raise click.UsageError(f"--group and --to-group are the same, {group!r}")
    wanted = parse_topics(topics)
    store, to_store = places.store(group), places.store(to_group)
    source, target = store.read(), to_store.read()
    if not source:
        raise (
            no_such_group(group, store.place)
            if not store.exists()
            else GroupIdNotFound(f"group {group!r} has no offsets in {store.place} to copy")
        )
    chosen = list(source)
    if wanted:
        named = set(existing_partitions(places.admin, wanted))
        chosen = [each for each in source if each in named]
    chosen = still_there(places, f"group {group}", chosen)
    planned = [
        PlannedReset(each, target[each].offset if each in target else None, source[each].offset) for each in chosen
    ]
    if not planned:
        raise GroupIdNotFound(f"group {group!r} has no offsets of {', '.join(wanted)} to copy")
    carry_out(
        {to_group: to_store},
        {to_group: planned},
        lambda _: {each: source[each] for each in chosen},
        execute=execute,
        as_json=as_json,
    )
