"""``kafkalite offsets get``: offsets of partitions, at their ends or at a time (Kafka's ``kafka-get-offsets``)."""

from __future__ import annotations

import click

from spark_kafkalite.cli.offsets.export import export
from spark_kafkalite.cli.offsets.moves import migrate, rewind
from spark_kafkalite.cli.offsets.show import diff, show
from spark_kafkalite.cli.offsets.texts import parse_partitions, parse_time
from spark_kafkalite.cli.options import (
    ActionGroup,
    ClientSettings,
    client_options,
    existing_partitions,
    json_option,
    reachable_admin,
)
from spark_kafkalite.cli.output import print_json
from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.model import TopicPartition

_EPILOG = """\b
Examples:
  kafkalite offsets get --topic events
  kafkalite offsets get --topic events --time earliest
  kafkalite offsets get --topic events --partitions 0,2 --time 2026-01-31T12:00:00Z

\b
Examples for groups:
  kafkalite offsets show --group billing --zookeeper 127.0.0.1:2181
  kafkalite offsets migrate --group billing --zookeeper 127.0.0.1:2181 --to kafka --execute
  kafkalite offsets rewind --group billing --all-topics --by-duration PT2H --execute

\b
Examples for streaming queries:
  kafkalite offsets show --checkpoint /data/checkpoints/hourly --bootstrap-server 127.0.0.1:9092
  kafkalite offsets rewind --checkpoint hdfs:///checkpoints/hourly --topic events --by-duration PT2H
"""


@click.group("offsets", cls=ActionGroup, epilog=_EPILOG)
def command() -> None:
    """Look offsets up, also by time; show, compare and move the offsets of a group or a streaming query."""


for each in (show, diff, export, migrate, rewind):
    command.add_command(each)


@command.command("get")
@click.option("--topic", "topics", multiple=True, metavar="NAME[,NAME]", help="Topics; all without it. Repeatable.")
@click.option("--partitions", metavar="N[,N]", help="Only these partitions.")
@click.option(
    "--time",
    "time_text",
    default="latest",
    show_default=True,
    metavar="WHEN",
    help="latest (-1), earliest (-2), max-timestamp (-3), earliest-local (-4), latest-tiered (-5), milliseconds since "
    "1970, or a date and time such as 2026-01-31T12:00:00Z (UTC without a zone): the first record at or after it.",
)
@click.option("--exclude-internal-topics", is_flag=True, help="Leave out internal topics.")
@client_options
@json_option
def get(
    topics: tuple[str, ...],
    partitions: str | None,
    time_text: str,
    exclude_internal_topics: bool,
    client: ClientSettings,
    as_json: bool,
) -> None:
    """Print TOPIC:PARTITION:OFFSET, one partition a line.

    If the time is after the last record, the offset is empty, because no record exists for it yet.
    """
    timestamp = parse_time(time_text, "--time")
    wanted_partitions = parse_partitions(partitions, "--partitions") if partitions else None
    names = [name.strip() for text in topics for name in text.split(",") if name.strip()]
    with reachable_admin(client) as admin:
        infos = admin.describe_topics(names or None)
        wanted = [
            TopicPartition(name, each.partition)
            for name, info in sorted(infos.items())
            if not (exclude_internal_topics and info.is_internal)
            for each in info.partitions
            if wanted_partitions is None or each.partition in wanted_partitions
        ]
        missing = (wanted_partitions or set()) - {each.partition for each in wanted}
        if missing and len(names) == 1:
            existing_partitions(admin, {names[0]: wanted_partitions})
        if missing:
            which = "none of these topics has" if names else "no topic has"
            numbers = ", ".join(map(str, sorted(missing)))
            raise UnknownTopicOrPartition(f"--partitions {partitions}: {which} a partition {numbers}")
        found = admin.list_offsets(dict.fromkeys(wanted, timestamp))
    if as_json:
        print_json(
            [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "offset": None if answer is None else answer.offset,
                    "timestamp": None if answer is None or answer.timestamp < 0 else answer.timestamp,
                }
                for each in wanted
                for answer in (found.get(each),)
            ]
        )
        return
    for each in wanted:
        answer = found.get(each)
        click.echo(f"{each.topic}:{each.partition}:{'' if answer is None else answer.offset}")
