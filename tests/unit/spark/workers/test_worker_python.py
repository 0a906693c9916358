"""Which Python Spark would start, what is wrong with it, and which sessions are repaired."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.spark.workers import worker_python
from spark_kafkalite.spark.workers.worker_python import (
    DRIVER_PYTHON,
    PYTHON,
    WorkerPython,
    advice,
    examined,
    planning_python,
    provide_python,
    task_python,
)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with a ``python3`` that lacks the package, and with a ``jupyter`` that is no Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    texts = {"python3": "echo spark_kafkalite pyarrow", "jupyter": "echo no such command >&2; exit 2"}
    for name, text in texts.items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, programs: Path) -> Callable[..., SparkSession]:
    """Make what is asked of a classic session, with the environment of its JVM and of this process."""

    def made(master: str = "local[2]", **variables: str) -> SparkSession:
        for name in (DRIVER_PYTHON, PYTHON):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        environment = {"PATH": str(programs), **variables}
        context = SimpleNamespace(pythonExec=variables.get(PYTHON, "python3"), master=master)
        system = SimpleNamespace(getenv=environment.get)
        jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
        return cast(SparkSession, SimpleNamespace(_sc=context, sparkContext=context, _jvm=jvm))

    monkeypatch.setattr(worker_python, "_shipped_packages", lambda: "")
    return made


@pytest.fixture(params=[False, True], ids=["listener", "register"])
def will_register(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_the_own_interpreter_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert examined(sys.executable, PYTHON, None).is_usable


def test_another_python_is_run() -> None:
    """This environment's, by a name that hides it."""
    link = "/proc/self/root" + os.path.abspath(sys.executable)
    assert examined(link, PYTHON, None) == WorkerPython(link, PYTHON, link)


def test_the_planners_order(session: Callable[..., SparkSession], programs: Path) -> None:
    assert planning_python(session()) == WorkerPython(
        "python3", None, f"{programs}/python3", ("spark_kafkalite", "pyarrow")
    )
    assert planning_python(session(PYSPARK_PYTHON=sys.executable)).variable == PYTHON
    both = session(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON="jupyter")
    assert planning_python(both).problem == "is no Python that can be used: exit code 2: no such command"
    assert task_python(both).is_usable


def test_a_virtual_environment_is_used(
    session: Callable[..., SparkSession],
    will_register: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(worker_python, "is_environments_own", lambda: True)
    caplog.set_level(logging.WARNING)
    spark = session()
    assert provide_python(spark, will_register=will_register)
    assert spark.sparkContext.pythonExec == os.environ[PYTHON] == sys.executable
    assert not caplog.records
    # Executors may have it elsewhere.
    assert provide_python(session("spark://h:7077"), will_register=will_register)
    assert "on executors too" in caplog.records[0].getMessage()


def test_a_choice_of_the_user_is_only_judged(
    session: Callable[..., SparkSession], will_register: bool, programs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spark = session(PYSPARK_PYTHON=f"{programs}/python3")
    assert not provide_python(spark, will_register=will_register)
    assert spark.sparkContext.pythonExec == os.environ[PYTHON] == f"{programs}/python3"
    [record] = caplog.records
    assert record.getMessage() == (
        f'Spark starts {programs}/python3 (PYSPARK_PYTHON names it) for format("kafkalite"), and it has no '
        "spark_kafkalite, no pyarrow; reads and writes would end with DATA_SOURCE_NOT_FOUND or "
        f"PYTHON_DATA_SOURCE_ERROR: set PYSPARK_PYTHON={sys.executable} in the environment before the session starts"
    )


def test_a_python_of_the_system_is_not_imposed(
    session: Callable[..., SparkSession], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_python, "is_environments_own", lambda: False)
    spark = session()
    assert not provide_python(spark, will_register=True)
    assert spark.sparkContext.pythonExec == "python3"
    assert "python3 on the PATH, PYSPARK_PYTHON is not set" in caplog.text


def test_a_notebook_needs_a_registration_alone(
    session: Callable[..., SparkSession], will_register: bool, caplog: pytest.LogCaptureFixture
) -> None:
    spark = session(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON="jupyter")
    assert provide_python(spark, will_register=will_register) is not will_register
    assert not caplog.records


def test_what_is_usable_is_left_alone(session: Callable[..., SparkSession], will_register: bool) -> None:
    assert not provide_python(session(PYSPARK_PYTHON=sys.executable), will_register=will_register)


def test_a_connect_session_is_its_servers_affair() -> None:
    assert not provide_python(cast(SparkSession, object()), will_register=True)


def test_a_name_that_leads_nowhere(session: Callable[..., SparkSession]) -> None:
    python = planning_python(session(PYSPARK_PYTHON="/no/such/python"))
    assert "Spark starts /no/such/python (PYSPARK_PYTHON names it)" in advice(python)
    assert "it is not there, or cannot be run;" in advice(python)


def test_a_driver_python_that_is_an_application(session: Callable[..., SparkSession]) -> None:
    python = planning_python(session(PYSPARK_DRIVER_PYTHON="jupyter"))
    assert advice(python).endswith(
        f"unset PYSPARK_DRIVER_PYTHON, and set PYSPARK_PYTHON={sys.executable}, before the session starts"
    )
