"""The exchanges by which clients and brokers authenticate; the same for tokens with and without Kafka's frames.

Clients authenticate on listeners with SASL, by the mechanisms of the listener. Brokers authenticate on the inner
listener, whatever its security protocol is, by SCRAM-SHA-256 with the cluster secret, as the user ``broker-N``
(``security.cluster_secret``). Such a name never stands for a client's user. What a broker may do depends on
``session.broker_id`` alone, which only the cluster secret sets.

A client learns nothing from a failure but that it failed: the text is Kafka's, and the same for an unknown user, a user
of another mechanism, and a wrong password. The broker's log has the reason.

Source: org.apache.kafka.common.security.authenticator.SaslServerAuthenticator.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafkalite.broker.authentication.failure_delays import FailureDelays
from spark_kafkalite.broker.authentication.sasl_listeners import SaslListener
from spark_kafkalite.broker.authentication.scram_users import ScramUsers
from spark_kafkalite.broker.network.inner_wire import InnerWire
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.settings.sasl_settings import GSSAPI
from spark_kafkalite.errors import (
    IllegalSaslState,
    InnerWireUnsupported,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry.znodes import FIRST_INNER_WIRE_VERSION
from spark_kafkalite.security.cluster_secret import MECHANISM as BROKERS_MECHANISM
from spark_kafkalite.security.cluster_secret import broker_of_user
from spark_kafkalite.security.oauthbearer_server import INVALID_TOKEN, OAUTHBEARER, OAuthBearerServer
from spark_kafkalite.security.sasl_server import PLAIN, PlainServer, SaslServer
from spark_kafkalite.security.scram import ScramCredential, ScramServer

if TYPE_CHECKING:
    from spark_kafkalite.broker.authentication.token_keys import TokenKeys
    from spark_kafkalite.security.key_source import KeySource

logger = logging.getLogger(__name__)

# A client may not begin to authenticate again sooner than this after the last time. Source: KIP-368.
_LEAST_BETWEEN_S: Final = 1.0
# Kafka's words.
_REFUSED: Final = "Authentication failed during %s due to invalid credentials with SASL mechanism %s"
_REFUSED_PLAIN: Final = "Authentication failed: Invalid username or password"
_BROKERS_REMEDY: Final = "all brokers of a cluster need the same secret (inter.broker.secret.file)"
_CLIENTS_REMEDY: Final = "check the client's user name and password; kafkalite users list shows the users of SCRAM"
_REMEDIES: Final = {
    PLAIN: "check the client's user name and password; the users of PLAIN are in sasl.jaas.config",
    GSSAPI: "check the client's ticket and principal, and the keytab and rules of this broker",
    OAUTHBEARER: "check the client's token, and sasl.oauthbearer.* of this broker",
}


class Said(NamedTuple):
    """The broker's reply in an exchange, and after its end the session's lifetime; 0: none.

    The reply is to be sent after ``delay_s``.
    """

    token: bytes
    lifetime_ms: int = 0
    delay_s: float = 0.0


# Whether the session had authenticated before, as an index. Source: org.apache.kafka.common.network.Selector.
_SUCCESSFUL: Final = ("successful_authentication", "successful_reauthentication")
_FAILED: Final = ("failed_authentication", "failed_reauthentication")
LOGIN_KINDS: Final = (*_SUCCESSFUL, *_FAILED)


class AuthenticationRefused(Exception):
    """The authentication has failed: to be answered with ``error`` after ``delay_s``; then the connection ends."""

    def __init__(self, error: KafkaError, delay_s: float) -> None:
        super().__init__(error)
        self.error = error
        self.delay_s = delay_s


class Authentication:
    """See the module's text. One for all connections of a broker."""

    def __init__(
        self,
        listeners: Mapping[str, SaslListener],
        inner_wire: InnerWire,
        users: ScramUsers,
        delays: FailureDelays,
        timeout_s: float,
        token_keys: Mapping[KeySource, TokenKeys] = MappingProxyType({}),
        gssapi_servers: Mapping[str, Callable[[], SaslServer]] = MappingProxyType({}),
    ) -> None:
        """``listeners`` are those with SASL for clients, by name. ``timeout_s`` is how long an exchange may take,
        and how long the answer to a failure may be under way. ``token_keys`` has the keys of all listeners with
        OAUTHBEARER. ``gssapi_servers`` makes an exchange of GSSAPI, by the name of the listener."""
        self._listeners = listeners
        self._inner_wire = inner_wire
        self._users = users
        self._delays = delays
        self._timeout_s = timeout_s
        self._token_keys = token_keys
        self._gssapi_servers = gssapi_servers
        self._quiet = QuietLog(logger)
        # How many there were, by listener and by Kafka's name for the kind (:data:`LOGIN_KINDS`).
        self.counts: Counter[tuple[str, str]] = Counter()

    def mechanisms(self, listener: Listener) -> list[str]:
        """Return the mechanisms that may be asked for on a listener; none where SASL is not spoken."""
        of_clients = self._listeners.get(listener.name)
        names = [] if of_clients is None else list(of_clients.mechanisms)
        if self._inner_wire.serves_brokers(listener) and BROKERS_MECHANISM not in names:
            names.append(BROKERS_MECHANISM)
        return names

    def begin(self, session: Session, mechanism: str, now_s: float, *, framed: bool) -> list[str]:
        """Begin an exchange, and return the mechanisms of the listener. ``framed`` as in ``Session.begin_exchange``.

        Raises IllegalSaslState (34) where the session may not authenticate, or not now; AuthenticationRefused.
        """
        names = self.mechanisms(session.listener)
        if not names:
            raise IllegalSaslState("this listener does not authenticate clients")
        if session.sasl is not None:
            raise IllegalSaslState("an authentication has begun already")
        if session.is_authenticated:
            if session.broker_id is not None or math.isinf(session.ends_s):
                raise IllegalSaslState("SaslHandshake request received after successful authentication")
            if now_s < session.renewed_s + _LEAST_BETWEEN_S:
                raise IllegalSaslState("the client has authenticated less than a second ago")
            if mechanism != session.mechanism:
                raise self._refused(
                    session,
                    IllegalSaslState(f"SASL mechanism {session.mechanism} cannot be changed on a connection"),
                    f"asked for the mechanism {mechanism[:40]!r} to authenticate again, after {session.mechanism}",
                    now_s,
                )
        if mechanism not in names:
            raise self._refused(
                session,
                UnsupportedSaslMechanism(", ".join(names)),
                f"asked for the SASL mechanism {mechanism[:40]!r}, and listener {session.listener.name} has "
                f"{', '.join(names)}; set sasl.mechanism of the client to one of these",
                now_s,
            )
        session.renewed_s = now_s
        session.begin_exchange(
            self._server(session.listener, mechanism), mechanism, now_s + self._timeout_s, framed=framed
        )
        return names

    async def answer(self, session: Session, token: bytes, now: Callable[[], float]) -> Said:
        """Return the reply to a client's token. ``now`` is the clock by which sessions end.

        The connection serves no other request meanwhile. Raises IllegalSaslState (34) without an exchange,
        AuthenticationRefused.
        """
        server = session.sasl
        if server is None:
            text = "SaslAuthenticate request received after successful authentication"
            raise IllegalSaslState(text if session.is_authenticated else f"SaslHandshake comes first; {text}")
        if server.refusal:
            # The delay and the line in the log came with the answer before.
            raise self._failed(session, SaslAuthenticationFailed(INVALID_TOKEN), now(), delay_s=0.0)
        try:
            return await self._answered(session, server, token, now)
        except SaslAuthenticationFailed as error:
            raise self._refused(session, SaslAuthenticationFailed(_text(session)), str(error), now()) from None
        except InnerWireUnsupported as error:
            # It has proved to be a broker: it may know why. The check has written it into the log, once.
            raise self._failed(session, UnsupportedVersion(str(error)), now()) from None

    async def _answered(self, session: Session, server: SaslServer, token: bytes, now: Callable[[], float]) -> Said:
        """Return the reply to a client's token. Raises SaslAuthenticationFailed, InnerWireUnsupported."""
        reply = server.answer(token)
        if not isinstance(reply, bytes):
            reply = await reply
        if server.is_done:
            kind = _SUCCESSFUL[session.is_authenticated]
            lifetime_ms = self._done(session, server, now())
            self.counts[session.listener.name, kind] += 1
            return Said(reply, lifetime_ms)
        if not server.refusal:
            return Said(reply)
        self._log_refusal(session, server.refusal, is_credentials=True)
        return Said(reply, delay_s=self._delays.failed(session.client_host))

    def _server(self, listener: Listener, mechanism: str) -> SaslServer:
        of_clients = self._listeners.get(listener.name)
        secret = self._inner_wire.secret
        if of_clients is None or mechanism not in of_clients.mechanisms:
            assert secret is not None  # else the listener has no other mechanism
            return secret.server()
        if mechanism == PLAIN:
            return PlainServer(of_clients.passwords)
        if mechanism == GSSAPI:
            return self._gssapi_servers[listener.name]()
        if mechanism == OAUTHBEARER:
            tokens = of_clients.tokens
            assert tokens is not None  # it is the listener's mechanism
            return OAuthBearerServer(tokens.rules, self._token_keys[tokens.keys].find)
        return ScramServer(mechanism, partial(self._credential, listener, mechanism), self._users.decoy_secret)

    def _credential(self, listener: Listener, mechanism: str, user: str, is_token: bool) -> ScramCredential | None:
        if is_token:
            return None
        if broker_of_user(user) is not None:
            secret = self._inner_wire.secret
            may_be = mechanism == BROKERS_MECHANISM and self._inner_wire.serves_brokers(listener)
            return secret.credential_of(user) if may_be and secret is not None else None
        return self._users.find(mechanism, user)

    def _done(self, session: Session, server: SaslServer, now_s: float) -> int:
        """Note in the session the user that has authenticated, and return the session's lifetime.

        Raises SaslAuthenticationFailed, InnerWireUnsupported.
        """
        if session.is_authenticated and session.principal != f"User:{server.user}":
            raise SaslAuthenticationFailed(
                f"Cannot change principals during re-authentication from {session.principal} to User:{server.user}"
            )
        broker_id = broker_of_user(server.user)
        if broker_id is not None:
            # By no other mechanism: such a name is no user's.
            assert isinstance(server, ScramServer)
            self._prove_broker(session, broker_id, server)
            return 0
        if isinstance(server, ScramServer) and server.proved != self._users.find(session.mechanism, server.user):
            raise SaslAuthenticationFailed("the credential has been changed or deleted meanwhile")
        lifetime_ms = self._listeners[session.listener.name].lifetimes_ms[session.mechanism]
        if math.isfinite(server.lifetime_s):
            # At least a millisecond: 0 would mean that the session lasts.
            left_ms = max(1, int(server.lifetime_s * 1000))
            lifetime_ms = min(lifetime_ms or left_ms, left_ms)
        session.prove_user(server.user, now_s + lifetime_ms / 1000 if lifetime_ms else math.inf)
        return lifetime_ms

    def _prove_broker(self, session: Session, broker_id: int, server: ScramServer) -> None:
        secret = self._inner_wire.secret
        proof = None if secret is None else secret.fingerprint_of(server)
        if secret is None or proof is None:
            raise SaslAuthenticationFailed("the secret has been changed meanwhile")
        version = secret.wire_version_of(server)
        self._inner_wire.versions.check(broker_id, FIRST_INNER_WIRE_VERSION if version is None else version)
        session.prove_broker(broker_id, proof)

    def _refused(self, session: Session, error: KafkaError, reason: str, now_s: float) -> AuthenticationRefused:
        """Fail the session, write why into the log, and return the exception to raise."""
        self._log_refusal(session, reason, is_credentials=error.code == SaslAuthenticationFailed.code)
        return self._failed(session, error, now_s)

    def _log_refusal(self, session: Session, reason: str, *, is_credentials: bool) -> None:
        user = "" if session.sasl is None else session.sasl.user
        if session.listener.name not in self._listeners or broker_of_user(user) is not None:
            text, remedy = "%s is refused as a broker on listener %s%s: %s%s", _BROKERS_REMEDY
        else:
            text = "%s failed to authenticate on listener %s%s: %s%s"
            remedy = _REMEDIES.get(session.mechanism, _CLIENTS_REMEDY)
        self._quiet.log(
            logging.WARNING,
            "refused often" if self._delays.fails_often(session.client_host) else "refused",
            text,
            session.peer,
            session.listener.name,
            f" by {session.mechanism} as user {user[:100]!r}" if user else "",
            reason,
            f"; {remedy}" if is_credentials else "",
        )

    def _failed(
        self, session: Session, error: KafkaError, now_s: float, delay_s: float | None = None
    ) -> AuthenticationRefused:
        self.counts[session.listener.name, _FAILED[session.is_authenticated]] += 1
        if delay_s is None:
            delay_s = self._delays.failed(session.client_host)
        session.fail_handshake(now_s + delay_s + self._timeout_s)
        return AuthenticationRefused(error, delay_s)


def _text(session: Session) -> str:
    """Return the text of a refusal for the client."""
    if session.mechanism == PLAIN:
        return _REFUSED_PLAIN
    return _REFUSED % ("re-authentication" if session.is_authenticated else "authentication", session.mechanism)
