"""Tables of loads as Spark 4.2 with Delta Lake reads and changes them. Delta Lake has no jars for Spark 4.3."""

from __future__ import annotations

import json
import subprocess
import sys
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


def spark(table: Path, work: Path, *change: str) -> dict[str, Any]:
    """Run the program that has Delta Lake; return what it has read before it changed the table."""
    program = [sys.executable, "-m", "tests.spark.delta_app", str(table), str(work), *change]
    done = subprocess.run(program, cwd=PROJECT, capture_output=True, text=True, timeout=2 * JOB_PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_spark_reads_optimizes_and_restores_a_table(tmp_path: Path) -> None:
    destination = Destination(tmp_path / "d")
    narrow = {"value": "json", "value_schema": "id long"}
    wide = {"value": "json", "value_schema": "id long, name string"}
    destination.load({"t": 4}, days=2, layout=narrow, rows={"t": [{"id": 1}, {"id": 2}]})
    destination.load({"t": 2}, layout=wide, rows={"t": [{"id": 3, "name": "c"}, {"id": 4, "name": "d"}]})
    destination.load({"t": 2}, days=2, layout=narrow, rows={"t": [{"id": 5}]})
    table = tmp_path / "d/t"
    found = spark(table, tmp_path / "first", "optimize")
    assert found["offsets"] == list(range(8))
    assert found["names"] == ["c", "d"]
    assert found["day"] == [2, 3, 7]
    # By the partition's value, and by the statistics of the files.
    assert (found["files_of_day"], found["files_of_offset"]) == (2, 1)
    # From the second commit on.
    assert found["streamed"] == [4, 5, 6, 7]
    assert [text.rpartition(": ")[2] for text in found["metadata"]] == ["4 records", "2 records", "2 records"]

    destination.load({"t": 1}, layout=narrow, rows={"t": [{"id": 6}]})
    found = spark(table, tmp_path / "optimized", "restore")
    assert found["offsets"] == list(range(9))
    assert found["operations"].count("OPTIMIZE") == 1

    destination.load({"t": 1}, layout=narrow, rows={"t": [{"id": 7}]})
    assert spark(table, tmp_path, "restored")["offsets"] == [0, 1, 2, 3, 4, 5, 6, 7, 9]
