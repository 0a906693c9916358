"""SASL on the client's side: the messages of a mechanism, and where its credentials come from. Bytes in, bytes out.

A :class:`Login` is made once per client from its settings, and makes an :class:`SaslExchange` for each connection;
tokens are looked up then, so that a long job survives their renewal. Mechanisms are PLAIN (RFC 4616), SCRAM
(``scram.py``), OAUTHBEARER (``oauthbearer.py``) and GSSAPI (``kerberos.py``). Credentials come from exactly one place,
which fits the mechanism. Credentials that do not fit are an error and never ignored, or a client would log in as
another user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final, Protocol

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.jaas import (
    IAM_REMEDY,
    KERBEROS_MODULE,
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasEntry,
    parse_jaas,
)
from spark_kafkalite.security.scram import SCRAM_HASHES, ScramClient
from spark_kafkalite.security.tokens import read_token_file

MECHANISMS: Final = ("PLAIN", *SCRAM_HASHES, "OAUTHBEARER", "GSSAPI")
# Holds a delegation token where no setting names one.
TOKEN_VARIABLE: Final = "KAFKALITE_TOKEN"

_LONGEST_DELEGATION_TOKEN: Final = 4096
# What a shell, or a file for --command-config, would have replaced.
_VARIABLE: Final = re.compile(r"\$\w+|\$\{[^{}]+\}")
_DELEGATION_TOKEN: Final = re.compile(r"[\x21-\x39\x3b-\x7e]+:[\x21-\x7e]+")


class SaslExchange(Protocol):
    """One authentication over one connection."""

    @property
    def remedy(self) -> str:
        """What to check when the broker refuses, for the error's text: which settings, and never their values."""

    def first(self) -> bytes:
        """Return the client's first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the client's reply to the broker's bytes; None when the exchange has succeeded and is over.

        Raises SaslAuthenticationFailed when the broker cannot be trusted, or gives a reason for its refusal.
        """

    def refused(self) -> None:
        """Forget credentials that are kept, since the broker has refused them: others may be had by now."""


class Login(Protocol):
    """Credentials, or the way to them."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name, as SaslHandshake sends it."""

    def exchange(self, host: str, within_s: float = inf) -> SaslExchange:
        """Return the exchange for a new connection to ``host``, the broker's name that was dialled.

        May take as long as a token does to come, 8 seconds or ``within_s`` at most.

        Raises SaslAuthenticationFailed with the reason when there are no credentials; BrokerUnreachable when what
        gives them, which has done so before, cannot be reached now.
        """


class PlainExchange:
    """PLAIN: user and password, in clear within the connection. Source: RFC 4616."""

    def __init__(self, user: str, password: str, remedy: str) -> None:
        self.remedy = remedy
        self._message = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """Return user and password."""
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        """Return None: the client has nothing to add to the broker's success."""
        return None

    def refused(self) -> None:
        """Keep nothing to forget."""


class PasswordLogin:
    """PLAIN or SCRAM with a user and a password that do not change."""

    def __init__(self, mechanism: str, user: str, password: str, *, is_token: bool, remedy: str) -> None:
        self.mechanism = mechanism
        self._user = user
        self._password = password
        self._is_token = is_token
        self._remedy = remedy

    def exchange(self, host: str, within_s: float = inf) -> SaslExchange:
        """Return the exchange for a new connection."""
        if self.mechanism == "PLAIN":
            return PlainExchange(self._user, self._password, self._remedy)
        return ScramClient(self.mechanism, self._user, self._password, is_token=self._is_token, remedy=self._remedy)

    def __repr__(self) -> str:
        return f"PasswordLogin({self.mechanism})"


class DelegationTokenLogin:
    """SCRAM with a delegation token (``TOKENID:HMAC``), which is read again for each connection."""

    def __init__(self, mechanism: str, origin: str, read: Callable[[], str]) -> None:
        """``read`` returns the text that holds the token; ``origin`` names the place for errors."""
        self.mechanism = mechanism
        self._origin = origin
        self._read = read

    def exchange(self, host: str, within_s: float = inf) -> SaslExchange:
        """Return the exchange for a new connection. Raises SaslAuthenticationFailed when there is no token."""
        text = self._read().strip()
        if _DELEGATION_TOKEN.fullmatch(text) is None:
            raise SaslAuthenticationFailed(f"{self._origin}: does not hold a delegation token of the form TOKENID:HMAC")
        token_id, _, hmac = text.partition(":")
        remedy = f"check the delegation token in {self._origin}: it may have expired"
        return ScramClient(self.mechanism, token_id, hmac, is_token=True, remedy=remedy)

    def __repr__(self) -> str:
        return f"DelegationTokenLogin({self.mechanism}, {self._origin})"


def login_from(values: Mapping[str, Any]) -> Login:
    """Return the login that the parsed ``sasl.*`` settings describe.

    Raises ConfigError for what is missing, contradictory or not supported.
    """
    _check_callback_handler(values["sasl.login.callback.handler.class"])
    jaas = None if not (values["sasl.jaas.config"] or "").strip() else parse_jaas(values["sasl.jaas.config"])
    # Kafka's default is GSSAPI.
    is_kerberos = values["sasl.kerberos.keytab"] or (jaas is not None and jaas.module == KERBEROS_MODULE)
    mechanism = "GSSAPI" if is_kerberos and not values["sasl.mechanism"] else _mechanism(values["sasl.mechanism"])
    for name in ("sasl.jaas.config", "sasl.username", "sasl.password", "sasl.token.file", "sasl.token.provider"):
        if values[name] is not None and not values[name].strip():
            raise ConfigError(f"{name} is empty: give it a value, or leave it out")
    for name, served in _SERVES.items():
        if values[name] is not None and mechanism not in served:
            raise ConfigError(f"{name} is for {' and '.join(served)}, and sasl.mechanism is {mechanism}: remove one")
    if jaas is not None:
        _check_module(mechanism, jaas)
    if mechanism == "OAUTHBEARER":
        # Loads what makes tokens, which the others do without.
        from spark_kafkalite.security.oauthbearer import oauthbearer_login

        return oauthbearer_login(values, jaas)
    if mechanism == "GSSAPI":
        from spark_kafkalite.security.kerberos_settings import kerberos_login

        return kerberos_login(values, jaas)
    return _login_by_name(mechanism, values, jaas)


