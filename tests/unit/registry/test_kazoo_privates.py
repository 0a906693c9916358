"""What the registry uses of kazoo beyond its interface: all of it is listed, and there in the installed version."""

from __future__ import annotations

import ast
import inspect
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from kazoo.client import KazooClient

from spark_kafkalite.registry import zookeeper, zookeeper_client, zookeeper_socket
from spark_kafkalite.registry.zookeeper_client import PRIVATE_OF_CLIENT, PRIVATE_OF_CONNECTION, Client

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def client() -> KazooClient:
    return KazooClient()


def privates_of(thing: object) -> set[str]:
    return {name for name in {*dir(thing), *vars(thing)} if name.startswith("_") and not name.startswith("__")}


def used_in(module: ModuleType) -> set[tuple[str, str]]:
    """Return the private attributes that a module's code reads or sets, each with what it is looked up in."""
    tree = ast.parse(inspect.getsource(module))
    return {
        (ast.unparse(node.value), node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }


def test_all_that_is_listed_is_there(client: KazooClient) -> None:
    assert set(PRIVATE_OF_CLIENT) <= privates_of(client)
    assert set(PRIVATE_OF_CONNECTION) <= privates_of(client._connection)


def test_what_is_replaced_or_called_takes_what_it_took(client: KazooClient) -> None:
    connection = client._connection
    assert list(inspect.signature(client._call).parameters) == ["request", "async_object"]
    assert list(inspect.signature(client._session_callback).parameters) == ["state"]
    assert list(inspect.signature(connection._connect).parameters) == ["host", "hostip", "port"]
    assert list(inspect.signature(connection._invoke).parameters) == ["timeout", "request", "xid"]
    assert list(inspect.signature(connection._read_watch_event).parameters) == ["buffer", "offset"]
    for watchers in (client._data_watchers, client._child_watchers):
        watchers["/a"].add(print)
        assert set(watchers["/a"]) == {print}
        watchers.clear()
    assert client._stopped.is_set()


def test_all_that_is_used_is_listed(client: KazooClient) -> None:
    of_client, of_connection = privates_of(client), privates_of(client._connection)
    own = set(vars(Client)) | {"_has_asked", "_state_changed", "_tree_watches", "_read_one_shots"}
    used = {"client": set(), "connection": set()}  # type: dict[str, set[str]]
    for where, name in used_in(zookeeper_client):
        if where == "self._connection":
            used["connection"].add(name)
        elif where in ("self", "super()") and name in of_client and (name not in own or where == "super()"):
            used["client"].add(name)
    assert used["client"] == set(PRIVATE_OF_CLIENT)
    assert used["connection"] == set(PRIVATE_OF_CONNECTION)
    assert used["connection"] <= of_connection


@pytest.mark.parametrize("module", [zookeeper, zookeeper_socket])
def test_no_other_module_looks_into_kazoo(module: ModuleType, client: KazooClient) -> None:
    private = privates_of(client) | privates_of(client._connection)
    found = {(where, name) for where, name in used_in(module) if where not in ("self", "cls") and name in private}
    assert found == set()


def test_the_next_large_version_is_not_installed_unseen() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (bound,) = [each for each in project["project"]["dependencies"] if each.startswith("kazoo")]
    assert bound == "kazoo>=2.11,<3"
