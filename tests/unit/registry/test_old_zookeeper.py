"""An ensemble older than 3.6 is refused at start, by its version."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.shared_registry import SharedRegistry
from spark_kafkalite.registry.store import RegistryTooOld
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.registry.zookeeper_address import ZooKeeperAddress
from tests.patience import PATIENCE_S
from tests.unit.registry.old_zookeeper import OldZooKeeper

OF_3_4 = "Zookeeper version: 3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf, built on 03/06/2019 16:18 GMT\n"
NOT_ALLOWED = "srvr is not executed because it is not in the whitelist.\n"


@pytest.mark.parametrize(
    ("said", "version"), [(OF_3_4, "3.4.14"), (NOT_ALLOWED, "version not known, it does not answer srvr")]
)
def test_a_broker_does_not_start_with_a_registry_that_cannot_watch_trees(said: str, version: str) -> None:
    with OldZooKeeper(said) as server:
        address = ZooKeeperAddress(
            f"127.0.0.1:{server.port}", connection_timeout_ms=round(PATIENCE_S * 1000), session_timeout_ms=6000
        )
        with pytest.raises(RegistryTooOld) as refused:
            SharedRegistry(address).open_session().result(PATIENCE_S)
        assert f"127.0.0.1:{server.port} ({version}) is older than 3.6" in str(refused.value)
        assert "upgrade every server of the ensemble to 3.6 or later" in str(refused.value)
        assert set(server.unknown) == {106}


def test_who_watches_no_trees_has_a_session_with_an_old_one() -> None:
    with OldZooKeeper(OF_3_4) as server:
        store = open_zookeeper(f"127.0.0.1:{server.port}", connect_timeout_s=PATIENCE_S)
        assert store.exists("/a").result(PATIENCE_S) is not None
        store.close()
        assert server.unknown == []