# Settings that would go unheeded with other mechanisms.
_SERVES: Final = {
    "sasl.username": ("PLAIN", *SCRAM_HASHES),
    "sasl.password": ("PLAIN", *SCRAM_HASHES),
    "sasl.token.file": (*SCRAM_HASHES, "OAUTHBEARER"),
    "sasl.token.provider": ("OAUTHBEARER",),
    "sasl.kerberos.keytab": ("GSSAPI",),
    "sasl.kerberos.principal": ("GSSAPI",),
}
_MODULE_MECHANISMS: Final = {
    PLAIN_MODULE: ("PLAIN",),
    SCRAM_MODULE: tuple(SCRAM_HASHES),
    OAUTHBEARER_MODULE: ("OAUTHBEARER",),
    KERBEROS_MODULE: ("GSSAPI",),
}


def _mechanism(name: str | None) -> str:
    if not name:
        raise ConfigError(f"sasl.mechanism is not set: give one of {', '.join(MECHANISMS)}")
    if name in MECHANISMS:
        return name
    if name.upper() in MECHANISMS:
        raise ConfigError(f"sasl.mechanism={name}: names of mechanisms are written in capitals, {name.upper()}")
    if name == "AWS_MSK_IAM":
        raise ConfigError(f"sasl.mechanism=AWS_MSK_IAM is not supported: {IAM_REMEDY}")
    raise ConfigError(f"sasl.mechanism={name}: must be one of {', '.join(MECHANISMS)}")


def _check_callback_handler(name: str | None) -> None:
    """Kafka's own handlers do what we do anyway; any other holds the credentials, and cannot run here."""
    if not name or ("org.apache.kafka.common.security.oauthbearer." in name and name.endswith("LoginCallbackHandler")):
        return
    raise ConfigError(
        f"sasl.login.callback.handler.class={name}: a Java class cannot run in this client; set "
        "sasl.mechanism=OAUTHBEARER and sasl.token.provider=module:function, a Python function that returns a token"
    )


def _check_module(mechanism: str, jaas: JaasEntry) -> None:
    fitting = _MODULE_MECHANISMS[jaas.module]
    if mechanism not in fitting:
        raise ConfigError(
            f"sasl.jaas.config: {jaas.module_name} is for sasl.mechanism={' or '.join(fitting)}, and sasl.mechanism is "
            f"{mechanism}"
        )


def _login_by_name(mechanism: str, values: Mapping[str, Any], jaas: JaasEntry | None) -> Login:
    """Return the login of PLAIN and SCRAM."""
    places = {
        "sasl.jaas.config": jaas is not None,
        "sasl.username": values["sasl.username"] is not None or values["sasl.password"] is not None,
        "sasl.token.file": values["sasl.token.file"] is not None,
    }
    given = [place for place, is_given in places.items() if is_given]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are both given: credentials come from one of them")
    if jaas is not None:
        is_token = jaas.options.get("tokenauth", "").lower() == "true"
        return _password_login(mechanism, jaas.options, ("username", "password"), is_token=is_token)
    if places["sasl.username"]:
        return _password_login(mechanism, values, ("sasl.username", "sasl.password"), is_token=False)
    if places["sasl.token.file"]:
        path = values["sasl.token.file"]
        origin = f"sasl.token.file={path}"
        return DelegationTokenLogin(mechanism, origin, lambda: read_token_file(path, origin, _LONGEST_DELEGATION_TOKEN))
    if mechanism != "PLAIN" and TOKEN_VARIABLE in os.environ:
        origin = f"the environment variable {TOKEN_VARIABLE}"
        return DelegationTokenLogin(mechanism, origin, lambda: os.environ.get(TOKEN_VARIABLE, ""))
    others = "" if mechanism == "PLAIN" else f"; or a delegation token by sasl.token.file or {TOKEN_VARIABLE}"
    raise ConfigError(
        f"sasl.mechanism={mechanism} needs credentials: set sasl.username and sasl.password, or "
        f"sasl.jaas.config{others}"
    )


def _password_login(mechanism: str, place: Mapping[str, Any], names: tuple[str, str], *, is_token: bool) -> Login:
    where = "" if names[0] in _SERVES else "sasl.jaas.config: "
    for name, other in (names, names[::-1]):
        value = place.get(name)
        if value is None:
            raise ConfigError(
                f"{where}{name} is not set"
                + (f", and {other} is: give both" if place.get(other) is not None else f"; give it and {other}")
            )
        if not value:
            raise ConfigError(f"{where}{name} is empty: give it a value")
        if "\0" in value or not _is_unicode(value):
            raise ConfigError(
                f"{where}{name} holds a character that cannot be sent (NUL, or a half of a surrogate pair)"
            )
    settings = " and ".join(names) if not where else "user name and password in sasl.jaas.config"
    user, password = (place[name] for name in names)
    remedy = f"check {settings}"
    if _VARIABLE.fullmatch(password):
        remedy += ", where the password looks like a variable that was not replaced"
    return PasswordLogin(mechanism, user, password, is_token=is_token, remedy=remedy)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
