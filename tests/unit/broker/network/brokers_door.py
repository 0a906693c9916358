"""What another broker meets: the real acceptor, dispatcher and SASL handlers on a loopback port, without a broker.

Beside SASL it serves Heartbeat, whose answer a test gives, and whose group id says which broker is believed to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from spark_kafkalite.broker.authentication.authentication import Authentication
from spark_kafkalite.broker.authentication.failure_delays import FailureDelays
from spark_kafkalite.broker.authentication.gssapi_servers import gssapi_servers
from spark_kafkalite.broker.authentication.token_keys import TokenKeys
from spark_kafkalite.broker.network.acceptor import Acceptor
from spark_kafkalite.broker.network.inner_wire import InnerWire
from spark_kafkalite.broker.network.listener_tls import BrokerTls
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.peer import PeerConnection, PeerIdentity, PeerSettings
from spark_kafkalite.broker.network.wire_versions import WireVersions
from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.quotas.connection_rates import ConnectionRates
from spark_kafkalite.broker.quotas.limits import QuotaLimits
from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.dispatch import SERVED_APIS, Dispatcher, ServedApi
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.broker.requests.gate import Gate
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.net.descriptors import Descriptors
from spark_kafkalite.net.io_threads import IoThreads
from spark_kafkalite.net.request_memory import RequestMemory
from spark_kafkalite.security.cluster_secret import ClusterSecret
from spark_kafkalite.security.scram import ScramCredential
from spark_kafkalite.slices import Slices
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.patience import PATIENCE_S
from tests.unit.slice_clock import SliceClock

SECRET, OTHER_SECRET = "s" * 32, "t" * 32
HEARTBEAT_VERSION = 4


class Door:
    """See the module's text."""

    def __init__(self, *, for_brokers_alone: bool = False, **settings: object) -> None:
        self.loop = asyncio.get_running_loop()
        self.slices = Slices(self.loop, SliceClock())
        config = DynamicConfig(BrokerConfig.from_properties({"listeners": "PLAINTEXT://127.0.0.1:0", **settings}))
        (listener,) = config.current.listeners
        self.inner_wire = InnerWire(1, listener.name, is_for_brokers_alone=for_brokers_alone)
        self.inner_wire.set_secret(ClusterSecret((SECRET,)))
        self.limits = QuotaLimits()
        self.acceptor = Acceptor(
            self.loop,
            self.slices,
            config,
            RequestMemory(config.current["queued.max.request.bytes"]),
            Descriptors(65_536),
            self.inner_wire,
            BrokerTls(config.current),
            lambda: 0,
            ConnectionRates(self.loop.time, Windows(), self.limits),
        )
        # Without a registry: a test puts credentials here, by mechanism and user.
        self.credentials: dict[tuple[str, str], ScramCredential] = {}
        users: Any = SimpleNamespace(
            find=lambda mechanism, user: self.credentials.get((mechanism, user)), decoy_secret=b"decoys"
        )
        self._io = IoThreads(self.loop, 1)
        self.token_keys = {
            listener.tokens.keys: TokenKeys(listener.tokens.keys, self.loop, self._io)
            for listener in config.current.sasl_listeners.values()
            if listener.tokens is not None
        }
        self.authentication = Authentication(
            config.current.sasl_listeners,
            self.inner_wire,
            users,
            FailureDelays(config.current["connection.failed.authentication.delay.ms"] / 1000, self.loop.time),
            config.current["request.read.timeout.ms"] / 1000,
            self.token_keys,
            gssapi_servers(config.current.sasl_listeners, self._io),
        )
        self.context: Any = SimpleNamespace(
            loop=self.loop,
            slices=self.slices,
            gate=Gate(self.slices.now),
            inner_wire=self.inner_wire,
            config=config.current,
            authentication=self.authentication,
        )
        handlers.load()
        before = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        self.apis = {key: SERVED_APIS[key] for key in before}
        self.apis[ApiKey.HEARTBEAT] = ServedApi(
            ApiKey.HEARTBEAT, 0, HEARTBEAT_VERSION, 0, self._heartbeat, is_raw=False
        )
        self.dispatcher = Dispatcher(self.context, self.apis)
        # Who asked, as the session says; answers wait while this is not set.
        self.asked: list[int | None] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.listener: Listener

    async def _heartbeat(self, _: Any, exchange: Exchange, message: HeartbeatRequest) -> HeartbeatResponse:
        self.asked.append(exchange.session.broker_id)
        await self.answering.wait()
        return HeartbeatResponse(throttle_time_ms=message.generation_id)

    def close(self) -> None:
        """End what does not belong to the acceptor."""
        for keys in self.token_keys.values():
            keys.stop()
        self._io.close()

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.host, self.listener.port

    def connect(
        self,
        broker_id: int = 7,
        secret: str = SECRET,
        *,
        timeout_s: float = PATIENCE_S,
        port: int | None = None,
        versions: WireVersions | None = None,
    ) -> Visitor:
        at_port = self.listener.port if port is None else port
        return Visitor(self, broker_id, secret, timeout_s, at_port, versions or WireVersions(broker_id))


@contextlib.asynccontextmanager
async def door(*, for_brokers_alone: bool = False, **settings: object) -> AsyncIterator[Door]:
    made = Door(for_brokers_alone=for_brokers_alone, **settings)
    (made.listener,) = made.acceptor.bind()
    made.acceptor.start(made.dispatcher.serve)
    try:
        yield made
    finally:
        made.acceptor.stop_accepting()
        await made.dispatcher.stop()
        made.acceptor.close()
        made.close()


class Visitor:
    """A broker that connects, and remembers why its connection ended."""

    def __init__(
        self, at: Door, broker_id: int, secret: str, timeout_s: float, port: int, versions: WireVersions
    ) -> None:
        self.errors: list[KafkaliteError] = []
        self.connection = PeerConnection(
            at.loop,
            at.slices,
            1,
            ("127.0.0.1", port),
            PeerIdentity(broker_id, ClusterSecret((secret,)), versions),
            PeerSettings(timeout_s, -1),
            self.errors.append,
        )
