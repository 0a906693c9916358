"""What the cluster's refusals become."""

import pytest

from spark_kafkalite.errors import (
    BrokerUnreachable,
    ClusterAuthorizationFailed,
    CorruptMessage,
    GroupAuthorizationFailed,
    HandshakeFailed,
    IllegalSaslState,
    NoBrokerThere,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    TopicAuthorizationFailed,
    UnsupportedSaslMechanism,
)
from spark_kafkalite.spark.cluster_errors import as_options, refusal, unreachable

CLIENT = {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": "pw"}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (SaslAuthenticationFailed("no; check sasl.password"), "[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=PLAIN: no; check kafka.sasl.password"),  # noqa: E501
        (UnsupportedSaslMechanism("no"), "[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=PLAIN: no"),
        (IllegalSaslState("no"), "[KAFKALITE_AUTHENTICATION_FAILED] kafka.sasl.mechanism=PLAIN: no"),
        (SslHandshakeFailed("set ssl.truststore.location"), "[KAFKALITE_AUTHENTICATION_FAILED] kafka.security.protocol=SASL_SSL: set kafka.ssl.truststore.location"),  # noqa: E501
        (TopicAuthorizationFailed("topic 't': needs READ"), "[KAFKALITE_AUTHORIZATION_FAILED] subscribe=t: topic 't': needs READ"),  # noqa: E501
        (GroupAuthorizationFailed("g"), "[KAFKALITE_AUTHORIZATION_FAILED] subscribe=t: g"),
        (ClusterAuthorizationFailed("c"), "[KAFKALITE_AUTHORIZATION_FAILED] subscribe=t: c"),
        (HandshakeFailed("HTTP; set security.protocol"), "[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers=h:1: HTTP; set kafka.security.protocol"),  # noqa: E501
        (NoBrokerThere("silent; set security.protocol"), "[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers=h:1: silent; set kafka.security.protocol"),  # noqa: E501
        (BrokerUnreachable("refused"), "[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers=h:1: refused; start the broker, or correct the address"),  # noqa: E501
    ],
)  # fmt: skip
def test_the_line_of_a_refusal(error, line):
    explained = unreachable(error, CLIENT, "subscribe=t")
    assert str(explained) == f'format("kafkalite") cannot go on:\n{line}'


def test_other_errors_are_no_refusal():
    assert refusal(CorruptMessage("x"), CLIENT, "subscribe=t") is None
    assert refusal(BrokerUnreachable("x"), CLIENT, "subscribe=t") is None


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("ssl.keystore.location, ssl.keystore.password.", "kafka.ssl.keystore.location, kafka.ssl.keystore.password."),
        ("kafka.ssl.protocol stays", "kafka.ssl.protocol stays"),
        ("sasl.mechanism=X; security.protocol", "kafka.sasl.mechanism=X; kafka.security.protocol"),
        (
            "ssl.protocols and my.ssl.protocol and ssl.protocol.x",
            "ssl.protocols and my.ssl.protocol and ssl.protocol.x",
        ),
    ],
)
def test_settings_in_texts_are_called_as_options_are(said, shown):
    assert as_options(said) == shown
