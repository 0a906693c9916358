"""Declares the settings of SASL: how clients authenticate on the listeners SASL_PLAINTEXT and SASL_SSL."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.security.local_names import SETTING as LOCAL_RULES
from spark_kafkalite.security.oauthbearer_server import OAUTHBEARER
from spark_kafkalite.security.sasl_server import PLAIN
from spark_kafkalite.security.scram import SCRAM_HASHES
from spark_kafkalite.settings import Setting

GSSAPI: Final = "GSSAPI"
MECHANISMS: Final = (PLAIN, *SCRAM_HASHES, OAUTHBEARER, GSSAPI)
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer."

# Those that may be given for one listener, and for one mechanism of it.
SASL_LISTENER_SETTINGS: Final = (
    Setting(
        "sasl.enabled.mechanisms",
        "list",
        (),
        "SASL mechanisms by which clients may authenticate on listeners SASL_PLAINTEXT and SASL_SSL. Brokers among "
        "themselves use SCRAM-SHA-256 with the cluster secret, whatever is named here.",
        choices=MECHANISMS,
    ),
    Setting(
        "sasl.jaas.config",
        "password",
        None,
        "The users of PLAIN and their passwords, as listener.name.LISTENER.plain.sasl.jaas.config="
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD" ...; The users of SCRAM '
        "are in the registry (kafkalite users). For OAUTHBEARER: OAuthBearerLoginModule, whose options "
        "ssl.truststore.* are for the URL of the keys; without them the authorities of the system count. For GSSAPI: "
        'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="FILE" '
        'principal="kafka/HOST@REALM"; names its key.',
    ),
    Setting(
        "connections.max.reauth.ms",
        "long",
        0,
        "After this time a client must have authenticated again (KIP-368), or its connection is closed at its next "
        "request. So a deleted user, or one with a new password, is served no longer. 0: a connection lasts.",
        unit="ms",
        minimum=0,
    ),
    Setting(
        "sasl.kerberos.service.name",
        "string",
        None,
        "GSSAPI: the service in the broker's principal, SERVICE/HOST@REALM, which clients must ask for. It may be left "
        "out; another one than in the principal is an error.",
    ),
    Setting(
        LOCAL_RULES,
        "string",
        "DEFAULT",
        "GSSAPI: how the principal of a client becomes a user: DEFAULT, and Kafka's rules RULE:[N:FORMAT], (MATCH), "
        "s/PATTERN/REPLACEMENT/g, L or U; the first one that fits counts. DEFAULT: the first part of a principal of "
        "the default realm. A client without a rule that fits is refused.",
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        "string",
        None,
        "OAUTHBEARER: the public keys of the issuer of tokens, a JWK set (its jwks_uri): https://HOST/PATH, or "
        "file:///PATH. http:// works for loopback alone, and for URLs in the environment variable "
        "KAFKALITE_OAUTHBEARER_ALLOWED_URLS.",
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer",
        "string",
        None,
        "OAUTHBEARER: the issuer (iss) that a token must have, to the letter.",
    ),
    Setting(
        "sasl.oauthbearer.expected.audience",
        "list",
        (),
        "OAUTHBEARER: the audiences, of which a token must name one (aud).",
    ),
    Setting(
        "sasl.oauthbearer.allow.unverified.issuer",
        "boolean",
        False,
        "OAUTHBEARER: whether tokens of any issuer with these keys are accepted, if no issuer is expected.",
    ),
    Setting(
        "sasl.oauthbearer.allow.unverified.audience",
        "boolean",
        False,
        "OAUTHBEARER: whether tokens for any audience are accepted, if no audience is expected.",
    ),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds",
        "int",
        30,
        "OAUTHBEARER: by how much the clocks of the issuer and of the broker may differ.",
        unit="s",
        minimum=0,
        maximum=3600,
    ),
    Setting(
        "sasl.oauthbearer.sub.claim.name",
        "string",
        "sub",
        "OAUTHBEARER: the claim of a token that names the user. Its value becomes the principal, User:VALUE.",
        form=(r"\S.*", "the name of a claim"),
    ),
    Setting(
        "sasl.oauthbearer.scope.claim.name",
        "string",
        "scope",
        "OAUTHBEARER: the claim with the scope of a token. It must be text or a list of texts; no right follows from "
        "it.",
        form=(r"\S.*", "the name of a claim"),
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "long",
        3_600_000,
        "OAUTHBEARER: after this time the keys are fetched again.",
        unit="ms",
        minimum=1000,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "long",
        100,
        "OAUTHBEARER: how long the broker waits until it asks for the keys again after a failure; longer after each.",
        unit="ms",
        minimum=1,
    ),
    Setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "long",
        10_000,
        "OAUTHBEARER: the longest such wait. Tokens that name an unknown key cause at most one question in this time.",
        unit="ms",
        minimum=100,
    ),
    Setting(
        "sasl.server.callback.handler.class",
        "string",
        None,
        "OAUTHBEARER: Kafka's class, which files for Apache Kafka name. No class is loaded here: the broker does what "
        "it does.",
        choices=(
            _OAUTH + "OAuthBearerValidatorCallbackHandler",
            _OAUTH + "secured.OAuthBearerValidatorCallbackHandler",
        ),
    ),
    Setting(
        "sasl.oauthbearer.jwt.validator.class",
        "string",
        None,
        "OAUTHBEARER: as sasl.server.callback.handler.class, since Kafka 4.1.",
        choices=(_OAUTH + "DefaultJwtValidator", _OAUTH + "BrokerJwtValidator"),
    ),
)
SASL_SETTINGS: Final = (
    *SASL_LISTENER_SETTINGS,
    Setting(
        "sasl.server.max.receive.size",
        "int",
        64 * 1024,
        "Largest request of a client that has not authenticated; a larger one closes its connection. Apache Kafka's "
        "default is 524288, for tickets of Kerberos; at most 1,000 connections of clients may be in their "
        "authentication at a time, and one more ends the oldest.",
        unit="bytes",
        minimum=1024,
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        "int",
        100,
        "How long the broker waits until it answers a client that failed to authenticate, and closes its connection. "
        "After 10 failures from one address within 10 seconds it waits at least 5 seconds.",
        unit="ms",
        minimum=0,
        maximum=60_000,
    ),
)
