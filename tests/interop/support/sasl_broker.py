"""A broker whose clients authenticate: its settings, and those of clients in the words of each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.processes.free_ports import free_ports

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


class SaslBroker(BrokerProcess):
    """A broker with a listener SASL_PLAINTEXT, another one REAUTH whose sessions last LIFETIME_MS, and a PLAINTEXT one.

    ADMIN authenticates by PLAIN; a test adds others.
    """

    def __init__(self, data_dir: Path, **more: object) -> None:
        ports = free_ports(3)
        super().__init__(
            data_dir,
            overrides={
                "listeners": ",".join(
                    f"{name}://127.0.0.1:{port}"
                    for name, port in zip(("SASL_PLAINTEXT", "REAUTH", "PLAINTEXT"), ports, strict=True)
                ),
                "listener.security.protocol.map": "REAUTH:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS_OF_PLAIN,
                "listener.name.reauth.plain.sasl.jaas.config": USERS_OF_PLAIN,
                "listener.name.reauth.connections.max.reauth.ms": LIFETIME_MS,
                "logging.level": "DEBUG",
                **more,
            },
        )
        self.reauth, self.plaintext = (f"127.0.0.1:{port}" for port in ports[1:])


def settings_of(
    bootstrap: str, mechanism: str = PLAIN, user: str = ADMIN, password: str = ADMIN_PASSWORD
) -> dict[str, str]:
    """Return a client's settings in Kafka's words."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{_MODULES[mechanism]} required username="{user}" password="{quoted}";',
    }


def in_librdkafkas_words(bootstrap: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    """Return the same settings as librdkafka has them."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def in_pythons_words(bootstrap: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    """Return the same settings as kafka-python and aiokafka have them."""
    return {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
