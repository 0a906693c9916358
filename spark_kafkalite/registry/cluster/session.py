"""One session of a broker with the registry, and everything that ends with it.

A session has a store, a watcher that keeps the view of the cluster fresh, a candidacy for the controller's role, a
block of producer ids, and the broker's registration with a watch over it. All of it ends with the session: watches fire
no more, the role and the registration are gone, and what is left of the block is never given out. The next session
starts empty (``membership``).

Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Set
from typing import Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerEpoch, BrokerId
from spark_kafkalite.registry.cluster.acl_watch import AclFollower, AclWatch
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.entity_configs import EntityConfigs, EntityWatch
from spark_kafkalite.registry.cluster.producer_ids import ProducerIdManager
from spark_kafkalite.registry.cluster.registration import deregister_broker, register_broker
from spark_kafkalite.registry.cluster.registration_watch import OnAnswer, RegistrationWatch
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.controller.controller import Controller
from spark_kafkalite.registry.controller.preferred_leaders import LeaderBalance
from spark_kafkalite.registry.store import ConnectionLoss, SessionState, Store, call_in_loop
from spark_kafkalite.registry.znodes import BrokerRegistration
from spark_kafkalite.slices import Slices

_LOG = logging.getLogger(__name__)

# From how large a difference of clocks on there is a warning: a process may stand still for seconds.
_CLOCKS_DIFFER_MS: Final = 60_000

# How long the orderly end may wait for a registry that does not answer; it ends the session by itself then.
_LEAVE_WITHIN_S: Final = 2.0


class RegistrySession:
    """See the module's text. To be made in the loop that it will live in."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        broker_id: BrokerId,
        clock: Clock,
        slices: Slices,
        unclean_election: Callable[[str], bool],
        recovery: Callable[[str], bool],
        min_insync: Callable[[str], int],
        balance: LeaderBalance | None = None,
        on_answer: OnAnswer | None = None,
        entities: EntityConfigs | None = None,
        acls: AclFollower | None = None,
    ) -> None:
        """``unclean_election``, ``recovery``, ``min_insync`` and ``balance`` as the ``Controller`` takes them.
        ``on_answer`` is called after each answer that proves the session alive, None when that is not needed.
        ``entities`` are the settings of users and clients, and ``acls`` gets the ACLs; both outlive the session."""
        self.store = store
        self.watcher = ClusterWatcher(store, view, slices=slices)
        self.controller = Controller(
            store,
            self.watcher,
            broker_id,
            clock,
            unclean_election=unclean_election,
            recovery=recovery,
            min_insync=min_insync,
            balance=balance,
            slices=slices,
        )
        # A broker takes its first block when it joins the cluster, before the cluster has topics; one with a registry
        # of its own when the first producer asks.
        self.producer_ids = ProducerIdManager(
            store, broker_id, clock, is_first=lambda: on_answer is None or not view.state.topics
        )
        # Set once the registry has ended the session, or is known to have gone.
        self.lost = asyncio.Event()
        self._broker_id = broker_id
        self._clock = clock
        # By how much this host's clock was ahead of the registry's at the registration; None before it.
        self.clock_ahead_ms: int | None = None
        self._registered = False
        self._entities = entities
        self._entity_watch: EntityWatch | None = None
        self._acls = acls
        self._acl_watch: AclWatch | None = None
        self._watch = None if on_answer is None else RegistrationWatch(store, broker_id, clock, on_answer)
        self._watching: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        store.add_session_listener(lambda state: call_in_loop(loop, self._state_changed, state))
        # It may have ended before anybody listened.
        self._state_changed(store.state)

    def __repr__(self) -> str:
        return f"RegistrySession({self.store!r})"

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended, also if :attr:`lost` has not been set yet."""
        return self.store.state is SessionState.LOST

    async def start(self, cluster_id: str) -> None:
        """Read the cluster, settings of users and clients, and ACLs, and keep it all current. Raises RegistryError."""
        await self.watcher.start(cluster_id)
        if self._entities is not None:
            self._entity_watch = await self._entities.follow(self.store)
        if self._acls is not None:
            self._acl_watch = await self._acls.follow(self.store)

    async def register(self, registration: BrokerRegistration, own_sessions: Set[int] = frozenset()) -> BrokerInfo:
        """Register the broker and return it as others see it. ``own_sessions`` are former ones of this very process.

        Raises DuplicateBrokerId, RegistryError.
        """
        stat = await register_broker(self.store, registration, own_sessions)
        self._registered = True
        self._compare_clocks(stat.ctime)
        if self._watch is not None:
            # The lease begins before anything is led.
            await self._watch.look()
            self._watching = asyncio.ensure_future(self._watch.run())
            self._watching.add_done_callback(self._watch_ended)
            # Only a registry elsewhere can be away when producers begin.
            self.producer_ids.take_ahead()
        return BrokerInfo.of(registration, BrokerEpoch(stat.czxid))

    def _compare_clocks(self, registry_ms: int) -> None:
        """Note by how much this host's clock is ahead of the registry's, whose time the new registration has."""
        self.clock_ahead_ms = ahead_ms = self._clock.wall_ms() - registry_ms
        if abs(ahead_ms) > _CLOCKS_DIFFER_MS:
            _LOG.warning(
                "the clock of this host is %d s %s that of the registry: ages of records and offsets, and certificates "
                "are judged by clocks. Synchronize the clocks of all hosts (chrony, ntpd) and restart the broker",
                abs(ahead_ms) // 1000,
                "ahead of" if ahead_ms > 0 else "behind",
            )

    async def start_controller(self) -> None:
        """Try to get the controller's role, once the view shows this broker's registration."""
        # What a broken connection interrupts is taken up when it is back (resume).
        with contextlib.suppress(ConnectionLoss):
            await self.watcher.caught_up()
        with contextlib.suppress(ConnectionLoss):
            await self.controller.start()

    async def close(self) -> None:
        """End everything that lives with the session; give up what is not lost, so that others have it at once."""
        try:
            with contextlib.suppress(RegistryError, TimeoutError):
                async with asyncio.timeout(_LEAVE_WITHIN_S):
                    await self._leave()
        finally:
            if self._watching is not None:
                self._watching.cancel()
            if self._entity_watch is not None:
                self._entity_watch.close()
            if self._acl_watch is not None:
                self._acl_watch.close()
            self.producer_ids.close()
            self.watcher.close()
            self.store.close()

    async def _leave(self) -> None:
        await self.controller.close()
        if self._registered and not self.is_lost:
            await deregister_broker(self.store, self._broker_id)

    def _watch_ended(self, watching: asyncio.Task[None]) -> None:
        error = None if watching.cancelled() else watching.exception()
        if error is not None:
            _LOG.error("a new session is needed: %s", error, exc_info=not isinstance(error, RegistryError))
            self.lost.set()

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self.lost.set()
        elif state is SessionState.SUSPENDED:
            _LOG.warning("the connection to the registry is lost; the session may last until it is back")
        elif state is SessionState.CONNECTED and self._registered:
            _LOG.info("the registry is connected again")
            if self._watch is not None:
                self.producer_ids.take_ahead()
            self.controller.resume()
