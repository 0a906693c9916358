"""Tokens of OAUTHBEARER: what one is, and where it comes from. ``token_keeper.py`` renews them in time.

A token is a JWT in general, and opaque to a client: it is not verified, only looked into for the time at which it
expires. No text of anything here shows one.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeGuard

from spark_kafkalite.errors import SaslAuthenticationFailed

LONGEST_TOKEN: Final = 64 * 1024
# What a bearer token consists of (RFC 6750, 2.1). It also keeps another file's content from being sent to a broker.
_TOKEN_FORM: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
# Beyond the year 5000 a time is surely in milliseconds.
LATEST_TIME_S: Final = 100_000_000_000


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token, and when it expires: seconds since 1970, None when that is not known.

    ``kept`` is what must live as long as the token is used, such as the memory that it lies in.
    """

    value: str = field(repr=False)
    expires_at_s: float | None
    kept: object = field(default=None, repr=False, compare=False)


class TokenSource(Protocol):
    """Where tokens come from. Sources that are equal give tokens of the same user."""

    @property
    def is_cheap(self) -> bool:
        """Whether it may be asked for each connection; else its tokens are kept until shortly before they expire."""

    def __str__(self) -> str:
        """Name the source by the setting that selects it."""

    def fetch(self) -> HeldToken:
        """Return a new token. Raises SaslAuthenticationFailed with the reason when there is none."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file that another program keeps fresh."""

    setting: str
    path: str
    is_cheap: bool = field(default=True, init=False)

    def __str__(self) -> str:
        return self.setting

    def fetch(self) -> HeldToken:
        """Return what the file holds now."""
        return checked_token(read_token_file(self.path, self.setting, LONGEST_TOKEN), None, self.setting)


@dataclass(frozen=True, slots=True)
class ProviderSource:
    """A Python callable, named as ``module:function``. It is imported when the first token is needed.

    It runs in a thread of its own, without arguments, and returns a token, or a token and when it expires.
    """

    name: str
    is_cheap: bool = field(default=False, init=False)

    def __str__(self) -> str:
        return f"sasl.token.provider={self.name}"

    def fetch(self) -> HeldToken:
        """Return the callable's result. Its exceptions are reported by their type: their text may hold secrets."""
        module_name, _, path = self.name.partition(":")
        try:
            provider: Any = importlib.import_module(module_name)
            for attribute in path.split("."):
                provider = getattr(provider, attribute)
        except (ImportError, AttributeError) as error:
            what = getattr(error, "name", None) or self.name
            hint = "; see PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
            raise SaslAuthenticationFailed(f"{self}: cannot be imported: there is no {what}{hint}") from None
        except BaseException as error:  # sys.exit() included: it would end the thread, and who waits would not be told
            raise SaslAuthenticationFailed(f"{self}: its import raised {_told(error)}") from None
        if not callable(provider):
            raise SaslAuthenticationFailed(f"{self}: is not a function but of type {type(provider).__name__}")
        try:
            given = provider()
        except BaseException as error:
            raise SaslAuthenticationFailed(f"{self}: it raised {_told(error)}") from None
        token, expires_at_s = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(token, str):
            raise SaslAuthenticationFailed(
                f"{self}: it returned {type(given).__name__}, and is to return a token (str), or a tuple of a token "
                "and when it expires (seconds since 1970)"
            )
        return checked_token(token, self._checked_time(expires_at_s), str(self))

    def _checked_time(self, expires_at_s: object) -> float | None:
        if expires_at_s is None:
            return None
        if not is_number(expires_at_s):
            raise SaslAuthenticationFailed(
                f"{self}: it returned the time of expiry as {type(expires_at_s).__name__}; give seconds since 1970"
            )
        if not 0 < expires_at_s < LATEST_TIME_S:
            raise SaslAuthenticationFailed(
                f"{self}: it returned {expires_at_s} as the time of expiry; give seconds since 1970, not milliseconds"
            )
        return float(expires_at_s)


@dataclass(frozen=True, slots=True)
class UnsecuredSource:
    """Unsigned tokens with claims from JAAS, which only brokers for development and tests accept."""

    claims: tuple[tuple[str, Any], ...]
    lifetime_s: int
    is_cheap: bool = field(default=True, init=False)

    def __str__(self) -> str:
        return "unsecuredLoginStringClaim_sub in sasl.jaas.config"

    def fetch(self) -> HeldToken:
        """Return a token made now. Source: OAuthBearerUnsecuredLoginCallbackHandler."""
        now_s = int(time.time())
        claims = {"iat": now_s, "exp": now_s + self.lifetime_s, **dict(self.claims)}
        parts = (json.dumps(part, separators=(",", ":")).encode() for part in ({"alg": "none"}, claims))
        token = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."
        return checked_token(token, None, str(self))


def checked_token(value: str, expires_at_s: float | None, source: str) -> HeldToken:
    """Return the token ``value``. A JWT expires at its ``exp``, any other token at ``expires_at_s``.

    Raises SaslAuthenticationFailed for what no token is; ``source`` names where it came from.
    """
    if len(value) > LONGEST_TOKEN:
        raise SaslAuthenticationFailed(
            f"{source}: a token of {len(value)} characters; at most {LONGEST_TOKEN} are sent"
        )
    if _TOKEN_FORM.fullmatch(value) is None:
        what = "holds characters that no token has" if value else "is empty"
        raise SaslAuthenticationFailed(f"{source}: the token {what}")
    claimed_s = _claims(value).get("exp")
    if is_number(claimed_s) and 0 < claimed_s < LATEST_TIME_S:
        expires_at_s = float(claimed_s)
    return HeldToken(value, expires_at_s)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value from JSON is a number; it may be infinite, or have more digits than a float holds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a JWT without verifying it; empty for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _told(error: BaseException) -> str:
    """Return an exception's type and where it arose, which is all of it that surely holds no secret."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return type(error).__name__
    return f"{type(error).__name__} ({Path(traceback.tb_frame.f_code.co_filename).name}, line {traceback.tb_lineno})"


def read_token_file(path: str, setting: str, longest: int) -> str:
    """Return the text of a file, at most ``longest`` bytes, without blanks around it.

    Raises SaslAuthenticationFailed, which names ``setting`` as the source of the file's name, when it cannot be read.
    """
    try:
        with open(path, "rb", opener=open_at_once) as file:
            content = file.read(longest + 1) or b""
    except OSError as error:
        raise SaslAuthenticationFailed(f"{setting}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise SaslAuthenticationFailed("the path of a token file cannot hold a NUL character") from None
    if len(content) > longest:
        raise SaslAuthenticationFailed(f"{setting}: holds more than {longest} bytes, which no token does")
    text = _decoded(content)
    # Not raised where the error with the file's bytes would hang on to it.
    if text is None:
        raise SaslAuthenticationFailed(f"{setting}: is not UTF-8 text")
    return text.strip()


def _decoded(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def open_at_once(path: str, flags: int) -> int:
    """Open a file at once; a pipe without a writer would otherwise block for ever."""
    return os.open(path, flags | os.O_NONBLOCK)
