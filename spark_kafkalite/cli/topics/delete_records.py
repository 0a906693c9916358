"""``kafkalite topics delete-records``: delete old records before retention does (Kafka's ``kafka-delete-records``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_kafkalite.cli.offsets.texts import parse_partitions
from spark_kafkalite.cli.options import (
    ClientSettings,
    client_options,
    existing_partitions,
    json_option,
    reachable_admin,
)
from spark_kafkalite.cli.output import print_json
from spark_kafkalite.errors import OffsetOutOfRange
from spark_kafkalite.model import HIGH_WATERMARK, LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin


@click.command("delete-records")
@click.option("--topic", metavar="NAME", help="The topic.")
@click.option("--partition", "--partitions", "partitions", metavar="N[,N]", help="Its partitions; all without it.")
@click.option("--before-offset", metavar="OFFSET", help="Delete what lies before it; 'latest' (-1) deletes everything.")
@click.option(
    "--offset-json-file",
    metavar="FILE",
    help='Instead of these three, a JSON file as Kafka takes it: {"partitions": [{"topic": "t", "partition": '
    '0, "offset": 9}]}.',
)
@client_options
@json_option
def delete_records(
    topic: str | None,
    partitions: str | None,
    before_offset: str | None,
    offset_json_file: str | None,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """Delete the records before an offset, for good, and print where each partition starts afterwards.

    The disk gets its space back in whole segments, a moment later.
    """
    wanted: dict[TopicPartition, int] = {}
    if offset_json_file is not None:
        if topic or partitions or before_offset:
            raise click.UsageError("--offset-json-file replaces --topic, --partition and --before-offset")
        wanted = _read_offsets(offset_json_file)
    elif topic is None or before_offset is None:
        raise click.UsageError("give --topic and --before-offset, or --offset-json-file")
    offset = _offset(before_offset) if before_offset is not None else HIGH_WATERMARK
    with reachable_admin(client) as admin:
        if topic is not None:
            numbers = parse_partitions(partitions, "--partition") if partitions else None
            wanted = dict.fromkeys(existing_partitions(admin, {topic: numbers}), offset)
        try:
            starts = admin.delete_records(wanted)
        except OffsetOutOfRange as error:
            raise OffsetOutOfRange(f"{error}; {_ends(admin, wanted)}") from None
    if as_json:
        print_json(
            [{"topic": each.topic, "partition": each.partition, "low_watermark": starts[each]} for each in wanted]
        )
        return
    for each in wanted:
        click.echo(f"{each.topic}:{each.partition}:{starts[each]}")


def _ends(admin: Admin, wanted: Mapping[TopicPartition, int]) -> str:
    """Return up to which offset records can be deleted, for those partitions whose log ends before the wanted one."""
    found = admin.list_offsets(dict.fromkeys(wanted, LATEST_TIMESTAMP))
    too_low = [f"{each} ends at {end.offset}" for each, end in found.items() if end and end.offset < wanted[each]]
    if not too_low:
        return "the log has grown meanwhile: try again"
    return f"{', '.join(too_low)}; give an offset up to there, or 'latest' to delete everything"


def _offset(text: str) -> int:
    if text.strip().lower() == "latest":
        return HIGH_WATERMARK
    try:
        offset = int(text)
    except ValueError:
        offset = HIGH_WATERMARK - 1
    if offset < HIGH_WATERMARK:
        raise click.UsageError(f"--before-offset {text}: neither an offset nor 'latest'")
    return offset


def _read_offsets(path: str) -> dict[TopicPartition, int]:
    """Read Kafka's file. Raises UsageError naming what is wrong with it."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document.get("version", 1) != 1:
            raise click.UsageError(f"--offset-json-file {path}: version {document['version']} is not known, only 1 is")
        found: dict[TopicPartition, int] = {}
        for each in document["partitions"]:
            key = TopicPartition(str(each["topic"]), int(each["partition"]))
            if key in found:
                raise click.UsageError(f"--offset-json-file {path}: {key} is named twice")
            found[key] = int(each["offset"])
    except OSError as error:
        raise click.UsageError(f"--offset-json-file {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise click.UsageError(
            f'--offset-json-file {path}: not of the form {{"partitions": [{{"topic": "t", "partition": 0, '
            f'"offset": 9}}]}}: {type(error).__name__} {error}'
        ) from None
    return found
