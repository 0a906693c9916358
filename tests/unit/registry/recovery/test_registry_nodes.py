"""Reading and writing the nodes of a registry that is made again, through a session with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.recovery import evidence_node
from spark_kafkalite.registry.recovery.host_logs import HostLogs
from spark_kafkalite.registry.recovery.plan import plan_recovery
from spark_kafkalite.registry.recovery.registry_nodes import read_nodes, write_nodes
from spark_kafkalite.registry.store import Create, Multi, Request, SetData
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.embedded_store import EmbeddedStore
from tests.patience import PATIENCE_S
from tests.unit.registry.recovery.test_plan import T0, a_host, a_log

HOSTS: list[HostLogs] = [a_host(1, a_log()), a_host(2, a_log(end=20))]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedRegistry]:
    with EmbeddedRegistry(tmp_path / "registry") as opened:
        yield opened


class Breaking(EmbeddedStore):
    """Refuses writes from the given number on."""

    def __init__(self, registry: EmbeddedRegistry, writes: int) -> None:
        super().__init__(registry)
        self.left = writes
        self.written: list[list[str]] = []

    def ask(self, request: Request):  # type: ignore[no-untyped-def]
        if isinstance(request, Multi):
            if not self.left:
                raise RegistryError("no more")
            self.left -= 1
            self.written.append([each.path for each in request.operations if isinstance(each, Create | SetData)])
        return super().ask(request)


def planned(store: EmbeddedStore) -> tuple[dict[str, bytes], dict[str, bytes]]:
    nodes = read_nodes(store)
    wanted = plan_recovery(HOSTS, nodes).nodes
    wanted[evidence_node.PATH] = evidence_node.encode({BrokerId(1): 5})
    return wanted, nodes


def test_what_was_written_is_read_again(registry: EmbeddedRegistry) -> None:
    store = EmbeddedStore(registry)
    wanted, nodes = planned(store)
    assert nodes == {}
    write_nodes(store, wanted, nodes)
    found = read_nodes(store)
    assert found == {**found, **wanted}
    assert znodes.state_path(*T0) in found
    # Once more, over what is there.
    again, nodes = planned(store)
    write_nodes(store, again, nodes)
    assert read_nodes(store)[znodes.state_path(*T0)] == again[znodes.state_path(*T0)] != wanted[znodes.state_path(*T0)]


def test_what_lets_brokers_in_is_written_last(registry: EmbeddedRegistry) -> None:
    store = Breaking(registry, 1)
    wanted, nodes = planned(store)
    with pytest.raises(RegistryError, match="no more"):
        write_nodes(store, wanted, nodes)
    left = read_nodes(store)
    assert znodes.state_path(*T0) in left
    assert znodes.CLUSTER_ID not in left
    assert evidence_node.PATH not in left
    whole = Breaking(registry, 9)
    write_nodes(whole, *planned(whole))
    assert whole.written[-1] == [evidence_node.PATH, znodes.CLUSTER_ID]


def test_nothing_is_written_while_a_broker_is_registered(registry: EmbeddedRegistry) -> None:
    store = EmbeddedStore(registry)
    store.create(znodes.broker_path(7), make_parents=True).result(PATIENCE_S)
    wanted, nodes = planned(store)
    with pytest.raises(RegistryError, match="brokers 7 are registered: stop all brokers"):
        write_nodes(store, wanted, nodes)
    assert znodes.CLUSTER_ID not in read_nodes(store)
