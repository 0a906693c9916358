"""Listening sockets, the connections that they accept, and the limits on those.

The acceptor owns what all connections share: the scratch buffer, the count of request memory, and a check every second.
This check closes connections that are idle or too slow, or that the peer has closed while the broker did not read them.

The acceptor closes a new connection at once if the partitions leave no descriptor for it (``descriptors``). Many
clients must not prevent connections of other brokers. So if a listener is only for brokers, its connections do not
count for ``max.connections`` and ``max.connections.per.ip`` (KIP-402 excludes that listener, too), and some descriptors
are reserved for them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

from spark_kafkalite.addresses import address_text
from spark_kafkalite.broker.authorization.authorizer import Authorizer, SessionRights
from spark_kafkalite.broker.network.connection import Connection, Limits
from spark_kafkalite.broker.network.inner_wire import InnerWire
from spark_kafkalite.broker.network.listener_tls import BrokerTls
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import ANONYMOUS, Handshake, Session
from spark_kafkalite.broker.quotas.connection_rates import UNLIMITED, ConnectionRates
from spark_kafkalite.broker.settings.dynamic_config import DynamicConfig
from spark_kafkalite.broker.settings.listener_settings import OF_ONE_LISTENER
from spark_kafkalite.broker.settings.quota_settings import CONNECTION_RATE
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.net.channel import Channel, PlainChannel
from spark_kafkalite.net.descriptors import Descriptors
from spark_kafkalite.net.event_loop import end_of_pass
from spark_kafkalite.net.listening import ListeningSocket, bind
from spark_kafkalite.net.outbox import ROOM_BYTES
from spark_kafkalite.net.request_memory import MemoryShares, RequestMemory
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.security.cluster_secret import ClusterSecret
from spark_kafkalite.slices import Slices, Work
from spark_kafkalite.wire.frame import HEAD_BYTES

logger = logging.getLogger(__name__)

# Large enough for several batches of 64 KiB in one call, small enough to stay in the processor's cache.
_SCRATCH_BYTES = 512 * 1024
_SWEEP_INTERVAL_S = 1.0
# Connections between two looks at the clock: 10,000 take longer than one pass of the loop may.
_SWEPT_AT_A_TIME = 16
# Connections that are kept until they are closed.
_MOST_HELD = 1000
# Connections of clients that may be in their TLS handshake or authentication at a time. Each takes some 22 KiB, or a
# request of sasl.server.max.receive.size.
_MOST_HANDSHAKES = 1000


class Acceptor:
    """Accepts connections and owns them (``connection.Owner``)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        settings: DynamicConfig,
        memory: RequestMemory,
        descriptors: Descriptors,
        inner_wire: InnerWire,
        tls: BrokerTls,
        partitions: Callable[[], int],
        rates: ConnectionRates,
    ) -> None:
        """``partitions`` returns the number of hosted partitions. Each needs a descriptor, like a connection.

        ``rates`` limits how many connections are opened in a second.
        """
        self.loop = loop
        self.at_end_of_pass = end_of_pass(loop)
        self.slices = slices
        self.memory = memory
        self.scratch = memoryview(bytearray(HEAD_BYTES + _SCRATCH_BYTES))
        self.room = memoryview(bytearray(ROOM_BYTES))
        # What limits the rights of clients; None where nothing does. Set before start().
        self.authorizer: Authorizer | None = None
        # The function that serves a request; set by start().
        self.serve: Callable[[Connection, memoryview], None]
        self._descriptors = descriptors
        self._inner_wire = inner_wire
        self.tls = tls
        inner_wire.on_change(self._secret_changed)
        self._partitions = partitions
        self._rates = rates
        # Connections of addresses that have opened too many, each until it is closed.
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        config = settings.current
        idle_ms = config["connections.max.idle.ms"]
        self.limits = Limits(
            max_frame_bytes=config["socket.request.max.bytes"],
            max_requests=config["queued.max.requests.per.connection"],
            max_response_bytes=config["queued.max.response.bytes.per.connection"],
            read_timeout_s=config["request.read.timeout.ms"] / 1000,
            idle_s=idle_ms / 1000 if idle_ms >= 0 else -1,
            max_unauthenticated_bytes=min(config["sasl.server.max.receive.size"], config["socket.request.max.bytes"]),
        )
        self._config = config
        self._settings = settings
        self._sockets: list[tuple[ListeningSocket, Listener]] = []
        # Connections with their peers' addresses; None at a listener that only brokers use.
        self._connections: dict[Connection, str | None] = {}
        # The number of clients' connections.
        self._client_count = 0
        self._by_address: Counter[str] = Counter()
        self._shares = MemoryShares(memory)
        # Whose share of the request memory a connection uses: a user's, or that of an address; brokers have the whole.
        self._sharers: dict[Connection, str] = {}
        # Those of clients whose TLS handshake or authentication is not complete, the oldest first.
        self._shaking: dict[Connection, None] = {}
        # The number of connections accepted so far, by listener.
        self.accepted: Counter[str] = Counter()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._quiet = QuietLog(logger)

    # Listening ------------------------------------------------------------------------------------------------------

    def bind(self) -> list[Listener]:
        """Bind every listener and return them with their ports, without accepting connections. Raises ConfigError."""
        for configured in self._config.listeners:
            try:
                bound = bind(configured.host, configured.port)
            except OSError as error:
                raise _not_listening(configured, error) from error
            listener = configured.bound(bound.getsockname()[1])
            accept, delay_s = partial(self._accepted, listener), partial(self._accept_delay_s, listener)
            listening = ListeningSocket(self.loop, bound, accept, self._cannot_accept, delay_s)
            self._sockets.append((listening, listener))
        return [listener for _, listener in self._sockets]

    def start(self, serve: Callable[[Connection, memoryview], None]) -> None:
        """Start to accept connections, and pass their requests to ``serve``. Raises ConfigError."""
        self.serve = serve
        for listening, listener in self._sockets:
            try:
                listening.start(self._config["socket.listen.backlog.size"])
            except OSError as error:
                raise _not_listening(listener, error) from error
        self._sweep_timer = self.loop.call_later(_SWEEP_INTERVAL_S, self._sweep)

    def stop_accepting(self) -> None:
        """Close the listening sockets. Connections stay open."""
        for listening, _ in self._sockets:
            listening.close()
        self._sockets.clear()

    def close(self) -> None:
        """Close everything."""
        self._is_closed = True
        self.stop_accepting()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for held, timer in self._held.items():
            timer.cancel()
            held.close()
        self._held.clear()
        for connection in list(self._connections):
            connection.close("the broker stops")

    @property
    def has_work(self) -> bool:
        """Whether any connection waits for an answer."""
        return any(connection.has_work for connection in self._connections)

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def connections(self) -> Collection[Connection]:
        """Those that are open."""
        return self._connections.keys()

    def count_by_listener(self) -> Counter[str]:
        """Return the number of open connections of each listener that has some."""
        return Counter(connection.session.listener.name for connection in self._connections)

    # Accepting ------------------------------------------------------------------------------------------------------

    def _cannot_accept(self, level: int, error: OSError) -> None:
        self._quiet.log(level, "accept", "cannot accept a connection: %s", error.strerror)

    def _accept_delay_s(self, listener: Listener) -> float:
        """Return for how long a listener may accept no connection."""
        delay_s = max((self._rates.delay_s(*limit) for limit in self._creation_rates(listener)), default=0.0)
        if delay_s > 0:
            self._quiet.log(
                logging.INFO,
                "rate",
                "listener %s accepts no connections for a moment: %s is used up",
                listener.name,
                CONNECTION_RATE,
            )
        return delay_s

    def _creation_rates(self, listener: Listener) -> list[tuple[str, float]]:
        """Return how many connections may be opened in a second: each limit that counts, with its name for
        ``ConnectionRates``."""
        values = self._settings.current.values
        own = values.get(OF_ONE_LISTENER.join(listener.name, CONNECTION_RATE))
        limits = [] if own is None else [(listener.name, own)]
        if not self._inner_wire.serves_brokers_alone(listener):
            limits.append(("", values[CONNECTION_RATE]))
        return [limit for limit in limits if limit[1] < UNLIMITED]

    def _hold(self, connected: socket.socket, host: str, seconds: float) -> None:
        """Keep a connection unread for some time, then close it, so that its client does not try again at once."""
        self._quiet.log(
            logging.WARNING, "address-rate", "closed a connection from %s: connection_creation_rate is used up", host
        )
        if len(self._held) >= _MOST_HELD:
            connected.close()
            return

        def close() -> None:
            del self._held[connected]
            connected.close()

        self._held[connected] = self.loop.call_later(seconds, close)

    def _accepted(self, listener: Listener, connected: socket.socket, address: tuple[str, int]) -> None:
        if self._serves(listener, connected, address):
            for limit in self._creation_rates(listener):
                self._rates.accepted(*limit)

    def _serves(self, listener: Listener, connected: socket.socket, address: tuple[str, int]) -> bool:
        """Begin to serve a connection, or close it; return whether it counts for the rates."""
        host = address[0]
        is_for_brokers = self._inner_wire.serves_brokers_alone(listener)
        delay_s = 0.0 if is_for_brokers else self._rates.address_delay_s(host)
        if delay_s > 0:
            self._hold(connected, host, delay_s)
            return False
        problem = self._problem_with_one_more(host, is_for_brokers=is_for_brokers)
        if problem is not None:
            connected.close()
            self._quiet.log(logging.WARNING, "limit", "closed a connection from %s: %s", host, problem)
            return True
        session = Session(address_text(host, address[1]), listener)
        try:
            for option, setting in (
                (socket.SO_SNDBUF, "socket.send.buffer.bytes"),
                (socket.SO_RCVBUF, "socket.receive.buffer.bytes"),
            ):
                if self._config[setting] > 0:
                    connected.setsockopt(socket.SOL_SOCKET, option, self._config[setting])
            channel = self._channel(connected, listener, session)
        except OSError as error:
            # The peer may have closed the connection already.
            connected.close()
            logger.debug("connection from %s lost at once: %s", host, error.strerror)
            return True
        if is_for_brokers or listener.protocol.uses_sasl:
            session.begin_handshake(Handshake.EXPECTED, self.loop.time() + self.limits.read_timeout_s)
        if self.authorizer is not None:
            session.rights = SessionRights(self.authorizer, session)
        connection = Connection(self, channel, session)
        self._connections[connection] = None if is_for_brokers else host
        self.accepted[listener.name] += 1
        if not is_for_brokers:
            self._client_count += 1
            self._by_address[host] += 1
            self._share_memory(connection, host)
        logger.debug("connection from %s", connection.session.peer)
        is_stranger = channel.needs_handshake or session.handshake is not Handshake.COMPLETE
        if is_stranger and not is_for_brokers:
            self._shaking[connection] = None
            if len(self._shaking) > _MOST_HANDSHAKES:
                # The oldest: a client of good will needs milliseconds, so a flood does not keep it out.
                next(iter(self._shaking)).close(f"is the oldest of {len(self._shaking)} handshakes", hostile=True)
        return True

    def _channel(self, connected: socket.socket, listener: Listener, session: Session) -> Channel:
        if listener.protocol.encrypts:
            return self.tls.channel(connected, listener, session)
        return PlainChannel(connected)

    def handshake_complete(self, connection: Connection) -> None:
        """Take note that a channel may be used, or that its client has authenticated (``connection.Owner``)."""
        session = connection.session
        if session.handshake is not Handshake.COMPLETE:
            return
        self._shaking.pop(connection, None)
        if session.broker_id is not None:
            self._share_memory(connection, None)
        elif session.principal != ANONYMOUS:
            self._share_memory(connection, session.principal)

    def _share_memory(self, connection: Connection, client: str | None) -> None:
        """Let a connection use the share of a client, or the whole memory."""
        before = self._sharers.pop(connection, None)
        connection.use_memory(self.memory if client is None else self._shares.enter(client))
        if client is not None:
            self._sharers[connection] = client
        if before is not None:
            self._shares.leave(before)

    def _problem_with_one_more(self, host: str, *, is_for_brokers: bool) -> str | None:
        """Return why a new connection must be closed at once, None if it may stay."""
        config, partitions = self._settings.current, self._partitions()
        if not is_for_brokers:
            if self._client_count >= config["max.connections"]:
                return f"max.connections={config['max.connections']} is reached"
            if self._by_address[host] >= config["max.connections.per.ip"]:
                return f"max.connections.per.ip={config['max.connections.per.ip']} is reached"
        if len(self._connections) >= self._descriptors.most_connections(partitions, for_brokers=is_for_brokers):
            return self._descriptors.why_turned_away(partitions)
        return None

    def _secret_changed(self, secret: ClusterSecret) -> None:
        """Close the connections of brokers that authenticated with a secret that is not valid any more."""
        for connection in list(self._connections):
            if connection.session.broker_id is not None and not secret.accepts(connection.session.proof):
                connection.close("the cluster secret with which it authenticated is not accepted any more")

    def connection_closed(self, connection: Connection, reason: str, *, hostile: bool) -> None:
        """Remove a closed connection (``connection.Owner``)."""
        peer = connection.session.peer
        host = self._connections.pop(connection, None)
        self._shaking.pop(connection, None)
        sharer = self._sharers.pop(connection, None)
        if sharer is not None:
            self._shares.leave(sharer)
        if host is not None:
            self._client_count -= 1
            self._by_address[host] -= 1
            if not self._by_address[host]:
                del self._by_address[host]
        if hostile:
            self._quiet.log(logging.WARNING, "hostile", "closed the connection from %s: it %s", peer, reason)
        else:
            logger.debug("connection from %s closed: %s", peer, reason)

    # Sweeping -------------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        self.slices.start(self._swept(), self._has_swept)

    def _swept(self) -> Work[None]:
        """Close connections that are too slow or idle, or that the peer has closed while they were not read."""
        now_s = self.loop.time()
        for number, connection in enumerate(list(self._connections)):
            if number % _SWEPT_AT_A_TIME == 0:
                yield None
            if connection.closed:
                continue
            reason = connection.overdue(now_s)
            if reason is not None:
                connection.close(reason, hostile=not reason.startswith("idle"))
            elif connection.is_paused and _has_gone(connection.fileno(), may_have_sent=connection.is_muted):
                connection.close("closed by the peer")

    def _has_swept(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._quiet.log(logging.ERROR, "bug", "cannot look through the connections", exc_info=error)
        if not self._is_closed:
            self._sweep_timer = self.loop.call_later(_SWEEP_INTERVAL_S, self._sweep)


def _not_listening(listener: Listener, error: OSError) -> ConfigError:
    where = f"{listener.name}://{address_text(listener.host, listener.port)}"
    is_taken = error.errno == errno.EADDRINUSE
    hint = "; is another broker running? Stop it, or name another port in listeners" if is_taken else ""
    return ConfigError(f"cannot listen on {where}: {error.strerror}{hint}")


def _has_gone(descriptor: int, *, may_have_sent: bool) -> bool:
    """Whether the peer has closed the connection. ``may_have_sent``: one that has sent all before, and has closed in
    order, has not gone before that is read: with acks=0 it waits for nothing."""
    poll = select.poll()
    poll.register(
        descriptor, select.POLLHUP | select.POLLERR | (0 if may_have_sent else getattr(select, "POLLRDHUP", 0))
    )
    return bool(poll.poll(0))
