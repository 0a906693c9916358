"""One HTTP request to an identity provider, bounded in time and size. It blocks, so a thread makes it.

Redirects are not followed, and proxies are not used: the request goes to the host of the URL alone. No error shows
bytes that came over the connection.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.settings import SSL_SETTINGS
from spark_kafkalite.settings import SettingGroup

if TYPE_CHECKING:
    import ssl

URLS_VARIABLE: Final = "KAFKALITE_OAUTHBEARER_ALLOWED_URLS"
LONGEST_ANSWER: Final = 1024 * 1024
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class RequestFailed(Exception):
    """The request has failed, and may succeed at another time; the text describes it."""


class EndpointNotTrusted(Exception):
    """The certificate of the endpoint is not trusted; the text has OpenSSL's reason."""


class HttpAnswer(NamedTuple):
    """``body`` has at most one byte more than LONGEST_ANSWER; one that is longer is cut off there."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """A request to ``url``, which is http or https. Times are seconds. ``tls`` makes the context for https."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    tls: Callable[[], ssl.SSLContext]
    connect_timeout_s: float
    read_timeout_s: float

    def send(self, deadline_s: float) -> HttpAnswer:
        """Return the answer, which has to be complete at ``deadline_s`` of time.monotonic().

        Raises RequestFailed, EndpointNotTrusted.
        """
        connection = self._connection()
        try:
            raw = socket.create_connection(
                (connection.host, connection.port), min(self.connect_timeout_s, _left_s(deadline_s))
            )
            # Each read has its timeout, which a server that sends a byte now and then never exceeds.
            with raw, raw.dup() as same, contextlib.closing(connection), _cut_at(deadline_s, same):
                answer = self._sent_over(raw, connection, deadline_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline_s:
                raise RequestFailed("no answer in time") from None
            _check_trust(error)
            raise RequestFailed(_problem(error)) from None
        if time.monotonic() >= deadline_s:
            raise RequestFailed("no answer in time")  # what came may be the first part of one
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        """Return what speaks HTTP, not connected."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(str(parts.hostname), parts.port)

    def _sent_over(self, sock: socket.socket, connection: http.client.HTTPConnection, deadline_s: float) -> HttpAnswer:
        connection.sock = sock
        if isinstance(connection, http.client.HTTPSConnection):
            # In two steps: the first, if it were to shake hands, would pass over a connection that was cut meanwhile,
            # and what follows would be sent in clear.
            tls = self.tls().wrap_socket(sock, server_hostname=connection.host, do_handshake_on_connect=False)
            connection.sock = tls
            tls.do_handshake()
        connection.sock.settimeout(min(self.read_timeout_s, _left_s(deadline_s)))
        parts = urlsplit(self.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(self.method, target, self.body, dict(self.headers))
        with connection.getresponse() as response:
            return HttpAnswer(response.status, response.read(LONGEST_ANSWER + 1))


def endpoint_tls_context(options: Iterable[tuple[str, str]]) -> ssl.SSLContext:
    """Return the TLS context for an identity provider; ``ssl.*`` options of a JAAS entry alone decide, as in Kafka.

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


def endpoint_tls_options(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options of a JAAS entry that :func:`endpoint_tls_context` takes."""
    return tuple(sorted((name, value) for name, value in options.items() if name.startswith("ssl.")))


def checked_endpoint(setting: str, url: str, user_remedy: str) -> SplitResult:
    """Return the parts of a URL of an identity provider, of the scheme file, http or https.

    Raises ConfigError for other URLs, and for one with a user in it, with ``user_remedy``. ``setting`` has the URL.
    """
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0 and url.isascii() and url.isprintable()
    except ValueError:
        raise ConfigError(f"{setting}: is not a URL") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{setting}: a URL with a user name in it; {user_remedy}")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ConfigError(f"{setting}={url}: must be of the form file:///PATH")
    elif parts.scheme not in ("https", "http") or not is_whole or parts.fragment:
        raise ConfigError(f"{setting}={url}: must be of the form https://HOST[:PORT]/PATH or file:///PATH")
    return parts


def is_in_clear(parts: SplitResult) -> bool:
    """Return whether a request to the URL would cross a network without TLS."""
    return parts.scheme == "http" and parts.hostname not in _LOOPBACK


def is_listed(url: str) -> bool:
    """Return whether the environment variable URLS_VARIABLE lists a URL."""
    return url in (each.strip() for each in os.environ.get(URLS_VARIABLE, "").split(","))


def _check_trust(error: Exception) -> None:
    """Raise EndpointNotTrusted if ``error`` means so."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        raise EndpointNotTrusted(error.verify_message) from None


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
