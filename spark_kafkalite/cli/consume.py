"""``kafkalite consume``: prints the records of a topic, like Kafka's console consumer, or as JSON lines.

Reads partitions by hand, without a consumer group, and commits nothing; with ``--group`` it is a member of one
(``cli.groups.consume_group``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from spark_kafkalite.cli.offsets.texts import parse_partitions, parse_time
from spark_kafkalite.cli.options import (
    bootstrap_option,
    client_settings,
    config_file,
    existing_partitions,
    is_true,
    named_properties,
    older_config_option,
    reachable_admin,
)
from spark_kafkalite.cli.output import progress
from spark_kafkalite.cli.record_text import record_to_json, timestamp_type_name
from spark_kafkalite.errors import OffsetOutOfRange
from spark_kafkalite.model import Record, TopicPartition
from spark_kafkalite.printable import printable_lines

if TYPE_CHECKING:
    from spark_kafkalite.client.consume.consumer import Consumer

# Kafka's formatter properties and their defaults.
_FORMATTER: Final = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
_POLL_MS: Final = 500
_POLL_RECORDS: Final = 5_000

_EPILOG = """\b
Examples:
  kafkalite consume --topic events --from-beginning
  kafkalite consume --topic events --partition 0 --offset -10 --max-messages 10
  kafkalite consume --topic events --offset @2026-01-31T12:00:00Z --until-end --json
  kafkalite consume --topic events --group readers --from-beginning
  kafkalite consume --topic events --formatter-property print.key=true --formatter-property print.offset=true
