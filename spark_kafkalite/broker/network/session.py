"""What the broker knows of a client from one request to the next: one session for each connection.

On a listener without SASL a session is complete from its start, and its principal is :data:`ANONYMOUS`. On a listener
with SASL, and on one for brokers alone, it begins as :attr:`Handshake.EXPECTED`. :meth:`Session.check_request` decides
what is served before it is complete; ``broker.authentication`` does the exchanges.

==============  ======================================================================================================
state           served; the connection is closed for anything else
==============  ======================================================================================================
EXPECTED        ApiVersions, SaslHandshake
VERSIONS_KNOWN  SaslHandshake
BEGUN           SaslAuthenticate
RAW             tokens without Kafka's header, after SaslHandshake version 0
COMPLETE        every request. SaslHandshake begins a re-authentication where sessions have a lifetime
EXPIRED         SaslHandshake, to authenticate again (KIP-368)
FAILED          nothing
==============  ======================================================================================================

Source: org.apache.kafka.common.security.authenticator.SaslServerAuthenticator. Apache Kafka answers some illegal
requests before it closes the connection; to do so it reads the request of a client that has not authenticated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.errors import ClusterAuthorizationFailed, FrameError
from spark_kafkalite.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from spark_kafkalite.broker.authorization.authorizer import SessionRights
    from spark_kafkalite.broker.requests.fetch_sessions import FetchSession
    from spark_kafkalite.model import TopicPartition
    from spark_kafkalite.security.sasl_server import SaslServer

# The principal of clients that prove nothing. Source: org.apache.kafka.common.security.auth.KafkaPrincipal.
ANONYMOUS = "User:ANONYMOUS"


class Handshake(Enum):
    """How far a client's authentication has come. Source: SaslServerAuthenticator.SaslState."""

    EXPECTED = "expected"
    VERSIONS_KNOWN = "versions known"
    BEGUN = "begun"
    RAW = "raw"
    COMPLETE = "complete"
    EXPIRED = "expired"
    FAILED = "failed"


# For what runs with each request: a look-up of a member in its class takes 0.2 us in Python 3.11.
COMPLETE: Final = Handshake.COMPLETE

_SERVED: Final[dict[Handshake, frozenset[int]]] = {
    Handshake.EXPECTED: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    Handshake.VERSIONS_KNOWN: frozenset({ApiKey.SASL_HANDSHAKE}),
    Handshake.BEGUN: frozenset({ApiKey.SASL_AUTHENTICATE}),
    Handshake.EXPIRED: frozenset({ApiKey.SASL_HANDSHAKE}),
}


