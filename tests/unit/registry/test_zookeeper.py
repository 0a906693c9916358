"""What the registry's ZooKeeper client logs while nothing answers; everything else is in tests/contract."""

from __future__ import annotations

import logging

import pytest

from spark_kafkalite.registry.store import ConnectionLoss
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.testing.child_process import free_ports


def test_attempts_that_fail_alike_are_logged_once_by_each_client(caplog: pytest.LogCaptureFixture) -> None:
    ports = free_ports(2)
    for port in ports:
        with caplog.at_level(logging.WARNING), pytest.raises(ConnectionLoss, match=r"within 0\.5 s; start it"):
            open_zookeeper(f"127.0.0.1:{port}", connect_timeout_s=0.499)
    refused = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    # The second one is not silent because the first one has said the same.
    assert [each.partition(": ")[0] for each in refused] == [f"127.0.0.1:{port}" for port in ports]
