"""``kafkalite offsets migrate`` and ``rewind``: move a group's offsets at its coordinator, in the registry, or both.

``migrate`` does for a stopped group in one step what two rolling bounces with ``dual.commit.enabled`` do for a running
one. It never takes an offset back: where the store that it writes to is ahead, as it is when the group has run on it
meanwhile, that offset stays, because consumers would read records again otherwise. What it has written it reads again.

``rewind`` only goes back, and writes every store that holds offsets of the group: a rewind of one of two would be
undone by consumers that start from the larger. With ``--checkpoint`` it is :func:`.checkpoints.rewind_checkpoint`.
"""

from __future__ import annotations

from typing import Any

import click

from spark_kafkalite.cli.groups.options import (
    Places,
    all_topics_option,
    chosen_topics,
    no_such_group,
    offsets_of,
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
from spark_kafkalite.cli.groups.resets import count_of_offsets, plan_rows, plan_with_brokers, still_there
from spark_kafkalite.cli.offsets.checkpoints import (
    only_with_checkpoint,
    owner_options,
    rewind_checkpoint,
    source_option,
)
from spark_kafkalite.cli.options import existing_partitions
from spark_kafkalite.cli.output import print_json, print_table, said
from spark_kafkalite.client.group.offset_resets import listed, only_backwards
from spark_kafkalite.client.offset_stores.store import KAFKA, ZOOKEEPER, GroupStore, refuse_if_members
from spark_kafkalite.errors import GroupIdNotFound, KafkaliteError
from spark_kafkalite.model import CommittedOffset


class NotVerified(KafkaliteError):
    """The stored offsets are not those that were written."""


@click.command("migrate")
@click.option("--group", required=True, metavar="NAME", help="The group; all of its consumers must be stopped.")
@click.option(
    "--to",
    "to_storage",
    type=click.Choice((KAFKA, ZOOKEEPER)),
    required=True,
    help="Where the offsets are to go, as in offsets.storage; they come from the other.",
)
@click.option(
    "--from",
    "from_storage",
    type=click.Choice((KAFKA, ZOOKEEPER)),
    help="Where they come from; optional, the other of the two.",
)
@topic_option
@execute_options
@place_options
def migrate(
    group: str,
    to_storage: str,
    from_storage: str | None,
    topics: tuple[str, ...],
    dry_run: bool,
    execute: bool,
    places: Places,
    as_json: bool,
) -> None:
    """Copy a stopped group's offsets from the registry to its coordinator, or back. Needs --zookeeper.

    Shows both and what would be written; --execute does it and reads it again. Offsets that are ahead already stay.
    Afterwards start the consumers with the new offsets.storage.
    """
    check_execute(dry_run, execute)
    if from_storage == to_storage:
        raise click.UsageError(f"--from {from_storage} --to {to_storage}: there is nothing to move")
    wanted = parse_topics(topics)
    # Both, before anything is shown: an address that is wrong is told at once.
    stores: dict[str, GroupStore] = {ZOOKEEPER: places.in_registry(group), KAFKA: places.at_coordinator(group)}
    target = stores.pop(to_storage)
    (source,) = stores.values()
    old, found = target.read(), offsets_of(source, wanted)
    if not found:
        if not source.exists():
            raise no_such_group(group, source.place)
        raise GroupIdNotFound(f"group {group!r} has no {'such ' if wanted else ''}offsets in {source.place} to move")
    there = still_there(places, f"group {group}", found)
    ahead = [each for each in there if each in old and old[each].offset > found[each].offset]
    new = {each: found[each] for each in there if each not in ahead}
    if not as_json:
        print_table(
            (
                *("GROUP", "TOPIC", "PARTITION", f"{source.place.upper()}-OFFSET", f"{target.place.upper()}-OFFSET"),
                *("NEW-OFFSET", "NOTE"),
            ),
            [
                (
                    *(group, each.topic, each.partition, found[each].offset),
                    old[each].offset if each in old else "-",
                    max(found[each].offset, old[each].offset) if each in old else found[each].offset,
                    f"{target.place} is ahead and stays" if each in ahead else "",
                )
                for each in there
            ],
        )
    for store in (source, target):
        refuse_if_members(store, "its offsets cannot be migrated")
    if execute:
        target.alter(new)
        _verify(target, new)
        said(
            f"{count_of_offsets(len(new))} of group {group} copied from {source.place} to {target.place} and read "
            f"again; start its consumers with offsets.storage={target.place}"
        )
    else:
        said_dry_run()
    if as_json:
        print_json(
            {
                "executed": execute,
                "from": source.place,
                "to": target.place,
                "offsets": [
                    {
                        "topic": each.topic,
                        "partition": each.partition,
                        "source_offset": found[each].offset,
                        "old_offset": old[each].offset if each in old else None,
                        "new_offset": (old if each in ahead else found)[each].offset,
                    }
                    for each in there
                ],
            }
        )


def _verify(store: GroupStore, written: dict[Any, CommittedOffset]) -> None:
    found = store.read()
    wrong = [each for each, wanted in written.items() if each not in found or found[each].offset != wanted.offset]
    if wrong:
        raise NotVerified(
            f"group {store.group_id!r}: {store.place} does not hold what was just written for {listed(wrong)}; "
            "another process commits for this group. Stop it and migrate again"
        )


@click.command("rewind")
@owner_options
@topic_option
@all_topics_option
@scenario_options
@source_option
@click.option("--forward", is_flag=True, help="With --checkpoint: go forward too, and skip records.")
@click.option(
    "--drop-planned",
    is_flag=True,
    help="With --checkpoint: drop a batch that was planned and not finished. Also without a place to go to.",
)
@execute_options
@place_options
def rewind(
    group: str | None,
    checkpoint: str | None,
    topics: tuple[str, ...],
    all_topics: bool,
    source: int | None,
    forward: bool,
    drop_planned: bool,
    dry_run: bool,
    execute: bool,
    places: Places,
    as_json: bool,
    **scenario: Any,
) -> None:
    """Move a stopped group or streaming query back, so that it reads records again.

    The places are those of 'groups reset-offsets'. Offsets that lie before the place stay. The command shows what it
    would do; --execute does it. With --zookeeper it moves a group in both storages, as far as they hold its offsets.

    The command moves a query in its checkpoint. The query runs an empty batch first, so that its sink never sees a
    batch's number twice. It refuses a query with state, and one that wrote its checkpoint in the last minute. It keeps
    copies of the files that it replaces next to the checkpoint.
    """
    check_execute(dry_run, execute)
    if checkpoint is not None:
        is_anywhere = any(each not in (None, False) for each in scenario.values())
        rewind_checkpoint(
            checkpoint,
            places,
            None if drop_planned and not is_anywhere else chosen_reset(**scenario),
            topics=topics,
            all_topics=all_topics,
            source=source,
            forward=forward,
            drop_planned=drop_planned,
            execute=execute,
            as_json=as_json,
        )
        return
    assert group is not None
    only_with_checkpoint({"--source": source is not None, "--forward": forward, "--drop-planned": drop_planned})
    reset = chosen_reset(**scenario)
    wanted = chosen_topics(topics, all_topics)
    stores: list[GroupStore] = [] if places.zookeeper is None else [places.in_registry(group)]
    stores.append(places.at_coordinator(group))
    if wanted:
        existing_partitions(places.admin, wanted)
    found = {each.place: offsets_of(each, wanted) for each in stores}
    if not any(found.values()):
        if not any(each.exists() for each in stores):
            raise no_such_group(group, KAFKA)
        raise GroupIdNotFound(f"group {group!r} has no {'such ' if wanted else ''}offsets to rewind")
    # Consumers start from the larger, so that is where the group is.
    larger = {
        each: max(offsets[each].offset for offsets in found.values() if each in offsets)
        for each in sorted({each for offsets in found.values() for each in offsets})
    }
    planned = only_backwards(plan_with_brokers(places, reset, still_there(places, f"group {group}", larger), larger))
    if not as_json:
        print_table(
            (
                *("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"),
                *(f"{name.upper()}-OFFSET" for name in found),
                *("CHANGE", "NOTE"),
            ),
            [
                (
                    *(group, each.topic_partition.topic, each.topic_partition.partition, each.new),
                    *(
                        offsets[each.topic_partition].offset if each.topic_partition in offsets else "-"
                        for offsets in found.values()
                    ),
                    f"{each.change:+d}",
                    each.note,
                )
                for each in planned
            ],
        )
    left = len(larger) - len(planned)
    if left:
        said(f"{count_of_offsets(left)} of group {group} would not go back: left alone")
    for store in stores:
        refuse_if_members(store, "its offsets cannot be moved")
    new = {each.topic_partition: CommittedOffset(each.new) for each in planned}
    if execute:
        for store in stores:
            stored = found[store.place]
            writes = {
                each: offset for each, offset in new.items() if each in stored and stored[each].offset > offset.offset
            }
            store.alter(writes)
            said(f"{count_of_offsets(len(writes))} of group {group} rewound in {store.place}")
    else:
        said_dry_run()
    if as_json:
        print_json(
            {
                "executed": execute,
                "storages": [name for name, offsets in found.items() if offsets],
                "offsets": plan_rows({group: planned}),
            }
        )
