"""Keys and tokens for tests of what accepts them."""

from __future__ import annotations

import base64
import functools
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://idp.example", "kafka"


@functools.cache
def private_key(kind: str, number: int) -> Any:
    """Return a private key, of each kind and number always the same one: RSA, ES256, ES384, EdDSA, small."""
    if kind in ("RSA", "small"):
        return rsa.generate_private_key(public_exponent=65_537, key_size=2048 if kind == "RSA" else 1024)
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}[kind])


def jwk(kind: str, kid: str = "one", number: int = 0, **fields: object) -> dict[str, Any]:
    """Return the public key as a JWK."""
    algorithm = {"RSA": "RS256", "small": "RS256"}.get(kind, kind)
    public = jwt.get_algorithm_by_name(algorithm).to_jwk(private_key(kind, number).public_key(), as_dict=True)
    return {key: value for key, value in public.items() if key != "key_ops"} | {"kid": kid} | fields


def key_set(*keys: dict[str, Any]) -> bytes:
    """Return a JWK set."""
    return json.dumps({"keys": keys}).encode()


def claims(**changed: object) -> dict[str, Any]:
    """Return the claims of a good token; those changed to None are left out."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 3600}
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def token(
    content: dict[str, Any] | None = None, *, kind: str = "RSA", alg: str = "RS256", number: int = 0, **headers: object
) -> str:
    """Return a token, signed by PyJWT."""
    content = claims() if content is None else content
    return jwt.encode(content, private_key(kind, number), algorithm=alg, headers={"kid": "one", **headers})


def signed(header: object, payload: object, *, kind: str = "RSA") -> str:
    """Return a token of any header and payload, bytes or what becomes JSON, signed by RS256."""
    parts = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in (header, payload))
    text = ".".join(base64url(part) for part in parts)
    return f"{text}.{base64url(jwt.get_algorithm_by_name('RS256').sign(text.encode(), private_key(kind, 0)))}"


def base64url(data: bytes) -> str:
    """Return data in base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