class Session:
    """One client, as long as its connection lasts. ``peer`` is its address for the log, ``host:port``."""

    __slots__ = (
        "_on_close",
        "broker_id",
        "client_software_name",
        "client_software_version",
        "ends_s",
        "fetch_session",
        "given_offsets",
        "handshake",
        "handshake_due_s",
        "is_authenticated",
        "listener",
        "mechanism",
        "peer",
        "principal",
        "proof",
        "renewed_s",
        "rights",
        "sasl",
    )

    def __init__(self, peer: str, listener: Listener) -> None:
        self.peer = peer
        self.listener = listener
        self.principal = ANONYMOUS
        # Which broker of the cluster has proved that it is at the other end; None for clients.
        self.broker_id: int | None = None
        # What the client may do; None in a broker without an authorizer, which allows everything.
        self.rights: SessionRights | None = None
        # What stands for the secret by which it has (ClusterSecret.accepts).
        self.proof = b""
        self.handshake = Handshake.COMPLETE
        # Until when the handshake has to be complete, by the loop's clock.
        self.handshake_due_s = math.inf
        # The exchange that has begun.
        self.sasl: SaslServer | None = None
        # The SASL mechanism of that exchange, and afterwards the one by which the client has authenticated.
        self.mechanism = ""
        # Whether the client or broker has authenticated by SASL, also if it must do so again.
        self.is_authenticated = False
        # When the client has to have authenticated again, and when it last began to, by the loop's clock.
        self.ends_s = math.inf
        self.renewed_s = -math.inf
        # As ApiVersions 3 and later say them; empty for older clients (KIP-511).
        self.client_software_name = ""
        self.client_software_version = ""
        # What the client fetches, while it has a session for that.
        self.fetch_session: FetchSession | None = None
        # From where on it was last given batches of each partition; see ``requests.fetch_reading``.
        self.given_offsets: dict[TopicPartition, int] = {}
        # Called when the connection has closed, each once.
        self._on_close: list[Callable[[Session], None]] = []

    def begin_handshake(self, state: Handshake, due_s: float) -> None:
        """Have it closed unless the handshake is complete by then."""
        self.handshake = state
        self.handshake_due_s = due_s

    def versions_answered(self) -> None:
        """Note that the client has received the versions of the APIs, which it may ask for once."""
        if self.handshake is Handshake.EXPECTED:
            self.handshake = Handshake.VERSIONS_KNOWN

    def check_request(self, api_key: int) -> None:
        """Raise FrameError, which closes, for a request that is not served in this state."""
        if self.handshake is Handshake.COMPLETE or api_key in _SERVED.get(self.handshake, ()):
            return
        if self.handshake is Handshake.FAILED:
            raise FrameError("its authentication has failed")
        if self.handshake is Handshake.BEGUN:
            raise FrameError(f"API {api_key} is not served in the middle of an authentication")
        listener = self.listener
        raise FrameError(
            f"API {api_key} is not served on listener {listener.name} before authentication; a client of it needs "
            f"security.protocol={listener.protocol.value}, sasl.mechanism and credentials"
        )

    def begin_exchange(self, sasl: SaslServer, mechanism: str, due_s: float, *, framed: bool) -> None:
        """Begin to authenticate, or to authenticate again; ``framed``: tokens come in SaslAuthenticate."""
        self.sasl, self.mechanism = sasl, mechanism
        self.begin_handshake(Handshake.BEGUN if framed else Handshake.RAW, due_s)

    def fail_handshake(self, due_s: float) -> None:
        """Serve nothing more; the caller closes the connection once the answer with the reason has left.

        The connection is closed after ``due_s`` in any case.
        """
        self.sasl = None
        self.handshake = Handshake.FAILED
        self.handshake_due_s = due_s

    def prove_broker(self, broker_id: int, proof: bytes) -> None:
        """Note that the other end is broker ``broker_id``."""
        self.broker_id, self.proof = broker_id, proof
        self._complete(f"User:broker-{broker_id}", math.inf)

    def prove_user(self, user: str, ends_s: float) -> None:
        """Note that the other end is a client of this name, until ``ends_s``."""
        self._complete(f"User:{user}", ends_s)

    def _complete(self, principal: str, ends_s: float) -> None:
        self.sasl = None
        self.principal = principal
        self.is_authenticated = True
        self.handshake = Handshake.COMPLETE
        self.handshake_due_s = math.inf
        self.ends_s = ends_s

    def maybe_expire(self, now_s: float) -> None:
        """Serve nothing but an authentication from now on, if the session's lifetime is over."""
        if now_s >= self.ends_s and self.handshake is Handshake.COMPLETE:
            self.handshake = Handshake.EXPIRED

    def call_when_closed(self, listener: Callable[[Session], None]) -> None:
        """Call ``listener`` when the connection has closed; once, however often it is asked for."""
        if listener not in self._on_close:
            self._on_close.append(listener)

    def connection_closed(self) -> None:
        """Notify all listeners that the connection has closed."""
        listeners, self._on_close = self._on_close, []
        for listener in listeners:
            listener(self)

    def check_replica(self, replica_id: int) -> None:
        """Raise ClusterAuthorizationFailed (31) for a replica id that is not that of the broker at the other end.

        Ids below 0 are no replica's.
        """
        if replica_id >= 0 and replica_id != self.broker_id:
            proved = "nothing" if self.broker_id is None else f"to be broker {self.broker_id}"
            raise ClusterAuthorizationFailed(
                f"replica id {replica_id} is refused: this connection has proved {proved}; clients leave it at -1"
            )

    @property
    def client_host(self) -> str:
        """The client's address as Kafka's tools show it, "/127.0.0.1"."""
        return "/" + self.peer.rpartition(":")[0].strip("[]")

    def __repr__(self) -> str:
        software = (
            f" with {self.client_software_name} {self.client_software_version}" if self.client_software_name else ""
        )
        return f"<Session {self.principal} at {self.peer} on {self.listener.name}{software}>"
