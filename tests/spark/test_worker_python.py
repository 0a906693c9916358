"""A virtual environment's Python that is started by its path: what Spark takes then, and what repairs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.java_process import java_problem
from tests.paths import PROJECT
from tests.patience import PATIENCE_S

from .class_archive import java_environment
from .recipes import plain_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_APP = str(Path(__file__).with_name("environment_app.py"))


@pytest.fixture(autouse=True)
def no_query_is_left() -> None:
    """In place of the one for all tests here, which starts a session."""


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The Python of an environment that has everything, and variables whose ``python3`` is that of a bare one."""
    if (problem := java_problem()) is not None:
        pytest.skip(problem)
    directory = tmp_path_factory.mktemp("environments")
    for name in ("full", "bare"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory / name)], check=True)
    [packages] = directory.glob("full/lib/python3*/site-packages")
    paths = [str(PROJECT), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "everything.pth").write_text("\n".join(paths))
    path = os.pathsep.join([str(directory / "bare" / "bin"), os.environ["PATH"]])
    yield (
        directory / "full" / "bin" / "python",
        {
            **plain_environment(),
            **java_environment(),
            "PATH": path,
        },
    )


def run(directory: Path, variables: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    # Not in the checkout: Python would find the package in its directory.
    return subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, timeout=10 * PATIENCE_S, check=False
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.mark.versions
def test_the_listener_repairs_the_session(environments, server: BrokerProcess, tmp_path: Path) -> None:
    python, variables = environments
    with Admin({"bootstrap.servers": server.bootstrap}) as admin:
        admin.create_topic("lines", 2)
        admin.create_topic("copy", 1)
    with Producer({"bootstrap.servers": server.bootstrap}) as producer:
        for value in (b"one", b"three", b"two"):
            producer.send("lines", value)
    arguments = [server.bootstrap, "lines", "copy", str(tmp_path / "checkpoint")]
    done = run(tmp_path, variables, str(python), _APP, *arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "DATA_SOURCE_NOT_FOUND" in found.pop("before")
    assert found == {"read": ["one", "three", "two"], "streamed": ["one", "three", "two"]}


@pytest.mark.any_spark
def test_the_doctor_reports_what_spark_takes(environments, server: BrokerProcess, tmp_path: Path) -> None:
    python, variables = environments
    command = [str(python), "-m", "spark_kafkalite.cli", "doctor", "--spark", "--json"]
    done = run(
        tmp_path, variables, *command, "--bootstrap-server", server.bootstrap, "--conf", "spark.ui.enabled=false"
    )
    assert done.returncode == 1, done.stderr[-4000:]
    found = json.loads(done.stdout)
    bare = variables["PATH"].split(os.pathsep)[0]
    assert found["planning_python"]["path"] == f"{bare}/python3"
    assert "spark_kafkalite" in found["planning_python"]["missing"]
    [problem] = found["problems"]
    assert problem.startswith(
        f"driver: Spark starts {bare}/python3 (python3 on the PATH, PYSPARK_PYTHON is not set) for "
        'format("kafkalite"), and it has no spark_kafkalite, '
    )
    assert problem.endswith(f": set PYSPARK_PYTHON={python} in the environment before the session starts")
