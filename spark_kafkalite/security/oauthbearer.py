"""OAUTHBEARER on the client's side. Source: RFC 7628, and org.apache.kafka.common.security.oauthbearer.

A broker refuses a token in two steps: it answers with JSON, to which the client replies one byte, and then with the
error.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any, Final
from urllib.parse import unquote

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.jaas import JaasEntry
from spark_kafkalite.security.token_keeper import RefreshRules, keeper_of
from spark_kafkalite.security.tokens import FileSource, HeldToken, ProviderSource, TokenSource, UnsecuredSource

_SEPARATOR: Final = "\x01"
_LONGEST_REASON: Final = 64 * 1024
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_CREDENTIALS_REMEDY: Final = (
    "set sasl.oauthbearer.client.credentials.client.id and sasl.oauthbearer.client.credentials.client.secret, or "
    "clientId and clientSecret in sasl.jaas.config"
)


class OAuthBearerExchange:
    """One authentication with a token."""

    def __init__(
        self, token: str, extensions: Mapping[str, str], remedy: str, on_refusal: Callable[[], None] | None = None
    ) -> None:
        """``on_refusal`` is called when the broker refuses the token."""
        self._token = token
        self._extensions = extensions
        self._remedy = remedy
        self._on_refusal = on_refusal
        self._reason = ""

    @property
    def remedy(self) -> str:
        """What to check, and the broker's reason against the token."""
        return f"{self._remedy} (the broker's reason: {self._reason})" if self._reason else self._remedy

    def first(self) -> bytes:
        """Return the token and the extensions."""
        fields = {"auth": f"Bearer {self._token}", **self._extensions}
        pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in fields.items())
        return f"n,,{_SEPARATOR}{pairs}{_SEPARATOR}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Return None if the broker has nothing against the token; else the byte after which it ends the exchange.

        Raises SaslAuthenticationFailed when it does not end it then.
        """
        if self._reason:
            raise SaslAuthenticationFailed(f"the broker refuses the token; {self.remedy}")
        if not challenge:
            return None
        self._reason = _reason(challenge)
        if self._on_refusal is not None:
            self._on_refusal()
        return _SEPARATOR.encode()

    def refused(self) -> None:
        """Forget the token: another one may be had by now."""
        if self._on_refusal is not None:
            self._on_refusal()


def _reason(challenge: bytes) -> str:
    """Return a broker's ``{"status": ..., "scope": ...}`` in a form for people."""
    try:
        fields = json.loads(challenge[:_LONGEST_REASON])
        said = ", ".join(
            f"{name} {fields[name]!r}" for name in ("status", "scope", "openid-configuration") if name in fields
        )
    except (ValueError, TypeError, RecursionError):
        said = ""
    return (said or f"{len(challenge)} bytes that are not of the form of RFC 7628")[:500]


