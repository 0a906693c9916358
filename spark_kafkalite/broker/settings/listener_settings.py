"""Declares the settings of listeners: addresses, security protocols, and TLS.

What is in :data:`OF_ONE_LISTENER` may also be given for one listener, or for one SASL mechanism of it, as Kafka has it:
``listener.name.LISTENER.ssl.keystore.location``, ``listener.name.LISTENER.scram-sha-256.sasl.jaas.config``.
"""

from __future__ import annotations

from typing import Final

from spark_kafkalite.broker.network.listeners import LISTENER_PREFIX
from spark_kafkalite.broker.settings.quota_settings import CONNECTION_RATE
from spark_kafkalite.broker.settings.sasl_settings import SASL_LISTENER_SETTINGS
from spark_kafkalite.prefixed_settings import SettingPrefix
from spark_kafkalite.security.settings import SSL_SETTINGS, STORE_TYPES, SecurityProtocol
from spark_kafkalite.settings import Setting

_EACH = tuple(f"{protocol.value}:{protocol.value}" for protocol in SecurityProtocol)

LISTENER_SETTINGS: Final = (
    Setting(
        "listeners",
        "list",
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on, NAME://HOST:PORT with commas. Port 0 picks a free port. An empty host, 0.0.0.0 "
        "and [::] mean every interface and need advertised.listeners.",
    ),
    Setting(
        "advertised.listeners",
        "list",
        (),
        "Addresses that clients get to connect to, one for each listener whose clients cannot use the address "
        "listened on. Port 0 means the port listened on.",
    ),
    Setting(
        "listener.security.protocol.map",
        "list",
        _EACH,
        "Security protocol of each listener, NAME:PROTOCOL with commas: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. A "
        "listener that has the name of a protocol need not be in it.",
    ),
)

TLS_SETTINGS: Final = (
    Setting(
        "ssl.keystore.location",
        "string",
        None,
        "File with the broker's private key and its certificate chain: PEM, PKCS12 or JKS. Of several keys in it the "
        "first is used. It is read again at SIGHUP, and within 60 s when it changes; open connections stay.",
    ),
    Setting("ssl.keystore.password", "password", None, "Password of that file; PEM has none."),
    Setting(
        "ssl.keystore.type",
        "string",
        None,
        "Form of that file; not needed, since the content shows it.",
        choices=STORE_TYPES,
    ),
    Setting("ssl.keystore.key", "password", None, "The private key itself, as PEM text."),
    Setting("ssl.keystore.certificate.chain", "password", None, "The broker's certificate chain itself, as PEM text."),
    Setting(
        "ssl.key.password",
        "password",
        None,
        "Password of the private key: in PEM where the key is encrypted, in JKS where it differs from the file's.",
    ),
    Setting(
        "ssl.truststore.location",
        "string",
        None,
        "File with the certificates of the authorities that sign the certificates of clients, and of other brokers: "
        "PEM, PKCS12 or JKS. Read again as the key store is.",
    ),
    Setting("ssl.truststore.password", "password", None, "Password of that file; PEM has none."),
    Setting(
        "ssl.truststore.type",
        "string",
        None,
        "Form of that file; not needed, since the content shows it.",
        choices=STORE_TYPES,
    ),
    Setting("ssl.truststore.certificates", "password", None, "The certificates themselves, as PEM text."),
    Setting(
        "ssl.client.auth",
        "string",
        "none",
        "Whether a client must show a certificate (required), may show one (requested), or is not asked for one "
        "(none). On a SASL_SSL listener only the value for that listener counts.",
        choices=("none", "requested", "required"),
    ),
    Setting(
        "ssl.principal.mapping.rules",
        "string",
        "DEFAULT",
        "How the subject of a client's certificate becomes its principal, RULE:PATTERN/REPLACEMENT/[LU] with commas; "
        "the first pattern that matches the whole subject counts. DEFAULT takes the subject as it is. Without a match "
        "the connection is closed.",
    ),
    *(each for each in SSL_SETTINGS if each.name in ("ssl.protocol", "ssl.enabled.protocols")),
    Setting(
        "ssl.cipher.suites",
        "list",
        (),
        "Cipher suites that may be used, in the names of the IANA or of OpenSSL; empty: OpenSSL's own choice. Those of "
        "TLS 1.3 cannot be chosen singly: one stands for all.",
    ),
    Setting(
        "ssl.endpoint.identification.algorithm",
        "string",
        "https",
        "https: another broker's certificate must name the host that this broker connects to. Empty: any name will do.",
        choices=("https", ""),
    ),
    Setting(
        "ssl.allow.dn.changes",
        "boolean",
        False,
        "Whether a renewed certificate of the broker may have another subject.",
    ),
    Setting(
        "ssl.allow.san.changes",
        "boolean",
        False,
        "Whether a renewed certificate of the broker may lack names that the old one has.",
    ),
)

# The settings of a part that a running broker takes changes of. Passwords are not among them: they would lie in the
# registry.
_DYNAMIC: Final = frozenset(
    {"ssl.keystore.location", "ssl.keystore.type", "ssl.truststore.location", "ssl.truststore.type"}
)

OF_ONE_LISTENER: Final = SettingPrefix(
    LISTENER_PREFIX,
    "listener",
    frozenset(setting.name for setting in (*TLS_SETTINGS, *SASL_LISTENER_SETTINGS)) | {CONNECTION_RATE},
    _DYNAMIC | {CONNECTION_RATE},
)
