"""Apache Kafka for tests, with every kind of secured listener, and with users, ACLs and certificates.

The cluster is one node with one port for each :class:`SecuredListener`, and a PLAINTEXT port on which a test prepares
topics. The users are:

- ALICE, a super user.
- BOB, with the rights that a test grants by :meth:`SecureKafka.allow`.
- CAROL, without any rights.

They authenticate by PLAIN, by SCRAM, by a client certificate, or by a token (OAUTHBEARER).
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from tests.lab.apache_kafka import ApacheKafka, kafka_tool, properties_text
from tests.lab.certificates import LOOPBACK, Authority
from tests.lab.token_endpoint import TokenEndpoint

PLAIN: Final = "PLAIN"
SCRAM_256: Final = "SCRAM-SHA-256"
SCRAM_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"

_JAVA_SECURITY: Final = "org.apache.kafka.common.security"
_LOGIN_MODULES: Final = {
    PLAIN: f"{_JAVA_SECURITY}.plain.PlainLoginModule",
    SCRAM_256: f"{_JAVA_SECURITY}.scram.ScramLoginModule",
    SCRAM_512: f"{_JAVA_SECURITY}.scram.ScramLoginModule",
    OAUTHBEARER: f"{_JAVA_SECURITY}.oauthbearer.OAuthBearerLoginModule",
    GSSAPI: "com.sun.security.auth.module.Krb5LoginModule",
}
_TOKEN_VALIDATOR: Final = f"{_JAVA_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler"


class SecuredListener(enum.Enum):
    """A listener: its name, its security protocol, and the SASL mechanisms it takes."""

    SSL = ("SSL", "SSL", ())
    # Wants a client certificate; the user is its common name.
    MTLS = ("MTLS", "SSL", ())
    SASL_PLAINTEXT = ("SASL_PLAINTEXT", "SASL_PLAINTEXT", (PLAIN, SCRAM_256, SCRAM_512))
    SASL_SSL = ("SASL_SSL", "SASL_SSL", (PLAIN, SCRAM_256, SCRAM_512, OAUTHBEARER))
    # Wants every connection to authenticate again after SESSION_MS.
    REAUTHENTICATION = ("REAUTHENTICATION", "SASL_SSL", (PLAIN, SCRAM_256, SCRAM_512, OAUTHBEARER))
    # Its certificate is no longer valid.
    EXPIRED = ("EXPIRED", "SSL", ())
    # Its certificate names another host.
    WRONG_HOST = ("WRONG_HOST", "SSL", ())

    def __init__(self, listener_name: str, protocol: str, mechanisms: tuple[str, ...]) -> None:
        self.listener_name = listener_name
        self.protocol = protocol
        self.mechanisms = mechanisms


SESSION_MS: Final = 2000
# After so many bytes of TLS 1.3 the broker changes its keys, and asks for the client's to be changed. Java's own limit
# is 2^37, which no test sends.
_KEY_LIMITS: Final = "AES/GCM/NoPadding KeyUpdate 2^22, ChaCha20-Poly1305 KeyUpdate 2^22"
_TOKEN_TIMEOUT_S: Final = 30


@dataclass(frozen=True)
class User:
    """A name and the password that goes with it in PLAIN and SCRAM."""

    name: str
    password: str


# What needs quotes in a JAAS line and no comma in the tool's.
ALICE: Final = User("alice", "al/ice=pass+word")
BOB: Final = User("bob", "bob's password")
CAROL: Final = User("carol", "carol 3")
_USERS: Final = (ALICE, BOB, CAROL)


class SecureKafka(ApacheKafka):
    """The node; a context manager. ``authority`` has signed the listeners' certificates and is trusted by MTLS."""

    def __init__(
        self,
        directory: Path,
        tokens: TokenEndpoint,
        *,
        heap_mb: int = 512,
        jvm_options: Sequence[str] = SHORT_LIVED_OPTIONS,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a node, as :class:`ApacheKafka` does. It accepts the tokens of ``tokens``, which must be running."""
        self.authority = Authority(directory / "certificates", "authority")
        self.tokens = tokens
        java_security = directory / "java.security"
        java_security.write_text(f"jdk.tls.keyLimits={_KEY_LIMITS}\n", encoding="ascii")
        scram = [
            argument
            for user in _USERS
            for mechanism in (SCRAM_256, SCRAM_512)
            for argument in ("--add-scram", f"{mechanism}=[name={user.name},password={user.password}]")
        ]
        super().__init__(
            directory / "kafka",
            heap_mb=heap_mb,
            jvm_options=(
                *jvm_options,
                f"-Djava.security.properties={java_security}",
                f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.jwks_url}",
            ),
            overrides={**self._security(), **(overrides or {})},
            further_listeners={listener.listener_name: listener.protocol for listener in SecuredListener},
            format_arguments=scram,
        )

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "tokens": None}

    def client_settings(
        self, listener: SecuredListener, mechanism: str | None = None, user: User = ALICE
    ) -> dict[str, str]:
        """Return the settings of a client of the listener, under Kafka's names; the truststore is a PEM file.

        For SASL pass the mechanism. PLAIN and SCRAM authenticate as ``user``. For OAUTHBEARER the caller adds the
        source of tokens.
        """
        settings = {"bootstrap.servers": self.address(listener.listener_name), "security.protocol": listener.protocol}
        if listener.protocol.endswith("SSL"):
            settings |= {"ssl.truststore.location": str(self.authority.pem_file()), "ssl.truststore.type": "PEM"}
        if listener is SecuredListener.MTLS:
            certificate = self.authority.issue(user.name)
            settings |= {"ssl.keystore.location": str(certificate.pem_file()), "ssl.keystore.type": "PEM"}
        if mechanism is not None:
            settings["sasl.mechanism"] = mechanism
        if mechanism is not None and mechanism != OAUTHBEARER:
            settings["sasl.jaas.config"] = jaas(mechanism, username=user.name, password=user.password)
        return settings

    def allow(self, user: User, *operations: str, resource: tuple[str, str]) -> None:
        """Allow the user operations, such as ``Read``, on ("topic", name), ("group", name) or ("cluster", "")."""
        kind, name = resource
        self.tool(
            "org.apache.kafka.tools.AclCommand", "--add", "--allow-principal", f"User:{user.name}",
            *(argument for operation in operations for argument in ("--operation", operation)),
            *([f"--{kind}", name] if name else [f"--{kind}"]),
        )  # fmt: skip

    def delegation_token(self, user: User = ALICE) -> DelegationToken:
        """Create a delegation token that authenticates as ``user``, and return it."""
        answer = self._token_tool(user, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:alice")
        # A title, the columns' names, and the token: its id and HMAC come first.
        token = DelegationToken(*answer.splitlines()[-1].split()[:2])
        self._wait_for_token(token, known=True)
        return token

    def expire(self, token: DelegationToken) -> None:
        """Expire the token, so that the broker refuses it."""
        self._token_tool(ALICE, "--expire", "--expiry-time-period", "-1", "--hmac", token.hmac)
        self._wait_for_token(token, known=False)

    def _wait_for_token(self, token: DelegationToken, known: bool) -> None:
        """Wait until the broker knows the token (``known``), or does not know it any more."""
        deadline = time.monotonic() + _TOKEN_TIMEOUT_S
        owners = [argument for user in _USERS for argument in ("--owner-principal", f"User:{user.name}")]
        while (token.token_id in self._token_tool(ALICE, "--describe", *owners)) != known:
            if time.monotonic() > deadline:
                raise ChildFailed(f"the broker has not learned of a delegation token within {_TOKEN_TIMEOUT_S} s")

    def _token_tool(self, user: User, *arguments: str) -> str:
        """Run Kafka's tool for delegation tokens as ``user``, and return its answer."""
        config = self.directory / f"{user.name}.properties"
        settings = self.client_settings(SecuredListener.SASL_SSL, SCRAM_256, user)
        config.write_text(properties_text(settings), encoding="utf-8")
        return kafka_tool(
            "org.apache.kafka.tools.DelegationTokenCommand", *arguments,
            "--bootstrap-server", settings["bootstrap.servers"], "--command-config", str(config),
        ).stdout  # fmt: skip

    def _security(self) -> dict[str, str]:
        """Return the settings of server.properties that secure the listeners."""
        server = self.authority.issue("broker", *LOOPBACK)
        lines = {
            # A killed node can register again only after its old session has ended.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # The clients of PLAINTEXT and SSL are anonymous.
            "super.users": f"User:ANONYMOUS;User:{ALICE.name}",
            "delegation.token.secret.key": "a secret of all brokers",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server.pem_file()),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.pem_file()),
        }
        rsa = self.authority.issue("broker", *LOOPBACK, rsa_key=True, intermediate=True)
        expired = self.authority.issue("expired-broker", *LOOPBACK, expired=True)
        elsewhere = self.authority.issue("broker-elsewhere", "elsewhere.example")
        lines |= _of(SecuredListener.MTLS, {
            "ssl.keystore.location": str(rsa.pem_file()),
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
        })  # fmt: skip
        lines |= _of(SecuredListener.EXPIRED, {"ssl.keystore.location": str(expired.pem_file())})
        lines |= _of(SecuredListener.WRONG_HOST, {"ssl.keystore.location": str(elsewhere.pem_file())})
        lines |= _of(SecuredListener.REAUTHENTICATION, {"connections.max.reauth.ms": str(SESSION_MS)})
        for listener in SecuredListener:
            if listener.mechanisms:
                lines |= _of(listener, {"sasl.enabled.mechanisms": ",".join(listener.mechanisms)})
            for mechanism in listener.mechanisms:
                lines |= _of(listener, self._mechanism(mechanism), mechanism)
        return lines

    def _mechanism(self, mechanism: str) -> dict[str, str]:
        if mechanism == PLAIN:
            return {"sasl.jaas.config": jaas(PLAIN, **{f"user_{user.name}": user.password for user in _USERS})}
        lines = {"sasl.jaas.config": jaas(mechanism)}
        if mechanism == OAUTHBEARER:
            lines |= {
                "sasl.server.callback.handler.class": _TOKEN_VALIDATOR,
                "sasl.oauthbearer.jwks.endpoint.url": self.tokens.jwks_url,
                "sasl.oauthbearer.expected.issuer": self.tokens.issuer,
                "sasl.oauthbearer.expected.audience": "kafka",
            }
        return lines


@dataclass(frozen=True)
class DelegationToken:
    """A token's id, and its HMAC in base64. Clients authenticate with both by SCRAM."""

    token_id: str
    hmac: str


def jaas(mechanism: str, **options: str) -> str:
    """Return the JAAS line of a mechanism's login module with these options."""
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in options.items()}
    given = "".join(f' {name}="{value}"' for name, value in escaped.items())
    return f"{_LOGIN_MODULES[mechanism]} required{given};"


def _of(listener: SecuredListener, lines: Mapping[str, str], mechanism: str | None = None) -> dict[str, str]:
    prefix = f"listener.name.{listener.listener_name.lower()}." + (f"{mechanism.lower()}." if mechanism else "")
    return {prefix + name: value for name, value in lines.items()}
