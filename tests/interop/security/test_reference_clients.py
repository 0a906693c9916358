"""The secured listeners of the test bed, tried with clients of others: who may enter does, and who may not does not.

What our own clients are refused would otherwise be no evidence, and what they are granted neither.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.interop.support.java_tools import JavaTools
from tests.lab.apache_kafka import properties_text
from tests.lab.certificates import KEY_PASSWORD, STORE_PASSWORD, Authority
from tests.lab.secure_kafka import (
    ALICE,
    BOB,
    OAUTHBEARER,
    PLAIN,
    SCRAM_256,
    SCRAM_512,
    SecuredListener,
    SecureKafka,
    User,
    jaas,
)
from tests.lab.token_endpoint import TokenEndpoint
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.kafka

PASSWORDS = (PLAIN, SCRAM_256, SCRAM_512)
SASL = [
    (listener, mechanism) for listener in SecuredListener for mechanism in listener.mechanisms if mechanism in PASSWORDS
]


def in_librdkafkas_words(settings: dict[str, str], user: User) -> dict[str, Any]:
    """Return the settings of a client of Kafka's as librdkafka has them."""
    own = dict(settings)
    if own.pop("ssl.truststore.type", None):
        own["ssl.ca.location"] = own.pop("ssl.truststore.location")
    if own.pop("ssl.keystore.type", None) == "PEM":
        own["ssl.key.location"] = own["ssl.certificate.location"] = own.pop("ssl.keystore.location")
    if own.pop("sasl.jaas.config", None):
        own |= {"sasl.username": user.name, "sasl.password": user.password}
    return own


def reason_of_refusal(settings: dict[str, Any]) -> str | None:
    """Ask the broker for metadata; return librdkafka's words for why that failed, or None."""
    reasons: list[str] = []
    admin = confluent_kafka.admin.AdminClient(
        {**settings, "error_cb": lambda error: reasons.append(error.str()), "log_level": 0}
    )
    admin.poll(0)  # a token is asked for in here
    deadline = time.monotonic() + PATIENCE_S
    while not reasons and time.monotonic() < deadline:
        try:
            admin.list_topics(timeout=0.2)
            return None
        except confluent_kafka.KafkaException:
            admin.poll(0)
    return " | ".join(reasons) or "no reason given"


@pytest.mark.parametrize(("listener", "mechanism"), SASL)
def test_a_password_is_taken_and_a_wrong_one_is_not(
    secure_kafka: SecureKafka, listener: SecuredListener, mechanism: str
) -> None:
    settings = in_librdkafkas_words(secure_kafka.client_settings(listener, mechanism, BOB), BOB)
    assert reason_of_refusal(settings) is None
    reason = reason_of_refusal({**settings, "sasl.password": "wrong"})
    assert reason is not None and "uthentication failed" in reason


def test_a_token_is_taken_and_a_bad_one_is_not(secure_kafka: SecureKafka) -> None:
    tokens = secure_kafka.tokens

    def reason(token: str, listener: SecuredListener = SecuredListener.SASL_SSL) -> str | None:
        settings = in_librdkafkas_words(secure_kafka.client_settings(listener, OAUTHBEARER), ALICE)
        return reason_of_refusal({**settings, "oauth_cb": lambda _: (token, time.time() + 60)})

    assert reason(tokens.token()) is None
    assert reason(tokens.token(), SecuredListener.REAUTHENTICATION) is None
    with TokenEndpoint(subject=ALICE.name) as other:
        bad = {
            "another's": other.token(iss=tokens.issuer),
            "expired": tokens.token(iat=int(time.time()) - 7200, exp=int(time.time()) - 3600),
            "for others": tokens.token(aud="others"),
            "by others": tokens.token(iss="others"),
        }
    assert [name for name, token in bad.items() if "invalid_token" not in str(reason(token))] == []


@pytest.mark.parametrize("listener", [SecuredListener.SSL, SecuredListener.MTLS])
def test_only_the_authority_of_the_listener_is_trusted(
    secure_kafka: SecureKafka, listener: SecuredListener, tmp_path: Path
) -> None:
    settings = in_librdkafkas_words(secure_kafka.client_settings(listener), ALICE)
    assert reason_of_refusal(settings) is None
    other = str(Authority(tmp_path, "other").pem_file())
    assert "certificate verify failed" in str(reason_of_refusal({**settings, "ssl.ca.location": other}))


