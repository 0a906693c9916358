"""SaslHandshake (key 17), versions 0 and 1: a client, or another broker, chooses how it authenticates.

v0  tokens follow without Kafka's headers, each after its length
v1  SaslAuthenticate follows

On a listener without SASL the answer is ILLEGAL_SASL_STATE (34), as Apache Kafka's is, unless brokers authenticate on
it. A mechanism that the listener does not have gets UNSUPPORTED_SASL_MECHANISM (33) with those that it has, and the
connection is closed. In a session with a lifetime the request begins a re-authentication (KIP-368).
"""

from __future__ import annotations

import asyncio

from spark_kafkalite.broker.authentication.authentication import AuthenticationRefused
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import IllegalSaslState, UnsupportedSaslMechanism
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

# The first version after which tokens come in SaslAuthenticate.
_FIRST_FRAMED_VERSION = 1
# Time for the answer to leave.
_CLOSED_AFTER_S = 0.1


@handles(ApiKey.SASL_HANDSHAKE, 0, 1)
async def handle(context: BrokerContext, exchange: Exchange, message: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Begin to authenticate the client."""
    session, authentication = exchange.session, context.authentication
    try:
        names = authentication.begin(
            session,
            message.mechanism,
            exchange.connection.now_s(),
            framed=exchange.api_version >= _FIRST_FRAMED_VERSION,
        )
    except IllegalSaslState:
        return SaslHandshakeResponse(error_code=IllegalSaslState.code)
    except AuthenticationRefused as refused:
        await asyncio.sleep(refused.delay_s)
        context.loop.call_later(_CLOSED_AFTER_S, exchange.close, "asked for a mechanism that is not offered")
        is_unknown = refused.error.code == UnsupportedSaslMechanism.code
        return SaslHandshakeResponse(
            error_code=refused.error.code, mechanisms=authentication.mechanisms(session.listener) if is_unknown else []
        )
    return SaslHandshakeResponse(mechanisms=names)