"""


@click.command("consume", epilog=_EPILOG)
@click.option("--topic", help="Topic to read.")
@click.option("--include", "pattern", metavar="REGEX", help="With --group: every topic whose whole name matches.")
@click.option(
    "--group",
    metavar="NAME",
    help="Read as a member of this group: start at its committed offsets, share partitions with its other "
    "members, and commit what was printed.",
)
@click.option("--partition", "partitions", metavar="N[,N]", help="Only these partitions; all without it.")
@click.option(
    "--offset",
    "offset_text",
    metavar="WHERE",
    help="Where to begin: earliest, latest (the default), a number, -N for the last N records of each partition, or "
    "@TIME (milliseconds since 1970, or a date and time).",
)
@click.option("--from-beginning", is_flag=True, help="The same as --offset earliest.")
@click.option("--max-messages", type=click.IntRange(min=0), metavar="N", help="Stop after this many records.")
@click.option(
    "--timeout-ms", type=click.IntRange(min=0), metavar="MS", help="Stop when no record arrives for this long."
)
@click.option("--until-end", is_flag=True, help="Stop at the end that the topic has now.")
@click.option(
    "--isolation-level",
    type=click.Choice(("read_uncommitted", "read_committed")),
    default="read_uncommitted",
    show_default=True,
    help="Whether records of open and aborted transactions are shown.",
)
@click.option(
    "--formatter-property",
    "--property",
    "formatter_properties",
    metavar="NAME=VALUE",
    multiple=True,
    help=f"Kafka's formatter properties: {', '.join(_FORMATTER)}. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each record as one line of JSON, base64 where not UTF-8.")
@click.option("--consumer-property", "consumer_properties", metavar="NAME=VALUE", multiple=True, hidden=True)
@older_config_option("--consumer.config")
@bootstrap_option
def command(
    topic: str | None,
    pattern: str | None,
    group: str | None,
    partitions: str | None,
    offset_text: str | None,
    from_beginning: bool,
    max_messages: int | None,
    timeout_ms: int | None,
    until_end: bool,
    isolation_level: str,
    formatter_properties: tuple[str, ...],
    as_json: bool,
    consumer_properties: tuple[str, ...],
    older_config: str | None,
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
) -> int:
    """Print the records of a topic until Ctrl-C, or until an option ends it.

    It begins at the end of the topic, with records that arrive from now on. --from-beginning begins with the first
    record. Each run reads by itself, unless --group makes it a member of a group. A member goes on at the group's
    committed offsets; then --from-beginning is only for partitions without one.

    At a terminal control characters of records are escaped (\\x1b); a pipe or a file gets the bytes as they are.
    """
    if from_beginning and offset_text is not None:
        raise click.UsageError("--from-beginning and --offset exclude each other")
    format_record = _json_line if as_json else make_formatter(formatter_properties, escapes=sys.stdout.isatty())
    properties = (*consumer_properties, *command_properties)
    file = config_file(command_config, older_config, "--consumer.config")
    settings = client_settings(bootstrap_server, file, properties, isolation_level=isolation_level)
    _check_reset(settings)
    if group is not None and settings.get("group.id", group) != group:
        raise click.UsageError(f"--group {group} and group.id={settings['group.id']} name two groups")
    if group is not None or settings.get("group.id"):
        if partitions is not None or offset_text is not None:
            raise click.UsageError(
                "--group shares out the partitions and knows where to begin: leave out --partition and --offset, or "
                "move the group first with 'kafkalite groups reset-offsets'"
            )
        settings.setdefault("group.id", group)
        # Only where the group has no offset, or one that the log does not hold any more.
        reset = "earliest" if from_beginning else settings.get("auto.offset.reset", "latest")
        settings["auto.offset.reset"] = reset
        return _consume_in_group(topic, pattern, settings, format_record, max_messages, timeout_ms, until_end)
    if pattern is not None:
        raise click.UsageError("--include needs --group NAME")
    if topic is None:
        raise click.UsageError("name the topic with --topic NAME")
    offset_text = "earliest" if from_beginning else offset_text or "latest"
    start = Start(offset_text)
    # A number that the log does not hold is an error; otherwise go on with the oldest that is left.
    settings["auto.offset.reset"] = "none" if start.offset is not None and start.offset >= 0 else "earliest"
    numbers = parse_partitions(partitions, "--partition") if partitions else None
    with reachable_admin(settings, shared=True) as admin:
        assigned = existing_partitions(admin, {topic: numbers})

    from spark_kafkalite.client.consume.consumer import Consumer

    count = 0
    with Consumer(settings) as consumer:
        try:
            consumer.assign(assigned)
            ends = consumer.end_offsets(assigned) if until_end else None
            start.seek(consumer, assigned)
            total = max_messages if max_messages else None
            with progress("reading", total, "records") as advance:
                # At a terminal the records themselves show how it goes on.
                shown = advance if not sys.stdout.isatty() else lambda _: None
                for records in _polled(consumer, ends, max_messages, timeout_ms):
                    sys.stdout.buffer.write(b"".join(map(format_record, records)))
                    # Before a reader has them: it may end this command by a signal then.
                    count += len(records)
                    sys.stdout.buffer.flush()
                    shown(len(records))
        except KeyboardInterrupt:
            pass
    click.echo(f"Processed a total of {count} messages", err=True)
    return 0


def _check_reset(settings: dict[str, object]) -> None:
    """Refuse a value that there is not, also where --offset or --from-beginning takes its place."""
    if "auto.offset.reset" in settings:
        from spark_kafkalite.client.config import CONSUMER_SETTINGS

        CONSUMER_SETTINGS["auto.offset.reset"].parse(settings["auto.offset.reset"])


def _consume_in_group(
    topic: str | None,
    pattern: str | None,
    settings: dict[str, object],
    format_record: Callable[[Record], bytes],
    max_messages: int | None,
    timeout_ms: int | None,
    until_end: bool,
) -> int:
    from spark_kafkalite.cli.groups.consume_group import GroupReader

    if (topic is None) == (pattern is None):
        raise click.UsageError("name what to read: --topic NAME, or --include REGEX")
    with reachable_admin(settings, shared=True) as admin:
        if topic is not None:
            admin.describe_topics([topic])
    count = 0
    with (
        progress("reading", max_messages or None, "records") as advance,
        GroupReader(settings, commits=str(settings.get("enable.auto.commit", "true")).lower() != "false") as reader,
    ):
        shown = advance if not sys.stdout.isatty() else lambda _: None

        def show(records: list[Record]) -> None:
            nonlocal count
            sys.stdout.buffer.write(b"".join(map(format_record, records)))
            count += len(records)
            sys.stdout.buffer.flush()
            shown(len(records))

        try:
            reader.subscribe([topic] if topic is not None else None, pattern)
            reader.run(show, max_messages=max_messages, timeout_ms=timeout_ms, until_end=until_end)
        except KeyboardInterrupt:
            pass
    click.echo(f"Processed a total of {count} messages", err=True)
    return 0


def _polled(
    consumer: Consumer, ends: dict[TopicPartition, int] | None, max_messages: int | None, timeout_ms: int | None
) -> Iterator[list[Record]]:
    """Give records until their number, the ends, or a silence of ``timeout_ms``."""
    left = max_messages
    heard_s = time.monotonic()
    while left is None or left > 0:
        if ends is not None:
            finished = [each for each, end in ends.items() if consumer.position(each) >= end]
            consumer.pause(finished)
            for each in finished:
                del ends[each]
            if not ends:
                return
        wait_ms = float(_POLL_MS)
        if timeout_ms is not None:
            wait_ms = min(wait_ms, timeout_ms - (time.monotonic() - heard_s) * 1000)
        records = consumer.poll(max(0.0, wait_ms), min(left, _POLL_RECORDS) if left is not None else _POLL_RECORDS)
        if ends is not None:
            # What was written since the start is not wanted.
            records = [each for each in records if each.offset < ends[TopicPartition(each.topic, each.partition)]]
        if records:
            heard_s = time.monotonic()
            if left is not None:
                left -= len(records)
            yield records
        elif timeout_ms is not None and (time.monotonic() - heard_s) * 1000 >= timeout_ms:
            return


class Start:
    """Where reading begins, from the text of --offset."""

    def __init__(self, text: str) -> None:
        """Raises UsageError when the text is none of the forms."""
        self.offset: int | None = None
        self.timestamp_ms: int | None = None
        self.place: str | None = None
        if text in ("earliest", "latest"):
            self.place = text
        elif text.startswith("@"):
            self.timestamp_ms = parse_time(text[1:], "--offset @TIME:")
        else:
            try:
                self.offset = int(text)
            except ValueError:
                raise click.UsageError(f"--offset {text}: neither earliest, latest, a number, -N, nor @TIME") from None

    def seek(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Put the consumer to the place."""
        if self.place == "earliest":
            consumer.seek_to_beginning(partitions)
        elif self.place == "latest":
            consumer.seek_to_end(partitions)
            # The end is that of now, not of the first poll.
            for each in partitions:
                consumer.position(each)
        elif self.timestamp_ms is not None:
            consumer.seek_to_time(self.timestamp_ms, partitions)
        elif self.offset is not None and self.offset < 0:
            first, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            for each in partitions:
                consumer.seek(each, max(first[each], end[each] + self.offset))
        elif self.offset is not None:
            first, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            for each in partitions:
                if not first[each] <= self.offset <= end[each]:
                    raise OffsetOutOfRange(
                        f"--offset {self.offset}: {each} holds the offsets {first[each]} to {end[each] - 1}"
                        if end[each] > first[each]
                        else f"--offset {self.offset}: {each} is empty, its next offset is {end[each]}"
                    )
                consumer.seek(each, self.offset)


