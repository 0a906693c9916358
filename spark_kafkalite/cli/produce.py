"""``kafkalite produce``: lines into records, like Kafka's console producer, or the JSON lines of ``consume --json``."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from spark_kafkalite.cli.options import (
    bootstrap_option,
    client_settings,
    config_file,
    is_true,
    name_values,
    named_properties,
    older_config_option,
    reachable_admin,
    unescaped,
)
from spark_kafkalite.cli.output import print_json, progress, warn
from spark_kafkalite.cli.record_text import BadRecordText, ParsedRecord, record_from_json
from spark_kafkalite.errors import KafkaliteError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin
    from spark_kafkalite.client.produce.delivery import RecordMetadata
    from spark_kafkalite.client.produce.producer import Producer
    from spark_kafkalite.model import Headers

# Kafka's reader properties and their defaults.
_READER: Final = {
    "parse.key": "false",
    "key.separator": "\t",
    "parse.headers": "false",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
    "null.marker": "",
}
# A progress bar that moved with every record would cost more than sending it.
_PROGRESS_EVERY: Final = 500

_EPILOG = """\b
Examples:
  kafkalite produce --topic events < lines.txt
  kafkalite produce --topic events --key-separator : --file keyed.txt
  kafkalite produce --topic events --header source=web --compression zstd
  kafkalite consume --topic events --until-end --from-beginning --json | kafkalite produce --topic copy --json
