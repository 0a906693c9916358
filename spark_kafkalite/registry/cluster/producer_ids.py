"""Producer ids for idempotent producers: reserved in the registry in blocks, given out one by one, never twice.

A broker takes the next block of 1000 by compare-and-set on one node. Ids of a block that are not given out before the
broker stops are lost; there are 2^63 of them. Source: kafka.coordinator.transaction.ZkProducerIdManager.
"""

from __future__ import annotations

import asyncio
import contextlib

from spark_kafkalite.model import BrokerId, ProducerId
from spark_kafkalite.registry.store import BadVersion, NodeExists, NoNode, Store, answer
from spark_kafkalite.registry.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock


class ProducerIdManager:
    """This broker's supply of producer ids. Used from one event loop."""

    def __init__(self, store: Store, broker_id: BrokerId) -> None:
        self._store = store
        self._broker_id = broker_id
        self._next = 0
        self._until = 0
        self._taking = asyncio.Lock()

    async def next_id(self) -> ProducerId:
        """Return an id that was never given out before; asks the registry once in a thousand calls."""
        if self._next >= self._until:
            async with self._taking:
                if self._next >= self._until:  # whoever waited for the lock may find a fresh block
                    block = await self._take_block()
                    self._next, self._until = block.first, block.last + 1
        given = self._next
        self._next += 1
        return ProducerId(given)

    async def _take_block(self) -> ProducerIdBlock:
        """Take the next block. An answer lost on the way (ConnectionLoss) loses a block at most, and is raised."""
        while True:
            try:
                data, stat = await answer(self._store.get(PRODUCER_ID_BLOCK))
            except NoNode:
                block = ProducerIdBlock.after(None, self._broker_id)
                with contextlib.suppress(NodeExists):
                    await answer(self._store.create(PRODUCER_ID_BLOCK, block.encode(), make_parents=True))
                    return block
                continue
            block = ProducerIdBlock.after(ProducerIdBlock.decode(data), self._broker_id)
            with contextlib.suppress(BadVersion, NoNode):
                await answer(self._store.set(PRODUCER_ID_BLOCK, block.encode(), stat.version))
                return block
