"""What a broker asks of a token (a JWT, RFC 7519) before it believes it: the signature, by PyJWT, and the claims.

A token chooses nothing but the id of its key (``kid``). Keys in its header or behind a URL there (``jwk``, ``jku``,
``x5c``, ``x5u``) are never used. A header that asks for more than this (``crit``, ``b64``) is refused.

Source: org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator, and RFC 8725.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from spark_kafkalite.security.sasl_server import user_problem
from spark_kafkalite.security.signing_keys import LONGEST_KEY_ID, SigningKey, jwt_library
from spark_kafkalite.security.tokens import LATEST_TIME_S, LONGEST_TOKEN, is_number

_JWT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_LONGEST_HEADER: Final = 16 * 1024
_TIMES: Final = ("exp", "iat", "nbf")


class InvalidToken(Exception):
    """The token is refused. The text is for the broker's log, and shows no part of the token but single claims."""


class ValidToken(NamedTuple):
    """The user that a token names, and when it expires, in seconds since 1970."""

    user: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules of a listener. ``issuer`` None and no ``audiences``: these claims are not checked."""

    issuer: str | None
    audiences: tuple[str, ...]
    # How far the clocks of issuer and broker may differ, in seconds.
    skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"

    def validated(self, token: str, keys: Sequence[SigningKey]) -> ValidToken:
        """Return user and end of a token that one of ``keys`` has signed; they have the id in its header.

        Raises InvalidToken.
        """
        algorithm = _header(token).get("alg")
        key = next((each for each in keys if algorithm in each.algorithms), None)
        if key is None:
            raise InvalidToken(f"its algorithm {str(algorithm)[:20]!r} is not one of its key")
        claims = self._claims(token, key, str(algorithm))
        for name in _TIMES:
            moment = claims.get(name)
            # NaN and numbers without end are outside, too.
            if moment is not None and not (is_number(moment) and 0 < moment < LATEST_TIME_S):
                raise InvalidToken(f"its claim {name} is no time in seconds since 1970")
        self._check_scope(claims.get(self.scope_claim))
        user = claims.get(self.subject_claim)
        if not isinstance(user, str) or not user.strip():
            raise InvalidToken(f"its claim {self.subject_claim} does not name a user")
        problem = user_problem(user)
        if problem is not None:
            raise InvalidToken(f"its claim {self.subject_claim}: {problem}")
        return ValidToken(user, float(claims["exp"]))

    def _claims(self, token: str, key: SigningKey, algorithm: str) -> dict[str, Any]:
        """Return the claims of a token whose signature, times, issuer and audience are right. Raises InvalidToken."""
        jwt = jwt_library()
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self.audiences or None,
                issuer=self.issuer,
                leeway=self.skew_s,
                options={
                    "require": ["exp", "iat"],
                    "verify_aud": bool(self.audiences),
                    "verify_iss": self.issuer is not None,
                    "verify_sub": False,
                    "verify_jti": False,
                    "enforce_minimum_key_length": True,
                },
            )
        except jwt.InvalidSignatureError:
            raise InvalidToken("its signature is wrong") from None
        except jwt.ExpiredSignatureError:
            raise InvalidToken("it has expired (exp)") from None
        except jwt.ImmatureSignatureError:
            raise InvalidToken("it is not valid yet (nbf, iat); see the clocks of the issuer and this host") from None
        except jwt.InvalidIssuerError:
            raise InvalidToken(f"its issuer (iss) is not {self.issuer!r}") from None
        except jwt.InvalidAudienceError:
            raise InvalidToken(f"its audience (aud) has none of {', '.join(self.audiences)}") from None
        except jwt.MissingRequiredClaimError as error:
            raise InvalidToken(f"it has no claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            # Not the text of the error, which may have parts of the token.
            raise InvalidToken(f"it cannot be read ({type(error).__name__})") from None
        return claims

    def _check_scope(self, scope: object) -> None:
        """Raise InvalidToken for a scope that is no text and no list of texts. No right follows from a scope."""
        scopes = scope if isinstance(scope, list) else [scope]
        if scope is not None and not all(isinstance(each, str) for each in scopes):
            raise InvalidToken(f"its claim {self.scope_claim} is neither a text nor a list of texts")


def key_id(token: str) -> str:
    """Return the id of the key in a token's header. Raises InvalidToken."""
    name = _header(token).get("kid")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_KEY_ID:
        raise InvalidToken(f"its header has no id of a key (kid) of 1 to {LONGEST_KEY_ID} characters")
    return name


def _header(token: str) -> dict[str, Any]:
    """Return the header of a token, which nothing has proved. Raises InvalidToken."""
    if len(token) > LONGEST_TOKEN:
        raise InvalidToken(f"it has {len(token)} characters; at most {LONGEST_TOKEN} are read")
    if _JWT.fullmatch(token) is None:
        raise InvalidToken("it is not a signed JWT of three parts")
    jwt = jwt_library()
    # PyJWT checks each character of a token, in Python: 60 KiB take 2 ms, so that is done once for the rest.
    encoded = token.partition(".")[0]
    if len(encoded) > _LONGEST_HEADER:
        raise InvalidToken(f"its header has {len(encoded)} characters; at most {_LONGEST_HEADER} are read")
    try:
        header: dict[str, Any] = jwt.get_unverified_header(f"{encoded}..")
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise InvalidToken("its header cannot be read") from None
    extensions = {"crit", "b64"} & header.keys()
    if extensions:
        raise InvalidToken(f"its header has {', '.join(sorted(extensions))}, which is not supported")
    return header
