"""SaslAuthenticate (key 36), versions 0 to 2: as SaslHandshake; a broker proves by SCRAM that it knows the secret.

v0  plain
v1  the answer has the session's lifetime: 0, as long as the connection
v2  flexible

Only users ``broker-N`` exist. An authenticated broker with a version of the inner wire that this one does not speak
gets UNSUPPORTED_VERSION (35). For every other error the answer is SASL_AUTHENTICATION_FAILED (58) with one text, and
the log has the details. The connection is closed afterwards. See ``sasl_handshake``, which comes first.
"""

from __future__ import annotations

import logging

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.event_log import QuietLog
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import (
    IllegalSaslState,
    InnerWireUnsupported,
    SaslAuthenticationFailed,
    UnsupportedVersion,
)
from spark_kafkalite.registry.znodes import FIRST_INNER_WIRE_VERSION
from spark_kafkalite.security.cluster_secret import broker_of_user
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

_quiet = QuietLog(logging.getLogger(__name__))

# Time for the answer to leave.
_CLOSED_AFTER_S = 0.1
# Kafka's words.
_REFUSED = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"


@handles(ApiKey.SASL_AUTHENTICATE, 0, 2, is_off=True)
def handle(context: BrokerContext, exchange: Exchange, message: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Go on with the authentication of a broker."""
    session, secret = exchange.session, context.inner_wire.secret
    scram = session.scram
    if scram is None or secret is None:
        return SaslAuthenticateResponse(
            error_code=IllegalSaslState.code, error_message="SaslHandshake comes first, on the listener of the brokers"
        )
    try:
        said = scram.answer(message.auth_bytes)
        if not scram.is_done:
            return SaslAuthenticateResponse(auth_bytes=said)
        broker_id = broker_of_user(scram.user)
        proof = secret.fingerprint_of(scram)
        if broker_id is None or proof is None:
            raise SaslAuthenticationFailed("the secret has been changed meanwhile")
    except SaslAuthenticationFailed as error:
        text = (
            "%s is refused as a broker (user %.100r): %s; all brokers of a cluster need the same secret "
            "(inter.broker.secret.file)"
        )
        _quiet.log(logging.WARNING, "refused", text, session.peer, scram.user, error)
        session.fail_handshake(exchange.connection.now_s())
        context.loop.call_later(_CLOSED_AFTER_S, exchange.close, "failed to authenticate")
        return SaslAuthenticateResponse(error_code=SaslAuthenticationFailed.code, error_message=_REFUSED)
    version = secret.wire_version_of(scram)
    try:
        context.inner_wire.versions.check(broker_id, FIRST_INNER_WIRE_VERSION if version is None else version)
    except InnerWireUnsupported as error:
        # It has proved to be a broker: it may know why.
        session.fail_handshake(exchange.connection.now_s())
        context.loop.call_later(_CLOSED_AFTER_S, exchange.close, "has another version of the inner wire")
        return SaslAuthenticateResponse(error_code=UnsupportedVersion.code, error_message=str(error))
    session.prove_broker(broker_id, proof)
    exchange.connection.allow_large_requests()
    return SaslAuthenticateResponse(auth_bytes=said)
