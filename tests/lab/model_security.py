"""Security of the model broker's listener: TLS, SASL with PLAIN and SCRAM, sessions with a lifetime (KIP-368).

The model implements those rules of Kafka's brokers on which clients depend:

- Before authentication a client may send only ApiVersions and SASL requests.
- While a client authenticates, it may send only SASL requests.
- After a session's lifetime the broker closes the connection at the next request, unless that is a SASL request.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.network.sockets import ByteSocket
from spark_kafkalite.client.network.tls_socket import TlsSocket
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism
from spark_kafkalite.security.scram import SCRAM_HASHES, ScramCredential, ScramServer, scram_credential
from spark_kafkalite.security.tls import TlsStream
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_HANDSHAKE_MS: Final = 10_000
_ITERATIONS: Final = 4096


class ModelListener:
    """The security settings of all connections, and counts of what happened. By default neither TLS nor SASL."""

    def __init__(
        self,
        *,
        tls_context: ssl.SSLContext | None = None,
        users: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = ("PLAIN", *SCRAM_HASHES),
        session_lifetime_ms: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``users`` are names and passwords; None for a listener that does not authenticate."""
        self.tls_context = tls_context
        self.users = None if users is None else dict(users)
        self.mechanisms = tuple(mechanisms)
        self.session_lifetime_ms = session_lifetime_ms
        self.clock = clock
        self._lock = threading.Lock()
        self.authentications = 0
        self.renewals = 0
        # The reason of each connection that the broker closed.
        self.closed: list[str] = []

    def accept(self, sock: socket.socket) -> ByteSocket:
        """Return the socket for the connection's data. Raises the errors of a TLS handshake."""
        if self.tls_context is None:
            return sock
        encrypted = TlsSocket(sock, TlsStream(self.tls_context, server_side=True))
        encrypted.handshake(Deadline.after_ms(_HANDSHAKE_MS))
        return encrypted

    def note(self, *, renewal: bool) -> None:
        """Count a successful authentication."""
        with self._lock:
            self.authentications += 1
            self.renewals += renewal


class ModelSession:
    """One connection's authentication."""

    def __init__(self, listener: ModelListener) -> None:
        self._listener = listener
        self._is_done = listener.users is None
        self._ends_s: float | None = None
        self._mechanism: str | None = None
        self._scram: ScramServer | None = None
        self.is_over = False

    def check(self, api_key: int) -> None:
        """Raise ConnectionError when the broker closes the connection for this request."""
        listener = self._listener
        is_sasl = api_key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        why = ""
        if self.is_over:
            why = "a request after a refusal"
        elif self._mechanism is not None and not is_sasl:
            why = "another request amid authentication"
        elif not self._is_done and not is_sasl and api_key != ApiKey.API_VERSIONS:
            why = "a request before authentication"
        elif self._ends_s is not None and not is_sasl and listener.clock.monotonic_s() >= self._ends_s:
            why = "the session has ended"
        if why:
            listener.closed.append(why)
            raise ConnectionError(why)

    def answer(self, api_key: int, request: Any) -> Any:
        """Return the answer to a SASL request, None for other requests."""
        if api_key == ApiKey.SASL_HANDSHAKE:
            return self._handshake(request)
        if api_key == ApiKey.SASL_AUTHENTICATE:
            return self._authenticate(request)
        return None

    def _handshake(self, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        listener = self._listener
        if listener.users is None:
            return SaslHandshakeResponse(error_code=IllegalSaslState.code)
        if request.mechanism not in listener.mechanisms:
            self.is_over = True
            return SaslHandshakeResponse(error_code=UnsupportedSaslMechanism.code, mechanisms=list(listener.mechanisms))
        self._mechanism = request.mechanism
        if request.mechanism in SCRAM_HASHES:
            self._scram = ScramServer(request.mechanism, self._credential, b"model")
        return SaslHandshakeResponse(mechanisms=list(listener.mechanisms))

    def _credential(self, user: str, is_token: bool) -> ScramCredential | None:
        assert self._mechanism is not None and self._listener.users is not None
        password = self._listener.users.get(user)
        return None if password is None else scram_credential(self._mechanism, password, b"salt", _ITERATIONS)

    def _authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        listener = self._listener
        if self._mechanism is None or listener.users is None:
            return SaslAuthenticateResponse(error_code=IllegalSaslState.code, error_message="no handshake")
        said = b""
        try:
            if self._scram is not None:
                said = self._scram.answer(request.auth_bytes)
                if not self._scram.is_done:
                    return SaslAuthenticateResponse(auth_bytes=said)
            else:
                _, user, password = request.auth_bytes.split(b"\0")
                if listener.users.get(user.decode()) != password.decode():
                    raise SaslAuthenticationFailed("wrong password")
        except SaslAuthenticationFailed:
            self.is_over = True
            return SaslAuthenticateResponse(
                error_code=SaslAuthenticationFailed.code, error_message="Authentication failed: Invalid credentials"
            )
        listener.note(renewal=self._is_done)
        self._is_done, self._mechanism, self._scram = True, None, None
        if listener.session_lifetime_ms:
            self._ends_s = listener.clock.monotonic_s() + listener.session_lifetime_ms / 1000
        return SaslAuthenticateResponse(auth_bytes=said, session_lifetime_ms=listener.session_lifetime_ms)
