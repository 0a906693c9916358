"""What tools for older versions of Kafka leave in the registry, as far as brokers do not act on it.

``kafka-configs``, ``kafka-topics``, ``kafka-reassign-partitions`` and their like of Kafka 2.x write to ZooKeeper with
``--zookeeper``. Other modules obey topics, their settings and those of brokers, and marks of topics to be deleted. This
module handles the rest. Requests and settings that do nothing are named in one warning each. Notices of changed
settings and ACLs are removed after a while, as Kafka's controller does it.

Source: kafka.zk.ZkData of Apache Kafka 2.8; kafka.common.ZkNodeChangeNotificationListener for the fifteen minutes.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.registry import acl_nodes
from spark_kafkalite.registry.store import NodeExists, NoNode, Store, answer
from spark_kafkalite.registry.znodes import CONFIG_CHANGES

_LOG: Final = logging.getLogger(__name__)

# How old a notice of changed settings becomes.
_KEPT_MS: Final = 15 * 60_000
# More are removed with the next look.
_REMOVED_AT_ONCE: Final = 1_000
# Nodes that are themselves a request, and what to do instead.
_REQUESTS: Final = {
    "/admin/reassign_partitions": "kafkalite has no reassignment of partitions by this node",
    "/admin/preferred_replica_election": "have preferred leaders elected with kafkalite cluster elect",
}
# Nodes whose children are what has been asked for.
_PARENTS: Final = {
    "/delegation_token/tokens": "there are no delegation tokens",
}


class OldTools:
    """See the module's text. One for each candidacy of a controller."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._told: set[str] = set()

    async def look(self) -> None:
        """Warn of what is new and not obeyed, and remove old notices. Raises RegistryError."""
        for path, why in _REQUESTS.items():
            if await answer(self._store.exists(path)) is not None:
                self._tell(path, why)
        for parent, why in _PARENTS.items():
            with contextlib.suppress(NoNode):
                names: list[str] = await answer(self._store.children(parent))
                if names:
                    self._tell(parent, why)
        await self._remove_notices()

    def _tell(self, path: str, why: str) -> None:
        if path not in self._told:
            self._told.add(path)
            _LOG.warning(
                "registry node %s, which a tool for older versions of Kafka has written, is not obeyed: %s", path, why
            )

    async def _remove_notices(self) -> None:
        before_ms = self._clock.wall_ms() - _KEPT_MS
        for parent in (CONFIG_CHANGES, *acl_nodes.CHANGES.values()):
            try:
                names: list[str] = await answer(self._store.children(parent))
            except NoNode:
                if parent == CONFIG_CHANGES:
                    # A tool makes sequence nodes below it, and fails where it is missing.
                    with contextlib.suppress(NodeExists):
                        await answer(self._store.create(parent))
                continue
            for name in names[:_REMOVED_AT_ONCE]:
                path = f"{parent}/{name}"
                stat = await answer(self._store.exists(path))
                if stat is not None and stat.ctime < before_ms:
                    with contextlib.suppress(NoNode):
                        await answer(self._store.delete(path))
