"""Copies a stopped embedded registry into a ZooKeeper ensemble, for a cluster that gets more hosts.

All persistent nodes are copied, parents first. ``/cluster/id`` comes last: without it brokers whose log directories
hold logs refuse a registry, so no broker takes up half a copy, and an interrupted export is run again. A target that
holds anything else is refused.

Then the old registry is out of use. Its files get other names, and the log directories forget how far it had come
(``registry_evidence``): the ensemble numbers its transactions from its own beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from spark_kafkalite.broker.standalone.registry_evidence import EXPORTED, RegistryEvidence, was_exported
from spark_kafkalite.broker.standalone.registry_rebuild import locked, set_files_aside
from spark_kafkalite.errors import ConfigError, RegistryError
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.printable import first_of
from spark_kafkalite.registry import acl_nodes, entity_nodes
from spark_kafkalite.registry.multi_pieces import pieces
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import Create, NoNode, Operation, SetData, Store
from spark_kafkalite.registry.tree.acl import OPEN_ACL
from spark_kafkalite.registry.tree.database import DATABASE_NAME, read_copy
from spark_kafkalite.registry.tree.tree import DataNode, Tree
from spark_kafkalite.registry.znodes import CLUSTER_ID, INTER_BROKER_SECRET, decode_cluster_id

# Well below what ZooKeeper takes in one packet (jute.maxbuffer, 1 MiB).
_MOST_OPERATIONS: Final = 500
_MOST_BYTES: Final = 512 * 1024
_ANSWER_WITHIN_S: Final = 60.0
_SHOWN: Final = 3
# ZooKeeper's own.
_RESERVED: Final = "/zookeeper"
# Below these are users and quotas.
_ENTITIES: Final = tuple(f"{root}/" for root in entity_nodes.ROOTS)


class Exported(NamedTuple):
    """What an export has done: nodes written (0: an earlier run had copied them), whether the brokers' secret was left
    out, and the names of the old registry's files."""

    cluster_id: str
    nodes: int
    left_out_secret: bool
    kept: tuple[str, ...]


def export_registry(
    fs: Fs, data: Path, log_dirs: Sequence[str], target: Store, *, where: str, authenticated: bool
) -> Exported:
    """Copy the registry in ``data`` to ``target`` and put it out of use. ``where`` is the target's address for texts.

    ``authenticated``: the target's session is authenticated, so what only brokers may read can be copied, too. Raises
    ConfigError while a broker or a registry uses the directories, and where the target holds anything else;
    RegistryLost where the log directories know a later registry; RegistryError, KafkaStorageError.
    """
    check_has_registry(data)
    with locked(fs, log_dirs, data):
        evidence = RegistryEvidence(fs, log_dirs, data)
        tree, zxid = read_copy(data)
        evidence.check_tree(tree, zxid)
        cluster_id = _cluster_id(tree, data)
        nodes = dict(persistent_nodes(tree, with_private=authenticated))
        left_out = [path for path in tree.nodes if path not in nodes]
        if any(path.startswith(_ENTITIES) or acl_nodes.is_private(path) for path in left_out):
            raise ConfigError(
                f"the registry in {data} holds users, quotas or ACLs, which only brokers may read, and the session "
                f"with {where} does not authenticate: give --digest-file, and the same zookeeper.digest to the brokers"
            )
        written = 0
        if not _has_cluster(target, cluster_id, where):
            written = _copy(nodes, target, where)
        evidence.begin_again()
        kept = set_files_aside(data, EXPORTED)
    return Exported(
        cluster_id, written, INTER_BROKER_SECRET in tree.nodes and INTER_BROKER_SECRET not in nodes, tuple(kept)
    )


def check_has_registry(data: Path) -> None:
    """Raise ConfigError where a directory holds no registry that is in use."""
    if (data / DATABASE_NAME).is_file():
        return
    if was_exported(data):
        raise ConfigError(f"the registry in {data} has been exported already: start the brokers with zookeeper.connect")
    raise ConfigError(f"{data} holds no registry: there is no {DATABASE_NAME} in it")


def persistent_nodes(tree: Tree, *, with_private: bool) -> Iterator[tuple[str, DataNode]]:
    """Give the nodes to copy by path, parents before their children; all but ephemeral ones, and ZooKeeper's own."""
    for path, node in sorted(tree.nodes.items()):
        if path == "/" or node.ephemeral_owner or path == _RESERVED or path.startswith(f"{_RESERVED}/"):
            continue
        if with_private or not _is_private(path, node):
            yield path, node


def _is_private(path: str, node: DataNode) -> bool:
    return node.acl != OPEN_ACL and (
        path == INTER_BROKER_SECRET or entity_nodes.is_private(path) or acl_nodes.is_private(path)
    )


def _cluster_id(tree: Tree, data: Path) -> str:
    node = tree.nodes.get(CLUSTER_ID)
    if node is None:
        raise ConfigError(f"the registry in {data} belongs to no cluster: no broker has used it")
    try:
        return decode_cluster_id(node.data)
    except MalformedNode as error:
        raise RegistryError(f"the registry in {data} cannot be copied: {error}") from error


def _has_cluster(target: Store, cluster_id: str, where: str) -> bool:
    """Return whether the target holds this cluster already. Raises ConfigError when it holds another one."""
    try:
        data, _ = target.get(CLUSTER_ID).result(_ANSWER_WITHIN_S)
        there = decode_cluster_id(data)
    except NoNode:
        return False
    except MalformedNode:
        there = "that cannot be read"
    if there != cluster_id:
        raise ConfigError(
            f"{where} holds a cluster already ({there}): name a chroot that is not used yet, such as {where}/kafkalite"
        )
    return True


def _copy(nodes: dict[str, DataNode], target: Store, where: str) -> int:
    there = set(_walk(target, "/"))
    unknown = sorted(there - nodes.keys())
    if unknown:
        raise ConfigError(
            f"{where} is not empty: it holds {first_of(unknown, _SHOWN)}. Name a chroot that is not used yet, "
            f"such as {where}/kafkalite"
        )
    last = nodes[CLUSTER_ID]
    rest = (_written(path, node, there) for path, node in nodes.items() if path != CLUSTER_ID)
    for piece in pieces(rest, most_operations=_MOST_OPERATIONS, most_bytes=_MOST_BYTES):
        target.multi(piece).result(_ANSWER_WITHIN_S)
    target.create(CLUSTER_ID, last.data).result(_ANSWER_WITHIN_S)
    return len(nodes)


def _written(path: str, node: DataNode, there: set[str]) -> Operation:
    if path in there:
        return SetData(path, node.data)
    return Create(path, node.data, private=_is_private(path, node))


def _walk(target: Store, path: str) -> Iterator[str]:
    for name in target.children(path).result(_ANSWER_WITHIN_S):
        child = f"{path.rstrip('/')}/{name}"
        if child != _RESERVED:
            yield child
            yield from _walk(target, child)
