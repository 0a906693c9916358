"""What the registry's ZooKeeper client logs while nothing answers; everything else is in tests/contract."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kazoo.protocol.connection import ConnectionHandler

from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.registry.store import BadArguments, ConnectionLoss, check_path
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.registry.zookeeper_client import Client


def test_attempts_that_fail_alike_are_logged_once_by_each_client(caplog: pytest.LogCaptureFixture) -> None:
    ports = free_ports(2)
    for port in ports:
        with caplog.at_level(logging.WARNING), pytest.raises(ConnectionLoss, match=r"within 0\.5 s; start it"):
            open_zookeeper(f"127.0.0.1:{port}", connect_timeout_s=0.499)
    refused = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    # The second one is not silent because the first one has said the same.
    assert [each.partition(": ")[0] for each in refused] == [f"127.0.0.1:{port}" for port in ports]


def test_a_new_session_is_waited_for_where_the_registry_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches the registry's disk before the answer. A session that there is gets short tries, and outlives them."""
    waited: list[float] = []

    def ask(_: object, timeout_s: float, *__: Any) -> None:
        waited.append(timeout_s)

    monkeypatch.setattr(ConnectionHandler, "_invoke", ask)
    client = Client(hosts="127.0.0.1:1")
    for _ in range(3):
        client._connection._invoke(8.0, None)
    assert waited == [2.0, 8.0, 8.0]
    client._session_id = 7
    client._connection._invoke(8.0, None)
    assert waited[3:] == [2.0]


@pytest.mark.parametrize(
    ("first", "last"), [("\x00", "\x1f"), ("\x7f", "\x9f"), ("\ud800", "\uf8ff"), ("\ufff0", "\U0010ffff")]
)
def test_a_path_has_no_character_that_a_server_refuses(first: str, last: str) -> None:
    """Source: org.apache.zookeeper.common.PathUtils.validatePath, which sees a character above U+FFFF as surrogates."""
    for refused in (first, last):
        with pytest.raises(BadArguments, match="has a control or private-use character"):
            check_path(f"/a/b{refused}c")
    for neighbour in (ord(first) - 1, ord(last) + 1):
        if 0 <= neighbour <= 0x10FFFF:
            check_path(f"/a/b{chr(neighbour)}c")