def test_a_client_certificate_is_wanted(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    without = in_librdkafkas_words(secure_kafka.client_settings(SecuredListener.MTLS), ALICE)
    del without["ssl.key.location"], without["ssl.certificate.location"]
    # librdkafka learns it from a broken connection; the broker's alert comes after the handshake.
    assert reason_of_refusal(without) is not None
    good = str(secure_kafka.authority.issue("alice").pkcs12_file())
    bad = str(Authority(tmp_path, "other").issue("alice").pkcs12_file())
    with_store = {**without, "ssl.keystore.password": STORE_PASSWORD}
    assert reason_of_refusal({**with_store, "ssl.keystore.location": good}) is None
    assert reason_of_refusal({**with_store, "ssl.keystore.location": bad}) is not None


@pytest.mark.parametrize(
    ("listener", "reason"),
    [(SecuredListener.EXPIRED, "certificate verify failed"), (SecuredListener.WRONG_HOST, "certificate verify failed")],
)
def test_a_listeners_certificate_is_a_bad_one(
    secure_kafka: SecureKafka, listener: SecuredListener, reason: str
) -> None:
    settings = in_librdkafkas_words(secure_kafka.client_settings(listener), ALICE)
    assert reason in str(reason_of_refusal(settings))


def test_rights(secure_kafka: SecureKafka) -> None:
    """Bob sees the topic that he may describe, and no other; a client certificate makes one a user too."""
    with_password = in_librdkafkas_words(secure_kafka.client_settings(SecuredListener.SASL_PLAINTEXT, PLAIN, BOB), BOB)
    with_certificate = in_librdkafkas_words(secure_kafka.client_settings(SecuredListener.MTLS, user=BOB), BOB)
    confluent_admin = confluent_kafka.admin.AdminClient(
        in_librdkafkas_words(secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_256), ALICE)
    )
    names = ["bobs-topic", "not-bobs-topic"]
    for made in confluent_admin.create_topics([confluent_kafka.admin.NewTopic(name, 1, 1) for name in names]).values():
        made.result(PATIENCE_S)
    secure_kafka.allow(BOB, "Describe", resource=("topic", "bobs-topic"))
    for settings in (with_password, with_certificate):
        seen = confluent_kafka.admin.AdminClient(settings).list_topics(timeout=PATIENCE_S).topics
        assert set(names) & set(seen) == {"bobs-topic"}


def test_stores_and_tokens_of_java(secure_kafka: SecureKafka, java_tools: JavaTools, tmp_path: Path) -> None:
    """Kafka's own tools read our JKS and PKCS12 files, and log in with a delegation token."""
    authority = secure_kafka.authority
    certificate = authority.issue("alice")
    base = secure_kafka.client_settings(SecuredListener.MTLS)
    inline = {name: value for name, value in base.items() if not name.startswith("ssl.keystore")}
    jks = {
        "ssl.truststore.location": str(authority.jks_file()), "ssl.truststore.type": "JKS",
        "ssl.truststore.password": STORE_PASSWORD, "ssl.keystore.password": STORE_PASSWORD,
        "ssl.keystore.location": str(certificate.jks_file(KEY_PASSWORD)), "ssl.keystore.type": "JKS",
        "ssl.key.password": KEY_PASSWORD,
    }  # fmt: skip
    pkcs12 = {
        "ssl.truststore.location": str(authority.pkcs12_file()), "ssl.truststore.type": "PKCS12",
        "ssl.truststore.password": STORE_PASSWORD, "ssl.keystore.password": STORE_PASSWORD,
        "ssl.keystore.location": str(certificate.pkcs12_file()), "ssl.keystore.type": "PKCS12",
    }  # fmt: skip
    pem = {
        "ssl.keystore.key": certificate.key_pem_for_java_17(KEY_PASSWORD), "ssl.key.password": KEY_PASSWORD,
        "ssl.keystore.certificate.chain": certificate.chain_pem, "ssl.keystore.type": "PEM",
    }  # fmt: skip
    token = secure_kafka.delegation_token(BOB)
    with_token = secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512)
    with_token["sasl.jaas.config"] = jaas(SCRAM_512, username=token.token_id, password=token.hmac, tokenauth="true")
    config = tmp_path / "client.properties"
    for settings in (base | jks, base | pkcs12, inline | pem, with_token):
        config.write_text(properties_text(settings), encoding="utf-8")
        java_tools.run(
            "org.apache.kafka.tools.TopicCommand", "--list",
            "--bootstrap-server", settings["bootstrap.servers"], "--command-config", str(config),
        )  # fmt: skip
