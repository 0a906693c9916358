"""The first month of docs/warehouse.md runs as it is printed, on a broker of its own."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite.cli import main
from spark_kafkalite.processes.cluster import BrokerProcess
from tests.paths import PROJECT

pytestmark = [pytest.mark.spark, pytest.mark.any_spark]

SECTION = (PROJECT / "docs" / "warehouse.md").read_text().split("\n## A first month\n")[1].split("\n## ")[0]


def test_the_first_month(
    spark: SparkSession, kafkalite_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for language, text in re.findall(r"(?ms)^```(toml|console|python)\n(.*?)^```$", SECTION):
        if language == "toml":
            Path("orders.toml").write_text(text)
        elif language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(text, {})
            printed.append(said.getvalue())
        else:
            for part in re.split(r"(?m)^(?=\$ )", text)[1:]:
                command, _, expected = part.removeprefix("$ ").partition("\n")
                said = run(command, kafkalite_broker.bootstrap).replace(f"file://{tmp_path}/", "file:///data/")
                # The page leaves out what it has three dots for, at the beginning.
                assert said.endswith(expected.removeprefix("...\n")), (command, said)
                assert expected or not command.startswith("kafkalite jobs")
    rows, merged = printed
    assert rows == "0 {'id': 1, 'amount': 2.5}\n1 {'id': 2, 'amount': 4.0}\n"
    assert merged == "3 files merged\n"


def run(command: str, bootstrap: str) -> str:
    """Run a command of the page in this process, and return what it prints."""
    if command.startswith("mv "):
        shutil.move(*shlex.split(command)[1:])
        return ""
    given = None
    if command.startswith("printf "):
        text, command = command.removeprefix("printf ").split(" | ")
        given = shlex.split(text)[0].replace("\\n", "\n")
    words = shlex.split(command)[1:]
    if "--bootstrap-server" in words:
        words[words.index("--bootstrap-server") + 1] = bootstrap
    else:
        words += ["--bootstrap-server", bootstrap]
    with CliRunner().isolation(input=given) as (_, _, said):
        main.run(words)
        # What a terminal shows as a bar.
        return re.sub(r"(?m)^(loading|counting|reading): .*\n", "", said.getvalue().decode())
