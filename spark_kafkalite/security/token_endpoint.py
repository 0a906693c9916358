"""Tokens by OAuth's client-credentials flow: one POST to the identity provider. Source: RFC 6749, 4.4; KIP-768, 1139.

This module keeps a client's secret and a server's network safe from users that may set an option. Only URLs in the
environment variable ``KAFKALITE_OAUTHBEARER_ALLOWED_URLS`` are asked (CVE-2025-27817), and redirects are not followed.
``http://`` works for loopback only; Kafka's client would send the secret in clear. As in Kafka the trusted certificates
are the system's, or those of ``ssl.*`` options in ``sasl.jaas.config``; the client's own ``ssl.*`` settings are for
brokers. Proxies are not used.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.settings import SSL_SETTINGS
from spark_kafkalite.security.tokens import LATEST_TIME_S, HeldToken, checked_token, is_number
from spark_kafkalite.settings import SettingGroup

if TYPE_CHECKING:
    import ssl

URLS_VARIABLE: Final = "KAFKALITE_OAUTHBEARER_ALLOWED_URLS"

# For all attempts together; less than who waits for the token will wait, who then learns the reason.
_TOTAL_S: Final = 7.0
_LONGEST_ANSWER: Final = 1024 * 1024
# What may go well the next time, beside a connection that fails.
_RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class _NotNow(Exception):
    """A failure that may be over at the next attempt; the text describes it."""


@dataclass(frozen=True, slots=True)
class EndpointSource:
    """A token endpoint, and the credentials for it. Times are seconds."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None
    urlencodes_header: bool
    connect_timeout_s: float
    read_timeout_s: float
    backoff_s: float
    backoff_max_s: float
    tls_options: tuple[tuple[str, str], ...] = field(repr=False)
    is_cheap: bool = field(default=False, init=False)

    def __str__(self) -> str:
        return f"sasl.oauthbearer.token.endpoint.url={self.url}"

    def fetch(self) -> HeldToken:
        """Return a new token; tries again for at most 7 seconds in all where that may help."""
        allowed = [url.strip() for url in os.environ.get(URLS_VARIABLE, "").split(",")]
        if self.url not in allowed:
            raise SaslAuthenticationFailed(
                f"{self}: the environment variable {URLS_VARIABLE} does not list this URL; set it to the URLs that "
                "this process may ask for tokens, separated by commas"
            )
        deadline_s = time.monotonic() + _TOTAL_S
        pause_s = self.backoff_s
        while True:
            try:
                return self._asked_once(deadline_s)
            except _NotNow as problem:
                wait_s = pause_s * random.uniform(0.8, 1.2)
                if time.monotonic() + wait_s >= deadline_s:
                    raise SaslAuthenticationFailed(f"{self}: {problem}") from None
            time.sleep(wait_s)
            pause_s = min(max(pause_s * 2, 0.01), self.backoff_max_s)

    def _asked_once(self, deadline_s: float) -> HeldToken:
        connection = self._connection()
        try:
            raw = socket.create_connection(
                (connection.host, connection.port), min(self.connect_timeout_s, _left_s(deadline_s))
            )
            # Each read has its timeout, which a server that sends a byte now and then never exceeds.
            with raw, raw.dup() as same, contextlib.closing(connection), _cut_at(deadline_s, same):
                status, body = self._asked_over(raw, connection, deadline_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline_s:
                raise _NotNow("no answer in time") from None
            self._check_trust(error)
            raise _NotNow(_problem(error)) from None
        if time.monotonic() >= deadline_s:
            raise _NotNow("no answer in time")  # what came may be the first part of one
        return self._token(status, body)

    def _asked_over(
        self, sock: socket.socket, connection: http.client.HTTPConnection, deadline_s: float
    ) -> tuple[int, bytes]:
        connection.sock = sock
        if isinstance(connection, http.client.HTTPSConnection):
            # In two steps: the first, if it were to shake hands, would pass over a connection that was cut meanwhile,
            # and what follows would be sent in clear.
            tls = self._tls_context().wrap_socket(sock, server_hostname=connection.host, do_handshake_on_connect=False)
            connection.sock = tls
            tls.do_handshake()
        connection.sock.settimeout(min(self.read_timeout_s, _left_s(deadline_s)))
        connection.request("POST", self._target(), self._body(), self._headers())
        with connection.getresponse() as response:
            return response.status, response.read(_LONGEST_ANSWER + 1)

    def _check_trust(self, error: Exception) -> None:
        """Raise SaslAuthenticationFailed if ``error`` means that the endpoint's certificate is not trusted."""
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            raise SaslAuthenticationFailed(
                f"{self}: its certificate is not trusted ({error.verify_message}); set ssl.truststore.location in "
                "sasl.jaas.config to a file with the certificate of its authority"
            ) from None

    def _connection(self) -> http.client.HTTPConnection:
        """Return what speaks HTTP, not connected."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(str(parts.hostname), parts.port)

    def _tls_context(self) -> ssl.SSLContext:
        """Return the context, made of what the stores hold now."""
        try:
            return endpoint_tls_context(self.tls_options)
        except ConfigError as error:
            raise SaslAuthenticationFailed(f"{self}: {error}") from None

    def _target(self) -> str:
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def _body(self) -> bytes:
        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        return urlencode(form).encode()

    def _headers(self) -> dict[str, str]:
        client = (self.client_id, self.client_secret)
        if self.urlencodes_header:
            client = (quote_plus(self.client_id), quote_plus(self.client_secret))
        return {
            "Authorization": "Basic " + base64.b64encode(":".join(client).encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
            "Cache-Control": "no-cache",
            "Connection": "close",
        }

    def _token(self, status: int, body: bytes) -> HeldToken:
        """Return the token of an answer. Raises _NotNow or SaslAuthenticationFailed for any other answer."""
        if 300 <= status < 400:
            raise SaslAuthenticationFailed(
                f"{self}: it redirects (HTTP {status}), which is not followed; set the URL that it leads to"
            )
        answer = _object(body)
        if status not in (200, 201):
            problem = f"HTTP {status}{self._reason(answer)}"
            raise _NotNow(problem) if status in _RETRIED else SaslAuthenticationFailed(f"{self}: {problem}")
        if len(body) > _LONGEST_ANSWER:
            raise SaslAuthenticationFailed(
                f"{self}: the answer has more than {_LONGEST_ANSWER} bytes, which no token has"
            )
        token = answer.get("access_token")
        if not isinstance(token, str):
            raise SaslAuthenticationFailed(
                f"{self}: the answer is not a JSON object with an access_token; is it a token endpoint?"
            )
        life_s = answer.get("expires_in")
        expires_at_s = None
        if is_number(life_s) and 0 < life_s < LATEST_TIME_S:
            expires_at_s = time.time() + life_s
        return checked_token(token.strip(), expires_at_s, str(self))

    def _reason(self, answer: dict[str, Any]) -> str:
        """Return a refusal's reason (RFC 6749, 5.2), without anything that was sent to the endpoint."""
        said = ": ".join(str(answer[name]) for name in ("error", "error_description") if answer.get(name))
        sent = self._headers()["Authorization"].partition(" ")[2]
        if not said or self.client_secret in said or quote_plus(self.client_secret) in said or sent in said:
            return ""
        return f", {said[:300]!r}"


def endpoint_tls_context(options: Iterable[tuple[str, str]]) -> ssl.SSLContext:
    """Return the TLS context for token endpoints; ``ssl.*`` options of the JAAS entry alone decide, as in Kafka.

    Raises ConfigError for stores that cannot be used. Source: org.apache.kafka...oauthbearer.OAuthBearerUtils.
    """
    from spark_kafkalite.security.tls import client_context

    group = SettingGroup("sasl.jaas.config", SSL_SETTINGS)
    try:
        return client_context(
            {**group.defaults(), **group.parse({name: text for name, text in options if name in group})}
        )
    except ConfigError as error:
        raise ConfigError(f"sasl.jaas.config: {error}") from None


def _object(body: bytes) -> dict[str, Any]:
    """Return a JSON object, an empty one for anything else."""
    try:
        answer = json.loads(body[:_LONGEST_ANSWER])
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _problem(error: Exception) -> str:
    """Return what went wrong with a connection; never the bytes that came over it."""
    import ssl

    if isinstance(error, ssl.SSLError):
        if error.reason == "WRONG_VERSION_NUMBER":
            return "what answers there does not speak TLS; correct the URL"
        return f"no TLS connection ({error.reason or type(error).__name__})"
    if isinstance(error, OSError):
        return f"cannot be reached ({error.strerror or type(error).__name__}); check the URL, and the network"
    return f"the answer is not HTTP ({type(error).__name__})"


def _left_s(deadline_s: float) -> float:
    return max(0.001, deadline_s - time.monotonic())


@contextlib.contextmanager
def _cut_at(deadline_s: float, sock: socket.socket) -> Iterator[None]:
    """Shut the connection down at ``deadline_s`` unless the block has ended; ``sock`` is a second handle of it."""
    timer = threading.Timer(_left_s(deadline_s), _shut_down, (sock,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end has been quicker
