"""SaslHandshake (key 17), versions 0 and 1: clients do not authenticate (ILLEGAL_SASL_STATE); brokers do.

v0  what follows comes without Kafka's frames around it: refused to brokers, too
v1  SaslAuthenticate follows

It is for the brokers of the cluster, on the listener that ``inter.broker.listener.name`` names. On any other listener
the answer is ILLEGAL_SASL_STATE (34), as Apache Kafka's is on a listener without SASL; so it is in a broker that is a
cluster by itself.
"""

from __future__ import annotations

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.network.session import Handshake
from spark_kafkalite.broker.requests.dispatch import handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import IllegalSaslState, UnsupportedSaslMechanism
from spark_kafkalite.security.cluster_secret import MECHANISM
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

# The first version after which tokens come in SaslAuthenticate.
_FIRST_FRAMED_VERSION = 1
# Time for the answer to leave.
_CLOSED_AFTER_S = 0.1


@handles(ApiKey.SASL_HANDSHAKE, 0, 1, is_off=True)
def handle(context: BrokerContext, exchange: Exchange, message: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Begin the authentication of a broker."""
    session, secret = exchange.session, context.inner_wire.secret
    # Once is enough: the proof lasts as long as the connection, and nobody becomes another broker on it.
    is_expected = session.scram is None and session.broker_id is None and exchange.api_version >= _FIRST_FRAMED_VERSION
    if secret is None or not is_expected or not context.inner_wire.serves_brokers(session.listener):
        return SaslHandshakeResponse(error_code=IllegalSaslState.code)
    now_s = exchange.connection.now_s()
    if message.mechanism != MECHANISM:
        session.fail_handshake(now_s)
        context.loop.call_later(_CLOSED_AFTER_S, exchange.close, "asked for a mechanism that is not offered")
        return SaslHandshakeResponse(error_code=UnsupportedSaslMechanism.code, mechanisms=[MECHANISM])
    session.scram = secret.server()
    session.begin_handshake(Handshake.BEGUN, now_s + context.config["request.read.timeout.ms"] / 1000)
    return SaslHandshakeResponse(mechanisms=[MECHANISM])
