"""Changes the ACLs of one resource: reads its node, decides, writes at the version read, again after another's change.

The change and its notice are one transaction, so a broker that follows the notices misses none.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from itertools import product

from spark_kafkalite.acls import AccessControlEntry, PatternType, Resource, ResourceType
from spark_kafkalite.registry import acl_nodes
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    MAX_DATA_BYTES,
    BadArguments,
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Store,
    answer,
    check_path,
)

_LOG = logging.getLogger(__name__)

Entries = frozenset[AccessControlEntry]


async def make_base_nodes(store: Store) -> None:
    """Create what ACLs stand below, as far as it is missing. Raises RegistryError."""
    futures = [store.create(path, private=store.can_be_private) for path in acl_nodes.BASE_PATHS]
    for future in futures:
        with contextlib.suppress(NodeExists):
            await answer(future)


async def has_acls(store: Store) -> bool:
    """Return whether there are ACLs in the registry. Raises RegistryError."""
    for pattern_type, resource_type in product(PatternType, ResourceType):
        with contextlib.suppress(NoNode):
            if await answer(store.children(acl_nodes.type_path(pattern_type, resource_type))):
                return True
    return False


async def alter_acls(store: Store, resource: Resource, change: Callable[[Entries], Entries]) -> tuple[Entries, Entries]:
    """Replace the ACLs of a resource by what ``change`` makes of them; return their entries before and after.

    Raises BadArguments when it is too much for a node, or the name cannot be that of one. ConnectionLoss: it may or may
    not have been done. A node that cannot be read counts as ``acl_nodes.UNREADABLE``, and an alteration writes it so.
    """
    path = acl_nodes.acl_path(resource)
    check_path(path)
    notice = Create(
        f"{acl_nodes.CHANGES[resource.pattern_type]}/{acl_nodes.NOTICE_PREFIX}",
        acl_nodes.encode_notice(resource),
        sequential=True,
        private=store.can_be_private,
    )
    while True:
        version: int | None = None
        old: Entries = frozenset()
        is_readable = True
        try:
            data, stat = await answer(store.get(path))
            version = stat.version
            old = acl_nodes.decode_acls(path, data)
        except NoNode:
            pass
        except MalformedNode as malformed:
            _LOG.warning("altering ACLs that cannot be read as if they denied everything to everyone: %s", malformed)
            old, is_readable = acl_nodes.UNREADABLE, False
        new = change(old)
        if new == old and is_readable:
            return old, new
        encoded = acl_nodes.encode_acls(new)
        if len(encoded) > MAX_DATA_BYTES:
            raise BadArguments(
                f"the ACLs of one resource take {len(encoded)} bytes, more than a registry node holds "
                f"({MAX_DATA_BYTES}): use fewer, or a prefix",
                path,
            )
        write: Operation
        if version is None:
            if not new:
                return old, new
            write = Create(path, encoded, private=store.can_be_private)
        elif new:
            write = SetData(path, encoded, version)
        else:
            write = Delete(path, version)
        try:
            await answer(store.multi((write, notice)))
            return old, new
        except (BadVersion, NodeExists):
            continue  # another alteration came between
        except NoNode:
            if version is None:
                # The parents are missing: a registry that no broker with an authorizer has used.
                await make_base_nodes(store)
