"""Where the keys that verify tokens come from: a URL, or a file that another program keeps fresh.

The URL is in the broker's own settings. Over ``http://`` another host could put keys of its own into the answer, so it
works for loopback alone, and for URLs that the environment variable ``KAFKALITE_OAUTHBEARER_ALLOWED_URLS`` lists.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.http_request import (
    LONGEST_ANSWER,
    URLS_VARIABLE,
    EndpointNotTrusted,
    EndpointRequest,
    RequestFailed,
    checked_endpoint,
    endpoint_tls_context,
    endpoint_tls_options,
    is_in_clear,
    is_listed,
)
from spark_kafkalite.security.signing_keys import KeySet, read_key_set
from spark_kafkalite.security.tokens import open_at_once

if TYPE_CHECKING:
    import ssl

# For all of a request: clients with a new key wait for it.
_TOTAL_S: Final = 5.0


class KeysUnavailable(Exception):
    """The keys cannot be had now. The text has the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """A URL of a JWK set, https, http or file, and when it is asked again. Times are seconds.

    ``backoff_s`` grows after each failure, up to ``backoff_max_s``. Made by :meth:`of`.
    """

    setting: str
    url: str
    refresh_s: float
    backoff_s: float
    backoff_max_s: float
    tls_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        setting: str,
        url: str,
        options: Mapping[str, str],
        *,
        refresh_s: float,
        backoff_s: float,
        backoff_max_s: float,
    ) -> KeySource:
        """Return the source; ``setting`` has the URL, and ``options`` are those of the JAAS entry.

        Raises ConfigError for a URL that is not allowed.
        """
        parts = checked_endpoint(setting, url, "keys are public, so leave it out")
        if is_in_clear(parts) and not is_listed(url):
            raise ConfigError(
                f"{setting}={url}: over http:// another host could answer with keys of its own; use https://, or list "
                f"the URL in the environment variable {URLS_VARIABLE}"
            )
        return cls(setting, url, refresh_s, min(backoff_s, backoff_max_s), backoff_max_s, endpoint_tls_options(options))

    def __str__(self) -> str:
        return f"{self.setting}={self.url}"

    def check(self) -> None:
        """Raise ConfigError for a file without keys, and for a trust store that cannot be used."""
        try:
            if self._is_file:
                self.fetch()
            elif self._scheme == "https":
                self._tls()
        except KeysUnavailable as error:
            raise ConfigError(str(error)) from None

    @property
    def _is_file(self) -> bool:
        return self._scheme == "file"

    @property
    def _scheme(self) -> str:
        # In small letters: a URL may have capitals there. Source: RFC 3986 section 3.1.
        return urlsplit(self.url).scheme

    def fetch(self) -> KeySet:
        """Return the keys as they are now. Blocks for at most 5 seconds. Raises KeysUnavailable."""
        data = self._read() if self._is_file else self._asked()
        if len(data) > LONGEST_ANSWER:
            raise KeysUnavailable(f"{self}: it has more than {LONGEST_ANSWER} bytes, which no JWK set needs")
        try:
            return read_key_set(data)
        except ValueError as error:
            raise KeysUnavailable(f"{self}: {error}; is it the issuer's JWK set (jwks_uri)?") from None

    def _read(self) -> bytes:
        path = unquote(checked_endpoint(self.setting, self.url, "").path)
        try:
            with open(path, "rb", opener=open_at_once) as file:
                return file.read(LONGEST_ANSWER + 1) or b""
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its path has a NUL character"
            raise KeysUnavailable(f"{self}: cannot be read: {reason}") from None

    def _asked(self) -> bytes:
        headers = {"Accept": "application/json", "Connection": "close"}
        request = EndpointRequest("GET", self.url, headers, None, self._tls, _TOTAL_S, _TOTAL_S)
        try:
            status, body = request.send(time.monotonic() + _TOTAL_S)
        except RequestFailed as error:
            raise KeysUnavailable(f"{self}: {error}") from None
        except EndpointNotTrusted as error:
            raise KeysUnavailable(
                f"{self}: its certificate is not trusted ({error}); name its authority in sasl.jaas.config: "
                "OAuthBearerLoginModule required ssl.truststore.location=FILE"
            ) from None
        if 300 <= status < 400:
            raise KeysUnavailable(
                f"{self}: it redirects (HTTP {status}), which is not followed; set the URL that it leads to"
            )
        if status != 200:
            raise KeysUnavailable(f"{self}: HTTP {status}")
        return body

    def _tls(self) -> ssl.SSLContext:
        try:
            return endpoint_tls_context(self.tls_options)
        except ConfigError as error:
            raise KeysUnavailable(f"{self}: {error}") from None
