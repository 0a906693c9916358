"""What the broker knows of a client from one request to the next: one session for each connection.

Clients do not authenticate yet, so their sessions are of :data:`ANONYMOUS` and complete from their start. Only the
other brokers of the cluster authenticate (``handlers.sasl_authenticate``). On a listener for brokers alone a session
begins as :attr:`Handshake.EXPECTED`; what is served before it is complete is decided in ``dispatch``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.errors import ClusterAuthorizationFailed
from spark_kafkalite.security.scram import ScramServer

if TYPE_CHECKING:
    from spark_kafkalite.broker.authorization.authorizer import SessionRights
    from spark_kafkalite.broker.requests.fetch_sessions import FetchSession

# The principal of clients that prove nothing. Source: org.apache.kafka.common.security.auth.KafkaPrincipal.
ANONYMOUS = "User:ANONYMOUS"


class Handshake(Enum):
    """How far a client's authentication has come. Source: SaslServerAuthenticator.SaslState."""

    EXPECTED = "expected"
    BEGUN = "begun"
    COMPLETE = "complete"
    FAILED = "failed"


class Session:
    """One client, as long as its connection lasts. ``peer`` is its address for the log, ``host:port``."""

    __slots__ = (
        "broker_id",
        "client_software_name",
        "client_software_version",
        "fetch_session",
        "handshake",
        "handshake_due_s",
        "listener",
        "on_close",
        "peer",
        "principal",
        "proof",
        "rights",
        "scram",
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
        self.scram: ScramServer | None = None
        # As ApiVersions 3 and later say them; empty for older clients (KIP-511).
        self.client_software_name = ""
        self.client_software_version = ""
        # What the client fetches, while it has a session for that.
        self.fetch_session: FetchSession | None = None
        # Called when the connection has closed.
        self.on_close: Callable[[], None] | None = None

    def begin_handshake(self, state: Handshake, due_s: float) -> None:
        """Have it closed unless the handshake is complete by then."""
        self.handshake = state
        self.handshake_due_s = due_s

    def fail_handshake(self, now_s: float) -> None:
        """Serve nothing more; the caller closes the connection once the answer with the reason has left."""
        self.scram = None
        self.handshake = Handshake.FAILED
        self.handshake_due_s = now_s

    def prove_broker(self, broker_id: int, proof: bytes) -> None:
        """Note that the other end is broker ``broker_id``."""
        self.scram = None
        self.broker_id, self.proof = broker_id, proof
        self.principal = f"User:broker-{broker_id}"
        self.handshake = Handshake.COMPLETE
        self.handshake_due_s = math.inf

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
