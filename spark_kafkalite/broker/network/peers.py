"""The other brokers, as this one reaches them over the inner wire.

:meth:`Peers.connect` opens a connection that belongs to the caller: a follower has one to each leader.
:meth:`Peers.ask` sends one request and waits for its answer. A broker serves the requests of one connection one after
the other. So that a waiting request (for leaders, for example) does not block others, each request has a connection for
itself. The connection is kept for a moment afterwards for the next request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from spark_kafkalite.broker.network.peer import MakeChannel, OnClosed, PeerConnection, PeerIdentity, PeerSettings
from spark_kafkalite.errors import BrokerUnreachable, ClosedError, KafkaliteError
from spark_kafkalite.net.channel import PlainChannel
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.security.settings import TLS_PROTOCOLS
from spark_kafkalite.slices import Slices
from spark_kafkalite.wire.codec import decode_response_body_in_slices, encode_body_in_slices
from spark_kafkalite.wire.message import ApiMessage

# How long a connection is kept without a request; a broker closes idle ones after minutes.
_KEPT_S: Final = 30.0
# Requests to one broker that are under way at a time; the next ones wait.
_AT_ONCE: Final = 8


class NotAnswered(BrokerUnreachable):
    """The request has been sent, and no answer came: whether it has been served is not known."""


class Peers:
    """See the module's text. Lives in one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        identity: Callable[[], PeerIdentity],
        settings: PeerSettings,
    ) -> None:
        """``identity`` raises BrokerNotAvailable in a broker that has none: one that is a cluster by itself."""
        self._loop = loop
        self._slices = slices
        self._identity = identity
        self._settings = settings
        self._turns: defaultdict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))
        # Connections that nobody uses at present, of each registration of a broker, and those that are in use.
        self._idle: defaultdict[tuple[int, tuple[str, int]], list[_Kept]] = defaultdict(list)
        self._used: set[_Kept] = set()
        self._closed = False

    def connect(self, broker: BrokerInfo, on_closed: OnClosed) -> PeerConnection:
        """Begin to connect to another broker; see :class:`PeerConnection`.

        Raises what :attr:`identity` raises, and InnerWireUnsupported for a broker that this one does not speak to.
        """
        identity = self._identity()
        identity.versions.check(broker.broker_id, broker.inner_wire_version)
        return PeerConnection(
            self._loop,
            self._slices,
            broker.broker_id,
            broker.inner_address,
            identity,
            self._settings,
            on_closed,
            self._make_channel(broker),
        )

    def _make_channel(self, broker: BrokerInfo) -> MakeChannel:
        tls_channel = self._settings.tls_channel
        if broker.inner_protocol in TLS_PROTOCOLS and tls_channel is not None:
            return lambda connected: tls_channel(connected, broker)
        return PlainChannel

    async def ask(self, broker: BrokerInfo, message: ApiMessage, version: int, *, timeout_s: float) -> Any:
        """Send one request to a broker and return the message that answers it.

        Raises BrokerUnreachable when the request has not reached the broker, NotAnswered when it may have,
        TimeoutError after ``timeout_s``, FrameError, SaslAuthenticationFailed, IllegalSaslState.
        """
        async with asyncio.timeout(timeout_s), self._turns[broker.broker_id]:
            body = await self._slices.run(encode_body_in_slices(message, version))
            kept = self._take(broker)
            try:
                answer = await kept.ask(message.API_KEY, version, body, timeout_s)
            except BaseException:
                kept.connection.close()
                raise
            finally:
                self._used.discard(kept)
                self._keep(broker, kept)
            return await self._slices.run(decode_response_body_in_slices(message.API_KEY, version, memoryview(answer)))

    def close(self) -> None:
        """Close all connections for requests; what is under way fails. Those of :meth:`connect` are their owners'."""
        self._closed = True
        idle = [kept for every in self._idle.values() for kept in every]
        self._idle.clear()
        for kept in (*idle, *self._used):
            kept.end(ClosedError("this broker stops"))

    def _take(self, broker: BrokerInfo) -> _Kept:
        if self._closed:
            raise ClosedError("this broker stops")
        idle = self._idle[broker.broker_id, broker.inner_address]
        while idle:
            kept = idle.pop()
            kept.stop_waiting()
            if not kept.connection.closed:
                break
        else:
            kept = _Kept(self._loop)
            kept.connection = self.connect(broker, kept.ended)
        self._used.add(kept)
        return kept

    def _keep(self, broker: BrokerInfo, kept: _Kept) -> None:
        if kept.connection.closed:
            return
        if self._closed:
            kept.connection.close()
            return
        idle = self._idle[broker.broker_id, broker.inner_address]
        idle.append(kept)

        def forget() -> None:
            if kept in idle:
                idle.remove(kept)
            kept.connection.close()

        kept.wait(forget)


class _Kept:
    """A connection for one request after the other."""

    connection: PeerConnection

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answered: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, api_key: int, version: int, body: bytearray, timeout_s: float) -> bytes:
        answered = self._answered = self._loop.create_future()

        def on_answer(answer: memoryview) -> None:
            if not answered.done():
                answered.set_result(bytes(answer))

        self.connection.send(api_key, version, body, on_answer, timeout_s=timeout_s)
        try:
            answer: bytes = await answered
            return answer
        finally:
            self._answered = None

    def ended(self, error: KafkaliteError) -> None:
        """Take the end of the connection."""
        if self._answered is None or self._answered.done():
            return
        if isinstance(error, BrokerUnreachable) and self.connection.was_proved:
            error = NotAnswered(str(error))
        self._answered.set_exception(error)

    def end(self, error: KafkaliteError) -> None:
        """Close the connection; what waits for its answer raises ``error``."""
        self.stop_waiting()
        self.connection.close()
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)

    def wait(self, forget: Callable[[], None]) -> None:
        """Have ``forget`` called unless the connection is used again soon."""
        self._timer = self._loop.call_later(_KEPT_S, forget)

    def stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
