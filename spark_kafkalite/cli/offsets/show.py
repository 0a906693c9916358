"""``kafkalite offsets show`` and ``diff``: a group's offsets at its coordinator and in the registry, side by side.

Those of a streaming query's checkpoint are in ``checkpoints.py``.
"""

from __future__ import annotations

import click

from spark_kafkalite.cli.groups.options import (
    Places,
    no_such_group,
    offsets_of,
    parse_topics,
    place_options,
    topic_option,
)
from spark_kafkalite.cli.offsets.checkpoints import (
    batch_option,
    diff_checkpoint,
    only_with_checkpoint,
    owner_options,
    print_differences,
    show_checkpoint,
)
from spark_kafkalite.cli.output import echo, print_json, print_rows
from spark_kafkalite.client.offset_stores.store import KAFKA, ZOOKEEPER, GroupStore
from spark_kafkalite.model import CommittedOffsets, TopicPartition


def _cell(offsets: CommittedOffsets, topic_partition: TopicPartition) -> int | None:
    found = offsets.get(topic_partition)
    return None if found is None else found.offset


@click.command("show")
@owner_options
@topic_option
@place_options
def show(
    group: str | None,
    checkpoint: str | None,
    topics: tuple[str, ...],
    places: Places,
    as_json: bool,
) -> None:
    """Show a group's offsets: at its coordinator, and in the registry too with --zookeeper. Or a query's.

    While offsets are committed to both (dual.commit.enabled), consumers start from the larger of the two.

    Of a streaming query: where its last finished and its planned batch end, and its lag with --bootstrap-server.
    """
    wanted = parse_topics(topics)
    if checkpoint is not None:
        show_checkpoint(checkpoint, places, wanted, as_json=as_json)
        return
    assert group is not None
    stores: list[GroupStore] = [places.at_coordinator(group)]
    if places.zookeeper is not None:
        stores.append(places.in_registry(group))
    found = {each.place: offsets_of(each, wanted) for each in stores}
    partitions = sorted({each for offsets in found.values() for each in offsets})
    if not partitions and not any(each.exists() for each in stores):
        raise no_such_group(group, KAFKA)
    lags = places.admin.lag_behind(dict.fromkeys(partitions)) if partitions else {}
    rows = [
        {
            "group": group,
            "topic": each.topic,
            "partition": each.partition,
            **{f"{name}_offset": _cell(offsets, each) for name, offsets in found.items()},
            "log_start_offset": lags[each].log_start_offset,
            "log_end_offset": lags[each].log_end_offset,
        }
        for each in partitions
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        echo(f"Group {group} has no {'such ' if topics else ''}offsets.")
    else:
        print_rows(rows)


@click.command("diff")
@owner_options
@click.option(
    "--with-group",
    metavar="NAME",
    help="Compare with this group, instead of between the two storages, or two batches of a query.",
)
@batch_option("--batch", "the end of this batch; the last one, planned or finished, without it.")
@batch_option("--with-batch", "compare with the end of this batch; the one before without it.")
@topic_option
@place_options
def diff(
    group: str | None,
    checkpoint: str | None,
    with_group: str | None,
    batch: int | None,
    with_batch: int | None,
    topics: tuple[str, ...],
    places: Places,
    as_json: bool,
) -> int:
    """Show where offsets differ: a group's in the registry from those at its coordinator, two groups', two batches'.

    With --checkpoint: between the ends of two batches of a streaming query, or of one and a group. The exit code is 1
    when something differs, as that of diff.
    """
    wanted = parse_topics(topics)
    if checkpoint is not None:
        return diff_checkpoint(checkpoint, places, wanted, batch, with_batch, with_group, as_json=as_json)
    assert group is not None
    only_with_checkpoint({"--batch": batch is not None, "--with-batch": with_batch is not None})
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
    return print_differences(
        [((), each, left, right) for each, left, right in rows], (), (first, second), as_json=as_json
    )
