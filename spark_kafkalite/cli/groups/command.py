"""``kafkalite groups``: consumer groups, their members, offsets and lag, in the terms of ``kafka-consumer-groups``.

With ``--zookeeper`` it also shows the groups of registry consumers. ``resets.py`` has the commands that move offsets.
"""

from __future__ import annotations

import click

from spark_kafkalite.cli.groups.options import (
    Places,
    all_groups_option,
    all_topics_option,
    chosen_groups,
    chosen_topics,
    group_option,
    no_such_group,
    offsets_of,
    place_options,
    topic_option,
)
from spark_kafkalite.cli.groups.resets import copy_offsets, reset_offsets
from spark_kafkalite.cli.groups.views import (
    GroupView,
    group_as_json,
    print_members,
    print_offsets,
    print_states,
    view_group,
    warn_of_groups,
)
from spark_kafkalite.cli.options import ActionGroup, existing_partitions
from spark_kafkalite.cli.output import echo, print_json, print_rows, print_table, said
from spark_kafkalite.client.offset_stores.store import KAFKA
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import GROUP_STATES

_EPILOG = """\b
Examples:
  kafkalite groups list --state
  kafkalite groups describe --group billing
  kafkalite groups describe --all-groups --members --verbose
  kafkalite groups describe --group old-consumers --zookeeper 127.0.0.1:2181

\b
Examples that change groups:
  kafkalite groups reset-offsets --group billing --topic events --to-datetime 2026-01-31T12:00:00
  kafkalite groups reset-offsets --group billing --all-topics --shift-by -100 --execute
  kafkalite groups copy-offsets --group billing --to-group billing-test --execute
  kafkalite groups delete --group billing-test

Kafka's spelling works too: kafkalite groups --describe --group billing
"""


@click.group("groups", cls=ActionGroup, epilog=_EPILOG)
def command() -> None:
    """Show consumer groups and their lag, move their offsets, delete them."""


command.add_command(reset_offsets)
command.add_command(copy_offsets)


@command.command("list")
@click.option(
    "--state",
    "states",
    is_flag=False,
    flag_value="",
    metavar="[STATE[,STATE]]",
    help=f"Show each group's state; with names, only groups of these: {', '.join(GROUP_STATES)}.",
)
@click.option("--verbose", is_flag=True, help="Show states and protocols.")
@place_options
def list_groups(
    states: str | None,
    verbose: bool,
    places: Places,
    as_json: bool,
) -> None:
    """List the groups, one a line."""
    wanted = _parse_states(states) if states else None
    if places.zookeeper is not None:
        found = [
            (name, "Stable" if places.in_registry(name).members() else "Empty", "registry") for name in places.groups()
        ]
        found = [each for each in found if wanted is None or each[1] in wanted]
    else:
        found = [(each.group_id, each.state, each.protocol_type) for each in places.admin.list_groups(wanted)]
    if as_json:
        print_json([{"group": name, "state": state, "protocol_type": kind} for name, state, kind in found])
    elif verbose:
        print_table(("GROUP", "STATE", "PROTOCOL-TYPE"), [(name, state, kind or "-") for name, state, kind in found])
    elif states is not None:
        print_table(("GROUP", "STATE"), [each[:2] for each in found])
    else:
        for name, _, _ in found:
            echo(name)


def _parse_states(text: str) -> list[str]:
    by_lower = {each.lower(): each for each in GROUP_STATES}
    names = [each.strip() for each in text.split(",") if each.strip()]
    for name in names:
        if name.lower() not in by_lower:
            raise click.UsageError(f"--state {name}: there is no such state; the states are {', '.join(GROUP_STATES)}")
    return [by_lower[name.lower()] for name in names]


@command.command("describe")
@group_option
@all_groups_option
@click.option("--offsets", "show", flag_value="offsets", default=True, help="Offsets and lag per partition (default).")
@click.option("--members", "show", flag_value="members", help="The members, instead.")
@click.option("--state", "show", flag_value="state", help="State, coordinator and number of members, instead.")
@click.option("--verbose", is_flag=True, help="More columns: each member's partitions; epochs, metadata, log starts.")
@place_options
def describe(
    groups: tuple[str, ...],
    all_groups: bool,
    show: str,
    verbose: bool,
    places: Places,
    as_json: bool,
) -> None:
    """Show groups: offsets and lag, members, or state.

    LAG counts the records behind the committed offset. LAG-SECONDS is the age of the next record: how far behind the
    group is in time.
    """
    names = chosen_groups(groups, all_groups)
    with_offsets = show == "offsets"
    found: list[GroupView] = []
    for name in places.groups() if names is None else names:
        found.append(view_group(places, name, with_offsets=with_offsets))
    if as_json:
        print_json([group_as_json(each, with_offsets=with_offsets) for each in found])
        return
    if not found:
        said("there are no groups")
        return
    warn_of_groups(found, with_offsets=with_offsets)
    if show == "members":
        print_members(found, verbose)
    elif show == "state":
        print_states(found)
    else:
        print_offsets(found, verbose)


@command.command("delete")
@group_option
@all_groups_option
@place_options
def delete(
    groups: tuple[str, ...],
    all_groups: bool,
    places: Places,
    as_json: bool,
) -> None:
    """Delete groups without members, with their offsets. There is no way back."""
    names = chosen_groups(groups, all_groups)
    deleted: list[str] = []
    failed: list[KafkaliteError] = []
    for name in places.groups() if names is None else names:
        try:
            places.store(name).delete_group()
        except KafkaliteError as error:
            failed.append(error)
        else:
            deleted.append(name)
            if not as_json:
                echo(f"Deleted group {name}.")
    if as_json:
        print_json({"deleted": deleted})
    elif not deleted and not failed:
        click.echo("Nothing to delete.")
    if failed:
        raise type(failed[0])("; ".join(str(error) for error in failed))


@command.command("delete-offsets")
@click.option("--group", required=True, metavar="NAME", help="The group.")
@topic_option
@all_topics_option
@place_options
def delete_offsets(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    places: Places,
    as_json: bool,
) -> None:
    """Delete a group's offsets, and print what they were. Refused for topics that its members read."""
    wanted = chosen_topics(topics, all_topics)
    store = places.store(group)
    chosen = offsets_of(store, wanted)
    if not chosen and not store.exists():
        raise no_such_group(group, store.place)
    unknown = set(wanted) - {each.topic for each in chosen}
    if unknown and store.place == KAFKA:
        existing_partitions(places.admin, {topic: wanted[topic] for topic in unknown})
    store.delete_offsets(chosen)
    rows = [
        {"group": group, "topic": each.topic, "partition": each.partition, "offset": old.offset}
        for each, old in chosen.items()
    ]
    if as_json:
        print_json(rows)
    elif not chosen:
        echo(f"Nothing to delete: group {group} has no such offsets.")
    else:
        print_rows(rows)
