"""Spark's Python in tests: a forked process is what one of its own would be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.paths import PROJECT
from tests.patience import PATIENCE_S
from tests.seeds import SOAK
from tests.spark.python_server import serving
from tests.spark.spark_python import ADDRESS

pytestmark = [pytest.mark.skipif(SOAK, reason="the soak starts real processes")]

_PYTHON = str(PROJECT / "tests" / "spark" / "spark_python.sh")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("server") / "s"
    with serving(path):
        yield str(path)


def started(address: str, module: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start a module as Spark does, with its archives on the path."""
    archives = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-1-src.zip:/spark/jars/spark-core_2.13-1.jar"
    own = {"KAFKALITE_TESTS_PYTHON": sys.executable, ADDRESS: address, "PYTHONPATH": archives}
    pipe = subprocess.PIPE
    command = [str(PROJECT / "tests" / "spark" / "spark_python.sh"), "-m", module, *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **own, **variables})


def test_a_forked_process_has_its_arguments_environment_and_streams(address: str, tmp_path: Path) -> None:
    out, error = started(address, "pyspark.find_spark_home", SPARK_HOME=str(tmp_path)).communicate(timeout=PATIENCE_S)
    assert (out.decode(), error.decode()) == (f"{tmp_path}\n", "")
    process = started(address, "pyspark.daemon", "pyspark.worker")
    # Its standard input ends.
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (len(out), process.returncode) == (4, 1)


def test_a_forked_process_ends_when_spark_ends_it(address: str) -> None:
    with started(address, "pyspark.daemon", "pyspark.worker") as process:
        assert process.stdin is not None and process.stdout is not None
        assert len(process.stdout.read(4)) == 4
        process.kill()
        # The forked process has the only other end.
        assert process.stdout.read() == b""


def test_a_path_of_its_own_makes_it_a_real_start(address: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('real')")
    process = started(address, "pyspark.find_spark_home", SPARK_HOME="/home", PYTHONPATH=str(tmp_path))
    assert process.communicate(timeout=PATIENCE_S)[0] == b"real\n/home\n"
