"""When Unix sockets for its Python workers are recommended to a session."""

import logging
from types import SimpleNamespace
from typing import cast

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.spark import pyspark_versions
from spark_kafkalite.spark.pyspark_versions import HAS_UNIX_SOCKETS
from spark_kafkalite.spark.workers import unix_sockets
from spark_kafkalite.spark.workers.unix_sockets import UNIX_SOCKETS, lacks_unix_sockets, recommend_unix_sockets


def session(**conf: str) -> SparkSession:
    """Return what is asked of a classic session."""
    return cast(SparkSession, SimpleNamespace(_sc=SimpleNamespace(getConf=lambda: conf)))


@pytest.mark.parametrize(
    ("spark_has", "conf", "lacks"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {UNIX_SOCKETS: "false"}, True),
        (True, {UNIX_SOCKETS: "true"}, False),
    ],
)
def test_which_sessions_lack_them(
    monkeypatch: pytest.MonkeyPatch, spark_has: bool, conf: dict[str, str], lacks: bool
) -> None:
    monkeypatch.setattr(pyspark_versions, "HAS_UNIX_SOCKETS", spark_has)
    assert lacks_unix_sockets(session(**conf)) is lacks


def test_which_pyspark_has_them() -> None:
    assert (tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= (4, 1)) is HAS_UNIX_SOCKETS


def test_a_connect_session_is_its_servers_affair() -> None:
    assert not lacks_unix_sockets(cast(SparkSession, object()))


def test_it_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(unix_sockets, "_recommended", False)
    monkeypatch.setattr(pyspark_versions, "HAS_UNIX_SOCKETS", True)
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        recommend_unix_sockets(session())
    assert [UNIX_SOCKETS in record.getMessage() for record in caplog.records] == [True]
