"""Changes a node of settings: reads it, decides, writes at the version read, and again after another's change.

The new content is a function of the node's present content, so two alterations at the same time both count, whatever
writes: two brokers, a tool, or one broker twice. A topic's node is written only while the topic exists (one multi).
Versions begin again with a node. So an alteration may read the settings of a topic that is then deleted and made again.
If the versions match, it gives the new topic the settings of the old one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_kafkalite.registry import entity_nodes, znodes
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    ANY_VERSION,
    MAX_DATA_BYTES,
    BadArguments,
    BadVersion,
    Check,
    Create,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Store,
    answer,
)
from spark_kafkalite.registry.znodes import CONFIG_CHANGES

_LOG = logging.getLogger(__name__)

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
# Gives the settings in a node, and its other fields.
Decode = Callable[[str, bytes], tuple[Mapping[str, str], Mapping[str, Any]]]


def _decode(path: str, data: bytes) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    return znodes.decode_config_node(path, data) if data else ({}, {})


async def alter_config(
    store: Store,
    path: str,
    change: Change,
    *,
    owner: str | None = None,
    validate_only: bool = False,
) -> None:
    """Replace the settings in the node at ``path`` with what ``change`` makes of them; write nothing when it is equal.

    ``owner`` is the path of a node without which nothing is written: NoNode names it then. Whatever ``change`` raises
    comes out; BadArguments when it is too much for a node. ConnectionLoss: it may or may not have been done. A node
    that cannot be read counts as empty, so that an alteration repairs it.
    """
    await _alter(store, path, change, Create(path), (), owner=owner, validate_only=validate_only)


async def alter_entity(store: Store, entity: str, change: Change) -> None:
    """Do what :func:`alter_config` does to an entity of ``registry.entity_nodes``, and leave a notice with the change.

    Both nodes are made for brokers alone where the session has authenticated.
    """
    path = entity_nodes.entity_node(entity)
    notice = Create(
        f"{CONFIG_CHANGES}/{entity_nodes.NOTICE_PREFIX}",
        entity_nodes.encode_notice(entity),
        sequential=True,
        private=store.can_be_private,
    )
    parents = [entity_nodes.CONFIG_ROOT, CONFIG_CHANGES]
    *above, _ = entity.split("/")
    parents += [entity_nodes.entity_node("/".join(above[: count + 1])) for count in range(len(above))]
    for parent in parents:
        with contextlib.suppress(NodeExists):
            await answer(store.create(parent, private=entity_nodes.is_private(parent) and store.can_be_private))
    create = Create(path, private=entity_nodes.is_private(path) and store.can_be_private)
    await _alter(store, path, change, create, (notice,), decode=entity_nodes.decode_settings)


async def _alter(
    store: Store,
    path: str,
    change: Change,
    create: Create,
    with_it: Sequence[Operation],
    *,
    decode: Decode = _decode,
    owner: str | None = None,
    validate_only: bool = False,
) -> None:
    """``create`` makes the node where there is none; ``with_it`` is done with the change; ``decode`` may raise
    MalformedNode."""
    while True:
        version: int | None = None
        old: Mapping[str, str] | None = {}
        unknown: Mapping[str, Any] = {}
        try:
            data, stat = await answer(store.get(path))
            version = stat.version
            old, unknown = decode(path, data)
        except NoNode:
            pass
        except MalformedNode as malformed:
            _LOG.warning("altering settings that cannot be read as if there were none: %s", malformed)
            old = None
        new = change(old or {})
        encoded = znodes.encode_config(new, unknown)
        if len(encoded) > MAX_DATA_BYTES:
            raise BadArguments(f"{len(encoded)} bytes are more than a registry node holds, {MAX_DATA_BYTES}", path)
        if validate_only or new == old:
            return
        operations: list[Operation] = [
            replace(create, data=encoded) if version is None else SetData(path, encoded, version),
            *with_it,
        ]
        if owner is not None:
            operations.insert(0, Check(owner, ANY_VERSION))
        try:
            await answer(store.multi(operations))
            return
        except (BadVersion, NodeExists):
            continue  # another alteration came between
        except NoNode as error:
            if owner is not None and error.operation_index == 0:
                raise
            # Removed meanwhile, unless the parent is missing: then there is nothing to try again.
            if version is None:
                raise
