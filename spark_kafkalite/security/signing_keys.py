"""The public keys of an identity provider: a JWK set (RFC 7517), read by PyJWT. Pure.

Only keys for asymmetric signatures are taken, each with the algorithms that it may be used by. So no token chooses an
algorithm that its key is not for: a public key is never taken for the secret of an HMAC, and ``none`` is no algorithm
here. A key that cannot be used is left out, with the reason; the others of its set count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.version import install_command

LONGEST_KEY_ID: Final = 1000
_MOST_KEYS: Final = 100
_LEAST_RSA_BITS: Final = 2048
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# By the type of the key and its curve. Source: RFC 7518 section 3.1, RFC 8037.
_ALGORITHMS: Final[Mapping[tuple[str, str | None], tuple[str, ...]]] = MappingProxyType(
    {
        ("RSA", None): _RSA,
        ("EC", "P-256"): ("ES256",),
        ("EC", "P-384"): ("ES384",),
        ("EC", "P-521"): ("ES512",),
        ("OKP", "Ed25519"): ("EdDSA",),
        ("OKP", "Ed448"): ("EdDSA",),
    }
)


def jwt_library() -> ModuleType:
    """Return the module jwt (PyJWT). Raises ConfigError with the command that installs what is missing."""
    try:
        import jwt

        if not jwt.algorithms.has_crypto:
            raise ImportError("cryptography")  # without it PyJWT knows HMACs only
    except ImportError as error:
        raise ConfigError(
            f"SASL OAUTHBEARER needs the libraries PyJWT and cryptography (the extra security): "
            f"{install_command('security')}"
        ) from error
    return jwt


class SigningKey(NamedTuple):
    """A public key of ``cryptography``, and the algorithms that may be used with it."""

    key: Any
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys by their id (``kid``), which several may share; ``problems`` has those that are left out, and why."""

    keys: Mapping[str, tuple[SigningKey, ...]] = field(default_factory=dict, repr=False)
    problems: tuple[str, ...] = ()


def read_key_set(data: bytes) -> KeySet:
    """Return the usable keys of a JWK set. Raises ValueError with the reason for a text without any."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    listed = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise ValueError('it is not a JWK set, {"keys": [...]}')
    if len(listed) > _MOST_KEYS:
        raise ValueError(f"it has {len(listed)} keys; at most {_MOST_KEYS} are read")
    keys: dict[str, tuple[SigningKey, ...]] = {}
    problems = []
    for number, jwk in enumerate(listed, start=1):
        try:
            name, key = _read_key(jwk)
        except ValueError as error:
            problems.append(f"key {number}: {error}")
        else:
            keys[name] = (*keys.get(name, ()), key)
    if not keys:
        raise ValueError(f"it has no key that can be used ({'; '.join(problems)[:300] or 'it is empty'})")
    return KeySet(keys, tuple(problems))


def _read_key(jwk: object) -> tuple[str, SigningKey]:
    """Return a key and its id. Raises ValueError with the reason for one that is not used."""
    if not isinstance(jwk, dict):
        raise ValueError("is no JSON object")
    name, kind, curve = jwk.get("kid"), jwk.get("kty"), jwk.get("crv")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_KEY_ID:
        raise ValueError(f"has no id (kid) of 1 to {LONGEST_KEY_ID} characters")
    operations = jwk.get("key_ops", ["verify"])
    for field_name in ("kty", "crv", "alg"):
        if not isinstance(jwk.get(field_name), str | None):
            raise ValueError(f"has a field {field_name} that is no text")
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise ValueError("is not for signatures (use, key_ops)")
    if "d" in jwk:
        raise ValueError("is a private key, which does not belong here")
    algorithms = _ALGORITHMS.get((str(kind), None if kind == "RSA" else str(curve)))
    if algorithms is None:
        raise ValueError(f"is of the type {str(kind)[:20]!r} with the curve {str(curve)[:20]!r}")
    algorithm = jwk.get("alg")
    if algorithm is not None:
        if algorithm not in algorithms:
            raise ValueError(f"is for the algorithm {str(algorithm)[:20]!r}")
        algorithms = (algorithm,)
    jwt = jwt_library()
    from cryptography.exceptions import UnsupportedAlgorithm  # the library is there: PyJWT needs it

    try:
        key = jwt.PyJWK(jwk, algorithm=algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        raise ValueError(f"cannot be read as a key of the type {kind}") from None
    except UnsupportedAlgorithm:
        raise ValueError(f"is of the type {kind} with the curve {curve}, which OpenSSL does not have here") from None
    if kind == "RSA" and key.key_size < _LEAST_RSA_BITS:
        raise ValueError(f"has {key.key_size} bits; at least {_LEAST_RSA_BITS} are needed")
    return name, SigningKey(key, algorithms)
