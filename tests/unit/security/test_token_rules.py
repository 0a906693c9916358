"""Which tokens a broker accepts, and what an attacker may try with others (RFC 8725)."""

from __future__ import annotations

import hmac
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from spark_kafkalite.security.signing_keys import read_key_set
from spark_kafkalite.security.token_rules import InvalidToken, TokenRules, key_id
from tests.unit.security.jwts import AUDIENCE, ISSUER, base64url, claims, jwk, key_set, private_key, signed, token

RULES = TokenRules(ISSUER, (AUDIENCE, "other"), skew_s=30)
RSA_KEYS = read_key_set(key_set(jwk("RSA"))).keys["one"]
HEADER = {"alg": "RS256", "kid": "one"}
DEEP = b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}"


def refusal(text: str, rules: TokenRules = RULES, keys: Any = RSA_KEYS) -> str:
    with pytest.raises(InvalidToken) as caught:
        key_id(text)
        rules.validated(text, keys)
    said = str(caught.value)
    # Neither of its parts is shown.
    assert not any(part in said for part in text.split(".") if len(part) > 8)
    return said


@pytest.mark.parametrize(
    ("kind", "alg"),
    [("RSA", "RS256"), ("RSA", "RS512"), ("RSA", "PS256"), ("ES256", "ES256"), ("ES384", "ES384"), ("EdDSA", "EdDSA")],
)
def test_a_good_token_of_each_algorithm(kind: str, alg: str) -> None:
    content = claims(scope=["a", "b"])
    keys = read_key_set(key_set(jwk(kind))).keys["one"]
    text = token(content, kind=kind, alg=alg)
    assert key_id(text) == "one"
    assert RULES.validated(text, keys) == ("alice", content["exp"])
    other = {"RSA": "ES256", "ES256": "ES384"}.get(kind, "RSA")
    assert "not one of its key" in refusal(text, keys=read_key_set(key_set(jwk(other))).keys["one"])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"iss": "https://evil.example"}, "its issuer (iss) is not 'https://idp.example'"),
        ({"iss": ISSUER + "/"}, "its issuer"),
        ({"iss": None}, "it has no claim iss"),
        ({"iss": [ISSUER]}, "its issuer"),
        ({"aud": "elsewhere"}, "its audience (aud) has none of kafka, other"),
        ({"aud": ["a", "b"]}, "its audience"),
        ({"aud": [AUDIENCE, 1]}, "its audience"),
        ({"aud": {AUDIENCE: 1}}, "its audience"),
        ({"aud": []}, "it has no claim aud"),
        ({"aud": None}, "it has no claim aud"),
        ({"exp": None}, "it has no claim exp"),
        ({"exp": int(time.time()) - 10**6}, "it has expired"),
        ({"exp": -1}, "it has expired"),
        ({"exp": 10**13}, "its claim exp is no time in seconds"),
        ({"exp": 10**400}, "its claim exp is no time in seconds"),
        ({"exp": float("nan")}, "cannot be read"),
        ({"exp": float("inf")}, "cannot be read"),
        ({"exp": True}, "it has expired"),
        ({"exp": str(int(time.time()) + 10**6)}, "its claim exp is no time"),
        ({"exp": [1]}, "cannot be read"),
        ({"iat": None}, "it has no claim iat"),
        ({"iat": int(time.time()) + 10**6}, "it is not valid yet"),
        ({"iat": "x"}, "cannot be read"),
        ({"nbf": int(time.time()) + 10**6}, "it is not valid yet"),
        ({"sub": None}, "its claim sub does not name a user"),
        ({"sub": " "}, "its claim sub does not name a user"),
        ({"sub": 7}, "its claim sub does not name a user"),
        ({"sub": "x" * 256}, "256 characters"),
        ({"sub": "a\nb"}, "cannot be printed"),
        ({"sub": "broker-1"}, "those of the brokers"),
        ({"scope": {"a": 1}}, "its claim scope is neither"),
        ({"scope": ["a", 1]}, "its claim scope is neither"),
    ],
)
def test_claims_that_are_refused(changed: dict[str, object], problem: str) -> None:
    assert problem in refusal(signed(HEADER, claims(**changed)))


def test_what_the_settings_allow() -> None:
    """Clocks that differ, a list of audiences, other names of claims, and no expectation."""
    now = int(time.time())
    late = signed(HEADER, claims(exp=now - 10, iat=now + 10, nbf=now + 10, aud=["x", "other"]))
    assert RULES.validated(late, RSA_KEYS) == ("alice", now - 10)
    strict = TokenRules(ISSUER, (AUDIENCE,), skew_s=0)
    assert "expired" in refusal(signed(HEADER, claims(exp=now - 1)), strict)
    named = TokenRules(None, (), subject_claim="client_id", scope_claim="scp")
    content = claims(iss=None, aud="anything", sub=7, scope=7, client_id="app", scp="read")
    assert named.validated(signed(HEADER, content), RSA_KEYS).user == "app"


def hs256_with_the_public_key() -> str:
    pem = private_key("RSA", 0).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    text = f"{base64url(json.dumps({**HEADER, 'alg': 'HS256'}).encode())}.{base64url(json.dumps(claims()).encode())}"
    return f"{text}.{base64url(hmac.digest(pem, text.encode(), 'sha256'))}"


