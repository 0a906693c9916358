"""When Unix sockets for its Python workers are recommended to a session."""

import logging
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.spark import unix_sockets
from spark_kafkalite.spark.unix_sockets import UNIX_SOCKETS, lacks_unix_sockets, recommend_unix_sockets


def session(version: str, **conf: str) -> SparkSession:
    """Return what is asked of a classic session."""
    return cast(SparkSession, SimpleNamespace(_sc=SimpleNamespace(version=version, getConf=lambda: conf)))


@pytest.mark.parametrize(
    ("version", "conf", "lacks"),
    [
        ("4.0.5", {}, False),
        ("4.1.0", {}, True),
        ("4.3.0", {UNIX_SOCKETS: "false"}, True),
        ("4.3.0", {UNIX_SOCKETS: "true"}, False),
        ("5.0.0-preview1", {}, True),
    ],
)
def test_which_sessions_lack_them(version: str, conf: dict[str, str], lacks: bool) -> None:
    assert lacks_unix_sockets(session(version, **conf)) is lacks


def test_a_connect_session_is_its_servers_affair() -> None:
    assert not lacks_unix_sockets(cast(SparkSession, object()))


def test_it_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(unix_sockets, "_recommended", False)
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        recommend_unix_sockets(session("4.3.0"))
    assert [UNIX_SOCKETS in record.getMessage() for record in caplog.records] == [True]
