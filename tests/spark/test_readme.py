"""What README.md shows works as it stands there: a newcomer's first row, a stream, a load and a replay.

So does the test of a Spark job in docs/testing.md.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_kafkalite.jobs import hadoop_load, replay
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from tests.paths import PROJECT

from .class_archive import java_environment
from .recipes import plain_environment
from .topics import QUERY_PATIENCE_S, Topics

pytestmark = pytest.mark.any_spark
README = (PROJECT / "README.md").read_text()


def block(section: str, language: str) -> str:
    """Return the only block of a language in a section."""
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0]
    [found] = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text)
    return str(found)


def commands(section: str) -> list[str]:
    lines = block(section, "console").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def test_a_newcomer_sees_a_first_row_and_streams_it_into_files(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    start, write = commands("A first row")
    assert start == "kafkalite broker &" and "--bootstrap-server" not in write
    program = block("A first row", "python") + block("Stream", "python")
    # A program that ends.
    program = program.replace("query.awaitTermination()", "query.processAllAvailable()\nquery.stop()")
    (tmp_path / "first.py").write_text(program.replace("127.0.0.1:9092", address))
    script = f"""
        set -m
        kafkalite broker --override listeners=PLAINTEXT://{address} > broker.log &
        trap 'kill %1; wait' EXIT
        until grep -q " ready on " broker.log || ! kill -0 %1; do sleep 0.1; done
        {write} --bootstrap-server {address} && python first.py
    """
    environment = (
        plain_environment()
        | java_environment()
        | {"PATH": f"{Path(sys.executable).parent}:{plain_environment()['PATH']}"}
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=QUERY_PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert block("A first row", "text") in done.stdout
    assert "kafkalite broker 1 ready on" in block("A first row", "console")
    assert "kafkalite broker 1 ready on" in (tmp_path / "broker.log").read_text()
    assert (tmp_path / "kafkalite-data" / "events-0").is_dir()
    assert list((tmp_path / "out").glob("*.parquet"))


def test_the_load_and_the_replay_run(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source, target = topics.new(), topics.new(name="again")
    topics.fill(source, ["one", "two"])

    def run(line: str, job: click.Command) -> str:
        words = shlex.split(line)
        assert words[:3] == ["kafkalite", "jobs", "run"]
        named = {"events": source, "events-again": target, "fix-42": target}
        given = [named.get(word, word) for word in words[4:]]
        result = CliRunner().invoke(job, [*given, "--bootstrap-server", topics.bootstrap])
        assert result.exit_code == 0, result.output
        return result.output

    [load] = commands("Load into files, once")
    assert "loaded 2 records" in run(load, hadoop_load.main)
    create, again = commands("Replay a past range")
    assert create == "kafkalite topics create --topic events-again"
    assert "replayed 2 records" in run(again, replay.main)
    assert "0 records" in run(again, replay.main) and topics.values(target) == ["one", "two"]


def test_the_test_of_a_job_passes(spark: SparkSession, kafkalite_broker: BrokerProcess, tmp_path: Path) -> None:
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", (PROJECT / "docs" / "testing.md").read_text())
    session, job = [block for block in blocks if "spark." in block and "BrokerProcess" not in block]
    names: dict[str, Any] = {}
    exec(job, names)
    names["test_a_second_run_copies_only_what_is_new"](spark, kafkalite_broker, tmp_path)
    # The settings that the first program has; the session of this run is made with others.
    settings = re.findall(r'\.config\("(.*?)"', block("A first row", "python"))
    assert set(settings) < set(re.findall(r'\.config\("(.*?)"', session))
    compile(session, "conftest.py", "exec")
