"""A broker whose clients authenticate: its settings, and those of clients in the words of each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports
from tests.lab.certificates import LOOPBACK, Authority

PLAIN: Final = "PLAIN"
SCRAM_256: Final = "SCRAM-SHA-256"
SCRAM_512: Final = "SCRAM-SHA-512"
MECHANISMS: Final = (PLAIN, SCRAM_256, SCRAM_512)
ADMIN, ADMIN_PASSWORD = "admin", "ad/min=pass+word"
LIFETIME_MS: Final = 2000

_MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    SCRAM_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}
USERS_OF_PLAIN: Final = f'{_MODULES[PLAIN]} required user_{ADMIN}="{ADMIN_PASSWORD}";'


class Endpoint(NamedTuple):
    """A listener's address; with TLS also the file of the authority that its certificate is from (PEM)."""

    bootstrap: str
    authority: Path | None = None

    @property
    def protocol(self) -> str:
        return "SASL_PLAINTEXT" if self.authority is None else "SASL_SSL"


class SaslBroker(BrokerProcess):
    """A broker with a listener SASL_PLAINTEXT, another one REAUTH whose sessions last LIFETIME_MS, SASL_SSL, and
    PLAINTEXT. ``endpoints`` has the first and the third by name.

    ADMIN authenticates by PLAIN at each; a test adds others.
    """

    def __init__(self, data_dir: Path, **more: object) -> None:
        ports = free_ports(4)
        authority = Authority(data_dir.with_name(f"{data_dir.name}-certificates"), "ours")
        super().__init__(
            data_dir,
            overrides={
                "listeners": ",".join(
                    f"{name}://127.0.0.1:{port}"
                    for name, port in zip(("SASL_PLAINTEXT", "REAUTH", "PLAINTEXT", "SASL_SSL"), ports, strict=True)
                ),
                "listener.security.protocol.map": "REAUTH:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS_OF_PLAIN,
                "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS_OF_PLAIN,
                "listener.name.reauth.plain.sasl.jaas.config": USERS_OF_PLAIN,
                "listener.name.reauth.connections.max.reauth.ms": LIFETIME_MS,
                "ssl.keystore.location": authority.issue("broker", *LOOPBACK).pem_file(),
                "logging.level": "DEBUG",
                **more,
            },
        )
        self.reauth, self.plaintext = (f"127.0.0.1:{port}" for port in ports[1:3])
        self.endpoints = {
            "SASL_PLAINTEXT": Endpoint(f"127.0.0.1:{ports[0]}"),
            "SASL_SSL": Endpoint(f"127.0.0.1:{ports[3]}", authority.pem_file()),
        }


def words_of_kafka(endpoint: Endpoint, mechanism: str) -> dict[str, str]:
    """Return how a client enters, without its credentials, in Kafka's words."""
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(endpoint.authority)}
    return _words(endpoint, mechanism, trust)


def words_of_librdkafka(endpoint: Endpoint, mechanism: str) -> dict[str, Any]:
    """Return the same in librdkafka's words."""
    return _words(endpoint, mechanism, {"ssl.ca.location": str(endpoint.authority)})


def words_of_python(endpoint: Endpoint, mechanism: str) -> dict[str, Any]:
    """Return the same in kafka-python's words; ``aiokafka_client`` takes them, too."""
    words = _words(endpoint, mechanism, {"ssl.cafile": str(endpoint.authority)})
    return {name.replace(".", "_"): value for name, value in words.items()}


def _words(endpoint: Endpoint, mechanism: str, trust: dict[str, str]) -> dict[str, str]:
    """``trust`` names the authority, which only a listener with TLS needs."""
    words = {
        "bootstrap.servers": endpoint.bootstrap,
        "security.protocol": endpoint.protocol,
        "sasl.mechanism": mechanism,
    }
    return words if endpoint.authority is None else words | trust


def settings_of(
    bootstrap: str | Endpoint, mechanism: str = PLAIN, user: str = ADMIN, password: str = ADMIN_PASSWORD
) -> dict[str, str]:
    """Return a client's settings in Kafka's words; the listener at a bare address has no TLS."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    jaas = f'{_MODULES[mechanism]} required username="{user}" password="{quoted}";'
    return {**words_of_kafka(_endpoint(bootstrap), mechanism), "sasl.jaas.config": jaas}


def in_librdkafkas_words(bootstrap: str | Endpoint, mechanism: str, user: str, password: str) -> dict[str, Any]:
    """Return the same settings as librdkafka has them."""
    return {
        **words_of_librdkafka(_endpoint(bootstrap), mechanism),
        "sasl.username": user,
        "sasl.password": password,
    }


def in_pythons_words(bootstrap: str | Endpoint, mechanism: str, user: str, password: str) -> dict[str, Any]:
    """Return the same settings as kafka-python and aiokafka have them."""
    return {
        **words_of_python(_endpoint(bootstrap), mechanism),
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def _endpoint(bootstrap: str | Endpoint) -> Endpoint:
    return Endpoint(bootstrap) if isinstance(bootstrap, str) else bootstrap
