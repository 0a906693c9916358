"""OAUTHBEARER on the client's side. Source: RFC 7628, and org.apache.kafka.common.security.oauthbearer.

A broker that refuses a token says so in two steps: it answers with JSON, to which the client says one byte, and then
with the error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from spark_kafkalite.errors import SaslAuthenticationFailed
from spark_kafkalite.security.jaas import JaasEntry

_SEPARATOR: Final = "\x01"
_LONGEST_REASON: Final = 64 * 1024


class OAuthBearerExchange:
    """One authentication with a token."""

    def __init__(self, token: str, extensions: Mapping[str, str], remedy: str) -> None:
        self._token = token
        self._extensions = extensions
        self._remedy = remedy
        self._reason = ""

    @property
    def remedy(self) -> str:
        """What to check, and what the broker has said against the token."""
        return f"{self._remedy} (the broker says: {self._reason})" if self._reason else self._remedy

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
        return _SEPARATOR.encode()


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
    """OAUTHBEARER with the tokens of one source."""

    mechanism: Final = "OAUTHBEARER"

    def exchange(self) -> OAuthBearerExchange:
        """Return the exchange for a new connection."""
        raise NotImplementedError


def oauthbearer_login(values: Mapping[str, Any], jaas: JaasEntry | None) -> OAuthBearerLogin:
    """Return the login that the parsed ``sasl.*`` settings and the JAAS entry describe.

    Raises ConfigError unless they name exactly one source of tokens.
    """
    raise NotImplementedError
