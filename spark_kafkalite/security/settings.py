"""The security settings of a client, under Kafka's names; ``client_security`` makes a ``ClientSecurity`` of them.

``security.protocol`` decides whether a connection is encrypted (``ssl.*``) and whether it authenticates by SASL
(``sasl.*``). Settings of the JVM that mean nothing in Python are known, and warned about when given. A setting of kind
"password" is a secret: its value appears in no error text.

In addition to Kafka's: ``sasl.username`` and ``sasl.password`` (librdkafka's names; they save a JAAS line),
``sasl.token.file`` and ``sasl.token.provider``; and of librdkafka ``sasl.kerberos.keytab`` and
``sasl.kerberos.principal``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from spark_kafkalite.settings import Setting


class SecurityProtocol(enum.Enum):
    """How a connection is protected. Source: org.apache.kafka.common.security.auth.SecurityProtocol."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def encrypts(self) -> bool:
        """Whether the connection is TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    def with_effect_of(self, names: Iterable[str]) -> SecurityProtocol:
        """Return the protocol that also does what settings of these names are about."""
        prefixes = {name.partition(".")[0] for name in names}
        encrypts, uses_sasl = self.encrypts or "ssl" in prefixes, self.uses_sasl or "sasl" in prefixes
        return next(each for each in SecurityProtocol if (each.encrypts, each.uses_sasl) == (encrypts, uses_sasl))


# The names of the protocols that encrypt.
TLS_PROTOCOLS: Final = frozenset(protocol.value for protocol in SecurityProtocol if protocol.encrypts)

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
STORE_TYPES: Final = ("JKS", "PKCS12", "PEM")

SSL_SETTINGS: Final = (
    Setting(
        "ssl.protocol",
        "string",
        "TLSv1.3",
        "Newest TLS version to use, of those in ssl.enabled.protocols.",
        choices=("TLS", *TLS_VERSIONS),
    ),
    Setting("ssl.enabled.protocols", "list", TLS_VERSIONS, "TLS versions that may be used.", choices=TLS_VERSIONS),
    Setting(
        "ssl.cipher.suites",
        "list",
        (),
        "Cipher suites that may be used, in the names of the IANA or of OpenSSL; empty: OpenSSL's own choice. A "
        "version of TLS none of whose suites is named is not used. Those of TLS 1.3 cannot be chosen singly: one "
        "stands for all.",
    ),
    Setting(
        "ssl.endpoint.identification.algorithm",
        "string",
        "https",
        "https: the broker's certificate must name the host that was connected to. Empty: any name will do.",
        choices=("https", ""),
        elsewhere=("enable.ssl.certificate.verification", "ssl.check.hostname"),
    ),
    Setting(
        "ssl.truststore.location",
        "string",
        None,
        "File with the certificates of the authorities that sign brokers' certificates (or brokers' own): PEM, PKCS12 "
        "or JKS. Without it, and without ssl.truststore.certificates, the system's are trusted.",
        elsewhere=("ssl.ca.location", "ssl.cafile"),
    ),
    Setting("ssl.truststore.password", "password", None, "Password of that file; PEM has none."),
    Setting(
        "ssl.truststore.type",
        "string",
        None,
        "Form of that file; not needed, since the content shows it.",
        choices=STORE_TYPES,
    ),
    Setting(
        "ssl.truststore.certificates",
        "password",
        None,
        "The certificates themselves, as PEM text.",
        elsewhere=("ssl.ca.pem",),
    ),
    Setting(
        "ssl.keystore.location",
        "string",
        None,
        "File with the client's private key and its certificate chain: PEM, PKCS12 or JKS. Of several keys in it the "
        "first is used.",
        elsewhere=("ssl.certificate.location", "ssl.key.location", "ssl.certfile", "ssl.keyfile"),
    ),
    Setting("ssl.keystore.password", "password", None, "Password of that file; PEM has none."),
    Setting(
        "ssl.keystore.type",
        "string",
        None,
        "Form of that file; not needed, since the content shows it.",
        choices=STORE_TYPES,
    ),
    Setting(
        "ssl.keystore.key",
        "password",
        None,
        "The private key itself, as PEM text.",
        elsewhere=("ssl.key.pem",),
    ),
    Setting(
        "ssl.keystore.certificate.chain",
        "password",
        None,
        "The client's certificate chain itself, as PEM text.",
        elsewhere=("ssl.certificate.pem",),
    ),
    Setting(
        "ssl.key.password",
        "password",
        None,
        "Password of the private key: in PEM where the key is encrypted, in JKS where it differs from the file's.",
        elsewhere=("ssl.password",),
    ),
)

SASL_SETTINGS: Final = (
    Setting(
        "sasl.mechanism",
        "string",
        None,
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, or GSSAPI for Kerberos, which needs libkrb5.",
        elsewhere=("sasl.mechanisms",),
    ),
    Setting(
        "sasl.jaas.config",
        "password",
        None,
        "User name and password, OAuth credentials, or keytab and principal, as one JAAS entry: "
        "'LoginModule required name=\"value\";'. It is parsed, and never executed.",
    ),
    Setting(
        "sasl.username",
        "string",
        None,
        "User name for PLAIN and SCRAM, instead of sasl.jaas.config.",
        elsewhere=("sasl.plain.username",),
    ),
    Setting(
        "sasl.password",
        "password",
        None,
        "Password for PLAIN and SCRAM, instead of sasl.jaas.config.",
        elsewhere=("sasl.plain.password",),
    ),
    Setting(
        "sasl.token.file",
        "string",
        None,
        "File that holds a token, read again before each connection. With SCRAM: a delegation token as TOKENID:HMAC; "
        "the environment variable KAFKALITE_TOKEN serves instead. With OAUTHBEARER: a JWT.",
    ),
    Setting(
        "sasl.login.callback.handler.class",
        "string",
        None,
        "Kafka's own OAuthBearerLoginCallbackHandler is accepted, and has no effect. Any other class is an error, "
        "since it cannot run here: see sasl.token.provider.",
    ),
    Setting(
        "sasl.token.provider",
        "string",
        None,
        "OAUTHBEARER: a Python callable as module:function that returns a token, or a token and the time at which it "
        "expires (seconds since 1970); called when a token is needed. It serves for the signers of managed clusters.",
        form=(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "of the form module:function"),
    ),
    Setting(
        "sasl.oauthbearer.token.endpoint.url",
        "string",
        None,
        "OAUTHBEARER: where tokens come from. https://... asks by the client-credentials flow; the environment "
        "variable KAFKALITE_OAUTHBEARER_ALLOWED_URLS must list it. file:///... reads a JWT.",
    ),
    Setting(
        "sasl.oauthbearer.client.credentials.client.id",
        "string",
        None,
        "OAUTHBEARER: client id (KIP-1139).",
        elsewhere=("sasl.oauthbearer.client.id",),
    ),
    Setting(
        "sasl.oauthbearer.client.credentials.client.secret",
        "password",
        None,
        "OAUTHBEARER: client secret.",
        elsewhere=("sasl.oauthbearer.client.secret",),
    ),
    Setting("sasl.oauthbearer.scope", "string", None, "OAUTHBEARER: scope to ask for."),
    Setting(
        "sasl.oauthbearer.header.urlencode",
        "boolean",
        False,
        "OAUTHBEARER: URL-encode client id and secret in the request's Authorization header (RFC 6749, 2.3.1).",
    ),
    Setting(
        "sasl.kerberos.service.name",
        "string",
        None,
        "GSSAPI: the service of the brokers' principals, SERVICE/HOST@REALM; without it, and without serviceName in "
        "sasl.jaas.config, kafka.",
    ),
    Setting(
        "sasl.kerberos.keytab",
        "string",
        None,
        "GSSAPI: file with the key of sasl.kerberos.principal. Without it the ticket cache is used: KRB5CCNAME, or the "
        "default one.",
    ),
    Setting(
        "sasl.kerberos.principal",
        "string",
        None,
        "GSSAPI: the principal of the client; of a ticket cache, the one that it must be of.",
    ),
    Setting(
        "sasl.kerberos.service.host.canonicalize",
        "boolean",
        False,
        "GSSAPI: whether libkrb5 asks DNS for the broker's canonical name, by the rules of krb5.conf. If not, the "
        "service's host is the advertised one.",
    ),
    Setting(
        "sasl.kerberos.ticket.renew.window.factor",
        "double",
        0.8,
        "GSSAPI with a keytab: part of a ticket's lifetime after which a new one is fetched.",
        minimum=0.0,
        maximum=1.0,
    ),
    Setting(
        "sasl.kerberos.ticket.renew.jitter",
        "double",
        0.05,
        "GSSAPI with a keytab: largest random addition to that part.",
        minimum=0.0,
        maximum=1.0,
    ),
    Setting(
        "sasl.kerberos.min.time.before.relogin",
        "long",
        60_000,
        "GSSAPI with a keytab: least time between two tickets, unless a ticket's life is shorter.",
        "ms",
        0,
    ),
    Setting("sasl.login.connect.timeout.ms", "int", 10_000, "OAUTHBEARER: time to reach the token endpoint.", "ms", 1),
    Setting("sasl.login.read.timeout.ms", "int", 10_000, "OAUTHBEARER: time for the token endpoint's answer.", "ms", 1),
    Setting(
        "sasl.login.retry.backoff.ms",
        "long",
        100,
        "OAUTHBEARER: pause before asking for a token again.",
        "ms",
        0,
    ),
    Setting("sasl.login.retry.backoff.max.ms", "long", 10_000, "OAUTHBEARER: longest such pause.", "ms", 0),
    Setting(
        "sasl.login.refresh.window.factor",
        "double",
        0.8,
        "OAUTHBEARER: part of a token's lifetime after which a new one is fetched.",
        minimum=0.5,
        maximum=1.0,
    ),
    Setting(
        "sasl.login.refresh.window.jitter",
        "double",
        0.05,
        "OAUTHBEARER: largest random addition to that part.",
        minimum=0.0,
        maximum=0.25,
    ),
    Setting(
        "sasl.login.refresh.min.period.seconds",
        "int",
        60,
        "OAUTHBEARER: least time between two tokens, unless the buffer contradicts.",
        "s",
        0,
        900,
    ),
    Setting(
        "sasl.login.refresh.buffer.seconds",
        "int",
        300,
        "OAUTHBEARER: a token is renewed at least this long before it expires.",
        "s",
        0,
        3600,
    ),
)

SECURITY_SETTINGS: Final = (
    Setting(
        "security.protocol",
        "string",
        "PLAINTEXT",
        "How to talk to brokers: SSL and SASL_SSL encrypt, SASL_PLAINTEXT and SASL_SSL authenticate by SASL.",
        choices=tuple(protocol.value for protocol in SecurityProtocol),
    ),
    *SSL_SETTINGS,
    *SASL_SETTINGS,
)

# Names that Kafka's Java clients know and that have no meaning here.
JVM_ONLY_SETTINGS: Final = frozenset(
    {
        "ssl.provider",
        "ssl.keymanager.algorithm",
        "ssl.trustmanager.algorithm",
        "ssl.secure.random.implementation",
        "security.providers",
        "sasl.kerberos.kinit.cmd",
    }
)


def settings_without_effect(protocol: SecurityProtocol, names: Iterable[str]) -> list[str]:
    """Return those of the names that are about something which the protocol does not do."""
    idle = (() if protocol.encrypts else ("ssl.",)) + (() if protocol.uses_sasl else ("sasl.",))
    return sorted(name for name in names if name.startswith(idle) and name not in JVM_ONLY_SETTINGS)
