"""``kafkalite offsets show`` and ``diff``: a group's offsets at its coordinator and in the registry, side by side."""

from __future__ import annotations

import click

from spark_kafkalite.cli.groups.options import Places, no_such_group, parse_topics, place_options, topic_option
from spark_kafkalite.cli.output import print_json, print_table
from spark_kafkalite.client.offset_stores.store import KAFKA, ZOOKEEPER, GroupStore
from spark_kafkalite.model import CommittedOffsets, TopicPartition


def offsets_of(store: GroupStore, topics: dict[str, set[int] | None]) -> CommittedOffsets:
    """Return a group's offsets of these topics and partitions, all of them for no topics."""
    return {
        each: found
        for each, found in store.read().items()
        if not topics or (each.topic in topics and each.partition in (topics[each.topic] or {each.partition}))
    }


def _cell(offsets: CommittedOffsets, topic_partition: TopicPartition) -> int | None:
    found = offsets.get(topic_partition)
    return None if found is None else found.offset


@click.command("show")
@click.option("--group", required=True, metavar="NAME", help="The group.")
@topic_option
@place_options
def show(
    group: str,
    topics: tuple[str, ...],
    places: Places,
    as_json: bool,
) -> None:
    """Show a group's offsets: at its coordinator, and in the registry too with --zookeeper.

    While offsets are committed to both (dual.commit.enabled), consumers start from the larger of the two.
    """
    wanted = parse_topics(topics)
    stores: list[GroupStore] = [places.at_coordinator(group)]
    if places.zookeeper is not None:
        stores.append(places.in_registry(group))
    found = {each.place: offsets_of(each, wanted) for each in stores}
    partitions = sorted({each for offsets in found.values() for each in offsets})
    if not partitions and not any(each.exists() for each in stores):
        raise no_such_group(group, KAFKA)
    lags = places.admin.lag_behind(dict.fromkeys(partitions)) if partitions else {}
    if as_json:
        print_json(
            [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    **{f"{name}_offset": _cell(offsets, each) for name, offsets in found.items()},
                    "log_start_offset": lags[each].log_start_offset,
                    "log_end_offset": lags[each].log_end_offset,
                }
                for each in partitions
            ]
        )
        return
    if not partitions:
        click.echo(f"Group {group} has no {'such ' if topics else ''}offsets.")
        return
    rows = [
        [
            *(group, each.topic, each.partition),
            *(_cell(offsets, each) for offsets in found.values()),
            *(lags[each].log_start_offset, lags[each].log_end_offset),
        ]
        for each in partitions
    ]
    headings = [f"{name.upper()}-OFFSET" for name in found]
    print_table(
        ["GROUP", "TOPIC", "PARTITION", *headings, "LOG-START-OFFSET", "LOG-END-OFFSET"],
        [["-" if cell is None else cell for cell in row] for row in rows],
    )


@click.command("diff")
@click.option("--group", required=True, metavar="NAME", help="The group.")
@click.option("--with-group", metavar="NAME", help="Compare with this group, instead of between the two storages.")
@topic_option
@place_options
def diff(
    group: str,
    with_group: str | None,
    topics: tuple[str, ...],
    places: Places,
    as_json: bool,
) -> int:
    """Show where offsets differ: a group's in the registry from those at its coordinator, or two groups'.

    The exit code is 1 when something differs, as that of diff.
    """
    wanted = parse_topics(topics)
    if with_group is None and places.zookeeper is None:
        raise click.UsageError("name what to compare with: --zookeeper HOST:PORT, or --with-group NAME")
    sides: dict[str, GroupStore]
    if with_group is None:
        sides = {KAFKA: places.at_coordinator(group), ZOOKEEPER: places.in_registry(group)}
    else:
        sides = {group: places.store(group), with_group: places.store(with_group)}
    found: dict[str, CommittedOffsets] = {}
    for name, store in sides.items():
        found[name] = offsets_of(store, wanted)
        if not found[name] and not store.exists() and with_group is not None:
            raise no_such_group(store.group_id, store.place)
    if with_group is None and not any(store.exists() for store in sides.values()):
        raise no_such_group(group, KAFKA)
    (first, of_first), (second, of_second) = found.items()
    rows = [
        (each, _cell(of_first, each), _cell(of_second, each))
        for each in sorted({*of_first, *of_second})
        if _cell(of_first, each) != _cell(of_second, each)
    ]
    if as_json:
        print_json(
            [
                {"topic": each.topic, "partition": each.partition, first: left, second: right}
                for each, left, right in rows
            ]
        )
    elif rows:
        print_table(
            ("TOPIC", "PARTITION", *(f"OFFSET IN {name}" for name in found), "DIFFERENCE"),
            [
                (
                    *(each.topic, each.partition),
                    *("-" if cell is None else cell for cell in (left, right)),
                    "-" if left is None or right is None else f"{right - left:+d}",
                )
                for each, left, right in rows
            ],
        )
    else:
        click.echo(f"The offsets in {first} and {second} are the same.")
    return 1 if rows else 0
