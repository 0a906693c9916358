"""Our clients at every door that is open to them: mechanisms, forms of keys and certificates, versions of TLS.

In the soak each by itself; otherwise a dozen ways in that have them all, in twos and threes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.interop.security.round_trip import round_trip
from tests.lab.certificates import KEY_PASSWORD, STORE_PASSWORD, Authority, Certificate
from tests.lab.secure_kafka import OAUTHBEARER, PLAIN, SCRAM_256, SCRAM_512, SecuredListener, SecureKafka

pytestmark = pytest.mark.kafka

Settings = dict[str, str]

PASSWORDS = [
    (listener, mechanism)
    for listener in (SecuredListener.SASL_PLAINTEXT, SecuredListener.SASL_SSL)
    for mechanism in listener.mechanisms
    if mechanism != OAUTHBEARER
]

TRUSTSTORES: dict[str, Callable[[Authority], Settings]] = {
    "PEM file": lambda authority: {
        "ssl.truststore.location": str(authority.pem_file()),
        "ssl.truststore.type": "PEM",
    },
    "PEM inline": lambda authority: {
        "ssl.truststore.certificates": authority.pem,
        "ssl.truststore.type": "PEM",
    },
    "PKCS12": lambda authority: {
        "ssl.truststore.location": str(authority.pkcs12_file()),
        "ssl.truststore.password": STORE_PASSWORD,
        "ssl.truststore.type": "PKCS12",
    },
    "JKS": lambda authority: {
        "ssl.truststore.location": str(authority.jks_file()),
        "ssl.truststore.password": STORE_PASSWORD,
    },
    "JKS without its password": lambda authority: {"ssl.truststore.location": str(authority.jks_file())},
}
KEYSTORES: dict[str, Callable[[Certificate], Settings]] = {
    "PEM file": lambda certificate: {
        "ssl.keystore.location": str(certificate.pem_file()),
        "ssl.keystore.type": "PEM",
    },
    "PEM file, encrypted": lambda certificate: {
        "ssl.keystore.location": str(certificate.pem_file(KEY_PASSWORD)),
        "ssl.key.password": KEY_PASSWORD,
    },
    "PEM inline": lambda certificate: {
        "ssl.keystore.key": certificate.key_pem(),
        "ssl.keystore.certificate.chain": certificate.chain_pem,
        "ssl.keystore.type": "PEM",
    },
    "PEM inline, encrypted for Java": lambda certificate: {
        "ssl.keystore.key": certificate.key_pem_for_java_17(KEY_PASSWORD),
        "ssl.keystore.certificate.chain": certificate.chain_pem,
        "ssl.key.password": KEY_PASSWORD,
    },
    "PKCS12": lambda certificate: {
        "ssl.keystore.location": str(certificate.pkcs12_file()),
        "ssl.keystore.password": STORE_PASSWORD,
    },
    "JKS": lambda certificate: {
        "ssl.keystore.location": str(certificate.jks_file()),
        "ssl.keystore.password": STORE_PASSWORD,
    },
    "JKS, key with a password of its own": lambda certificate: {
        "ssl.keystore.location": str(certificate.jks_file(KEY_PASSWORD)),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": KEY_PASSWORD,
    },
}


def without(settings: Settings, prefix: str) -> Settings:
    return {name: value for name, value in settings.items() if not name.startswith(prefix)}


SUITES = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"]
VERSIONS = ["TLSv1.2", "TLSv1.3"]
# Every mechanism, form of a truststore and of a keystore, and either version of TLS with a client's key and without.
WITH_PASSWORD = [
    (SecuredListener.SASL_SSL, PLAIN, "PEM file", "TLSv1.2"),
    (SecuredListener.SASL_SSL, SCRAM_256, "JKS", "TLSv1.3"),
    (SecuredListener.SASL_SSL, SCRAM_512, "PKCS12", "TLSv1.2"),
]
WITH_KEY = [
    (keystore, truststore, version)
    for keystore, truststore, version in zip(
        KEYSTORES, itertools.cycle(["PEM inline", "JKS without its password", "PKCS12"]), itertools.cycle(VERSIONS)
    )
]


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_256])
def test_passwords_in_clear(secure_kafka: SecureKafka, mechanism: str) -> None:
    round_trip(secure_kafka.client_settings(SecuredListener.SASL_PLAINTEXT, mechanism))


@pytest.mark.parametrize(("listener", "mechanism", "truststore", "version"), WITH_PASSWORD)
def test_passwords_and_truststores(
    secure_kafka: SecureKafka, listener: SecuredListener, mechanism: str, truststore: str, version: str
) -> None:
    settings = without(secure_kafka.client_settings(listener, mechanism), "ssl.truststore")
    settings |= TRUSTSTORES[truststore](secure_kafka.authority) | of_version(version)
    if version == "TLSv1.2":
        settings["ssl.cipher.suites"] = SUITES[mechanism == PLAIN]
    round_trip(settings)


@pytest.mark.parametrize(("keystore", "truststore", "version"), WITH_KEY)
def test_keystores_and_truststores(secure_kafka: SecureKafka, keystore: str, truststore: str, version: str) -> None:
    rsa_key = list(KEYSTORES).index(keystore) % 4 >= 2
    certificate = secure_kafka.authority.issue("alice", rsa_key=rsa_key, intermediate=rsa_key)
    settings = without(secure_kafka.client_settings(SecuredListener.MTLS), "ssl.")
    settings |= TRUSTSTORES[truststore](secure_kafka.authority) | KEYSTORES[keystore](certificate)
    round_trip(settings | of_version(version))


def of_version(version: str) -> Settings:
    return {"ssl.enabled.protocols": version, "ssl.protocol": version}


@pytest.mark.soak
@pytest.mark.parametrize(("listener", "mechanism"), PASSWORDS)
def test_passwords(secure_kafka: SecureKafka, listener: SecuredListener, mechanism: str) -> None:
    round_trip(secure_kafka.client_settings(listener, mechanism))


@pytest.mark.soak
@pytest.mark.parametrize("form", TRUSTSTORES)
def test_truststores(secure_kafka: SecureKafka, form: str) -> None:
    settings = without(secure_kafka.client_settings(SecuredListener.SSL), "ssl.truststore")
    round_trip(settings | TRUSTSTORES[form](secure_kafka.authority))


@pytest.mark.soak
@pytest.mark.parametrize("rsa_key", [False, True], ids=["EC", "RSA"])
@pytest.mark.parametrize("form", KEYSTORES)
def test_client_certificates(secure_kafka: SecureKafka, form: str, rsa_key: bool) -> None:
    certificate = secure_kafka.authority.issue("alice", rsa_key=rsa_key, intermediate=rsa_key)
    settings = without(secure_kafka.client_settings(SecuredListener.MTLS), "ssl.keystore")
    round_trip(settings | KEYSTORES[form](certificate))


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("listener", [SecuredListener.SSL, SecuredListener.MTLS])
def test_versions_of_tls(secure_kafka: SecureKafka, listener: SecuredListener, version: str) -> None:
    round_trip({**secure_kafka.client_settings(listener), "ssl.enabled.protocols": version, "ssl.protocol": version})


@pytest.mark.soak
@pytest.mark.parametrize("suite", SUITES)
def test_cipher_suites(secure_kafka: SecureKafka, suite: str) -> None:
    """Those of TLS 1.2 can be chosen, by either name."""
    settings = {**secure_kafka.client_settings(SecuredListener.SSL), "ssl.enabled.protocols": "TLSv1.2"}
    round_trip({**settings, "ssl.protocol": "TLSv1.2", "ssl.cipher.suites": suite})


def test_a_name_that_nobody_checks(secure_kafka: SecureKafka) -> None:
    settings = secure_kafka.client_settings(SecuredListener.WRONG_HOST)
    round_trip({**settings, "ssl.endpoint.identification.algorithm": ""})