FORGED_KEY = {"jwk": jwk("RSA", number=1), "jku": "https://evil.example/jwks", "x5u": "file:///etc/passwd"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (jwt.encode(claims(), None, algorithm="none", headers={"kid": "one"}), "its algorithm 'none'"),
        (token().rpartition(".")[0] + ".", "its signature is wrong"),
        (hs256_with_the_public_key(), "its algorithm 'HS256'"),
        (token(number=1), "its signature is wrong"),
        (token(number=1, **FORGED_KEY), "its signature is wrong"),
        (token()[:-4] + "AAAA", "its signature is wrong"),
        (signed({**HEADER, "alg": ["RS256"]}, claims()), "its algorithm"),
        (signed({**HEADER, "alg": None}, claims()), "its algorithm"),
        (signed({"kid": "one"}, claims()), "its algorithm"),
        (signed({"alg": "RS256"}, claims()), "no id of a key"),
        (signed({"alg": "RS256", "kid": 7}, claims()), "its header cannot be read"),
        (signed({"alg": "RS256", "kid": ""}, claims()), "no id of a key"),
        (signed({"alg": "RS256", "kid": "k" * 1001}, claims()), "no id of a key"),
        (signed({**HEADER, "crit": ["exp"]}, claims()), "its header"),
        (signed({**HEADER, "crit": ["b64"], "b64": True}, claims()), "its header has b64, crit"),
        (signed({**HEADER, "b64": False}, claims()), "its header"),
        (signed([], claims()), "its header cannot be read"),
        (signed(DEEP, claims()), "its header has"),
        (signed(b"[" * 9_000, claims()), "its header cannot be read"),
        (signed(b"\xff\xfe", claims()), "its header cannot be read"),
        (signed(HEADER, []), "cannot be read"),
        (signed(HEADER, DEEP), "cannot be read"),
        (signed(HEADER, b"\xff"), "cannot be read"),
        (signed(HEADER, b"{" * 1000), "cannot be read"),
        (signed(HEADER, b'{"exp":' + b"9" * 5000 + b"}"), "cannot be read"),
        ("", "not a signed JWT"),
        ("a.b", "not a signed JWT"),
        ("a.b.c.d.e", "not a signed JWT"),
        ("a.b.c", "its header cannot be read"),
        ("x" * 65_537, "it has 65537 characters"),
        (token() + "=", "not a signed JWT"),
        (" " + token(), "not a signed JWT"),
    ],
)
def test_what_is_no_token_or_a_forged_one(text: str, problem: str) -> None:
    assert problem in refusal(text)


def test_a_key_of_the_issuer_elsewhere_in_the_header_changes_nothing() -> None:
    assert RULES.validated(token(**FORGED_KEY, x5c=["x"]), RSA_KEYS).user == "alice"


def test_unusable_keys_are_left_out() -> None:
    octets = {"kty": "oct", "k": base64url(b"s" * 32), "kid": "secret"}
    private = jwk("RSA", "private", d="AQAB")
    found = read_key_set(
        key_set(
            jwk("RSA"), jwk("ES256", "two"), jwk("RSA", "two", number=1, alg="PS256"), octets, private,
            jwk("small", "small"), jwk("RSA", "enc", use="enc"), jwk("RSA", "ops", key_ops=["encrypt"]),
            jwk("RSA", "hs", alg="HS256"), jwk("ES256", "curve", crv="secp256k1"), jwk("ES256", "bad", x="AA"),
            jwk("RSA", ""), {}, 7,
        )
    )  # fmt: skip
    assert {name: [key.algorithms for key in keys] for name, keys in found.keys.items()} == {
        "one": [("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")],
        "two": [("ES256",), ("PS256",)],
    }
    assert len(found.problems) == 11 and not any("AQAB" in each or octets["k"] in each for each in found.problems)


@pytest.mark.parametrize("kind", ["RSA", "ES256", "EdDSA"])
def test_a_field_of_another_type_costs_its_key_alone(kind: str) -> None:
    whole = jwk(kind, "odd", use="sig", key_ops=["verify"], alg={"RSA": "RS256"}.get(kind, kind))
    good = jwk("RSA")
    for name in (*whole, "d", "crv", "x5c", "x5t", "ext"):
        for value in (None, 0, 10**400, 1.5, float("nan"), True, False, "", "=", [], [None], [[]], {}, {"verify": 1}):
            found = read_key_set(key_set(good, whole | {name: value}))
            assert "one" in found.keys, (name, value)
            assert sum(map(len, found.keys.values())) + len(found.problems) == 2, (name, value)
    for value in (None, 0, True, {"verify": 1}, "verify"):
        (problem,) = read_key_set(key_set(good, whole | {"key_ops": value})).problems
        assert problem == "key 2: is not for signatures (use, key_ops)"


def test_a_curve_that_openssl_does_not_have_costs_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(data: bytes) -> object:
        raise UnsupportedAlgorithm("ed448 is not supported by this version of OpenSSL")

    monkeypatch.setattr(Ed448PublicKey, "from_public_bytes", unsupported)
    odd = {"kid": "odd", "kty": "OKP", "crv": "Ed448", "x": "A" * 76}
    found = read_key_set(key_set(odd, jwk("RSA")))
    assert list(found.keys) == ["one"]
    assert found.problems == ("key 1: is of the type OKP with the curve Ed448, which OpenSSL does not have here",)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JWK set"),
        (b'{"keys": {}}', "not a JWK set"),
        (b'{"keys": []}', "it is empty"),
        (key_set(*[{}] * 101), "101 keys"),
        (key_set({"kty": "oct"}), "has no id"),
    ],
)
def test_what_is_no_key_set(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_key_set(data)
