"""Nodes that were removed or overwritten by hand, and that running brokers know: the controller makes them again.

It looks once a minute: the base nodes, the cluster id, and the settings of topics and brokers. Brokers keep settings
whose node is gone (``topic_reads``, ``watcher``), because no broker and no tool of Kafka's removes the node of what
exists: without settings it holds none. Topics without their settings would have their records deleted, or be compacted,
by the default ones. In a registry that was emptied nothing is made again (``registration.check_not_emptied``).

An id of another cluster is not corrected, because it may be the registry that is the wrong one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from spark_kafkalite.printable import first_of
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.cluster.registration import check_not_emptied, make_base_nodes_again
from spark_kafkalite.registry.controller.role import ControllerRole
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import ANY_VERSION, Check, Create, NodeExists, NoNode, Store, answer
from spark_kafkalite.slices import Slices, Work

_LOG: Final = logging.getLogger(__name__)

_ABOVE_ID: Final = znodes.CLUSTER_ID.rpartition("/")[0]
# Named in a warning; there may be thousands.
_NAMED: Final = 10


class LostNodes:
    """See the module's text. One for each candidacy of a controller."""

    def __init__(self, store: Store, slices: Slices, role: ControllerRole) -> None:
        self._store = store
        self._slices = slices
        self._role = role

    async def look(self, state: ClusterState) -> None:
        """Make again what is gone. Raises NotController, RegistryError."""
        if not await self._check_cluster_id(state.cluster_id):
            return
        stats = await asyncio.gather(*(answer(self._store.exists(path)) for path in znodes.PERSISTENT_PATHS))
        if None in stats:
            await make_base_nodes_again(self._store)
        topics = await self._missing(znodes.TOPIC_CONFIGS, {name: each.config for name, each in state.topics.items()})
        await self._make_again(
            {znodes.topic_config_path(name): config for name, config in topics.items()},
            [Check(znodes.topic_path(name), ANY_VERSION) for name in topics],
        )
        brokers = await self._missing(znodes.BROKER_CONFIGS, state.broker_configs)
        await self._make_again({znodes.broker_config_path(entity): config for entity, config in brokers.items()})

    async def _check_cluster_id(self, known: str) -> bool:
        """Return whether the registry is still the cluster's, after making the node of its id again."""
        encoded = znodes.encode_cluster_id(known)
        try:
            data, _ = await answer(self._store.get(znodes.CLUSTER_ID))
            found = znodes.decode_cluster_id(data)
        except NoNode:
            await check_not_emptied(self._store)
            if await answer(self._store.exists(_ABOVE_ID)) is None:
                await self._role.write([Create(_ABOVE_ID)])
            await self._role.write([Create(znodes.CLUSTER_ID, encoded)])
            _LOG.warning(
                "registry node %s was gone, without which no broker starts, and is made again: do not delete it",
                znodes.CLUSTER_ID,
            )
            return True
        except MalformedNode as malformed:
            found = str(malformed)
        if found == known:
            return True
        _LOG.error(
            "registry node %s was overwritten (%s): a broker whose session ends does not come back until you write %s "
            "there (set, in the shell of ZooKeeper)",
            znodes.CLUSTER_ID,
            found,
            encoded.decode(),
        )
        return False

    async def _missing(self, parent: str, known: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
        """Return the settings among the known ones that have no node below ``parent``."""
        children: list[str] = await answer(self._store.children(parent))
        names = set(children)

        def compare() -> Work[dict[str, Mapping[str, str]]]:
            missing = {}
            for name, config in known.items():
                if config and name not in names:
                    missing[name] = config
                yield None
            return missing

        return await self._slices.run(compare())

    async def _make_again(self, configs: Mapping[str, Mapping[str, str]], checks: Sequence[Check] = ()) -> None:
        made = []
        for index, (path, config) in enumerate(configs.items()):
            # Deleted meanwhile, or written by somebody else.
            with contextlib.suppress(NoNode, NodeExists):
                await self._role.write([*checks[index : index + 1], Create(path, znodes.encode_config(config))])
                made.append(path)
        if made:
            _LOG.warning(
                "registry nodes of settings were gone, and are made again with the settings that brokers know: %s; "
                "to remove settings use kafkalite configs alter",
                first_of(made, _NAMED),
            )
