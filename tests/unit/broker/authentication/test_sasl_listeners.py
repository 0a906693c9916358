"""The mechanisms of each listener, and what stops the start."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError

PLAIN_USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="hidden";'
TWO = {
    "listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2,PLAINTEXT://127.0.0.1:3",
    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT",
}


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
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
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
