"""Which partitions of an internal topic this broker coordinates: a shard for each that it leads.

The observer of the partitions' roles calls :meth:`Shards.lead` and :meth:`Shards.resign`; requests ask for the shard of
their key. A log that cannot be read is tried again until leadership goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, Generic

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.internal_topic import TopicHost, partition_for
from spark_kafkalite.coordinator.shard import Shard, ShardPhase, State
from spark_kafkalite.coordinator.state_machine import OpenKeys
from spark_kafkalite.errors import KafkaliteError, NotCoordinator
from spark_kafkalite.quiet_log import QuietLog

logger = logging.getLogger(__name__)

_LOAD_AGAIN_S: Final = 5.0
# Each holds a piece of its log in memory.
_LOADS_AT_ONCE: Final = 2


class Shards(Generic[State]):
    """The shards of this broker.

    ``on_loaded`` and ``on_resigned`` are called with a shard when it begins to serve and when it has ceased to.
    """

    def __init__(
        self,
        host: TopicHost,
        new_state: Callable[[OpenKeys], State],
        clock: Clock,
    ) -> None:
        """``new_state`` makes the state of a shard, empty; what it is given gives the keys that are being written."""
        self._host = host
        self._new_state = new_state
        self._clock = clock
        self._shards: dict[int, Shard[State]] = {}
        # By partition, while it is led.
        self._quiet = QuietLog.of_states(logger, clock.monotonic_s)
        self._loads: set[asyncio.Task[None]] = set()
        self._may_load = asyncio.Semaphore(_LOADS_AT_ONCE)
        self.on_loaded: list[Callable[[Shard[State]], None]] = []
        self.on_resigned: list[Callable[[Shard[State]], None]] = []

    def shard_of(self, key: str) -> Shard[State]:
        """Return the shard that serves a key. Raises NotCoordinator (16), CoordinatorLoadInProgress (14).

        It does not know whether another broker coordinates by now: the caller checks that before.
        """
        count = self._host.partition_count()
        shard = self._shards.get(partition_for(key, count)) if count else None
        if shard is None:
            raise NotCoordinator(f"this broker does not coordinate {self._host.topic.kind} {key!r}")
        if shard.phase is not ShardPhase.ACTIVE:
            raise shard.unavailable()
        return shard

    def __iter__(self) -> Iterator[Shard[State]]:
        """Iterate over the shards that serve now."""
        return iter([shard for shard in self._shards.values() if shard.phase is ShardPhase.ACTIVE])

    @property
    def is_loading(self) -> bool:
        """Whether some of what this broker coordinates is not known yet."""
        return any(shard.phase is ShardPhase.LOADING for shard in self._shards.values())

    def lead(self, partition: int, leader_epoch: int) -> None:
        """Load a partition that this broker leads under this epoch from now on."""
        present = self._shards.get(partition)
        if present is not None:
            if present.leader_epoch >= leader_epoch:
                return
            self.resign(partition)
        shard = Shard(self._host, partition, leader_epoch, self._new_state, self._clock)
        self._shards[partition] = shard
        task = asyncio.get_running_loop().create_task(self._load(shard))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def resign(self, partition: int) -> None:
        """Serve a partition no more."""
        self._quiet.forget(str(partition))
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.resign()
            for listener in self.on_resigned:
                listener(shard)

    async def _load(self, shard: Shard[State]) -> None:
        while not await self._try_load(shard):
            await asyncio.sleep(_LOAD_AGAIN_S)

    async def _try_load(self, shard: Shard[State]) -> bool:
        """Load a shard; return False when it is worth another try."""
        try:
            async with self._may_load:
                began_s = self._clock.monotonic_s()
                if not await shard.load(self._host.read_replicated(shard.partition)):
                    return True
        except Exception as error:
            if shard.phase is not ShardPhase.LOADING:
                return True
            self._say_why(shard, error)
            return False
        taken_s = self._clock.monotonic_s() - began_s
        level = logging.INFO if taken_s > 1 else logging.DEBUG
        logger.log(level, "%s: loaded %s in %.3f s", shard.label, shard.state.summary(), taken_s)
        for listener in self.on_loaded:
            listener(shard)
        return True

    def _say_why(self, shard: Shard[State], error: Exception) -> None:
        self._quiet.log(
            logging.ERROR,
            str(shard.partition),
            "the %ss of %s cannot be loaded, trying again every %.0f s; their clients have to wait: %s",
            self._host.topic.kind,
            shard.label,
            _LOAD_AGAIN_S,
            error,
            news=str(error),
            exc_info=False if isinstance(error, KafkaliteError) else error,
        )

    def close(self) -> None:
        """Resign everything, because the broker stops."""
        for task in self._loads:
            task.cancel()
        for partition in list(self._shards):
            self.resign(partition)
