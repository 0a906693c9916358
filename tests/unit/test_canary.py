"""The search for known secrets can fail: it finds each planted leak, in every form and every place."""

import base64
import gzip
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass

import pytest

from spark_kafkalite.errors import ConfigError
from tests import canary


@pytest.mark.parametrize("secret", canary.SECRETS.values(), ids=canary.SECRETS.keys())
@pytest.mark.parametrize(
    "form",
    [
        str,
        repr,
        urllib.parse.quote,
        lambda text: text.encode().hex(),
        lambda text: base64.b64encode(text.encode()).decode(),
        lambda text: base64.b64encode(f"a{text}".encode()).decode(),
        lambda text: base64.b64encode(f"ab{text}".encode()).decode(),
    ],
)
def test_every_form_is_found(secret, form):
    assert canary.leaks(f"before {form(secret)} after")


def test_harmless_text_is_not():
    assert canary.leaks("sasl.password=*********(redacted)") == []


def test_what_exceptions_hide_is_found():
    def texts(error):
        return [text for text in canary.exception_texts(error) if canary.leaks(text)]

    def raised(secret_in):
        try:
            try:
                raise ValueError(canary.PASSWORD if secret_in == "context" else "x")
            except ValueError as cause:
                if secret_in == "note":
                    cause.add_note(canary.PASSWORD)
                raise ConfigError("x", canary.PASSWORD if secret_in == "kafka_text" else "x") from None
        except ConfigError as error:
            return error

    assert [where for where in ("context", "note", "kafka_text", "nowhere") if texts(raised(where))] == [
        "context",
        "note",
        "kafka_text",
    ]


def test_texts_of_objects_are_found_at_any_depth():
    @dataclass
    class Holder:
        password: str

    Holder.__module__ = "spark_kafkalite.example"
    assert any(map(canary.leaks, canary.object_texts({"a": [Holder(canary.PASSWORD)]})))
    assert not any(map(canary.leaks, canary.object_texts({"a": [canary.PASSWORD]})))


def test_files_are_searched(tmp_path):
    (tmp_path / "plain").write_text(f"a {canary.TOKEN}")
    (tmp_path / "packed").write_bytes(gzip.compress(canary.KEY.encode()))
    (tmp_path / "clean").write_text("a")
    assert sorted(canary.file_leaks(tmp_path)) == ["packed", "plain"]
    assert sorted(canary.file_leaks(tmp_path, without=[tmp_path / "plain"])) == ["packed"]


def test_command_lines_are_searched():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()', sys.argv[1]])"
    with subprocess.Popen(
        [sys.executable, "-c", code, canary.PASSWORD], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        # The child inherits the pipe: it ends when this is closed.
        lines = canary.command_lines(process.pid)
        assert process.pid in lines
        assert canary.leaks(lines[process.pid])
        assert process.stdin is not None
        process.stdin.close()
