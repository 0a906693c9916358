"""Authenticates a connection by SASL: the exchange of bytes is the login's, here it is carried by Kafka's requests.

SaslHandshake names the mechanism, SaslAuthenticate carries the messages of both sides in turn. The last answer may give
the lifetime of the session (KIP-368). Before it ends the client authenticates again over the same connection, with
nothing else in between. Source: SaslClientAuthenticator.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import IllegalSaslState, KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanism
from spark_kafkalite.security.settings import SecurityProtocol
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest

if TYPE_CHECKING:
    from spark_kafkalite.security.sasl import Login

# The part of a session's lifetime after which it is renewed, random so that those that began together are not renewed
# together. Source: SaslClientAuthenticator.ReauthInfo.
_RENEWED_AFTER: Final = (0.85, 0.95)
# A request that is sent before the end may wait at a busy broker until after it, which then closes the connection. This
# much time, or a quarter of a very short session, is enough for that.
_MARGIN_S: Final = 0.5
# A broker takes no authentication within this time after the last one.
_LEAST_PAUSE_S: Final = 1.0
_LONGEST_LINE: Final = 1000


class Requests(Protocol):
    """What is needed of a connection."""

    name: str
    # The host that was dialled.
    host: str

    def serves(self, api_key: int) -> bool: ...

    def request(self, api_key: int, message: Any, deadline: Deadline) -> Any: ...


def authenticate(connection: Requests, login: Login, protocol: SecurityProtocol, deadline: Deadline) -> int:
    """Authenticate the connection and return the session's lifetime in ms, 0 for one without end.

    Raises UnsupportedSaslMechanism (33), IllegalSaslState (34) when the listener does not authenticate,
    SaslAuthenticationFailed (58) with the broker's reason, BrokerUnreachable.
    """
    if not connection.serves(ApiKey.SASL_HANDSHAKE):
        raise _no_sasl(connection.name, protocol)
    answer = connection.request(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=login.mechanism), deadline)
    if answer.error_code == UnsupportedSaslMechanism.code:
        offered = _line(", ".join(answer.mechanisms)) or "none"
        raise error_for(
            answer.error_code,
            f"broker {connection.name} does not offer sasl.mechanism={login.mechanism}; it offers: {offered}",
        )
    if answer.error_code == IllegalSaslState.code:
        raise _no_sasl(connection.name, protocol)
    if answer.error_code:
        raise error_for(answer.error_code, f"broker {connection.name} refuses sasl.mechanism={login.mechanism}")
    exchange = login.exchange(connection.host, deadline.left_s())
    said: bytes | None = exchange.first()
    lifetime_ms = 0
    while said is not None:
        answer = connection.request(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=said), deadline)
        if answer.error_code:
            exchange.refused()
            raise _refused(connection.name, login.mechanism, answer, exchange.remedy)
        lifetime_ms = answer.session_lifetime_ms
        try:
            said = exchange.answer(answer.auth_bytes)
        except SaslAuthenticationFailed as error:
            exchange.refused()
            raise SaslAuthenticationFailed(f"broker {connection.name}: {error}") from error
    return lifetime_ms


def _no_sasl(name: str, protocol: SecurityProtocol) -> IllegalSaslState:
    instead = "SSL" if protocol.encrypts else "PLAINTEXT"
    return IllegalSaslState(
        f"the listener at {name} does not authenticate by SASL, security.protocol={protocol.value} does: set "
        f"security.protocol={instead}, or give the address of another listener"
    )


def _refused(name: str, mechanism: str, answer: Any, remedy: str) -> KafkaError:
    why = _line(answer.error_message or "no reason given")
    hint = f"; {remedy}" if answer.error_code == SaslAuthenticationFailed.code else ""
    return error_for(answer.error_code, f"broker {name} refuses the credentials ({mechanism}): {why}{hint}")


def renewal_at_s(lifetime_ms: int, began_s: float, ended_s: float) -> float:
    """Return when to renew a session whose authentication took from ``began_s`` to ``ended_s``."""
    lifetime_s = lifetime_ms / 1000
    pause_s = lifetime_s * random.uniform(*_RENEWED_AFTER)
    # The session has begun somewhere in between.
    return max(ended_s + _LEAST_PAUSE_S, began_s + min(pause_s, lifetime_s - min(_MARGIN_S, lifetime_s / 4)))


def _line(said: str) -> str:
    """Return a stranger's text as one printable line: it is to command no terminal, and to forge no line of a log."""
    return "".join(sign if sign.isprintable() else "?" for sign in said[:_LONGEST_LINE])
