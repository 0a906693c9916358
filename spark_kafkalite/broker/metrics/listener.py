"""The settings ``metrics.*``: the address of the metrics, and the token that readers need. Pure, but for one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import REDACTED
from spark_kafkalite.registry.served.listener import host_and_port, is_loopback
from spark_kafkalite.security.tokens import open_at_once

TOKEN_FILE: Final = "metrics.token.file"
_LEAST_TOKEN_CHARS: Final = 16
_MOST_TOKEN_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class MetricsListener:
    """A checked address. ``token_file`` is None where no token is asked for."""

    host: str
    port: int
    token_file: str | None
    is_loopback: bool
    max_series: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> MetricsListener | None:
        """Return the listener that a broker's settings name, None without one. Raises ConfigError."""
        address: str | None = values["metrics.listener"]
        token_file: str | None = values[TOKEN_FILE]
        if not address:
            if token_file is not None:
                raise ConfigError(f"{TOKEN_FILE}={token_file}: has no effect without metrics.listener; set that, too")
            return None
        host, port = host_and_port(address, "metrics.listener")
        is_local = is_loopback(host, "metrics.listener")
        if not is_local and token_file is None and not values["metrics.listener.insecure"]:
            raise ConfigError(
                f"metrics.listener={address}: other hosts reach this address, and would read the names of topics. Set "
                f"{TOKEN_FILE}=FILE, which scrapers send as a bearer token, or metrics.listener.insecure=true"
            )
        if token_file is not None:
            read_token(token_file)
        return cls(host, port, token_file, is_local, values["metrics.max.series"])


def read_token(path: str) -> bytes:
    """Return the token of a file. Raises ConfigError when it cannot be read or is too short."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            token = (file.read(_MOST_TOKEN_BYTES) or b"").strip()
    except OSError as error:
        raise ConfigError(f"{TOKEN_FILE}={path}: {error.strerror}") from error
    if len(token) < _LEAST_TOKEN_CHARS or not token.isascii():
        raise ConfigError(
            f"{TOKEN_FILE}={path}: holds {REDACTED} of {len(token)} characters; give one line of ASCII with at least "
            f"{_LEAST_TOKEN_CHARS}, such as that of 'openssl rand -hex 32'"
        )
    return token
