"""The recipes of docs/spark.md for clusters, their commands run as they stand there: on Spark's standalone cluster, on
YARN and through Spark Connect. With KAFKALITE_SOAK=1.

What an environment holds is what ``pip install`` would put into it; the clusters' own Python has nothing of it.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import java_problem
from tests.conftest import fetch_or_skip
from tests.lab import jars
from tests.seeds import SOAK

from . import deployed_app, deployments, recipes
from .topics import last_line

pytestmark = [pytest.mark.any_spark, pytest.mark.timeout(900)]

_APP = str(Path(__file__).with_name("deployed_app.py"))
_ERRORS = str(Path(__file__).with_name("connect_errors.py"))
_COUNTER = itertools.count()
# Without pip, which nobody calls here.
_VENV = {"python3 -m venv": f"{sys.executable} -m venv --without-pip"}
_MASTER = "spark://10.0.0.7:7077"


@pytest.fixture(autouse=True)
def no_query_is_left() -> None:
    """In place of the one for all tests here, which starts a session."""


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    if (problem := java_problem()) is not None:
        pytest.skip(problem)
    for directory in recipes.APART:
        if not directory.is_dir():
            pytest.skip(f"{directory} is missing: make setup-{directory.name}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def application(server: BrokerProcess, tmp_path: Path) -> list[str]:
    """The arguments of the application: topics and a checkpoint of its own."""
    number = next(_COUNTER)
    topics = [f"recipe-{number}", f"recipe-{number}-copy"]
    with Admin({"bootstrap.servers": server.bootstrap}) as admin:
        for topic in topics:
            admin.create_topic(topic, 2)
    return [server.bootstrap, *topics, str(tmp_path / "checkpoint")]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with deployments.standalone(tmp_path_factory.mktemp("standalone")) as master:
        yield master


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    for jar_set in (jars.HDFS_MINI_CLUSTER, jars.YARN_ADDITIONS):
        fetch_or_skip(jar_set)
    with deployments.yarn(tmp_path_factory.mktemp("yarn")) as conf:
        yield conf


def environments_of_tasks(printed: str) -> set[Path]:
    """Return the environments that the application's tasks ran in, after a look that every record came on each way."""
    [line] = [line for line in printed.splitlines() if line.startswith('{"read"')]
    found: dict[str, Any] = json.loads(line)
    assert (found["read"], found["streamed"]) == (deployed_app.RECORDS, deployed_app.RECORDS)
    environments = set()
    for python, package in found["tasks"]:
        environment = Path(python).parents[1]
        assert Path(package).is_relative_to(environment)
        environments.add(environment)
    return environments


def _archive(application: list[str], **settings: str) -> dict[str, str]:
    """What is changed in the recipes with an archive."""
    return _VENV | {
        # Compressing takes longest.
        "venv-pack -q": "venv-pack -q --compress-level 0",
        "spark-submit": deployments.spark_submit(**settings),
        "job.py": f"{_APP} {' '.join(application)}",
    }


