"""``kafkalite offsets get``: the offsets of partitions at their ends, or at a time (Kafka's ``kafka-get-offsets``)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import click

from spark_kafkalite.cli.options import (
    ActionGroup,
    bootstrap_option,
    client_settings,
    json_option,
    reachable_admin,
)
from spark_kafkalite.cli.output import print_json
from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.model import TopicPartition

# Kafka's numbers for places in a partition, in ListOffsets.
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_PLACES: Final = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL,
    "latest-tiered": LATEST_TIERED,
}

_EPILOG = """\b
Examples:
  kafkalite offsets get --topic events
  kafkalite offsets get --topic events --time earliest
  kafkalite offsets get --topic events --partitions 0,2 --time 2026-01-31T12:00:00Z
"""


@click.group("offsets", cls=ActionGroup, epilog=_EPILOG)
def command() -> None:
    """Look up the offsets of partitions, by time too."""


@command.command("get", epilog=_EPILOG)
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
@click.option("--exclude-internal-topics", is_flag=True, help="Leave out the topics that brokers keep for themselves.")
@bootstrap_option
@json_option
def get(
    topics: tuple[str, ...],
    partitions: str | None,
    time_text: str,
    exclude_internal_topics: bool,
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print TOPIC:PARTITION:OFFSET, one partition a line.

    With a time after the last record the offset is empty: there is no record to begin with yet.
    """
    timestamp = parse_time(time_text, "--time")
    wanted_partitions = parse_partitions(partitions) if partitions else None
    names = [name.strip() for text in topics for name in text.split(",") if name.strip()]
    with reachable_admin(client_settings(bootstrap_server, command_config, command_properties)) as admin:
        infos = admin.describe_topics(names or None)
        wanted = [
            TopicPartition(name, each.partition)
            for name, info in sorted(infos.items())
            if not (exclude_internal_topics and info.is_internal)
            for each in info.partitions
            if wanted_partitions is None or each.partition in wanted_partitions
        ]
        if wanted_partitions is not None and not wanted:
            raise UnknownTopicOrPartition(f"none of the topics has a partition of --partitions {partitions}")
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


def parse_time(text: str, option: str) -> int:
    """Return a time as milliseconds since the epoch, or one of Kafka's negative numbers. Raises UsageError."""
    word = text.strip().lower()
    if word in _PLACES:
        return _PLACES[word]
    try:
        return int(word)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise click.UsageError(
            f"{option} {text}: neither {', '.join(_PLACES)}, nor milliseconds since 1970, nor a date and time such as "
            "2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_partitions(text: str) -> set[int]:
    """Return the numbers of '0,2,5-7'. Raises UsageError."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            found.update(_inclusive(int(first), int(last) if dash else int(first)))
    except ValueError:
        raise click.UsageError(f"--partitions {text}: not of the form 0,2 or 0-3") from None
    return found


def _inclusive(first: int, last: int) -> Iterable[int]:
    if not 0 <= first <= last <= 2**31 - 1 or last - first > 100_000:
        raise ValueError((first, last))
    return range(first, last + 1)
