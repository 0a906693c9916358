"""``kafkalite offsets export``: offsets as ``startingOffsets``, and a checkpoint for Spark's own source."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from spark_kafkalite.cli.groups.options import (
    Places,
    no_such_group,
    offsets_of,
    parse_topics,
    place_options,
    topic_option,
)
from spark_kafkalite.cli.groups.reset_scenarios import check_execute, execute_options, said_dry_run
from spark_kafkalite.cli.offsets.checkpoints import (
    batch_option,
    kafka_offsets,
    only_with_checkpoint,
    opened,
    owner_options,
    source_option,
    warn_of_others,
)
from spark_kafkalite.cli.output import said, warn
from spark_kafkalite.clock import SYSTEM_CLOCK
from spark_kafkalite.errors import ConfigError, GroupIdNotFound
from spark_kafkalite.model import TopicPartition


@click.command("export")
@owner_options
@topic_option
@source_option
@batch_option("--batch", "the end of this batch; the last finished one without it.")
@click.option(
    "--to-kafka",
    is_flag=True,
    help='With --checkpoint: let format("kafka") go on from the checkpoint. Needed only after a single finished batch.',
)
@execute_options
@place_options
def export(
    group: str | None,
    checkpoint: str | None,
    topics: tuple[str, ...],
    source: int | None,
    batch: int | None,
    to_kafka: bool,
    dry_run: bool,
    execute: bool,
    places: Places,
    as_json: bool,
) -> None:
    """Print offsets as JSON for the option startingOffsets: a line, or one for each Kafka source of a query.

    They are the offsets of a group, or the end of a batch of a streaming query, where its next batch begins.

    With --to-kafka a finished first batch loses what only format("kafkalite") understands, so that Spark's own source
    goes on from the checkpoint. --execute does it, and keeps a copy of the file next to the checkpoint.
    """
    check_execute(dry_run, execute)
    wanted = parse_topics(topics)
    if (execute or dry_run) and not to_kafka:
        raise click.UsageError("--execute and --dry-run belong to --to-kafka: without it, nothing is changed")
    if group is not None:
        only_with_checkpoint({"--to-kafka": to_kafka, "--batch": batch is not None, "--source": source is not None})
        store = places.store(group)
        offsets = {tp: each.offset for tp, each in offsets_of(store, wanted).items()}
        if not offsets:
            if not store.exists():
                raise no_such_group(group, store.place)
            raise GroupIdNotFound(f"group {group!r} has no {'such ' if wanted else ''}offsets in {store.place}")
        _print(offsets)
        return
    assert checkpoint is not None
    if to_kafka:
        if batch is not None or source is not None or topics:
            raise click.UsageError("--to-kafka is for the whole checkpoint: leave out --batch, --source and --topic")
        _to_kafka(checkpoint, execute=execute)
        return
    with opened(checkpoint) as found:
        from spark_kafkalite.spark.checkpoints.checkpoint_moves import standing

        sources = standing(found) if batch is None else found.batch(batch).sources
    warn_of_others(sources)
    by_source = kafka_offsets(sources, wanted)
    if source is not None and source not in by_source:
        numbers = ", ".join(map(str, by_source)) or "none"
        raise ConfigError(f"--source {source}: not a Kafka source of {checkpoint}; those are {numbers}")
    for number, offsets in by_source.items():
        if source in (None, number):
            _print(offsets)


def _print(offsets: Mapping[TopicPartition, int]) -> None:
    from spark_kafkalite.spark.reading.offset_json import to_json

    click.echo(json.dumps(to_json(offsets), separators=(",", ":")))


def _to_kafka(location: str, *, execute: bool) -> None:
    from spark_kafkalite.spark.checkpoints.checkpoint_moves import carry_out, recently_changed, without_initial

    with opened(location) as checkpoint:
        change = without_initial(checkpoint)
        if not change.replaced:
            said(f'format("kafka") can go on from {location} as it is')
            return
        ((batch_id, batch),) = change.replaced.items()
        for each in batch.sources:
            if each.offsets is not None:
                _print(each.offsets)
        if not execute:
            if (reason := recently_changed(checkpoint, SYSTEM_CLOCK.wall_ms())) is not None:
                warn(f"--execute would be refused: {reason}")
            said_dry_run()
            return
        copy = carry_out(checkpoint, change, SYSTEM_CLOCK.wall_ms())
    said(f'the end of batch {batch_id} is rewritten, format("kafka") can go on; a copy of the file is in {copy}')