def make_formatter(texts: tuple[str, ...], *, escapes: bool = False) -> Callable[[Record], bytes]:
    """Return what turns a record into a line. Raises UsageError for a bad property.

    ``escapes``: control characters of keys, values and headers, but for new lines and tabs, and bytes that are not
    UTF-8, are escaped. A terminal needs that; a program that reads a pipe or a file wants the bytes.
    """
    properties = {**_FORMATTER, **named_properties(texts, _FORMATTER, "--formatter-property")}
    shown = {name: is_true(value, name) for name, value in properties.items() if name.startswith("print.")}
    null = properties["null.literal"].encode()
    separator, line_end = properties["key.separator"].encode(), properties["line.separator"].encode()
    headers_separator = properties["headers.separator"].encode()

    def shown_as(data: bytes | None) -> bytes:
        if data is None:
            return null
        return printable_lines(data.decode("utf-8", "backslashreplace")).encode() if escapes else data

    def headers_of(record: Record) -> bytes:
        pairs = [(shown_as(name.encode()) + b":" + shown_as(value)) for name, value in record.headers]
        return headers_separator.join(pairs) if pairs else b"NO_HEADERS"

    # In the order of Kafka's DefaultMessageFormatter.
    parts: list[Callable[[Record], bytes]] = []
    if shown["print.timestamp"]:
        parts.append(lambda record: f"{timestamp_type_name(record)}:{record.timestamp}".encode())
    if shown["print.partition"]:
        parts.append(lambda record: b"Partition:%d" % record.partition)
    if shown["print.offset"]:
        parts.append(lambda record: b"Offset:%d" % record.offset)
    if shown["print.headers"]:
        parts.append(headers_of)
    if shown["print.key"]:
        parts.append(lambda record: shown_as(record.key))
    if not parts and shown["print.value"]:
        return lambda record: shown_as(record.value) + line_end
    if shown["print.value"]:
        parts.append(lambda record: shown_as(record.value))
    return lambda record: separator.join([part(record) for part in parts]) + line_end


def _json_line(record: Record) -> bytes:
    return record_to_json(record).encode() + b"\n"
