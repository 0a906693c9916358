"""The broker's present view of the cluster, which lives as long as the broker, and its listeners.

Sessions with the registry come and go, each with a watcher of its own, which publishes its snapshots here. So readers
of the cluster, and listeners to its changes, need not know whether there is a session now. Between two sessions the
last snapshot stays, and the first one of the next session is compared with it.

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState

_LOG = logging.getLogger(__name__)

ChangeListener = Callable[[ClusterState, ClusterState, ClusterChange], None]


class ClusterView:
    """The last published snapshot, and the listeners to the next one."""

    def __init__(self) -> None:
        # The last published snapshot. An attribute, because every request reads it.
        self.state = ClusterState()
        self._listeners: list[ChangeListener] = []
        self._waiters: dict[asyncio.Future[None], None] = {}

    def topic_id_of(self, name: str) -> bytes | None:
        """Return the id of a topic, None when there is no such topic. In any thread."""
        topic = self.state.topics.get(name)
        return None if topic is None else topic.topic_id

    def add_listener(self, listener: ChangeListener) -> None:
        """Have ``listener(old, new, change)`` called in the loop after each publication, in the order of adding."""
        self._listeners.append(listener)

    def remove_listener(self, listener: ChangeListener) -> None:
        """Stop calling this listener; nothing happens when it was never added."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def publish(self, new: ClusterState, change: ClusterChange) -> None:
        """Take a snapshot that differs from the present one by ``change``, and call all listeners."""
        old, self.state = self.state, new
        for listener in list(self._listeners):
            try:
                listener(old, new, change)
            except Exception:
                _LOG.exception("a listener failed on a cluster change")
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, condition: Callable[[ClusterState], bool], timeout_s: float | None = None) -> ClusterState:
        """Wait until a published snapshot satisfies ``condition`` and return it. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition(self.state):
                waiter = asyncio.get_running_loop().create_future()
                self._waiters[waiter] = None
                try:
                    await waiter
                finally:
                    self._waiters.pop(waiter, None)
        return self.state
