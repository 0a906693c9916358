"""Tokens instead of passwords: Kafka's delegation tokens, and tokens of an identity provider (OAUTHBEARER).

Both end while a client lives, and the client takes the next one from where it had the first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.errors import SaslAuthenticationFailed
from tests.interop.security.round_trip import round_trip
from tests.lab.secure_kafka import (
    BOB,
    OAUTHBEARER,
    SCRAM_256,
    SCRAM_512,
    DelegationToken,
    SecuredListener,
    SecureKafka,
    jaas,
)

pytestmark = pytest.mark.kafka

Settings = dict[str, str]


# Delegation tokens --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def delegation_token(secure_kafka: SecureKafka) -> DelegationToken:
    return secure_kafka.delegation_token()


def line(token: DelegationToken) -> str:
    return f"{token.token_id}:{token.hmac}"


@pytest.mark.parametrize("source", ["file", "environment", "JAAS"])
@pytest.mark.parametrize("mechanism", [SCRAM_256, SCRAM_512])
def test_delegation_tokens(
    secure_kafka: SecureKafka,
    delegation_token: DelegationToken,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    source: str,
) -> None:
    settings = secure_kafka.client_settings(SecuredListener.SASL_SSL) | {"sasl.mechanism": mechanism}
    if source == "file":
        (tmp_path / "token").write_text(line(delegation_token) + "\n", encoding="ascii")
        settings["sasl.token.file"] = str(tmp_path / "token")
    elif source == "environment":
        monkeypatch.setenv("KAFKALITE_TOKEN", line(delegation_token))
    else:
        settings["sasl.jaas.config"] = jaas(
            mechanism, username=delegation_token.token_id, password=delegation_token.hmac, tokenauth="true"
        )
    round_trip(settings)


def test_a_delegation_token_is_replaced(
    secure_kafka: SecureKafka, delegation_token: DelegationToken, tmp_path: Path
) -> None:
    """A client that lives on reads the file again for each connection, and says so when there is none to be had."""
    file = tmp_path / "token"
    settings = secure_kafka.client_settings(SecuredListener.SASL_SSL) | {
        "sasl.mechanism": SCRAM_256,
        "sasl.token.file": str(file),
        # Every request opens a connection.
        "connections.max.idle.ms": "0",
    }
    first = secure_kafka.delegation_token(BOB)
    file.write_text(line(first), encoding="ascii")
    with Admin(settings) as admin:
        admin.list_topics()
        secure_kafka.expire(first)
        with pytest.raises(SaslAuthenticationFailed, match=r"sasl\.token\.file"):
            admin.list_topics()
        file.write_text(line(delegation_token), encoding="ascii")
        admin.list_topics()
        file.unlink()
        with pytest.raises(SaslAuthenticationFailed, match=r"sasl\.token\.file"):
            admin.list_topics()


# OAUTHBEARER --------------------------------------------------------------------------------------------------------


@pytest.fixture
def oauth(secure_kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("KAFKALITE_OAUTHBEARER_ALLOWED_URLS", secure_kafka.tokens.url)
    yield secure_kafka.client_settings(SecuredListener.SASL_SSL, OAUTHBEARER)


def test_tokens_by_the_client_credentials_flow(secure_kafka: SecureKafka, oauth: Settings) -> None:
    """One request for a token serves all clients of a process that ask for the same."""
    before = secure_kafka.tokens.request_count
    round_trip(
        oauth
        | {
            "sasl.oauthbearer.token.endpoint.url": secure_kafka.tokens.url,
            "sasl.oauthbearer.client.credentials.client.id": "client",
            "sasl.oauthbearer.client.credentials.client.secret": "secret",
            "sasl.oauthbearer.scope": "of this test only",
        }
    )
    (request,) = secure_kafka.tokens.requests[before:]
    assert request.form["scope"] == "of this test only"


def test_credentials_by_jaas(secure_kafka: SecureKafka, oauth: Settings) -> None:
    """As clients of Kafka before 4.2 have them."""
    credentials = jaas(OAUTHBEARER, clientId="client", clientSecret="secret", scope="kafka")
    round_trip(
        oauth | {"sasl.oauthbearer.token.endpoint.url": secure_kafka.tokens.url, "sasl.jaas.config": credentials}
    )


@pytest.mark.parametrize("setting", ["sasl.token.file", "sasl.oauthbearer.token.endpoint.url"])
def test_a_token_by_file(secure_kafka: SecureKafka, oauth: Settings, tmp_path: Path, setting: str) -> None:
    file = tmp_path / "token"
    file.write_text(secure_kafka.tokens.token() + "\n", encoding="ascii")
    round_trip(oauth | {setting: file.as_uri() if setting.endswith("url") else str(file)})


def test_a_token_by_a_callable(
    secure_kafka: SecureKafka, oauth: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the signers of managed clusters are called."""
    (tmp_path / "signer_of_a_test.py").write_text(
        "import os, time\ndef token():\n    return os.environ['TOKEN_OF_A_TEST'], time.time() + 600\n", encoding="ascii"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TOKEN_OF_A_TEST", secure_kafka.tokens.token())
    round_trip(oauth | {"sasl.token.provider": "signer_of_a_test:token"})
    del sys.modules["signer_of_a_test"]


def test_tokens_that_are_refused(secure_kafka: SecureKafka, oauth: Settings, tmp_path: Path) -> None:
    """The broker's word for it, and where the token came from."""
    file = tmp_path / "token"
    for claims in ({"aud": "others"}, {"exp": 1}, {"iss": "others"}):
        file.write_text(secure_kafka.tokens.token(**claims), encoding="ascii")
        with (
            pytest.raises(SaslAuthenticationFailed, match=r"sasl\.token\.file") as refused,
            Admin(oauth | {"sasl.token.file": str(file)}) as admin,
        ):
            admin.list_topics()
        assert "\n" not in str(refused.value)


def test_an_identity_provider_that_refuses(secure_kafka: SecureKafka, oauth: Settings) -> None:
    credentials = jaas(OAUTHBEARER, clientId="client", clientSecret="wrong")
    settings = oauth | {"sasl.oauthbearer.token.endpoint.url": secure_kafka.tokens.url, "sasl.jaas.config": credentials}
    with pytest.raises(SaslAuthenticationFailed, match="unknown client or secret") as refused, Admin(settings) as admin:
        admin.list_topics()
    assert "wrong" not in str(refused.value)