class OAuthBearerLogin:
    """OAUTHBEARER with the tokens of one source, which all logins of this process that name the same source share."""

    mechanism: Final = "OAUTHBEARER"

    def __init__(self, source: TokenSource, extensions: Mapping[str, str], rules: RefreshRules) -> None:
        self._source = source
        self._extensions = extensions
        self._keeper = keeper_of(source, rules)

    def exchange(self, host: str, within_s: float = inf) -> OAuthBearerExchange:
        """Return the exchange for a new connection. Takes as long as a token does to come, 8 seconds at most.

        Raises SaslAuthenticationFailed with the reason when there is no token.
        """
        token = self.current_token()
        remedy = f"check {self._source}"
        if token.expires_at_s is not None:
            when = datetime.fromtimestamp(token.expires_at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            remedy += f": the token {'expired' if token.expires_at_s <= time.time() else 'expires'} at {when}"
        return OAuthBearerExchange(token.value, self._extensions, remedy, lambda: self._keeper.drop(token))

    def current_token(self) -> HeldToken:
        """Return a token that can be used now, also by another process with the same settings. Raises as exchange()."""
        return self._keeper.current(self)

    def take_token(self, token: HeldToken) -> bool:
        """Use a token that another process with the same settings has fetched, until shortly before it expires.

        Then the own source is asked, at a time that chance decides. A token without a time of expiry is not taken.
        Returns whether the next connection will do without an identity provider.
        """
        return self._keeper.take(token)

    def __repr__(self) -> str:
        return f"OAuthBearerLogin({self._source})"


def oauthbearer_login(values: Mapping[str, Any], jaas: JaasEntry | None) -> OAuthBearerLogin:
    """Return the login that the parsed ``sasl.*`` settings and the JAAS entry describe.

    Raises ConfigError unless they name exactly one source of tokens, and name it wholly.
    """
    options = {} if jaas is None else jaas.options
    sources = {
        "sasl.token.provider": values["sasl.token.provider"],
        "sasl.token.file": values["sasl.token.file"],
        _URL: values[_URL],
        "unsecuredLoginStringClaim_sub in sasl.jaas.config": options.get("unsecuredLoginStringClaim_sub"),
    }
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are both given" if given else "no source of tokens is given"
        raise ConfigError(f"sasl.mechanism=OAUTHBEARER: {problem}; give exactly one of {', '.join(sources)}")
    source: TokenSource
    if given[0] == "sasl.token.provider":
        source = ProviderSource(values["sasl.token.provider"])
    elif given[0] == "sasl.token.file":
        path = values["sasl.token.file"]
        source = FileSource(f"sasl.token.file={path}", path)
    elif given[0] == _URL:
        source = _source_of_url(values[_URL], values, options)
    else:
        source = _unsecured_source(options)
    return OAuthBearerLogin(source, _extensions(options), RefreshRules.of(values))


def _source_of_url(url: str, values: Mapping[str, Any], options: Mapping[str, str]) -> TokenSource:
    from spark_kafkalite.security import http_request as http

    parts = http.checked_endpoint(_URL, url, _CREDENTIALS_REMEDY)
    if parts.scheme == "file":
        return FileSource(f"{_URL}={url}", unquote(parts.path))
    if http.is_in_clear(parts):
        raise ConfigError(f"{_URL}={url}: http:// would send the client's secret in clear; use https://")
    from spark_kafkalite.security.token_endpoint import EndpointSource

    tls_options = http.endpoint_tls_options(options)
    source = EndpointSource(
        url=url,
        client_id=_client_credential(values, options, "id", "clientId"),
        client_secret=_client_credential(values, options, "secret", "clientSecret"),
        scope=values["sasl.oauthbearer.scope"] or options.get("scope"),
        urlencodes_header=values["sasl.oauthbearer.header.urlencode"],
        connect_timeout_s=values["sasl.login.connect.timeout.ms"] / 1000,
        read_timeout_s=values["sasl.login.read.timeout.ms"] / 1000,
        backoff_s=values["sasl.login.retry.backoff.ms"] / 1000,
        backoff_max_s=values["sasl.login.retry.backoff.max.ms"] / 1000,
        tls_options=tls_options,
    )
    if parts.scheme == "https":
        http.endpoint_tls_context(tls_options)  # its errors are errors of settings
    return source


def _client_credential(values: Mapping[str, Any], options: Mapping[str, str], what: str, option: str) -> str:
    """Return the client's id or secret: the setting's, else the JAAS option's, as in Kafka (KIP-1139)."""
    setting = f"sasl.oauthbearer.client.credentials.client.{what}"
    value: str | None = values[setting]
    place = setting
    if value is None:
        value, place = options.get(option), f"{option} in sasl.jaas.config"
    if value is None:
        raise ConfigError(f"{_URL} needs the client's {what}; {_CREDENTIALS_REMEDY}")
    if not value:
        raise ConfigError(f"{place} is empty: give it a value")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ConfigError(f"{place} holds a half of a surrogate pair, which cannot be sent")
    return value


def _unsecured_source(options: Mapping[str, str]) -> UnsecuredSource:
    """Return the maker of unsigned tokens. Source: the text claims of OAuthBearerUnsecuredLoginCallbackHandler."""
    prefix = "unsecuredLoginStringClaim_"
    claims = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    lifetime = options.get("unsecuredLoginLifetimeSeconds", "3600")
    if not claims["sub"]:
        raise ConfigError(f"sasl.jaas.config: {prefix}sub is empty: give it the name of the user")
    if not lifetime.isascii() or not lifetime.isdigit() or not 0 < len(lifetime) < 10:
        raise ConfigError("sasl.jaas.config: unsecuredLoginLifetimeSeconds must be a whole number of seconds")
    return UnsecuredSource(tuple(sorted(claims.items())), int(lifetime))


def _extensions(options: Mapping[str, str]) -> dict[str, str]:
    """Return the SASL extensions (KIP-342). Raises ConfigError for what RFC 7628 does not allow."""
    prefix = "extension_"
    extensions = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    for name, value in extensions.items():
        if not re.fullmatch(r"[A-Za-z]+", name) or name.lower() == "auth":
            raise ConfigError(
                "sasl.jaas.config: the name of an extension must consist of the letters A to Z, and not be auth"
            )
        if not re.fullmatch(r"[\x20-\x7e\t\r\n]+", value):
            raise ConfigError(f"sasl.jaas.config: {prefix}{name} must not be empty, and hold printable ASCII only")
    return extensions
