"""The small languages of the options: times, partitions, assignments, line formats, Kafka's flag spelling."""

import re

import click
import pytest

from spark_kafkalite.cli.broker import parse_overrides
from spark_kafkalite.cli.consume import Start, make_formatter
from spark_kafkalite.cli.offsets.texts import parse_partitions, parse_time
from spark_kafkalite.cli.options import ActionGroup, client_settings, named_properties
from spark_kafkalite.cli.produce import _READER, LineParser
from spark_kafkalite.cli.record_text import BadRecordText, ParsedRecord
from spark_kafkalite.cli.topics.changes import parse_assignment
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import Headers, Record
from spark_kafkalite.records import kernel
from spark_kafkalite.records.kernel import OpenBatch


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("latest", -1),
        ("EARLIEST", -2),
        ("max-timestamp", -3),
        ("-2", -2),
        ("1700000000000", 1700000000000),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:01", 1000),
    ],
)
def test_times(text: str, milliseconds: int) -> None:
    assert parse_time(text, "--time") == milliseconds


@pytest.mark.parametrize("text", ["", "soon", "1970-13-01", "1.5"])
def test_bad_times_name_the_option(text: str) -> None:
    with pytest.raises(click.UsageError, match="--time"):
        parse_time(text, "--time")


def test_partitions() -> None:
    assert parse_partitions("0,2, 5-7", "--partition") == {0, 2, 5, 6, 7}
    for bad in ("", "a", "3-1", "-1", "0-999999999", "99999999999"):
        with pytest.raises(click.UsageError, match=f"^--partition {re.escape(bad)}: "):
            parse_partitions(bad, "--partition")


def test_assignments() -> None:
    assert parse_assignment("1:2,2:1") == [[1, 2], [2, 1]]
    with pytest.raises(click.UsageError, match="not of the form"):
        parse_assignment("1:2,,")


def test_overrides() -> None:
    assert parse_overrides(("a=b=c", " d = e ")) == {"a": "b=c", "d": "e"}
    for bad in ("a", "=b"):
        with pytest.raises(ConfigError, match="name=value"):
            parse_overrides((bad,))


def test_client_settings_layers(tmp_path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("client.id=file\nacks=1\nlinger.ms=3\n")
    settings = client_settings("h:1", str(path), ("linger.ms=5",), acks="all", partitioner=None)
    assert settings["bootstrap.servers"] == "h:1"
    assert (settings["client.id"], settings["linger.ms"], settings["acks"]) == ("file", "5", "all")
    assert "partitioner" not in settings


def test_named_properties_keep_spaces_and_read_escapes() -> None:
    assert named_properties(["key.separator= ", "null.marker=\\t"], _READER, "--x") == {
        "key.separator": " ",
        "null.marker": "\t",
    }
    with pytest.raises(click.UsageError, match=r"key\.seperator: not known; the names are parse\.key"):
        named_properties(["key.seperator=:"], _READER, "--x")


def parser(**properties: str) -> LineParser:
    return LineParser({**_READER, **{name.replace("_", "."): value for name, value in properties.items()}})


def test_a_plain_line_is_a_value() -> None:
    assert parser()(b"a\tb") == ParsedRecord(b"a\tb")
    assert parser()(b"") == ParsedRecord(b"")


def test_keys_headers_and_null() -> None:
    line = b"h1:v1,h2:NULL\tk:v:w"
    parse = parser(parse_key="true", key_separator=":", parse_headers="true", null_marker="NULL")
    assert parse(line) == ParsedRecord(b"v:w", b"k", [("h1", b"v1"), ("h2", None)])
    assert parse(b"NULL\tNULL:NULL") == ParsedRecord(None, None, None)


def test_what_is_missing_in_a_line_is_said_or_ignored() -> None:
    with pytest.raises(BadRecordText, match=r"no key\.separator '\\t'"):
        parser(parse_key="true")(b"no key")
    with pytest.raises(BadRecordText, match=r"no headers\.delimiter"):
        parser(parse_headers="true")(b"no headers")
    with pytest.raises(BadRecordText, match=r"no headers\.key\.separator"):
        parser(parse_headers="true")(b"bad\tvalue")
    with pytest.raises(BadRecordText, match="not UTF-8"):
        parser(parse_headers="true")(b"\xff:x\tvalue")
    lenient = parser(parse_key="true", parse_headers="true", ignore_error="true")
    assert lenient(b"no key") == ParsedRecord(b"no key")
    with pytest.raises(click.UsageError, match="must not be empty"):
        parser(key_separator="")


def test_places_to_start() -> None:
    assert Start("latest").place == "latest"
    assert Start("17").offset == 17
    assert Start("-5").offset == -5
    assert Start("@1970-01-01T00:00:01Z").timestamp_ms == 1000
    with pytest.raises(click.UsageError, match="--offset sometime"):
        Start("sometime")


def one_record(key: bytes = b"k", value: bytes | None = None, headers: Headers | None = None) -> Record:
    batch = OpenBatch(1 << 20)
    batch.append(1234, key, value, headers or [("a", b"1"), ("b", None)])
    data = batch.build(0, None)
    builder = kernel.ColumnBuilder(True)
    builder.add_batch(data, 0, kernel.read_header(data), None)
    return Record(builder.finish(), 0, "t", 3)


def test_formats_are_kafkas() -> None:
    every = [f"print.{name}=true" for name in ("timestamp", "partition", "offset", "headers", "key")]
    assert make_formatter(())(one_record()) == b"null\n"
    assert (
        make_formatter(tuple(every))(one_record()) == b"CreateTime:1234\tPartition:3\tOffset:0\ta:1,b:null\tk\tnull\n"
    )
    chosen = ("print.key=true", "key.separator= | ", "line.separator=;", "null.literal=NIL")
    assert make_formatter(chosen)(one_record()) == b"k | NIL;"
    assert make_formatter(("print.value=false", "print.key=true"))(one_record()) == b"k\n"
    assert make_formatter(tuple(every), escapes=True)(one_record()) == make_formatter(tuple(every))(one_record())
    with pytest.raises(click.UsageError, match="must be true or false"):
        make_formatter(("print.key=yes",))


def test_a_terminal_gets_no_control_characters_of_records() -> None:
    raw = b"\x1b[2J\r" + "\u202ea".encode() + b"\xff\n\t."
    every = ("print.key=true", "print.headers=true", "headers.separator=\x1b")
    record = one_record(key=raw, value=raw, headers=[("\x07", raw)])
    escaped = rb"\x1b[2J\r\u202ea\xff" + b"\n\t."
    # What the user asks for stays.
    shown = b"\t".join([rb"\x07:" + escaped, escaped, escaped]) + b"\n"
    assert make_formatter(every, escapes=True)(record) == shown
    assert make_formatter(every)(record) == b"\t".join([b"\x07:" + raw, raw, raw]) + b"\n"


def test_an_action_may_be_a_flag_anywhere() -> None:
    seen: list[tuple[str, str]] = []

    @click.group(cls=ActionGroup)
    def things() -> None:
        pass

    for name in ("create", "list"):

        @things.command(name)
        @click.option("--topic")
        def action(topic: str, name: str = name) -> None:
            seen.append((name, topic))

    for arguments in (["create", "--topic", "t"], ["--create", "--topic", "t"], ["--topic", "t", "--create"]):
        things.main(arguments, standalone_mode=False)
    assert seen == [("create", "t")] * 3
    with pytest.raises(click.UsageError, match="one action only"):
        things.main(["--create", "--list"], standalone_mode=False)
