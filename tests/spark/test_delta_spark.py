"""Tables of loads as Spark 4.2 with Delta Lake reads and changes them. Delta Lake has no jars for Spark 4.3."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import jars
from tests.paths import PROJECT
from tests.unit.jobs.tables.table_runs import Destination

from .job_processes import JOB_PATIENCE_S


@pytest.fixture(autouse=True)
def delta_jars() -> None:
    if (reason := jars.available(jars.DELTA_SPARK)) is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def no_query_is_left() -> None:
    """Start no session here: the program has one of its own."""


Delta = Callable[[str], dict[str, Any]]


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[Delta]:
    """The program that has Delta Lake, with the table ``t`` of the destination ``d``; it runs a command."""
    program = [sys.executable, "-m", "tests.spark.delta_app", str(tmp_path / "d/t"), str(tmp_path / "work")]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            program, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        given, printed = process.stdin, process.stdout

        def run(command: str) -> dict[str, Any]:
            given.write(f"{command}\n")
            given.flush()
            line = printed.readline()
            assert line, (tmp_path / "log").read_text()[-3000:]
            found: dict[str, Any] = json.loads(line)
            return found

        try:
            yield run
            given.close()
            assert process.wait(JOB_PATIENCE_S) == 0
        finally:
            process.kill()


def test_spark_reads_optimizes_and_restores_a_table(tmp_path: Path, delta: Delta) -> None:
    destination = Destination(tmp_path / "d")
    narrow = {"value": "json", "value_schema": "id long"}
    wide = {"value": "json", "value_schema": "id long, name string"}
    destination.load({"t": 4}, days=2, layout=narrow, rows={"t": [{"id": 1}, {"id": 2}]})
    destination.load({"t": 2}, layout=wide, rows={"t": [{"id": 3, "name": "c"}, {"id": 4, "name": "d"}]})
    destination.load({"t": 2}, days=2, layout=narrow, rows={"t": [{"id": 5}]})
    found = delta("read")
    assert found["offsets"] == list(range(8))
    assert found["names"] == ["c", "d"]
    assert found["day"] == [2, 3, 7]
    # By the partition's value, and by the statistics of the files.
    assert (found["files_of_day"], found["files_of_offset"]) == (2, 1)
    # From the second commit on.
    assert delta("stream")["offsets"] == [4, 5, 6, 7]
    assert [text.rpartition(": ")[2] for text in found["metadata"]] == ["4 records", "2 records", "2 records"]

    delta("optimize")
    destination.load({"t": 1}, layout=narrow, rows={"t": [{"id": 6}]})
    found = delta("read")
    assert found["offsets"] == list(range(9))
    assert found["operations"].count("OPTIMIZE") == 1
    assert delta("stream")["offsets"] == [4, 5, 6, 7, 8]

    delta("restore")
    destination.load({"t": 1}, layout=narrow, rows={"t": [{"id": 7}]})
    # Without a stream: Delta Lake ends one where files were removed.
    assert delta("read")["offsets"] == [0, 1, 2, 3, 4, 5, 6, 7, 9]
