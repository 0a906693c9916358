"""The SASL mechanisms of each listener, as the broker's settings name them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafkalite.broker.network.listeners import LISTENER_PREFIX, Listener
from spark_kafkalite.broker.settings.sasl_settings import GSSAPI
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.jaas import KERBEROS_MODULE, OAUTHBEARER_MODULE, JaasEntry, parse_jaas
from spark_kafkalite.security.keytabs import ANY_PRINCIPAL, keytab_path
from spark_kafkalite.security.local_names import SETTING as LOCAL_RULES
from spark_kafkalite.security.local_names import LocalNames
from spark_kafkalite.security.oauthbearer_server import OAUTHBEARER
from spark_kafkalite.security.sasl_server import PLAIN, plain_passwords
from spark_kafkalite.security.scram import SCRAM_HASHES
from spark_kafkalite.security.signing_keys import jwt_library
from spark_kafkalite.security.token_rules import TokenRules

if TYPE_CHECKING:
    from spark_kafkalite.security.key_source import KeySource

_ENABLED: Final = "sasl.enabled.mechanisms"
_JAAS: Final = "sasl.jaas.config"
_LIFETIME: Final = "connections.max.reauth.ms"
_OAUTH: Final = "sasl.oauthbearer."
_SERVICE: Final = "sasl.kerberos.service.name"


@dataclass(frozen=True, slots=True)
class AcceptedTokens:
    """Which tokens a listener accepts, and where the keys are that verify them."""

    rules: TokenRules
    keys: KeySource

    @classmethod
    def of(cls, listener: Listener) -> AcceptedTokens:
        """Return what is set for a listener with OAUTHBEARER. Raises ConfigError."""
        jwt_library()
        from spark_kafkalite.security.key_source import KeySource  # with an HTTP client, for this mechanism only

        own = f"{LISTENER_PREFIX}{listener.name.lower()}.{OAUTHBEARER.lower()}."
        values = {name: listener.setting(_OAUTH + name, OAUTHBEARER) for name in _OF_TOKENS}
        url = values["jwks.endpoint.url"]
        if not url:
            raise ConfigError(
                f"{own}{_OAUTH}jwks.endpoint.url is not set, and OAUTHBEARER is one of {_ENABLED} of listener "
                f"{listener.name}: without the keys of the issuer no token can be verified; set it to the jwks_uri of "
                "your identity provider"
            )
        for claim in ("issuer", "audience"):
            if not values[f"expected.{claim}"] and not values[f"allow.unverified.{claim}"]:
                raise ConfigError(
                    f"{own}{_OAUTH}expected.{claim} is not set: tokens {_MEANT[claim]} would be accepted; set it, or "
                    f"{_OAUTH}allow.unverified.{claim}=true"
                )
        entry = _jaas_entry(listener, OAUTHBEARER, OAUTHBEARER_MODULE)
        keys = KeySource.of(
            f"{_OAUTH}jwks.endpoint.url",
            url,
            {} if entry is None else entry.options,
            refresh_s=values["jwks.endpoint.refresh.ms"] / 1000,
            backoff_s=values["jwks.endpoint.retry.backoff.ms"] / 1000,
            backoff_max_s=values["jwks.endpoint.retry.backoff.max.ms"] / 1000,
        )
        rules = TokenRules(
            values["expected.issuer"] or None,
            values["expected.audience"],
            values["clock.skew.seconds"],
            values["sub.claim.name"],
            values["scope.claim.name"],
        )
        return cls(rules, keys)


@dataclass(frozen=True, slots=True)
class AcceptedTickets:
    """For which service clients need a ticket, where its key is, and which users their principals are."""

    principal: str
    keytab: str
    names: LocalNames

    @classmethod
    def of(cls, listener: Listener) -> AcceptedTickets:
        """Return what is set for a listener with GSSAPI. Raises ConfigError."""
        from spark_kafkalite.security.kerberos import libraries  # with libkrb5, for this mechanism only
        from spark_kafkalite.security.kerberos_errors import default_realm
        from spark_kafkalite.security.kerberos_settings import check_kerberos_text

        libraries()
        own = f"{LISTENER_PREFIX}{listener.name.lower()}.{GSSAPI.lower()}.{_JAAS}"
        entry = _jaas_entry(listener, GSSAPI, KERBEROS_MODULE)
        options = {} if entry is None else entry.options
        keytab, principal = keytab_path(options.get("keyTab", "")), options.get("principal", "")
        if not keytab or not principal or options.get("useKeyTab", "").lower() != "true":
            missing = "is not set" if entry is None else "names no keytab and principal"
            raise ConfigError(
                f"{own} {missing}, and GSSAPI is one of {_ENABLED} of listener {listener.name}; set it to "
                f'{KERBEROS_MODULE} required useKeyTab=true storeKey=true keyTab="FILE" principal="kafka/HOST@REALM";'
            )
        check_kerberos_text("principal", principal)
        check_kerberos_text("keytab", keytab)
        service = listener.setting(_SERVICE, GSSAPI)
        if service and principal != ANY_PRINCIPAL and service != principal.partition("@")[0].partition("/")[0]:
            raise ConfigError(f"{_SERVICE}={service} and principal={principal} in {own} contradict each other")
        realm = default_realm() or principal.rpartition("@")[2]
        return cls(principal, keytab, LocalNames(listener.setting(LOCAL_RULES, GSSAPI), realm))


_OF_TOKENS: Final = (
    "jwks.endpoint.url",
    "jwks.endpoint.refresh.ms",
    "jwks.endpoint.retry.backoff.ms",
    "jwks.endpoint.retry.backoff.max.ms",
    "expected.issuer",
    "expected.audience",
    "allow.unverified.issuer",
    "allow.unverified.audience",
    "clock.skew.seconds",
    "sub.claim.name",
    "scope.claim.name",
)
_MEANT: Final = {"issuer": "of another issuer with these keys", "audience": "that were meant for other services"}


@dataclass(frozen=True, slots=True)
class SaslListener:
    """How the clients of one listener authenticate."""

    mechanisms: tuple[str, ...]
    # By mechanism, in milliseconds; 0: a session lasts as long as its connection.
    lifetimes_ms: Mapping[str, int]
    # The users of PLAIN; empty without that mechanism.
    passwords: Mapping[str, bytes]
    # None without OAUTHBEARER.
    tokens: AcceptedTokens | None = None
    # None without GSSAPI.
    tickets: AcceptedTickets | None = None
    # Settings of the listener that change nothing here.
    without_effect: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"SaslListener({', '.join(self.mechanisms)})"

    @classmethod
    def of(cls, listener: Listener) -> SaslListener:
        """Return the mechanisms and users in the settings of a listener with SASL. Raises ConfigError."""
        mechanisms: tuple[str, ...] = listener.setting(_ENABLED) or ()
        own = f"{LISTENER_PREFIX}{listener.name.lower()}."
        if not mechanisms:
            raise ConfigError(
                f"listener {listener.name} has the security protocol {listener.protocol.value} and no SASL mechanism, "
                f"so no client could authenticate; set {own}{_ENABLED}, for example to SCRAM-SHA-512"
            )
        passwords: Mapping[str, bytes] = {}
        if PLAIN in mechanisms:
            setting = f"{own}{PLAIN.lower()}.{_JAAS}"
            jaas = listener.setting(_JAAS, PLAIN)
            if jaas is None:
                raise ConfigError(
                    f"{setting} is not set, and PLAIN is one of {_ENABLED} of listener {listener.name}; set it to "
                    'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";'
                )
            passwords = plain_passwords(jaas, setting)
        lifetimes_ms = {mechanism: int(listener.setting(_LIFETIME, mechanism) or 0) for mechanism in mechanisms}
        tokens = AcceptedTokens.of(listener) if OAUTHBEARER in mechanisms else None
        tickets = AcceptedTickets.of(listener) if GSSAPI in mechanisms else None
        scram = (f"{own}{mechanism.lower()}.{_JAAS}" for mechanism in SCRAM_HASHES)
        without_effect = tuple(name for name in scram if name in listener.settings)
        return cls(mechanisms, lifetimes_ms, passwords, tokens, tickets, without_effect)

    def warnings(self, name: str, *, has_scram_users: bool, remedy: str) -> list[str]:
        """Return what an operator should know at the start; ``name`` is the listener's, ``remedy`` adds a user."""
        found = [
            f"{each} has no effect: the users of SCRAM are in the registry (kafkalite users), and brokers authenticate "
            "to each other by the cluster secret"
            for each in self.without_effect
        ]
        if not self.passwords and self.tokens is None and self.tickets is None and not has_scram_users:
            found.append(
                f"no client can authenticate on listener {name}: there is no user of {', '.join(self.mechanisms)}; add "
                f"the first one: {remedy}"
            )
        return found


