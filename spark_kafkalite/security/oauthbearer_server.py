"""OAUTHBEARER on the server's side. Source: RFC 7628, and org.apache.kafka.common.security.oauthbearer.internals.

    client   n,[a=AUTHZID],^Aauth=Bearer TOKEN^A[NAME=VALUE^A]...^A
    server   nothing at success; else {"status":"invalid_token"}, the client's ^A, and then the failure

The names and values are extensions (KIP-342). No signature covers them: their form is checked, and they are not used.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from spark_kafkalite.errors import SaslAuthenticationFailed
from spark_kafkalite.security.signing_keys import SigningKey
from spark_kafkalite.security.token_rules import InvalidToken, TokenRules, key_id

OAUTHBEARER: Final = "OAUTHBEARER"
INVALID_TOKEN: Final = '{"status":"invalid_token"}'

_FIRST: Final = re.compile(
    rb"n,(?:a=(?P<authzid>[^,\x00\x01]*))?,\x01(?P<fields>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01"
)
# What a comma and an equals sign in an authorization id are (RFC 5801).
_ESCAPES: Final = (("=2C", ","), ("=3D", "="))

# Returns the keys of this id, none for one that is not known.
FindKeys = Callable[[str], Awaitable[Sequence[SigningKey]]]


class OAuthBearerServer:
    """One exchange."""

    def __init__(self, rules: TokenRules, find_keys: FindKeys) -> None:
        self.user = ""
        self.is_done = False
        self.refusal = ""
        self.lifetime_s = math.inf
        self._rules = rules
        self._find_keys = find_keys

    async def answer(self, message: bytes) -> bytes:
        """Return nothing for a token that is accepted, else what refuses it. May wait for the issuer's keys."""
        if self.refusal:
            raise SaslAuthenticationFailed(self.refusal)
        authzid, token = _parsed(message)
        try:
            name = key_id(token)
            keys = await self._find_keys(name)
            if not keys:
                raise InvalidToken(f"its issuer has no key {name[:40]!r}, or its keys cannot be had")
            user, expires_s = self._rules.validated(token, keys)
        except InvalidToken as error:
            self.refusal = f"OAUTHBEARER: the token is refused: {error}"
            return INVALID_TOKEN.encode()
        self.user = user
        if authzid not in ("", user):
            raise SaslAuthenticationFailed("OAUTHBEARER: a client may act only as the user of its token")
        # It is accepted for some time after its end, because clocks differ; a session of it may last as long.
        left_s = expires_s - time.time()
        self.lifetime_s = left_s if left_s > 0 else left_s + self._rules.skew_s
        self.is_done = True
        return b""


def _parsed(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token of the client's message. Raises SaslAuthenticationFailed."""
    found = _FIRST.fullmatch(message)
    if found is None:
        raise SaslAuthenticationFailed("OAUTHBEARER: the client's message is not of the form of RFC 7628")
    fields = [field.partition("=") for field in found["fields"].decode("ascii").split("\x01") if field]
    if len({name for name, _, _ in fields}) != len(fields):
        raise SaslAuthenticationFailed("OAUTHBEARER: the client's message has a field twice")
    scheme, _, token = next((value for name, _, value in fields if name == "auth"), "").partition(" ")
    if scheme.lower() != "bearer":
        raise SaslAuthenticationFailed("OAUTHBEARER: the client's message has no bearer token")
    try:
        authzid = (found["authzid"] or b"").decode()
    except UnicodeDecodeError:
        raise SaslAuthenticationFailed("OAUTHBEARER: the authorization id is not UTF-8") from None
    for escaped, character in _ESCAPES:
        authzid = authzid.replace(escaped, character)
    return authzid, token.strip(" ")