if SOAK:

    def test_an_environment_archive(standalone: str, application: list[str], tmp_path: Path) -> None:
        steps = recipes.commands("An environment archive")
        printed = recipes.run(steps, tmp_path, _archive(application) | {_MASTER: standalone})
        for environment in environments_of_tasks(printed):
            # What each executor has unpacked, and not the environment that the archive was made of.
            assert re.fullmatch(r"worker[12]", environment.parents[2].name), environment

    def test_standalone(standalone: str, application: list[str], tmp_path: Path) -> None:
        environment = tmp_path / "kafkalite"
        changes = _VENV | {
            "/opt/kafkalite": str(environment),
            _MASTER: standalone,
            "spark-submit": deployments.spark_submit(),
            "job.py": f"{_APP} {' '.join(application)}",
        }
        printed = recipes.run(recipes.commands("Standalone"), tmp_path, changes)
        assert environments_of_tasks(printed) == {environment}

    def test_doctor_names_what_executors_lack(standalone: str, application: list[str], tmp_path: Path) -> None:
        bare = tmp_path / "bare"
        settings = " ".join(f"--conf '{name}={value}'" for name, value in deployments.SMALL.items())
        command = (
            f"PYSPARK_PYTHON={bare}/bin/python {sys.executable} -m spark_kafkalite.cli doctor --spark --json "
            f"--master {standalone} --bootstrap-server {application[0]} {settings} > found.json || test $? = 1"
        )
        recipes.run([f"{sys.executable} -m venv --without-pip {bare}", command], tmp_path, {})
        found = json.loads((tmp_path / "found.json").read_text())
        lacking = [problem for problem in found["problems"] if f"{bare}/bin/python has no spark-kafkalite" in problem]
        assert len(lacking) == 2, found

    @pytest.mark.hdfs
    @pytest.mark.parametrize("mode", ["client", "cluster"])
    def test_yarn(yarn: Path, application: list[str], tmp_path: Path, mode: str) -> None:
        steps = [*recipes.commands("An environment archive")[:-1], *recipes.commands("YARN")]
        # The nodes have Spark's jars.
        changes = _archive(
            application, spark_yarn_jars=f"local:{deployments.HOME}/jars/*", spark_executor_instances="1"
        )
        changes["--deploy-mode cluster"] = f"--deploy-mode {mode}"
        printed = recipes.run(steps, tmp_path, changes, {"HADOOP_CONF_DIR": str(yarn)})
        for environment in environments_of_tasks(printed if mode == "client" else deployments.output_of_yarn(yarn)):
            assert environment.is_relative_to(yarn.parent / "local"), environment

    def test_connect(application: list[str], tmp_path: Path) -> None:
        """The client has PySpark and what Connect needs, and not the package."""
        environment, client = tmp_path / "kafkalite", tmp_path / "client"
        *setup, serve, use = recipes.commands("Spark Connect")
        changes = _VENV | {
            "/opt/kafkalite": str(environment),
            "$SPARK_HOME/sbin/start-connect-server.sh": f"{deployments.HOME}/sbin/start-connect-server.sh --wait",
            _MASTER: "'local[2]'",
            "SPARK_REMOTE": f"{client}/bin/python -c 'import spark_kafkalite' 2>no-package; SPARK_REMOTE",
            "python job.py": f"{client}/bin/python {_APP} {' '.join(application)}",
        }
        recipes.run(setup, tmp_path, changes)
        recipes.run([f"{sys.executable} -m venv --without-pip {client}"], tmp_path, {})
        recipes.install(client, "pyspark[connect]")
        for old, new in changes.items():
            serve = serve.replace(old, new)
        with deployments.connect_server(tmp_path / "server", serve) as remote:
            printed = recipes.run([use], tmp_path, changes | {"sc://10.0.0.7:15002": remote})
            assert environments_of_tasks(printed) == {environment}
            assert "No module named 'spark_kafkalite'" in (tmp_path / "no-package").read_text()
            with socket.socket() as held:
                held.bind(("127.0.0.1", 0))
                nobody = f"127.0.0.1:{held.getsockname()[1]}"
                arguments = f"{_ERRORS} {application[0]} {application[1]} {nobody} {tmp_path}/wrong"
                printed = recipes.run([f"{client}/bin/python {arguments}"], tmp_path, {}, {"SPARK_REMOTE": remote})
        told = {name: last_line(Exception(text)) for name, text in json.loads(printed.splitlines()[-1]).items()}
        assert told == {
            "no broker": f"[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers={nobody}: no broker answers; tried "
            f"{nobody}: connection refused; start the broker, or correct the address",
            "unknown option": "[KAFKALITE_UNKNOWN_OPTION] startingoffset=earliest: there is no such option; did you "
            "mean startingOffsets?",
            "stream": "[KAFKALITE_INVALID_OPTION] endingOffsets=latest: a stream has no end; leave it out, or use "
            "spark.read",
        }