def _jaas_entry(listener: Listener, mechanism: str, module: str) -> JaasEntry | None:
    """Return the JAAS entry of a mechanism, None without one. Raises ConfigError.

    The one for the mechanism must have its login module. One for the whole listener, or for all, may be that of another
    mechanism.
    """
    own = f"{LISTENER_PREFIX}{listener.name.lower()}.{mechanism.lower()}.{_JAAS}"
    text = listener.setting(_JAAS, mechanism)
    if text is None:
        return None
    is_own = own in listener.settings
    try:
        entry = parse_jaas(text)
    except ConfigError as error:
        raise ConfigError(f"{own if is_own else _JAAS}: {str(error).removeprefix(_JAAS + ': ')}") from None
    if entry.module == module:
        return entry
    if is_own:
        raise ConfigError(f"{own}: names {entry.module_name}; for {mechanism} give {module} required ...")
    return None


def sasl_listeners(listeners: Iterable[Listener], brokers_alone: str | None) -> dict[str, SaslListener]:
    """Return how clients authenticate, by the name of the listener; no entry for a listener without SASL.

    ``brokers_alone`` is the name of the listener that serves only brokers, if there is one: it needs no mechanism.
    Raises ConfigError.
    """
    return {
        listener.name: SaslListener.of(listener)
        for listener in listeners
        if listener.protocol.uses_sasl and listener.name != brokers_alone
    }
