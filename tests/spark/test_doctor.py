"""``kafkalite doctor --spark``: the probe runs on executors, also on those that lack the package."""

import os
import socket

import pytest

from spark_kafkalite.cli.doctor.executors import look_on_executors
from spark_kafkalite.cli.doctor.findings import problems

pytestmark = [pytest.mark.spark, pytest.mark.any_spark]


def test_executors_are_looked_at(spark, broker):
    host, port = broker.bootstrap.rsplit(":", 1)
    settings = {"bootstrap.servers": broker.bootstrap, "acks": "all"}
    [found], count = look_on_executors(spark, settings, [(host, int(port))])
    assert count == 1
    assert found["host"] == socket.gethostname()
    # A worker's parent, not this process.
    assert found["process"] not in (0, 1, os.getpid())
    assert found["client_problem"] is None
    assert found["addresses"] == [{"address": broker.bootstrap, "problem": None, "certificate_expires_s": None}]
    assert problems(found, [found], count) == []


def test_executors_without_the_package_say_so(spark, broker, tmp_path, monkeypatch):
    # A package of this name that cannot be imported stands before ours on the workers' path.
    (tmp_path / "spark_kafkalite.py").write_text("raise ImportError('no such package here')")
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(tmp_path))
    # Else the directory that the tests are run in stands before it.
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONSAFEPATH", "1")
    host, port = broker.bootstrap.rsplit(":", 1)
    [found], _ = look_on_executors(spark, {"bootstrap.servers": broker.bootstrap}, [(host, int(port))])
    assert found["client_problem"] == "ImportError: no such package here"
    assert found["addresses"][0]["problem"] is None
