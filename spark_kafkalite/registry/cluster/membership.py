"""A broker's membership of its cluster: one registry session after the other, for as long as the broker lives.

A session with a registry elsewhere may expire: the process was frozen, or the network away for too long. The broker
then leads nothing, because others may have been elected meanwhile (rule R6); everything of the session is closed, and
the next one is opened: watch, register, stand for controller, lead again under higher epochs. Between two sessions the
view of the cluster keeps its last snapshot; what needs the registry fails with SessionExpired, and may be tried again.

An embedded registry has no such sessions: it is lost only with its disk, and that is final (``loss_is_final``).

Until the broker has joined, an error other than the loss of a session ends the start. Afterwards it is logged, and a
new session is tried after a pause, for ever. A registry that cannot be reached must not end the process, nor one that
has been emptied, or is an older copy of itself. The broker does not use such a registry: what it lacks would count as
deleted. Only another broker with its id, another cluster's registry, and unexpected errors end the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from spark_kafkalite.errors import InconsistentClusterId, KafkaliteError, RegistryError
from spark_kafkalite.model import BrokerId
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.registration import (
    DuplicateBrokerId,
    check_cluster_id,
    check_not_older,
    cluster_id,
    create_base_nodes,
)
from spark_kafkalite.registry.cluster.session import RegistrySession
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.recovery import evidence_node
from spark_kafkalite.registry.store import ConnectionLoss, NoNode, SessionExpired, SessionState, Store, answer
from spark_kafkalite.registry.znodes import BrokerRegistration

_LOG = logging.getLogger(__name__)

# Opens a session with a registry; may take as long as the registry is given to answer.
OpenStore = Callable[[], "Future[Store]"]
# Gets the registry's last transaction and what ``registry.recovery.evidence_node`` says; raises when it is too early.
CheckZxid = Callable[[int, Mapping[BrokerId, int]], None]

RETRY_S: Final = 1.0
# After an attempt that nobody has answered; it has taken its time already.
_RECONNECT_S: Final = 0.1
# What no later session will heal.
_FINAL: Final = (DuplicateBrokerId, InconsistentClusterId)


class ClusterMembership:
    """See the module's text. Lives in one event loop."""

    def __init__(
        self,
        open_store: OpenStore,
        make_session: Callable[[Store], RegistrySession],
        view: ClusterView,
        *,
        on_registration: Callable[[BrokerInfo | None], None],
        on_end: Callable[[BaseException], None],
        loss_is_final: bool = False,
        retry_s: float = RETRY_S,
    ) -> None:
        """``on_registration`` gets each registration of this broker, and None when it is lost. ``on_end`` gets the
        reason why there will be no further session, unless :meth:`open` or :meth:`join` raises that."""
        self._open_store = open_store
        self._make_session = make_session
        self._view = view
        self._on_registration = on_registration
        self._on_end = on_end
        self._loss_is_final = loss_is_final
        self._retry_s = retry_s
        self._stored_cluster_id: str | None = None
        self._holds_logs = False
        self._check_zxid: CheckZxid | None = None
        self._seen_zxid = 0
        self._last_producer_id = -1
        self._session: RegistrySession | None = None
        self._watching = asyncio.Event()
        self._registration: BrokerRegistration | None = None
        self._may_join = asyncio.Event()
        self._joined = asyncio.Event()
        # Of this process; the registration of one that has ended may be replaced.
        self._own_sessions: set[int] = set()
        self._quiet = QuietLog.of_states(_LOG)
        # How many sessions in which the broker was registered were lost.
        self.sessions_lost = 0
        # By how much this host's clock was ahead of the registry's at the last registration; None before the first.
        self.clock_ahead_ms: int | None = None
        self._keeper: asyncio.Task[None] | None = None
        # Whether somebody gets what the keeper raises.
        self._awaited = False

    def __repr__(self) -> str:
        return f"ClusterMembership({self._session or 'no session'})"

    @property
    def session(self) -> RegistrySession:
        """The present session, once it has shown the cluster. Raises SessionExpired while there is none."""
        if self._session is None:
            raise SessionExpired("this broker has no session with the registry at present")
        return self._session

    def abandon_session(self) -> None:
        """Give the present session up, if there is one; another follows. May be called in any thread, and does not
        block: it is for when the loop does not turn."""
        session = self._session
        if session is not None:
            session.store.abandon()

    def check_everything(self) -> None:
        """Have partitions that need a leader looked for: what the registry had no room for may succeed now."""
        if self._session is not None:
            self._session.controller.check_everything()

    @property
    def seen_zxid(self) -> int:
        """The last transaction that this broker has seen of the registry; it is on the disk there."""
        if self._session is not None:
            self._seen_zxid = max(self._seen_zxid, self._session.store.seen_zxid)
        return self._seen_zxid

    @property
    def last_producer_id(self) -> int:
        """The last id of the blocks of producer ids that this broker has taken in any session; -1 for none."""
        if self._session is not None:
            self._last_producer_id = max(self._last_producer_id, self._session.producer_ids.last_taken)
        return self._last_producer_id

    @property
    def is_connected(self) -> bool:
        """Whether this broker has a session with the registry, and a connection at present."""
        return self._session is not None and self._session.store.state is SessionState.CONNECTED

    async def open(
        self,
        stored_cluster_id: str | None,
        *,
        holds_logs: bool = False,
        check_zxid: CheckZxid | None = None,
    ) -> None:
        """Open the first session and have the view show the cluster. The broker is no part of it yet.

        ``stored_cluster_id`` is the one in the broker's own ``meta.properties``, None when it has none yet; with
        ``holds_logs`` a registry that is new is refused. ``check_zxid`` gets the registry's last transaction, and
        raises RegistryError when that is not far enough; then it is called again, with which evidence is settled, by
        broker. Raises what ``open_store`` raises, InconsistentClusterId, RegistryError.
        """
        self._stored_cluster_id, self._holds_logs, self._check_zxid = stored_cluster_id, holds_logs, check_zxid
        self._keeper = asyncio.get_running_loop().create_task(self._keep())
        self._keeper.add_done_callback(self._ended)
        await self._until(self._watching)

    async def join(self, registration: BrokerRegistration) -> None:
        """Register the broker, in this session and all later ones; return when it has stood for controller.

        Raises DuplicateBrokerId, RegistryError.
        """
        self._registration = registration
        self._may_join.set()
        await self._until(self._joined)

    async def close(self) -> None:
        """Leave the cluster and end the session. Idempotent; waits a moment for a registry that does not answer."""
        if self._keeper is not None:
            self._awaited = True
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _until(self, reached: asyncio.Event) -> None:
        """Wait for an event of the keeper; raises what ends it before."""
        assert self._keeper is not None
        self._awaited = True
        waiting = asyncio.ensure_future(reached.wait())
        try:
            await asyncio.wait((waiting, self._keeper), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            self._awaited = False
        if self._keeper.done():
            self._keeper.result()

    def _ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and not self._awaited:
            error = keeper.exception()
            assert error is not None
            self._on_end(error)

    # Sessions -------------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Have one session after the other. Ends only by what it raises."""
        while True:
            try:
                await self._live_one()
                self.sessions_lost += 1
                if self._loss_is_final:
                    raise SessionExpired("the registry is lost; this broker cannot lead any partition without it")
                _LOG.warning("the registry session is over; this broker leads nothing until it has a new one")
                continue
            except KafkaliteError as error:
                if self._loss_is_final or not self._joined.is_set() or isinstance(error, _FINAL):
                    raise
                text = "this broker has no session with the registry, and tries on: %s"
                self._quiet.log(logging.ERROR, "no session", text, error, news=str(error))
                pause_s = min(self._retry_s, _RECONNECT_S) if isinstance(error, ConnectionLoss) else self._retry_s
            await asyncio.sleep(pause_s)

    async def _live_one(self) -> None:
        """Open a session and return when it is lost. Raises what keeps this broker from joining the cluster in it."""
        session = self._make_session(await self._opened())
        joining = asyncio.ensure_future(self._join_in(session))
        lost = asyncio.ensure_future(session.lost.wait())
        leaving = False
        try:
            await asyncio.wait((joining, lost), return_when=asyncio.FIRST_COMPLETED)
            if joining.done() and not session.is_lost:
                joining.result()
                await lost
        except ConnectionLoss:
            # Whether what was under way has happened is not known: the next session begins with what it finds.
            if self._loss_is_final:
                raise
        except asyncio.CancelledError:
            leaving = True
            raise
        finally:
            # What the session has seen counts in the next one.
            self._seen_zxid, self._last_producer_id = self.seen_zxid, self.last_producer_id
            self._session = None
            joining.cancel()
            lost.cancel()
            try:
                await asyncio.gather(joining, lost, return_exceptions=True)
            finally:
                if not leaving:
                    self._on_registration(None)
                await session.close()

    async def _opened(self) -> Store:
        opening = self._open_store()
        try:
            return await asyncio.shield(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            # Nobody waits for it any more, and nobody else would close it.
            opening.add_done_callback(_close_opened)
            raise

    async def _join_in(self, session: RegistrySession) -> None:
        known = self._view.state.cluster_id
        self._own_sessions.add(session.store.session_id)
        if self._watching.is_set():
            await check_cluster_id(session.store, known)
            await check_not_older(session.store, self._seen_zxid)
        else:
            if self._check_zxid is not None:
                # One server of an ensemble may be behind the others.
                await answer(session.store.sync())
            known = await cluster_id(session.store, self._stored_cluster_id, holds_logs=self._holds_logs)
            if self._check_zxid is not None:
                # Not before: of another cluster's registry the number says nothing.
                await self._check_evidence(session.store, self._check_zxid)
            await create_base_nodes(session.store)
        await session.start(known)
        self._session = session
        self._watching.set()
        await self._may_join.wait()
        assert self._registration is not None
        info = await session.register(self._registration, self._own_sessions)
        self.clock_ahead_ms = session.clock_ahead_ms
        self._on_registration(info)
        await session.start_controller()
        self._joined.set()

    @staticmethod
    async def _check_evidence(store: Store, check_zxid: CheckZxid) -> None:
        try:
            check_zxid(store.seen_zxid, {})
        except RegistryError:
            # It has not come far enough, unless it was made again from the logs.
            check_zxid(store.seen_zxid, await _settled_zxids(store))


async def _settled_zxids(store: Store) -> Mapping[BrokerId, int]:
    try:
        data, _ = await answer(store.get(evidence_node.PATH))
        return evidence_node.decode(data)
    except NoNode:
        return {}
    except MalformedNode as malformed:
        _LOG.warning("%s; it settles nothing", malformed)
        return {}


def _close_opened(opening: Future[Store]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
