"""The mechanisms of each listener, and what stops the start."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.token_rules import TokenRules

PLAIN_USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="hidden";'
TWO = {
    "listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2,PLAINTEXT://127.0.0.1:3",
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT",
}
OAUTH = {"sasl.enabled.mechanisms": "OAUTHBEARER"}
URL = {"sasl.oauthbearer.jwks.endpoint.url": "https://idp.example/jwks"}
EXPECTED = {"sasl.oauthbearer.expected.issuer": "https://idp.example", "sasl.oauthbearer.expected.audience": "kafka"}
TOKENS = OAUTH | URL | EXPECTED


def config(**given: str) -> BrokerConfig:
    return BrokerConfig.from_properties(TWO | given)


def test_each_listener_has_its_own() -> None:
    listeners = config(
        **{
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "connections.max.reauth.ms": "1000",
            "listener.name.in.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.in.plain.sasl.jaas.config": PLAIN_USERS,
            "listener.name.in.connections.max.reauth.ms": "2000",
            "listener.name.in.plain.connections.max.reauth.ms": "3000",
        }
    ).sasl_listeners
    assert listeners.keys() == {"IN", "OUT"}
    assert listeners["IN"].mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert listeners["IN"].lifetimes_ms == {"PLAIN": 3000, "SCRAM-SHA-256": 2000}
    assert listeners["IN"].passwords == {"a": b"hidden"} and "hidden" not in repr(listeners["IN"])
    assert (listeners["OUT"].lifetimes_ms, listeners["OUT"].passwords) == ({"SCRAM-SHA-512": 1000}, {})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "listener IN has the security protocol SASL_PLAINTEXT and no SASL mechanism"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, r"listener\.name\.in\.plain\.sasl\.jaas\.config is not set"),
        ({"sasl.enabled.mechanisms": "EXTERNAL"}, "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        (OAUTH, r"listener\.name\.in\.oauthbearer\.sasl\.oauthbearer\.jwks\.endpoint\.url is not set"),
        (OAUTH | URL, "expected.issuer is not set: tokens of another issuer .*allow.unverified.issuer=true"),
        (
            OAUTH | URL | {"sasl.oauthbearer.allow.unverified.issuer": "true"},
            "expected.audience is not set: tokens that were meant for other services",
        ),
        (TOKENS | {"sasl.oauthbearer.jwks.endpoint.url": "http://idp/"}, "another host could answer with keys of its"),
        (
            TOKENS | {"listener.name.in.oauthbearer.sasl.jaas.config": PLAIN_USERS},
            r"listener\.name\.in\.oauthbearer\.sasl\.jaas\.config: names PlainLoginModule; for OAUTHBEARER give",
        ),
        (TOKENS | {"sasl.server.callback.handler.class": "com.example.Handler"}, "must be one of org.apache.kafka"),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": PLAIN_USERS.replace("user_a", "user_broker-1")},
            "those of the brokers; choose another name",
        ),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-512", "connections.max.reauth.ms": "-1"}, "must be at least 0"),
        ({"sasl.enabled.mechanism": "PLAIN"}, "did you mean 'sasl.enabled.mechanisms'"),
    ],
)
def test_a_mistake_stops_the_start_with_what_to_do(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as wrong:
        config(**given)
    assert "hidden" not in str(wrong.value)


def test_the_start_warns_of_what_does_nothing_and_of_a_listener_without_users() -> None:
    listeners = config(
        **{
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.in.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.in.plain.sasl.jaas.config": PLAIN_USERS,
            "listener.name.in.scram-sha-256.sasl.jaas.config": PLAIN_USERS,
        }
    ).sasl_listeners
    (text,) = listeners["IN"].warnings("IN", has_scram_users=False, remedy="")
    assert text.startswith("listener.name.in.scram-sha-256.sasl.jaas.config has no effect")
    (text,) = listeners["OUT"].warnings("OUT", has_scram_users=False, remedy="do that")
    assert text.startswith("no client can authenticate on listener OUT") and text.endswith("do that")
    assert listeners["OUT"].warnings("OUT", has_scram_users=True, remedy="") == []


def test_tokens_of_each_listener() -> None:
    """As in a file of Apache Kafka; the users of PLAIN for all listeners are no mistake of OAUTHBEARER."""
    listeners = config(
        **{
            **TOKENS,
            "sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN",
            "sasl.jaas.config": PLAIN_USERS,
            "listener.name.in.oauthbearer.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer."
            'OAuthBearerLoginModule required ssl.truststore.location="/idp.pem" unsecuredLoginStringClaim_sub="x";',
            "listener.name.in.oauthbearer.sasl.server.callback.handler.class": "org.apache.kafka.common.security."
            "oauthbearer.OAuthBearerValidatorCallbackHandler",
            "listener.name.in.oauthbearer.sasl.oauthbearer.expected.audience": "a,b",
            "listener.name.out.sasl.oauthbearer.sub.claim.name": "client_id",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "20000",
        }
    ).sasl_listeners
    accepted = {name: listener.tokens for name, listener in listeners.items()}
    assert accepted["IN"] is not None and accepted["OUT"] is not None
    assert accepted["IN"].rules == TokenRules("https://idp.example", ("a", "b"))
    assert accepted["IN"].keys.tls_options == (("ssl.truststore.location", "/idp.pem"),)
    assert accepted["OUT"].rules == TokenRules("https://idp.example", ("kafka",), subject_claim="client_id")
    assert (accepted["OUT"].keys.tls_options, accepted["OUT"].keys.backoff_s) == ((), 10.0)


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_the_libraries_for_tokens_are_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    if missing == "cryptography":
        monkeypatch.setitem(sys.modules, "jwt", SimpleNamespace(algorithms=SimpleNamespace(has_crypto=False)))
    with pytest.raises(
        ConfigError, match=r"PyJWT and cryptography \(the extra security\): pip install .*PyJWT"
    ) as wrong:
        config(**TOKENS)
    assert "\n" not in str(wrong.value)


def test_the_libraries_for_kerberos_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"SASL GSSAPI needs python-gssapi and krb5.*: pip install 'gssapi") as wrong:
        config(**{"sasl.enabled.mechanisms": "GSSAPI"})
    assert "\n" not in str(wrong.value)
