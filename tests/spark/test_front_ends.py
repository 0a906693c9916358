"""Front ends other than classic PySpark: spark-sql, spark-shell, declarative pipelines and Spark Connect, as
docs/spark.md shows them. With KAFKALITE_SOAK=1, but for the test that the page's table has every feature.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_kafkalite import Producer
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import java_problem
from tests.paths import PROJECT
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from . import connect_features, recipes

pytestmark = [pytest.mark.any_spark, pytest.mark.timeout(900)]

_PAGE = PROJECT / "docs" / "spark.md"
_CLIENT = str(Path(connect_features.__file__))
_BROKERS = "127.0.0.1:9092"


@pytest.fixture(autouse=True)
def no_query_is_left() -> None:
    """In place of the one for all tests here, which starts a session."""


def section(name: str) -> str:
    """Return a section of the page, as a heading of the second level begins it."""
    return _PAGE.read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]


def block(language: str) -> str:
    """Return the one block of a language in the section on front ends."""
    [text] = re.findall(
        rf"^```{language}\n(.*?)^```$", section("SQL, Scala and pipelines"), flags=re.MULTILINE | re.DOTALL
    )
    return str(text)


def connect_table() -> dict[str, str]:
    """Return the second column of the page's table by the first."""
    rows = [line.strip("|").split(" | ") for line in section("Spark Connect").splitlines() if line.startswith("| ")]
    return {name.strip(): result.strip() for name, result, *_ in rows[1:]}


def test_the_page_names_each_feature_that_is_tried_over_connect() -> None:
    assert list(connect_table()) == list(connect_features.TRIES)
    assert set(connect_table().values()) == {"works", "needs classic Spark"}


if SOAK:

    @pytest.fixture
    def server(tmp_path: Path) -> Iterator[BrokerProcess]:
        if (problem := java_problem()) is not None:
            pytest.skip(problem)
        with BrokerProcess(tmp_path / "broker") as running:
            yield running

    @pytest.fixture
    def events(server: BrokerProcess) -> str:
        """The brokers, whose topic ``events`` has two records."""
        with Producer({"bootstrap.servers": server.bootstrap}) as producer:
            for value in (b"one", b"two"):
                producer.send("events", value).result(PATIENCE_S)
        return server.bootstrap

    def run(directory: Path, *command: str, typed: str | None = None) -> str:
        """Run a program of Spark's, and return what it prints."""
        apart = os.pathsep.join(map(str, recipes.APART))
        variables = recipes.plain_environment() | {"PYTHONPATH": f"{PROJECT}{os.pathsep}{apart}"}
        variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        program = str(Path(pyspark.__file__).parent / "bin" / command[0])
        done = subprocess.run(
            [program if not command[0].startswith("/") else command[0], *command[1:]],
            cwd=directory, env=variables, input=typed, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}{done.stderr[-6000:]}"
        return done.stdout

    def written(bootstrap: str, topic: str) -> list[str]:
        """Return the values of a topic, sorted."""
        command = [sys.executable, "-m", "spark_kafkalite.cli", "consume", "--bootstrap-server", bootstrap]
        command += ["--topic", topic, "--from-beginning", "--until-end"]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return sorted(done.stdout.splitlines())

    def test_spark_sql(events: str, tmp_path: Path) -> None:
        text = block("sql").replace(_BROKERS, events)
        printed = run(tmp_path, "spark-sql", "--master", "local[2]", "--conf", "spark.ui.enabled=false", "-e", text)
        assert printed.splitlines()[-2:] == ["0\tone", "1\ttwo"]
        assert written(events, "events") == ["from SQL", "one", "two"]

    def test_spark_shell(events: str, tmp_path: Path) -> None:
        text = block("scala").replace(_BROKERS, events).replace("/checkpoints", str(tmp_path))
        run(tmp_path, "spark-shell", "--master", "local[2]", "--conf", "spark.ui.enabled=false", typed=text)
        assert written(events, "scala-copy") == ["one", "one", "two", "two"]

    @pytest.mark.skipif(not recipes.APART[0].is_dir(), reason="make setup-recipes")
    def test_a_declarative_pipeline(events: str, tmp_path: Path) -> None:
        (tmp_path / "transformations").mkdir()
        (tmp_path / "storage").mkdir()
        spec = block("yaml").replace("/pipelines", str(tmp_path))
        (tmp_path / "spark-pipeline.yml").write_text(spec)
        [text] = re.findall(
            r"^```python\n(.*?)^```$", section("SQL, Scala and pipelines"), flags=re.MULTILINE | re.DOTALL
        )
        (tmp_path / "transformations" / "events.py").write_text(text.replace(_BROKERS, events))
        run(tmp_path, "spark-pipelines", "run", "--remote", "local[2]", "--conf", "spark.ui.enabled=false")
        assert written(events, "pipeline-copy") == ["one", "two"]

    @pytest.mark.skipif(not recipes.APART[0].is_dir(), reason="make setup-recipes")
    def test_what_works_over_connect(server: BrokerProcess, tmp_path: Path) -> None:
        arguments = [sys.executable, _CLIENT, server.bootstrap, str(tmp_path)]
        printed = run(tmp_path, "/usr/bin/env", "SPARK_REMOTE=local[2]", *arguments)
        found = json.loads(printed.splitlines()[-1])
        for name, result in connect_table().items():
            expected = "works" if result == "works" else "classic Spark"
            assert expected in found[name], (name, found[name])
        # Spark Connect keeps plans, too.
        assert found["newer"] == 0
