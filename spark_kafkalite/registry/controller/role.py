"""The controller's role: its claim, its end, and the writes that only its holder can make.

Claiming the role creates the ephemeral /controller and raises /controller_epoch in one multi. A persistent /controller,
which was made by hand, is removed first. Every later write is a multi that begins with a check of that epoch node's
version: a controller that was deposed without noticing fails there and steps down (KAFKA-6082).

Source: kafka.zk.KafkaZkClient.registerControllerAndIncrementControllerEpoch of Apache Kafka 3.9.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import NotController, RegistryError
from spark_kafkalite.model import BrokerId, ControllerEpoch
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    SessionState,
    SetData,
    Stat,
    Store,
    answer,
)
from spark_kafkalite.slices import Slices, Work

_LOG = logging.getLogger(__name__)

NO_EPOCH: Final = ControllerEpoch(-1)


class ControllerRole:
    """The role, as one session sees it. Lives in the watcher's event loop.

    ``epoch`` is the epoch under which this session has the role, -1 when it has not.
    """

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        broker_id: BrokerId,
        clock: Clock,
        slices: Slices,
        on_deposed: Callable[[], None],
    ) -> None:
        """``on_deposed`` is called when a write finds that the epoch's node has changed. The role may be this broker's
        all the same: the node may have been removed, or made again."""
        self._store = store
        self._view = view
        self._broker_id = broker_id
        self._clock = clock
        self._slices = slices
        self._on_deposed = on_deposed
        self.epoch = NO_EPOCH
        self._epoch_version = -1

    @property
    def is_active(self) -> bool:
        """Whether this broker has the role, as far as it knows: its writes are checked all the same."""
        return self.epoch != NO_EPOCH

    async def take(self) -> bool:
        """Create /controller and raise the epoch in one step; return whether this session has the role."""
        while True:
            last, stat, was_lost = await self._last_epoch()
            epoch = last + 1
            claim = znodes.encode_controller(self._broker_id, self._clock.wall_ms())
            try:
                await answer(
                    self._store.multi(
                        [
                            Create(znodes.CONTROLLER, claim, ephemeral=True),
                            SetData(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch), stat.version),
                        ]
                    )
                )
            except (NodeExists, BadVersion, ConnectionLoss):
                # The answer to a claim that succeeded may have been lost: then the node is this session's.
                holder = await answer(self._store.exists(znodes.CONTROLLER))
                if holder is None:
                    continue
                if not holder.ephemeral_owner:
                    await self._remove_persistent(holder, stat)
                    continue
                if holder.ephemeral_owner != self._store.session_id:
                    return False
                if was_lost:
                    with contextlib.suppress(BadVersion, NoNode):
                        encoded = znodes.encode_controller_epoch(epoch)
                        await answer(self._store.set(znodes.CONTROLLER_EPOCH, encoded, stat.version))
                data, stat = await answer(self._store.get(znodes.CONTROLLER_EPOCH))
                self.epoch, self._epoch_version = znodes.decode_controller_epoch(data), stat.version
                return True
            self.epoch, self._epoch_version = ControllerEpoch(epoch), stat.version + 1
            return True

    async def _last_epoch(self) -> tuple[ControllerEpoch, Stat, bool]:
        """Return the epoch of the last controller, its node's stat, and whether that node was removed or overwritten
        by hand: then it is the highest epoch that a partition's state names."""
        path = znodes.CONTROLLER_EPOCH
        why = f"registry node {path} is gone"
        try:
            await answer(self._store.create(path, znodes.encode_controller_epoch(0)))
        except NodeExists:
            why = ""
        data, stat = await answer(self._store.get(path))
        try:
            last = znodes.decode_controller_epoch(data)
        except MalformedNode as malformed:
            why = str(malformed)
        if not why:
            return last, stat, False
        last = await self._slices.run(_highest_controller_epoch(self._view.state))
        if last > 0:
            _LOG.warning("%s; the controller writes it again, above epoch %d", why, last)
        return last, stat, True

    async def _remove_persistent(self, holder: Stat, epoch: Stat) -> None:
        """Remove a persistent /controller: it was made by hand, and no end of a session would ever remove it.

        An ephemeral one that has taken its place may have the same version. Its claim has raised the controller epoch,
        though, so the check of that keeps it.
        """
        check = Check(znodes.CONTROLLER_EPOCH, epoch.version)
        try:
            await answer(self._store.multi([check, Delete(znodes.CONTROLLER, holder.version)]))
        except (BadVersion, NoNode):
            return  # it has changed or gone; the next look says what is there
        _LOG.warning(
            "removed %s, because it was a persistent node, under which no broker can become the controller; brokers "
            "make it as an ephemeral one: do not write it by hand",
            znodes.CONTROLLER,
        )

    def resign(self) -> None:
        """Have the role no more; the node of it stays until the session ends, or :meth:`give_up`."""
        self.epoch, self._epoch_version = NO_EPOCH, -1

    async def give_up(self) -> None:
        """Remove the node of the role, so that the next broker has it at once; with the session, if that has ended."""
        was_active = self.is_active
        self.resign()
        if was_active and self._store.state is not SessionState.LOST:
            with contextlib.suppress(RegistryError):
                stat = await answer(self._store.exists(znodes.CONTROLLER))
                if stat is not None and stat.ephemeral_owner == self._store.session_id:
                    await answer(self._store.delete(znodes.CONTROLLER))

    async def write(self, operations: Sequence[Operation]) -> list[Any]:
        """Do a multi that is fenced by the controller epoch.

        Raises NotController once another broker has the role; SessionExpired when the session ends before the answer:
        whether it was done is not known then.
        """
        if not self.is_active:
            raise NotController(f"broker {self._broker_id} is not the controller")
        try:
            results = await answer(
                self._store.multi([Check(znodes.CONTROLLER_EPOCH, self._epoch_version), *operations])
            )
        except (BadVersion, NoNode) as error:
            if error.operation_index != 0:
                raise
            _LOG.warning("broker %d is no longer the controller: %s", self._broker_id, error)
            self.resign()
            self._on_deposed()
            raise NotController(f"broker {self._broker_id} is no longer the controller") from error
        except SessionExpired:
            self.resign()
            raise
        return results[1:]


def _highest_controller_epoch(state: ClusterState) -> Work[ControllerEpoch]:
    """Return the highest controller epoch in the states of partitions, 0 without any."""
    highest = ControllerEpoch(0)
    for topic in state.topics.values():
        highest = max([highest, *(partition.controller_epoch for partition in topic.partitions.values())])
        yield None
    return highest
