"""SaslAuthenticate (key 36), versions 0 to 2: one token of a client or broker that authenticates, and the reply to it.

v0  plain
v1  the last answer has the session's lifetime (connections.max.reauth.ms); 0: as long as the connection
v2  flexible

A failure is SASL_AUTHENTICATION_FAILED (58) with one text, whatever the reason is, which only the broker's log has. A
client of OAUTHBEARER first receives its status as JSON, without an error, and the failure after its next token. The
answer comes after connection.failed.authentication.delay.ms, and then the connection is closed. A broker that has
authenticated, and speaks a version of the inner wire that this one does not, gets UNSUPPORTED_VERSION (35). Without
SaslHandshake before it the answer is ILLEGAL_SASL_STATE (34).
"""

from __future__ import annotations

import asyncio

from spark_kafkalite.broker.authentication.authentication import AuthenticationRefused
from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.network.session import Handshake
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import IllegalSaslState
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

# Time for the answer to leave.
_CLOSED_AFTER_S = 0.1


@handles(ApiKey.SASL_AUTHENTICATE, 0, 2)
async def handle(
    context: BrokerContext, exchange: Exchange, message: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Go on with the authentication of a client or broker."""
    session = exchange.session
    try:
        said = await context.authentication.answer(session, message.auth_bytes, exchange.connection.now_s)
    except IllegalSaslState as error:
        return SaslAuthenticateResponse(error_code=error.code, error_message=str(error))
    except AuthenticationRefused as refused:
        await asyncio.sleep(refused.delay_s)
        context.loop.call_later(_CLOSED_AFTER_S, exchange.close, "failed to authenticate")
        return SaslAuthenticateResponse(error_code=refused.error.code, error_message=str(refused.error))
    if said.delay_s:
        await asyncio.sleep(said.delay_s)
    if session.handshake is Handshake.COMPLETE:
        exchange.connection.allow_large_requests()
    return SaslAuthenticateResponse(auth_bytes=said.token, session_lifetime_ms=said.lifetime_ms)
