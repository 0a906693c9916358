"""The access to pages of an address: free on loopback; beyond it with a token, unless the operator allows it without.

On loopback a page in a browser may send requests under another name of this host (DNS rebinding). So a Host header
must be an address or localhost there. The token's file is read for each request: it may be replaced at any time.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple

from spark_kafkalite.addresses import host_and_port, is_loopback
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.exposition.http import HttpRequest, HttpResponse, json_response
from spark_kafkalite.redaction import REDACTED
from spark_kafkalite.security.tokens import open_at_once

_LEAST_TOKEN_CHARS: Final = 16
_MOST_TOKEN_BYTES: Final = 4096


class AccessNames(NamedTuple):
    """How messages call what decides: the settings of a broker, or the options of a command."""

    address: str
    token_file: str
    # As it is written to switch it on.
    insecure: str


@dataclass(frozen=True, slots=True)
class PageAccess:
    """A checked address. ``token_file`` is None where no token is asked for."""

    host: str
    port: int
    token_file: str | None
    is_loopback: bool
    names: AccessNames

    @classmethod
    def of(cls, address: str, token_file: str | None, *, insecure: bool, names: AccessNames) -> PageAccess:
        """Return the access to ``HOST:PORT``. Raises ConfigError: no address, no token where one is needed, or a bad
        one."""
        host, port = host_and_port(address, names.address)
        is_local = is_loopback(host, names.address)
        if not is_local and token_file is None and not insecure:
            raise ConfigError(
                f"{names.address}={address}: other hosts reach this address, and would read the names of topics. Set "
                f"{names.token_file}=FILE, which scrapers send as a bearer token, or {names.insecure}"
            )
        if token_file is not None:
            read_token(token_file, names.token_file)
        return cls(host, port, token_file, is_local, names)

    def wrong_host(self, request: HttpRequest) -> HttpResponse | None:
        """Return the refusal of a request under a name that is not this host's own, None if there is nothing to
        refuse."""
        if self.is_loopback and not _is_own_host(request.headers.get("host", "localhost")):
            return json_response(HTTPStatus.MISDIRECTED_REQUEST, {"error": "ask by an address or by localhost"})
        return None

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        """Return the refusal of a request that lacks the token, None if the reader may have the page."""
        if self.token_file is None:
            return None
        try:
            token = read_token(self.token_file, self.names.token_file)
        except ConfigError:
            # Without the reason, which has the path: who asks has shown no token.
            text = f"the file of {self.names.token_file} cannot be read, or holds no token"
            return json_response(HTTPStatus.SERVICE_UNAVAILABLE, {"error": text})
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), token):
            return None
        text = f"send the token of {self.names.token_file} as a bearer token"
        answer = json_response(HTTPStatus.UNAUTHORIZED, {"error": text})
        return HttpResponse(answer.status, answer.body, headers=(("WWW-Authenticate", "Bearer"),))


def read_token(path: str, setting: str) -> bytes:
    """Return the token of a file. Raises ConfigError when it cannot be read or is too short."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            token = (file.read(_MOST_TOKEN_BYTES) or b"").strip()
    except OSError as error:
        raise ConfigError(f"{setting}={path}: {error.strerror}") from error
    if len(token) < _LEAST_TOKEN_CHARS or not token.isascii():
        raise ConfigError(
            f"{setting}={path}: holds {REDACTED} of {len(token)} characters; give one line of ASCII with at least "
            f"{_LEAST_TOKEN_CHARS}, such as that of 'openssl rand -hex 32'"
        )
    return token


def _is_own_host(host: str) -> bool:
    """Return whether a Host header names an address, or localhost."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
