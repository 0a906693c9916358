"""Producer ids for idempotent producers: reserved in the registry in blocks, given out one by one, never twice.

A broker takes the next block of 1000 by compare-and-set on one node. Ids of a block that are not given out before the
broker stops are lost; there are 2^63 of them. Source: kafka.coordinator.transaction.ZkProducerIdManager. The next block
is taken ahead of need, so that new producers do not wait while the registry is unavailable for a while. The broker
takes the first one when it joins, each later one when a tenth of the last is left (as
kafka.coordinator.transaction.RPCProducerIdManager).

An operator may remove the node, or write there what cannot be read. From number 0 on the ids would be given out twice,
and a broker would take the records of one producer for repeated ones of another. So the next block begins at the time
of the day in microseconds, which no count of blocks has come to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId, ProducerId
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.producer_id_block import PRODUCER_ID_BLOCK, PRODUCER_ID_BLOCK_SIZE, ProducerIdBlock
from spark_kafkalite.registry.store import BadVersion, NodeExists, NoNode, Store, answer

_LOG = logging.getLogger(__name__)

_TAKE_AHEAD_AT: Final = PRODUCER_ID_BLOCK_SIZE // 10


class ProducerIdManager:
    """This broker's supply of producer ids. Used from one event loop."""

    def __init__(self, store: Store, broker_id: BrokerId, clock: Clock, is_first: Callable[[], bool]) -> None:
        """``is_first`` returns whether no producer can have an id yet if the registry names no block."""
        self._store = store
        self._broker_id = broker_id
        self._clock = clock
        self._is_first = is_first
        self._next = 0
        self._until = 0
        # The last id of the last block that was taken, given out or not; -1 before the first.
        self.last_taken = -1
        # The block after that, if it has been taken by now.
        self._ahead: ProducerIdBlock | None = None
        self._taking = asyncio.Lock()
        self._taking_ahead: asyncio.Task[None] | None = None

    async def next_id(self) -> ProducerId:
        """Return an id that was never given out before; waits for the registry only where no block is left."""
        while self._next >= self._until:
            async with self._taking:
                # Whoever waited for the lock may find a fresh block.
                if self._next >= self._until:
                    block = self._ahead or await self._take_block()
                    self._next, self._until, self._ahead = block.first, block.last + 1, None
        given = self._next
        self._next += 1
        self.take_ahead()
        return ProducerId(given)

    @property
    def _is_short(self) -> bool:
        return self._ahead is None and self._until - self._next <= _TAKE_AHEAD_AT

    def take_ahead(self) -> None:
        """Have the next block taken if it is time for that; what the registry refuses is asked for at the next need."""
        if self._is_short and self._taking_ahead is None:
            self._taking_ahead = asyncio.get_running_loop().create_task(self._take_ahead())

    async def _take_ahead(self) -> None:
        try:
            async with self._taking:
                # Whoever had none left may have taken one meanwhile.
                if self._is_short:
                    self._ahead = await self._take_block()
        except RegistryError as error:
            # Whoever has no id left then says so.
            _LOG.debug("no block of producer ids could be taken ahead: %s", error)
        finally:
            self._taking_ahead = None

    def close(self) -> None:
        """Take no more; what is left is never given out."""
        if self._taking_ahead is not None:
            self._taking_ahead.cancel()

    async def _take_block(self) -> ProducerIdBlock:
        """Take the next block. An answer lost on the way (ConnectionLoss) loses a block at most, and is raised."""
        while True:
            try:
                data, stat = await answer(self._store.get(PRODUCER_ID_BLOCK))
            except NoNode:
                block = self._block_without_last(f"registry node {PRODUCER_ID_BLOCK} is gone")
                with contextlib.suppress(NodeExists):
                    await answer(self._store.create(PRODUCER_ID_BLOCK, block.encode(), make_parents=True))
                    return self._taken(block)
                continue
            try:
                last = ProducerIdBlock.decode(data)
            except MalformedNode as malformed:
                block = self._block_without_last(str(malformed))
            else:
                block = ProducerIdBlock.after(last, self._broker_id)
            with contextlib.suppress(BadVersion, NoNode):
                await answer(self._store.set(PRODUCER_ID_BLOCK, block.encode(), stat.version))
                return self._taken(block)

    def _taken(self, block: ProducerIdBlock) -> ProducerIdBlock:
        self.last_taken = block.last
        return block

    def _block_without_last(self, why: str) -> ProducerIdBlock:
        """Return the block after one that the registry does not name (any more)."""
        if self.last_taken < 0 and self._is_first():
            return ProducerIdBlock.from_number(0, self._broker_id)
        block = ProducerIdBlock.from_number(max(self._clock.wall_ms() * 1000, self.last_taken + 1), self._broker_id)
        _LOG.warning("%s; new producers get ids from %d on, so that no id is given out twice", why, block.first)
        return block
