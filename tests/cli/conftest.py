"""One broker for each module of commands, and an administrator of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.cluster import BrokerProcess


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("commands") / "data") as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=bootstrap) as client:
        yield client
