"""Client settings: names, defaults, contradictions, and what is said about unknown ones."""

from __future__ import annotations

import logging
import re

import pytest

from spark_kafkalite.client.config import (
    admin_config,
    consumer_config,
    parse_address,
    producer_config,
)
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.model import IsolationLevel

SERVERS = {"bootstrap.servers": "h:1"}


def test_defaults_are_the_missions_then_kafkas() -> None:
    config = producer_config(SERVERS, {})
    assert (config.batch_size, config.linger_ms) == (65_536, 10)
    assert (config.acks, config.idempotent, config.max_in_flight) == (-1, True, 5)
    assert config.delivery_timeout_ms == 120_000
    assert config.compression_type == "none"
    consumer = consumer_config(SERVERS, {})
    assert (consumer.offset_reset, consumer.max_poll_records) == ("latest", 500)
    assert consumer.isolation == IsolationLevel.READ_UNCOMMITTED


def test_keywords_are_snake_case_of_the_names() -> None:
    config = producer_config(None, {"bootstrap_servers": ["a:1", "b:2"], "linger_ms": 0, "acks": 1})
    assert config.client.bootstrap_servers == ("a:1", "b:2")
    assert (config.linger_ms, config.acks, config.idempotent) == (0, 1, False)


def test_a_name_given_twice_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"linger\.ms is given twice.*linger_ms"):
        producer_config({**SERVERS, "linger.ms": 1}, {"linger_ms": 2})


def test_unknown_names_warn_and_name_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        producer_config({**SERVERS, "linger.mss": 1, "key.serializer": "x"}, {})
    assert "unknown producer setting 'linger.mss' is ignored; did you mean 'linger.ms'?" in caplog.text
    assert "key.serializer=x has no effect in this client" in caplog.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "bootstrap.servers is not set"),
        ({"bootstrap.servers": "nowhere"}, "'nowhere' is not of the form host:port"),
        ({**SERVERS, "security.protocol": "TLS"}, "security.protocol=TLS: must be one of PLAINTEXT, SSL"),
        ({**SERVERS, "transactional.id": "t"}, "transactional.id=t: transactional producers come in a later version"),
        ({**SERVERS, "ssl.endpoint.identification.algorithm": "none"}, "algorithm=none: must be one of https, (empty)"),
        ({**SERVERS, "acks": "2"}, "acks=2: must be one of 0, 1, all"),
        ({**SERVERS, "enable.idempotence": True, "acks": "1"}, "enable.idempotence=true contradicts acks=1"),
        ({**SERVERS, "enable.idempotence": True, "retries": 0}, "contradicts retries=0"),
        (
            {**SERVERS, "enable.idempotence": True, "max.in.flight.requests.per.connection": 6},
            "contradicts max.in.flight.requests.per.connection=6",
        ),
        ({**SERVERS, "delivery.timeout.ms": 100}, "delivery.timeout.ms=100: must be at least linger.ms"),
        ({**SERVERS, "compression.type": "gzip", "compression.codec": "lz4"}, "contradict each other"),
    ],
)
def test_bad_settings_name_the_value(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        producer_config(settings, {})
    assert text in str(raised.value)


@pytest.mark.parametrize(("acks", "number"), [("all", -1), ("-1", -1), (-1, -1), (1, 1), ("0", 0)])
def test_acks_in_all_its_spellings(acks: object, number: int) -> None:
    assert producer_config({**SERVERS, "acks": acks}, {}).acks == number


def test_idempotence_gives_way_unless_it_is_asked_for() -> None:
    assert not producer_config({**SERVERS, "retries": 0}, {}).idempotent
    assert not producer_config({**SERVERS, "enable.idempotence": "false"}, {}).idempotent


def test_the_older_codec_settings() -> None:
    config = producer_config({**SERVERS, "compression.codec": "snappy", "compressed.topics": "a, b"}, {})
    assert [config.codec_of(topic) for topic in ("a", "b", "c")] == ["snappy", "snappy", "none"]
    every = producer_config({**SERVERS, "compression.codec": "gzip"}, {})
    assert every.codec_of("c") == "gzip"
    assert producer_config({**SERVERS, "compressed.topics": "a"}, {}).codec_of("a") == "none"


def test_sync_does_not_linger_unless_told_to() -> None:
    assert producer_config({**SERVERS, "producer.type": "sync"}, {}).linger_ms == 0
    assert producer_config({**SERVERS, "producer.type": "sync", "linger.ms": 5}, {}).linger_ms == 5


def test_a_short_request_timeout_does_not_shorten_delivery_below_it() -> None:
    assert producer_config({**SERVERS, "request.timeout.ms": 200_000}, {}).delivery_timeout_ms == 200_010


def test_reset_names_of_2011() -> None:
    assert consumer_config({**SERVERS, "auto.offset.reset": "smallest"}, {}).offset_reset == "earliest"
    assert consumer_config({**SERVERS, "auto.offset.reset": "largest"}, {}).offset_reset == "latest"


def test_admin_has_the_common_settings() -> None:
    assert admin_config({**SERVERS, "request.timeout.ms": 5}, {}).request_timeout_ms == 5


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", ("h", 1)), ("[::1]:9092", ("::1", 9092)), ("PLAINTEXT://h:2", ("h", 2)), (" h:3 ", ("h", 3))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["h", "h:", ":1", "h:0", "h:65536", "h:x"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form host:port"):
        parse_address(text)


def test_a_java_class_that_holds_the_credentials_is_an_error_and_not_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {
        **SERVERS,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    name = "sasl.login.callback.handler.class"
    with pytest.raises(ConfigError, match=r"sasl\.login\.callback\.handler\.class=com\.example\.Handler: a Java class"):
        producer_config({**given, name: "com.example.Handler"}, {})
    kafkas = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    with caplog.at_level(logging.WARNING):
        assert producer_config({**given, name: kafkas}, {}).client.security.login is not None
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        (
            {"ssl.truststore.location": "/ca.pem"},
            r"ssl\.truststore\.location: no effect .*; set it to SSL",
        ),
        ({"sasl.username": "alice", "sasl.password": "canary"}, "set it to SASL_PLAINTEXT"),
        (
            {"sasl.username": "a", "ssl.protocol": "TLSv1.2"},
            r"sasl\.username, ssl\.protocol: .* to SASL_SSL",
        ),
        (
            {"security.protocol": "plaintext", "sasl.mechanism": "PLAIN"},
            "=PLAINTEXT; set it to SASL_PLAINTEXT",
        ),
        ({}, None),
        ({"security.protocol": "ssl", "ssl.protocol": "TLSv1.2"}, None),
    ],
)
def test_settings_that_protect_nothing_are_warned_of_once(
    given: dict[str, object], warned: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    config = admin_config({"bootstrap.servers": "b:1", **given}, {})
    assert len(caplog.records) == (warned is not None)
    assert warned is None or re.search(warned, caplog.text)
    assert "canary" not in caplog.text
    assert config.security.protocol.value == str(given.get("security.protocol", "PLAINTEXT")).upper()
