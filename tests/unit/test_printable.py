"""Control characters in text of others, wherever it is shown: logs, tables, messages of commands, errors, JSON."""

from __future__ import annotations

import io
import json
import logging
from types import SimpleNamespace

import click
import pytest

from spark_kafkalite.broker import event_log
from spark_kafkalite.cli import output
from spark_kafkalite.cli.main import run
from spark_kafkalite.cli.record_text import record_from_json, record_to_json
from spark_kafkalite.errors import GroupIdNotFound, KafkaliteError
from spark_kafkalite.model import Record, TimestampType
from spark_kafkalite.printable import printable, printable_json
from spark_kafkalite.spark.conditions import one_line

HOSTILE = "a\x1b[31mb\rc\x07d\u202ee\nf\x9bg\u2028h\ud800i"
SHOWN = "a\\x1b[31mb\\rc\\x07d\\u202ee\\nf\\x9bg\\u2028h\\ud800i"


def test_control_characters_are_escaped_and_others_stay() -> None:
    assert printable(HOSTILE) == SHOWN
    for text in ("", "plain", "Grüße, 東京 🙂", "C:\\new", "no\u00a0break"):
        assert printable(text) == text
    assert printable("\U000e0001") == "\\U000e0001"


def test_a_log_line_is_one_line_with_its_time_in_utc_and_its_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(event_log.sys, "stderr", stream)
    package = logging.getLogger("spark_kafkalite")
    before = package.handlers[:], package.propagate, package.level
    try:
        event_log.configure_logging("INFO")
        logger = logging.getLogger("spark_kafkalite.broker.test")
        record = logger.makeRecord(logger.name, logging.INFO, "f", 1, "group %s", (HOSTILE,), None)
        record.created, record.msecs = 86_400.25, 250.0
        logger.handle(record)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.exception("failed")
    finally:
        package.handlers[:], package.propagate = before[:2]
        package.setLevel(before[2])
    first, *others = stream.getvalue().splitlines()
    assert first == f"1970-01-02T00:00:00.250Z INFO spark_kafkalite.broker.test: group {SHOWN}"
    # A traceback keeps its lines, and nothing else of the kind.
    assert others[0].endswith(" ERROR spark_kafkalite.broker.test: failed") and "Traceback" in others[1]
    assert not any(character in stream.getvalue() for character in "\x1b\r\x07\u202e\x9b\u2028\ud800")


def test_tables_and_messages_of_commands_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["GROUP"], [[HOSTILE]])
    output.warn(HOSTILE)
    output.said(HOSTILE)
    found = capsys.readouterr()
    assert found.out == f"GROUP\n{SHOWN}\n"
    assert found.err == f"kafkalite: warning: {SHOWN}\nkafkalite: {SHOWN}\n"


@pytest.mark.parametrize("kind", [KafkaliteError, click.ClickException, click.UsageError])
def test_errors_of_commands_are_escaped(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise kind("group a\x1b[31m\u202e")

    monkeypatch.setattr("spark_kafkalite.cli.main.kafkalite.main", fails)
    assert run([]) in (1, 2)
    assert "group a\\x1b[31m\\u202e\n" in capsys.readouterr().err


def test_texts_of_errors_are_escaped_and_keep_their_lines() -> None:
    assert str(GroupIdNotFound("group a\x1b\u202e\nis gone")) == "group a\\x1b\\u202e\nis gone"
    assert one_line("a\x1b\nb") == "a\\x1b b"


def test_json_says_the_same_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"key": f"{HOSTILE}\U000e0001 東京"}
    output.print_json(value)
    printed = capsys.readouterr().out.removesuffix("\n")
    assert printed.isprintable() and json.loads(printed) == value
    assert printable_json('{"a":"b"}') == '{"a":"b"}'
    data = "a\u202e\x9bb".encode()
    columns = SimpleNamespace(
        offset_at=lambda _: 0,
        timestamp_at=lambda _: 0,
        timestamp_type_at=lambda _: TimestampType.CREATE_TIME,
        key_at=lambda _: b"\x1b",
        value_at=lambda _: data,
        headers_at=lambda _: (),
    )
    line = record_to_json(Record(columns, 0, "t", 0))
    assert line.isprintable()
    assert (record_from_json(line.encode()).key, record_from_json(line.encode()).value) == (b"\x1b", data)
