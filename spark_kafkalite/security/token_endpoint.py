"""Tokens by OAuth's client-credentials flow: one POST to the identity provider. Source: RFC 6749, 4.4; KIP-768, 1139.

This module keeps a client's secret and a server's network safe from users that may set an option. Only URLs in the
environment variable ``KAFKALITE_OAUTHBEARER_ALLOWED_URLS`` are asked (CVE-2025-27817), and redirects are not followed.
``http://`` works for loopback only; Kafka's client would send the secret in clear. As in Kafka the trusted certificates
are the system's, or those of ``ssl.*`` options in ``sasl.jaas.config``; the client's own ``ssl.*`` settings are for
brokers. Proxies are not used.
"""

from __future__ import annotations

import base64
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlencode

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.http_request import (
    LONGEST_ANSWER,
    URLS_VARIABLE,
    EndpointNotTrusted,
    EndpointRequest,
    RequestFailed,
    endpoint_tls_context,
    is_listed,
)
from spark_kafkalite.security.tokens import LATEST_TIME_S, HeldToken, checked_token, is_number

if TYPE_CHECKING:
    import ssl

# For all attempts together; less than who waits for the token will wait, who then learns the reason.
_TOTAL_S: Final = 7.0
# What may go well the next time, beside a connection that fails.
_RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


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
        if not is_listed(self.url):
            raise SaslAuthenticationFailed(
                f"{self}: the environment variable {URLS_VARIABLE} does not list this URL; set it to the URLs that "
                "this process may ask for tokens, separated by commas"
            )
        deadline_s = time.monotonic() + _TOTAL_S
        pause_s = self.backoff_s
        while True:
            try:
                return self._asked_once(deadline_s)
            except RequestFailed as problem:
                wait_s = pause_s * random.uniform(0.8, 1.2)
                if time.monotonic() + wait_s >= deadline_s:
                    raise SaslAuthenticationFailed(f"{self}: {problem}") from None
            time.sleep(wait_s)
            pause_s = min(max(pause_s * 2, 0.01), self.backoff_max_s)

    def _asked_once(self, deadline_s: float) -> HeldToken:
        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        request = EndpointRequest(
            "POST", self.url, self._headers(), urlencode(form).encode(), self._tls_context,
            self.connect_timeout_s, self.read_timeout_s,
        )  # fmt: skip
        try:
            status, body = request.send(deadline_s)
        except EndpointNotTrusted as error:
            raise SaslAuthenticationFailed(
                f"{self}: its certificate is not trusted ({error}); set ssl.truststore.location in "
                "sasl.jaas.config to a file with the certificate of its authority"
            ) from None
        return self._token(status, body)

    def _tls_context(self) -> ssl.SSLContext:
        """Return the context, made of what the stores hold now."""
        try:
            return endpoint_tls_context(self.tls_options)
        except ConfigError as error:
            raise SaslAuthenticationFailed(f"{self}: {error}") from None

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
        """Return the token of an answer. Raises RequestFailed or SaslAuthenticationFailed for any other answer."""
        if 300 <= status < 400:
            raise SaslAuthenticationFailed(
                f"{self}: it redirects (HTTP {status}), which is not followed; set the URL that it leads to"
            )
        answer = _object(body)
        if status not in (200, 201):
            problem = f"HTTP {status}{self._reason(answer)}"
            raise RequestFailed(problem) if status in _RETRIED else SaslAuthenticationFailed(f"{self}: {problem}")
        if len(body) > LONGEST_ANSWER:
            raise SaslAuthenticationFailed(
                f"{self}: the answer has more than {LONGEST_ANSWER} bytes, which no token has"
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


def _object(body: bytes) -> dict[str, Any]:
    """Return a JSON object, an empty one for anything else."""
    try:
        answer = json.loads(body[:LONGEST_ANSWER])
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
