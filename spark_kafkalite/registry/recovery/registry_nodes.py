"""Reads the nodes of a registry that is to be recovered, and writes the nodes of the plan, through a session with it.

Everything is written before ``/cluster/id`` and the node that settles the brokers' evidence. Until these exist, no
broker with logs starts with a registry that was lost or is older, whatever interrupts the writing. No other program may
write meanwhile, so it is refused while a broker is registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry import deleted_topics, znodes
from spark_kafkalite.registry.multi_pieces import pieces
from spark_kafkalite.registry.producer_id_block import PRODUCER_ID_BLOCK
from spark_kafkalite.registry.recovery import evidence_node
from spark_kafkalite.registry.store import (
    Create,
    NoNode,
    SetData,
    Store,
)

# One answer may take as long as a busy ensemble's.
_ANSWER_S: Final = 60.0
_READ_AT_ONCE: Final = 1_000
_WRITTEN_BYTES: Final = 500_000
# Nodes by themselves, and nodes whose children are read with them.
_SINGLE: Final = (
    znodes.CLUSTER_ID,
    *znodes.PERSISTENT_PATHS,
    znodes.CONTROLLER_EPOCH,
    PRODUCER_ID_BLOCK,
    deleted_topics.PATH,
    evidence_node.PATH,
)
_LAST: Final = (evidence_node.PATH, znodes.CLUSTER_ID)


def read_nodes(store: Store) -> dict[str, bytes]:
    """Return the nodes that a plan uses, by path. RegistryError when they cannot be read."""
    store.sync().result(_ANSWER_S)
    found = dict(_existing(store, _SINGLE))
    topics = _children(store, znodes.TOPICS)
    paths = [*(znodes.topic_path(name) for name in topics), *(znodes.topic_config_path(name) for name in topics)]
    partitions_of = [znodes.partitions_path(name) for name in topics]
    found.update(_existing(store, [*paths, *partitions_of]))
    for name in topics:
        if znodes.partitions_path(name) not in found:
            continue
        numbers = _children(store, znodes.partitions_path(name))
        below = [f"{znodes.partitions_path(name)}/{number}" for number in numbers]
        found.update(_existing(store, [*below, *(f"{path}/state" for path in below)]))
    return found


def registered_brokers(store: Store) -> list[str]:
    """Return the brokers that are registered. RegistryError when that cannot be read."""
    return _children(store, znodes.BROKER_IDS)


def check_none_registered(store: Store) -> None:
    """Raise RegistryError when a broker is registered."""
    if brokers := registered_brokers(store):
        raise RegistryError(
            f"brokers {', '.join(brokers)} are registered: stop all brokers, and wait until their sessions have ended"
        )


def write_nodes(store: Store, nodes: Mapping[str, bytes], existing: Mapping[str, bytes]) -> None:
    """Write nodes; ``existing`` are the present ones. RegistryError when a broker is registered, or the registry
    refuses; the same may be run again then."""
    check_none_registered(store)
    # What lets brokers in is written at once, and when everything else is there.
    for paths in (sorted(nodes.keys() - set(_LAST)), [path for path in _LAST if path in nodes]):
        operations = (SetData(path, nodes[path]) if path in existing else Create(path, nodes[path]) for path in paths)
        for piece in pieces(operations, most_bytes=_WRITTEN_BYTES):
            store.multi(piece).result(_ANSWER_S)


def _existing(store: Store, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for first in range(0, len(paths), _READ_AT_ONCE):
        some = paths[first : first + _READ_AT_ONCE]
        for path, asked in [(path, store.get(path)) for path in some]:
            try:
                yield path, asked.result(_ANSWER_S)[0]
            except NoNode:
                continue


def _children(store: Store, path: str) -> list[str]:
    try:
        return sorted(store.children(path).result(_ANSWER_S))
    except NoNode:
        return []