"""


@click.command("produce", epilog=_EPILOG)
@click.option("--topic", help="Topic to send to. With --json it overrides the topic that a line names.")
@click.option("--file", "file_name", default="-", metavar="FILE", help="File to read; default: standard input.")
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON records as 'consume --json' prints them.")
@click.option("--key-separator", metavar="TEXT", help="Each line is KEY, this text, VALUE.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record. Repeatable.")
@click.option("--partition", type=click.IntRange(min=0), help="Send everything to this partition.")
@click.option("--ignore-partitions", is_flag=True, help="With --json: choose partitions again, by key.")
@click.option(
    "--compression",
    "--compression-codec",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    help="Codec of the batches.",
)
@click.option(
    "--acks",
    "--request-required-acks",
    type=click.Choice(("0", "1", "all", "-1")),
    help="Which replicas must have a record before it is acknowledged (all).",
)
@click.option("--sync", is_flag=True, help="Wait for each record before the next is sent.")
@click.option(
    "--reader-property",
    "--property",
    "reader_properties",
    metavar="NAME=VALUE",
    multiple=True,
    help=f"Kafka's reader properties: {', '.join(_READER)}. Repeatable.",
)
@click.option("--producer-property", "producer_properties", metavar="NAME=VALUE", multiple=True, hidden=True)
@older_config_option("--producer.config")
@bootstrap_option
def command(
    topic: str | None,
    file_name: str,
    as_json: bool,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    ignore_partitions: bool,
    compression: str | None,
    acks: str | None,
    sync: bool,
    reader_properties: tuple[str, ...],
    producer_properties: tuple[str, ...],
    older_config: str | None,
    bootstrap_server: str,
    command_config: str | None,
    command_properties: tuple[str, ...],
) -> int:
    """Send records from standard input or a file, one a line.

    Ends when the input does, with exit code 0 when every record was acknowledged. Ctrl-C ends the input.
    """
    if topic is None and not as_json:
        raise click.UsageError("--topic is missing: the name of the topic to send to")
    reader = {**_READER, **named_properties(reader_properties, _READER, "--reader-property")}
    if key_separator is not None:
        reader.update({"parse.key": "true", "key.separator": unescaped(key_separator)})
    common: Headers = [(name, value.encode()) for name, value in name_values(headers, "--header").items()]
    separator_option = "key.separator" if key_separator is None else "--key-separator"
    parse = record_from_json if as_json else LineParser(reader, separator_option)
    settings = client_settings(
        bootstrap_server,
        config_file(command_config, older_config, "--producer.config"),
        (*producer_properties, *command_properties),
        compression_type=compression,
        acks="all" if acks == "-1" else acks,
        producer_type="sync" if sync else None,
    )
    if acks in ("0", "1"):
        # Idempotence, the default, needs acks=all.
        settings.setdefault("enable.idempotence", "false")
    with contextlib.ExitStack() as stack:
        lines, size = _opened(stack, file_name)
        admin = stack.enter_context(reachable_admin(settings, shared=True))
        from spark_kafkalite.client.produce.producer import Producer

        watch = RetentionWatch(admin)
        producer = stack.enter_context(Producer(settings))
        sender = _Sender(producer, admin, watch, topic, partition, ignore_partitions, common)
        advance = stack.enter_context(progress("sending", size, "bytes" if size is not None else "records"))
        wrong: BadRecordText | None = None
        try:
            _send_all(lines, parse, sender, advance, counts_bytes=size is not None)
        except BadRecordText as error:
            wrong = error
        finally:
            producer.flush()
        watch.report()
    if wrong is not None:
        count = sender.sent - sender.failed
        sent = "1 record was" if count == 1 else f"{count} records were" if count else "nothing was"
        raise click.ClickException(f"{wrong}; {sent} sent before it")
    if as_json:
        print_json({"sent": sender.sent - sender.failed, "failed": sender.failed})
    if sender.failed:
        # Why, the producer's warnings have said of each batch.
        click.echo(f"kafkalite: {sender.failed} of {sender.sent} records were not sent, see above", err=True)
        return 1
    if sys.stderr.isatty() and not as_json:
        click.echo(f"{sender.sent} records sent.", err=True)
    return 0


class _Sender:
    """Gives records to the producer and counts what became of them."""

    def __init__(
        self,
        producer: Producer,
        admin: Admin,
        watch: RetentionWatch,
        topic: str | None,
        partition: int | None,
        ignore_partitions: bool,
        common_headers: Headers,
    ) -> None:
        self._producer = producer
        self._admin = admin
        self._watch = watch
        self._topic = topic
        self._partition = partition
        self._ignore_partitions = ignore_partitions
        self._common_headers = common_headers
        self._known: set[str] = set()
        self.sent = 0
        self.failed = 0

    def send(self, record: ParsedRecord) -> None:
        topic = self._topic or record.topic
        if topic is None:
            raise BadRecordText("it names no topic, and there is no --topic")
        if topic not in self._known:
            self._known.add(topic)
            self._warn_if_absent(topic)
        partition = self._partition
        if partition is None and not self._ignore_partitions:
            partition = record.partition
        self._producer.send(
            topic,
            record.value,
            record.key,
            partition=partition,
            headers=[*self._common_headers, *(record.headers or ())] or None,
            timestamp_ms=record.timestamp_ms,
            on_delivery=self._delivered,
        )
        self.sent += 1
        # After the sending, which may have created the topic.
        if record.timestamp_ms is not None:
            self._watch.note(topic, record.timestamp_ms)

    def _warn_if_absent(self, topic: str) -> None:
        """Warn that sending creates the topic, whose name may be mistyped. Sending reports other errors."""
        try:
            self._admin.describe_topics([topic])
        except UnknownTopicOrPartition:
            warn(
                f"topic {topic} does not exist: the broker creates it if its auto.create.topics.enable is true and "
                "there are brokers enough for its replicas; 'kafkalite topics create' reports what is missing"
            )
        except KafkaliteError:
            pass

    def _delivered(self, _: RecordMetadata | None, error: Exception | None) -> None:
        # Runs in the producer's one thread.
        if error is not None:
            self.failed += 1


def _send_all(
    lines: Iterator[bytes],
    parse: Callable[[bytes], ParsedRecord],
    sender: _Sender,
    advance: Callable[[int], None],
    *,
    counts_bytes: bool,
) -> None:
    """Send every line until the input ends, Ctrl-C, or the first failure. Raises BadRecordText naming the line."""
    pending, shown_s = 0, time.monotonic()
    number = 0
    with contextlib.suppress(KeyboardInterrupt):
        for number, line in enumerate(lines, start=1):
            try:
                sender.send(parse(line.rstrip(b"\n").removesuffix(b"\r")))
            except BadRecordText as error:
                raise BadRecordText(f"line {number}: {error}") from None
            if sender.failed:
                break
            pending += len(line) if counts_bytes else 1
            if number % _PROGRESS_EVERY == 0 or time.monotonic() - shown_s > 1:
                advance(pending)
                pending, shown_s = 0, time.monotonic()
    advance(pending)


class LineParser:
    """Kafka's console format: ``[HEADERS delimiter][KEY separator]VALUE``."""

    def __init__(self, properties: dict[str, str], separator_option: str = "key.separator") -> None:
        """``separator_option`` is what errors call the key's separator: the name under which it was given."""

        def data(name: str) -> bytes:
            return properties[name].encode()

        self._parse_key = is_true(properties["parse.key"], "parse.key")
        self._parse_headers = is_true(properties["parse.headers"], "parse.headers")
        self._ignore_errors = is_true(properties["ignore.error"], "ignore.error")
        self._key_separator = data("key.separator")
        self._separator_option = separator_option
        self._headers_delimiter = data("headers.delimiter")
        self._headers_separator = data("headers.separator")
        self._header_key_separator = data("headers.key.separator")
        self._null_marker = data("null.marker")
        for name in ("key.separator", "headers.delimiter", "headers.separator", "headers.key.separator"):
            if not properties[name]:
                raise click.UsageError(f"{name} must not be empty")

    def __call__(self, line: bytes) -> ParsedRecord:
        headers = None
        key = None
        if self._parse_headers:
            head, found, rest = line.partition(self._headers_delimiter)
            if found:
                headers, line = self._headers(head), rest
            elif not self._ignore_errors:
                raise BadRecordText(f"no headers.delimiter {_shown(self._headers_delimiter)} in it")
        if self._parse_key:
            head, found, rest = line.partition(self._key_separator)
            if found:
                key, line = self._cell(head), rest
            elif not self._ignore_errors:
                raise BadRecordText(
                    f"no {self._separator_option} {_shown(self._key_separator)} in it; --reader-property "
                    "ignore.error=true sends such a line without a key"
                )
        return ParsedRecord(self._cell(line), key, headers)

    def _cell(self, data: bytes) -> bytes | None:
        return None if self._null_marker and data == self._null_marker else data

    def _headers(self, head: bytes) -> Headers | None:
        if self._null_marker and head == self._null_marker:
            return None
        headers: Headers = []
        for pair in head.split(self._headers_separator):
            name, found, value = pair.partition(self._header_key_separator)
            if not found and not self._ignore_errors:
                raise BadRecordText(
                    f"no headers.key.separator {_shown(self._header_key_separator)} in header {_shown(pair)}"
                )
            try:
                headers.append((name.decode("utf-8"), self._cell(value) if found else None))
            except UnicodeDecodeError:
                raise BadRecordText(f"header name {_shown(name)} is not UTF-8") from None
        return headers


