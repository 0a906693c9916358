"""Keeps clients of the registry from replacing nodes that are for brokers alone.

Others can neither read nor change a private node. But whether they can delete it depends on its parent, and without
``zookeeper.set.acl`` the parents are open. Another client of the registry could delete the cluster secret, or the node
of all users while there are none, and create its own in its place, which brokers would take for theirs. So each broker
that has an identity guards the parents before it reads or creates anything private below them.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

from spark_kafkalite.errors import RegistryError
from spark_kafkalite.registry.store import ConnectionLoss, NodeExists, SessionExpired, Store, answer

_LOG = logging.getLogger(__name__)

# Parents of private nodes (``entity_nodes``, ``znodes.INTER_BROKER_SECRET``). Only brokers create nodes right below.
_PARENTS: Final = ("/config", "/kafkalite")


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
