"""What the broker knows of a client from one request to the next: one session for each connection.

Nobody proves who he is yet, so every session is of :data:`ANONYMOUS` and complete from its start. A listener with TLS
or SASL begins one in :attr:`Handshake.EXPECTED` and changes principal and state as the handshake goes on; which
requests are served meanwhile is said by ``exchange.Oversight``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from spark_kafkalite.broker.network.listeners import Listener

if TYPE_CHECKING:
    from spark_kafkalite.broker.requests.fetch_sessions import FetchSession

# The principal of clients that prove nothing. Source: org.apache.kafka.common.security.auth.KafkaPrincipal.
ANONYMOUS = "User:ANONYMOUS"


class Handshake(Enum):
    """How far a client has come in proving who it is. Source: SaslServerAuthenticator.SaslState."""

    EXPECTED = "expected"
    BEGUN = "begun"
    COMPLETE = "complete"


class Session:
    """One client, as long as its connection lasts. ``peer`` is its address for the log, ``host:port``."""

    __slots__ = (
        "broker_id",
        "client_software_name",
        "client_software_version",
        "fetch_session",
        "handshake",
        "listener",
        "on_close",
        "peer",
        "principal",
    )

    def __init__(self, peer: str, listener: Listener) -> None:
        self.peer = peer
        self.listener = listener
        self.principal = ANONYMOUS
        # Which broker of the cluster has proved that it is at the other end; None for clients.
        self.broker_id: int | None = None
        self.handshake = Handshake.COMPLETE
        # As ApiVersions 3 and later say them; empty for older clients (KIP-511).
        self.client_software_name = ""
        self.client_software_version = ""
        # What the client fetches, while it has a session for that.
        self.fetch_session: FetchSession | None = None
        # Called when the connection has closed.
        self.on_close: Callable[[], None] | None = None

    @property
    def client_host(self) -> str:
        """The client's address as Kafka's tools show it, "/127.0.0.1"."""
        return "/" + self.peer.rpartition(":")[0].strip("[]")

    def __repr__(self) -> str:
        software = (
            f" with {self.client_software_name} {self.client_software_version}" if self.client_software_name else ""
        )
        return f"<Session {self.principal} at {self.peer} on {self.listener.name}{software}>"