def _shown(data: bytes) -> str:
    """Return bytes as they were typed, quoted."""
    return repr(data.decode("utf-8", "backslashreplace"))


def _opened(stack: contextlib.ExitStack, file_name: str) -> tuple[Iterator[bytes], int | None]:
    """Return the lines of the input, and its size when it is a file."""
    if file_name == "-":
        stdin = sys.stdin.buffer
        return (_prompting(stdin) if sys.stdin.isatty() else stdin), None
    file = stack.enter_context(Path(file_name).open("rb"))  # noqa: SIM115 (the stack closes it)
    return file, os.fstat(file.fileno()).st_size


def _prompting(stdin: IO[bytes]) -> Iterator[bytes]:
    """Ask for each line as Kafka's console producer does."""
    while True:
        click.echo(">", nl=False, err=True)
        line = stdin.readline()
        if not line:
            click.echo(err=True)
            return
        yield line


# Warns when records are written that the topic's retention may delete at once. Retention uses a record's own
# timestamp. Replayed or imported records are often older than the default of seven days, and vanish soon after they
# were sent.


_DAY_MS = 86_400_000


class RetentionWatch:
    """Counts the records that are past their topic's retention when they are sent."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._oldest_kept_ms: dict[str, int] = {}
        self._retention_ms: dict[str, int] = {}
        self._past: dict[str, int] = {}

    def note(self, topic: str, timestamp_ms: int) -> None:
        """Count a record with this timestamp that was sent; warn at once of a topic's first one that is too old."""
        oldest = self._oldest_kept_ms.get(topic)
        if oldest is None:
            oldest = self._oldest_kept_ms[topic] = self._ask(topic)
        if timestamp_ms >= oldest:
            return
        count = self._past[topic] = self._past.get(topic, 0) + 1
        if count == 1:
            retention = self._retention_ms[topic]
            warn(
                f"records for topic {topic} are older than its retention.ms={retention} "
                f"({retention / _DAY_MS:.1f} days): the broker may delete them at "
                "any time; to keep them, give the topic retention.ms=-1"
            )

    def report(self) -> None:
        """Print how many records of each topic were too old."""
        for topic, count in self._past.items():
            if count == 1:
                continue  # said already
            warn(f"{count} records for topic {topic} were older than its retention.ms")

    def _ask(self, topic: str) -> int:
        """Return the oldest timestamp that is kept; a cluster that does not answer counts as keeping everything."""
        try:
            configs = self._admin.describe_configs(topic=topic, timeout_ms=3_000)
        except KafkaliteError:
            return -(2**63)
        retention = configs["retention.ms"].value if "retention.ms" in configs else None
        policy = (configs["cleanup.policy"].value if "cleanup.policy" in configs else None) or "delete"
        self._retention_ms[topic] = int(retention) if retention else -1
        if "delete" not in policy or self._retention_ms[topic] < 0:
            return -(2**63)
        return time.time_ns() // 1_000_000 - self._retention_ms[topic]
