"""An identity provider for tests: issues JWTs by OAuth's client-credentials flow and publishes its signing key.

It listens on loopback, in threads of this process. ``/token`` is the token endpoint (POST; client id and secret in the
Authorization header). ``/jwks`` serves the keys (GET), so that a real broker can verify the tokens. A test makes the
endpoint misbehave with :meth:`TokenEndpoint.answer_next` and :attr:`TokenEndpoint.answer_always`.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs

_KEY_ID: Final = "test-key"
_LONGEST_BODY: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer instead of a token. The endpoint waits ``delay_s`` before it, and ``drip_s`` after each body byte."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A client's request for a token."""

    client_id: str
    client_secret: str
    form: Mapping[str, str]
    content_type: str


@dataclass(frozen=True, slots=True)
class Issuer:
    """The issuer's name in tokens, and the private key (PEM) that signs them."""

    name: str
    key_pem: bytes

    def key(self) -> object:
        from cryptography.hazmat.primitives import serialization

        return serialization.load_pem_private_key(self.key_pem, None)


class TokenEndpoint:
    """The identity provider: use it in a ``with`` statement, or start and stop it.

    ``requests`` are all received requests for a token, in order, including the failed ones.
    """

    def __init__(
        self,
        *,
        tls_context: ssl.SSLContext | None = None,
        signed: bool = True,
        client_id: str = "client",
        client_secret: str = "secret",
        subject: str | None = None,
        audience: str = "kafka",
        lifetime_s: float = 3600.0,
        host: str = "127.0.0.1",
        issued_as: Issuer | None = None,
    ) -> None:
        """``signed``: sign tokens by RS256. Unsigned tokens do not need ``cryptography``.

        With ``issued_as`` the endpoint issues tokens in the name of another endpoint, whose keys verify them.

        With ``tls_context``, a server's context, the endpoint speaks HTTPS. ``subject`` is the principal in tokens, by
        default the client's id. ``lifetime_s`` is the lifetime of tokens; a test may change it at any time.
        """
        self.lifetime_s = lifetime_s
        self.requests: list[TokenRequest] = []
        self.answer_always: HttpAnswer | None = None
        # Instead of the keys.
        self.keys_answer: HttpAnswer | None = None
        self._answers: deque[HttpAnswer] = deque()
        self._client = (client_id, client_secret)
        self._subject = subject or client_id
        self._audience = audience
        self._stopped = threading.Event()
        self._serial = 0
        self._changed = threading.Condition()
        self._key: Any = None
        if signed:
            self._key = _new_key() if issued_as is None else issued_as.key()
        self._server = _Server((host, 0), self, tls_context)
        scheme = "http" if tls_context is None else "https"
        self.base_url = f"{scheme}://{host}:{self._server.server_address[1]}"
        self._issuer = self.base_url if issued_as is None else issued_as.name
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """The URL of the token endpoint."""
        return f"{self.base_url}/token"

    @property
    def jwks_url(self) -> str:
        """The URL of the keys."""
        return f"{self.base_url}/jwks"

    @property
    def issuer(self) -> str:
        """The issuer's name in tokens."""
        return self._issuer

    def as_issuer(self) -> Issuer:
        """Return what another endpoint, for example in another process, needs to issue this one's tokens."""
        from cryptography.hazmat.primitives import serialization

        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return Issuer(self.issuer, self._key.private_bytes(serialization.Encoding.PEM, form, plain))

    @property
    def request_count(self) -> int:
        """How many requests for a token the endpoint has received."""
        return len(self.requests)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving. Delayed answers are sent at once."""
        self._stopped.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_for_requests(self, count: int, timeout_s: float = 10.0) -> bool:
        """Wait for ``count`` requests for a token, at most ``timeout_s``; return whether they have arrived."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.requests) >= count, timeout_s)

    def answer_next(self, *answers: HttpAnswer) -> None:
        """Answer each of the next requests with one of these, in order. Later requests get tokens again."""
        self._answers.extend(answers)

    def token(
        self,
        *,
        subject: str | None = None,
        lifetime_s: float | None = None,
        headers: Mapping[str, object] | None = None,
        **claims: object,
    ) -> str:
        """Return a token as the endpoint issues it; no two are equal.

        ``claims`` add to its claims or replace them, ``headers`` do so with its header.
        """
        now = time.time()
        with self._changed:
            self._serial += 1
            serial = self._serial
        content = {
            "iss": self.issuer,
            "sub": subject or self._subject,
            "aud": self._audience,
            "jti": str(serial),
            "iat": int(now),
            "exp": int(now + (self.lifetime_s if lifetime_s is None else lifetime_s)),
            **claims,
        }
        header: dict[str, object] = {"alg": "none"}
        if self._key is not None:
            header = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        header |= headers or {}
        signed = f"{_json_part(header)}.{_json_part(content)}"
        return f"{signed}.{'' if self._key is None else _base64url(self._signature(signed))}"

    def _signature(self, signed: str) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA256

        signature: bytes = self._key.sign(signed.encode(), PKCS1v15(), SHA256())
        return signature

    def jwks(self) -> dict[str, object]:
        """Return the key set that verifies the tokens."""
        if self._key is None:
            return {"keys": []}
        numbers = self._key.public_key().public_numbers()
        return {
            "keys": [
                {
                    "kty": "RSA",
                    "use": "sig",
                    "alg": "RS256",
                    "kid": _KEY_ID,
                    "n": _base64url(numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8)),
                    "e": _base64url(numbers.e.to_bytes(3)),
                }
            ]
        }

    def _answer_to(self, request: TokenRequest) -> HttpAnswer:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        if self._answers:
            return self._answers.popleft()
        if self.answer_always is not None:
            return self.answer_always
        if (request.client_id, request.client_secret) != self._client:
            return _json_answer(401, {"error": "invalid_client", "error_description": "unknown client or secret"})
        if request.form.get("grant_type") != "client_credentials":
            return _json_answer(400, {"error": "unsupported_grant_type"})
        scope = request.form.get("scope")
        claims: dict[str, Any] = {} if scope is None else {"scope": scope}
        return _json_answer(
            200, {"access_token": self.token(**claims), "token_type": "Bearer", "expires_in": int(self.lifetime_s)}
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], endpoint: TokenEndpoint, tls_context: ssl.SSLContext | None) -> None:
        self.endpoint = endpoint
        self._tls_context = tls_context
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the connection's own thread, so that a silent client does not delay other clients.
        request.settimeout(30.0)
        if self._tls_context is not None:
            request = self._tls_context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)
        request.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of clients that have disconnected or do not speak TLS."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        endpoint = self.server.endpoint
        body = self.rfile.read(min(int(self.headers.get("Content-Length", "0")), _LONGEST_BODY))
        if self.path.partition("?")[0] != "/token":
            self._send(HttpAnswer(404))
            return
        client_id, client_secret = _basic_credentials(self.headers.get("Authorization", ""))
        form = {name: values[0] for name, values in parse_qs(body.decode(errors="replace")).items()}
        request = TokenRequest(client_id, client_secret, form, self.headers.get("Content-Type", ""))
        self._send(endpoint._answer_to(request))

    def do_GET(self) -> None:
        endpoint, known = self.server.endpoint, self.path == "/jwks"
        keys = endpoint.keys_answer or _json_answer(200, endpoint.jwks())
        self._send(keys if known else HttpAnswer(404))

    def _send(self, answer: HttpAnswer) -> None:
        stopped = self.server.endpoint._stopped
        stopped.wait(answer.delay_s)
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if not answer.drip_s:
            self.wfile.write(answer.body)
            return
        for at in range(len(answer.body)):
            self.wfile.write(answer.body[at : at + 1])
            if stopped.wait(answer.drip_s):
                return

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, to keep a test's output clean."""


def _basic_credentials(header: str) -> tuple[str, str]:
    """Return the client id and secret in an Authorization header, without decoding them; empty if it has none."""
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode() if scheme == "Basic" else ""
    except (binascii.Error, ValueError):
        text = ""
    client_id, _, client_secret = text.partition(":")
    return client_id, client_secret


def _new_key() -> object:
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65_537, key_size=2048)


def _json_answer(status: int, content: object) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


def _json_part(content: object) -> str:
    return _base64url(json.dumps(content, separators=(",", ":")).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# How the header of each token begins, and its claims. Three letters of a random text are these by chance now and then.
BEGINNINGS: Final = tuple(_json_part({first: ""})[:8] for first in ("alg", "iss"))
