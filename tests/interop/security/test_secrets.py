"""Clients that are logged in, with secrets that work: no object of theirs, and no line of their logs, shows one."""

from __future__ import annotations

import gc
import logging

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import KafkaliteError
from tests import canary
from tests.lab.certificates import STORE_PASSWORD
from tests.lab.secure_kafka import (
    ALICE,
    OAUTHBEARER,
    PLAIN,
    SCRAM_256,
    SCRAM_512,
    SecuredListener,
    SecureKafka,
    User,
    jaas,
)
from tests.lab.token_endpoint import BEGINNINGS
from tests.patience import PATIENCE_S
from tests.seeds import SOAK

pytestmark = pytest.mark.kafka

CLIENT_SECRET = "secret"  # of the provider of the tests; too common a word to look for


def way_in(kafka: SecureKafka, way: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return settings, and the secrets in them."""
    scram = kafka.client_settings(SecuredListener.SASL_SSL)
    if way == "delegation token":
        token = kafka.delegation_token()
        by_token = jaas(SCRAM_256, username=token.token_id, password=token.hmac, tokenauth="true")
        return {**scram, "sasl.mechanism": SCRAM_256, "sasl.jaas.config": by_token}, (token.hmac,)
    certificate = kafka.authority.issue(ALICE.name)
    key = certificate.key_pem()
    mtls = {**kafka.client_settings(SecuredListener.SSL), "bootstrap.servers": kafka.address("MTLS")}
    by_name = {"sasl.username": ALICE.name, "sasl.password": ALICE.password}
    ways: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
        "PLAIN": (kafka.client_settings(SecuredListener.SASL_PLAINTEXT, PLAIN), (ALICE.password,)),
        "SCRAM": ({**scram, "sasl.mechanism": SCRAM_512, **by_name}, (ALICE.password,)),
        "sessions that end": (kafka.client_settings(SecuredListener.REAUTHENTICATION, SCRAM_256), (ALICE.password,)),
        "PEM key": (
            mtls | {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": certificate.chain_pem},
            (key.splitlines()[1],),
        ),
        "PKCS12 key": (
            mtls | {"ssl.keystore.location": str(certificate.pkcs12_file()), "ssl.keystore.password": STORE_PASSWORD},
            (STORE_PASSWORD, key.splitlines()[1]),
        ),
        "OAUTHBEARER": (
            kafka.client_settings(SecuredListener.SASL_SSL, OAUTHBEARER)
            | {
                "sasl.oauthbearer.token.endpoint.url": kafka.tokens.url,
                "sasl.oauthbearer.client.credentials.client.id": "client",
                "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
            },
            BEGINNINGS,
        ),
    }
    return ways[way]


def all_texts() -> list[str]:
    """What every object of this project in this process says of itself: clients, connections, logins, messages."""
    texts = []
    for each in gc.get_objects():
        module = str(type(each).__module__)
        if module.startswith("spark_kafkalite.") and not module.startswith("spark_kafkalite.testing."):
            try:
                texts += [repr(each), str(each)]
            except Exception as error:
                # Its constructor has raised, in whatever test ran here before, or another thread is still in it.
                texts += canary.exception_texts(error)
    return texts


WAYS = ["PLAIN", "PKCS12 key", "OAUTHBEARER"]
MORE_WAYS = ["SCRAM", "sessions that end", "delegation token", "PEM key"]


# The forms of all secrets: tests/unit/client/test_secrets_in_settings.py.
@pytest.mark.parametrize("way", [*WAYS, *MORE_WAYS] if SOAK else WAYS)
def test_clients_show_no_secret(secure_kafka: SecureKafka, monkeypatch, caplog, way: str) -> None:
    monkeypatch.setenv("KAFKALITE_OAUTHBEARER_ALLOWED_URLS", secure_kafka.tokens.url)
    caplog.set_level(logging.DEBUG)
    settings, secrets = way_in(secure_kafka, way)
    topic = f"secrets-{way.replace(' ', '-')}"
    with Admin(settings) as admin:
        admin.create_topic(topic, 1)
        with (
            Producer(settings) as producer,
            Consumer(settings, group_id=topic, auto_offset_reset="earliest") as consumer,
        ):
            producer.send(topic, b"x").result(PATIENCE_S)
            consumer.subscribe([topic])
            while not consumer.poll(500):
                pass
            consumer.commit()
            texts = [*all_texts(), *canary.object_texts(admin, producer, consumer)]
            login = admin.cluster.config.security.login
            if login is not None:
                exchange = login.exchange("broker")
                texts += [repr(exchange), exchange.remedy]
    assert any(text.startswith("ClientSecurity(") for text in texts)
    texts += [caplog.text, *(repr(record.args) for record in caplog.records)]
    assert [text[:300] for text in texts for secret in secrets if secret in text] == []


def test_refused_clients_show_no_secret(secure_kafka: SecureKafka, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = User(ALICE.name, canary.PASSWORD)
    texts: list[str] = []
    for listener, mechanism in ((SecuredListener.SASL_PLAINTEXT, PLAIN), (SecuredListener.SASL_SSL, SCRAM_512)):
        settings = secure_kafka.client_settings(listener, mechanism, wrong)
        with Producer(settings, max_block_ms=5_000, delivery_timeout_ms=40_000) as producer:
            with pytest.raises(KafkaliteError) as caught:
                producer.send("secrets-refused", b"x").result(PATIENCE_S)
            texts += canary.exception_texts(caught.value)
        with Consumer(settings, group_id="g") as consumer:
            consumer.subscribe(["secrets-refused"])
            with pytest.raises(KafkaliteError) as caught:
                while True:
                    consumer.poll(1_000)
            texts += canary.exception_texts(caught.value)
        with Admin(settings) as admin, pytest.raises(KafkaliteError) as caught:
            admin.list_topics()
        texts += [*canary.exception_texts(caught.value), *canary.object_texts(producer, consumer, admin)]
    texts += [*all_texts(), caplog.text, *(repr(record.args) for record in caplog.records)]
    assert any("refuses the credentials" in text for text in texts)
    assert [leak for text in texts for leak in canary.leaks(text)] == []
