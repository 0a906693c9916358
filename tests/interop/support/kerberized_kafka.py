"""Apache Kafka whose clients authenticate by Kerberos, and the users of its realm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from tests.interop.support.kerberos_realm import KerberosRealm, keytab_jaas
from tests.lab.apache_kafka import ApacheKafka
from tests.lab.certificates import LOOPBACK, Authority

SERVICE: Final = "kafka/127.0.0.1"
ALICE: Final = "alice"
BOB: Final = "bob"
_LISTENERS: Final = {"KERBEROS": "SASL_PLAINTEXT", "KERBEROS_SSL": "SASL_SSL"}


class KerberizedKafka(ApacheKafka):
    """The node; a context manager. ``realm`` must run, and gets the broker's principal and those of ALICE and BOB.

    ALICE is a super user; BOB has the rights that ACLs give.
    """

    def __init__(self, directory: Path, realm: KerberosRealm, *, overrides: Mapping[str, str] | None = None) -> None:
        self.realm = realm
        self.authority = Authority(directory / "certificates", "authority")
        realm.add(SERVICE, ALICE, BOB)
        self.keytab = realm.keytab(directory / "kafka.keytab", SERVICE)
        self.users = {name: realm.keytab(directory / f"{name}.keytab", name) for name in (ALICE, BOB)}
        certificate = self.authority.issue("broker", *LOOPBACK)
        jaas = keytab_jaas(self.keytab, self.named(SERVICE))
        settings = {
            "sasl.kerberos.service.name": "kafka",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{ALICE}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate.pem_file()),
        }
        for name in _LISTENERS:
            prefix = f"listener.name.{name.lower()}."
            settings |= {
                f"{prefix}sasl.enabled.mechanisms": "GSSAPI",
                f"{prefix}gssapi.sasl.jaas.config": jaas,
            }
        super().__init__(
            directory / "kafka",
            jvm_options=(*SHORT_LIVED_OPTIONS, f"-Djava.security.krb5.conf={realm.krb5_conf}"),
            overrides={**settings, **(overrides or {})},
            further_listeners=_LISTENERS,
        )

    def client_settings(self, user: str | None = ALICE, *, encrypted: bool = False) -> dict[str, str]:
        """Return the settings of a client with the user's keytab, under Kafka's names; None: with a ticket cache."""
        listener = "KERBEROS_SSL" if encrypted else "KERBEROS"
        settings = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": _LISTENERS[listener],
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
        }
        if user is not None:
            settings |= {"sasl.kerberos.keytab": str(self.users[user]), "sasl.kerberos.principal": self.named(user)}
        if encrypted:
            settings |= {"ssl.truststore.location": str(self.authority.pem_file())}
        return settings

    def named(self, user: str) -> str:
        """Return the principal of a user or a service with its realm."""
        return f"{user}@{self.realm.realm}"
