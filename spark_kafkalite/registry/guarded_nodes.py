"""Keeps clients of the registry from replacing nodes that are for brokers alone.

Others can neither read nor change a private node. But whether they can delete it depends on its parent, and without
``zookeeper.set.acl`` the parents are open. Another client of the registry could delete the cluster secret, or the node
of all users while there are none, and create its own in its place, which brokers would take for theirs. So each broker
that has an identity guards the parents before it reads or creates anything private below them.

Nodes are made private only by sessions with an identity. Those that are older are made so when a broker starts with
``zookeeper.set.acl``: it is set once all brokers have the identity. A root becomes private after all nodes below it, so
a private root shows that nothing is left to do.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Final

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.store import ConnectionLoss, NodeExists, NoNode, SessionExpired, Store, answer
from spark_kafkalite.registry.znodes import CONFIG_CHANGES

_LOG = logging.getLogger(__name__)

# Parents of private nodes (``entity_nodes``, ``znodes.INTER_BROKER_SECRET``). Only brokers create nodes right below. A
# client that deleted notices would keep the deletion of a user from brokers.
_PARENTS: Final = ("/config", "/kafkalite", CONFIG_CHANGES)


async def make_private(store: Store, roots: Iterable[str]) -> None:
    """Let only brokers read these nodes and all below them; nothing without ``zookeeper.set.acl``, or for a root that
    does not exist. Raises RegistryError where the registry cannot be reached."""
    if not (store.can_be_private and store.sets_acl):
        return
    for root in roots:
        try:
            if await answer(store.guard(root)):
                for path in await _below(store, root):
                    with contextlib.suppress(NoNode):
                        await answer(store.guard(path, private=True))
                await answer(store.guard(root, private=True))
                _LOG.info("registry nodes at and below %s can be read by brokers only, from now on", root)
        except NoNode:
            continue
        except (ConnectionLoss, SessionExpired):
            raise
        except RegistryError as error:
            _LOG.warning(
                "other clients of the registry may read what is below %s: %s; let the identity of the brokers "
                "administer these nodes",
                root,
                error,
            )


async def _below(store: Store, path: str) -> list[str]:
    """Return all nodes below one, each behind those that are below it."""
    found: list[str] = []
    for name in await answer(store.children(path)):
        child = f"{path}/{name}"
        found += [*await _below(store, child), child]
    return found


async def guard_parents(store: Store) -> None:
    """Make and guard the parents of private nodes; nothing for a session without credentials. Raises RegistryError."""
    if not store.can_be_private:
        return
    for path in _PARENTS:
        with contextlib.suppress(NodeExists):
            await answer(store.create(path))
        try:
            await answer(store.guard(path))
        except (ConnectionLoss, SessionExpired):
            raise
        except RegistryError as error:
            _LOG.warning(
                "all clients of the registry can replace what is right below %s, also the secrets of brokers: %s; let "
                "the identity of the brokers administer that node",
                path,
                error,
            )
