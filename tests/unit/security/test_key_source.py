"""How the keys of tokens are fetched: over TLS, within bounds, and from no other place than the URL."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security import key_source
from spark_kafkalite.security.key_source import KeySource, KeysUnavailable
from tests.lab.certificates import LOOPBACK, Authority
from tests.lab.token_endpoint import HttpAnswer, TokenEndpoint

SETTING = "sasl.oauthbearer.jwks.endpoint.url"


def source(url: str, **options: str) -> KeySource:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return KeySource.of(SETTING, url, named, refresh_s=1.0, backoff_s=1.0, backoff_max_s=1.0)


def problem(url: str, **options: str) -> str:
    with pytest.raises(KeysUnavailable) as caught:
        source(url, **options).fetch()
    assert str(caught.value).startswith(f"{SETTING}={url}: ")
    return str(caught.value)


@pytest.fixture
def issuer() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as running:
        yield running


def test_the_keys_of_a_url_and_of_a_file(issuer: TokenEndpoint, tmp_path: Path) -> None:
    keys = source(issuer.jwks_url).fetch().keys
    assert list(keys) == ["test-key"] and keys["test-key"][0].algorithms == ("RS256",)
    path = tmp_path / "the keys.json"
    path.write_text(json.dumps(issuer.jwks()))
    for scheme in ("file", "FILE"):
        assert list(source(f"{scheme}://{tmp_path}/the%20keys.json").fetch().keys) == ["test-key"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            HttpAnswer(302, headers={"Location": "http://127.0.0.1:1/"}),
            "it redirects (HTTP 302), which is not followed",
        ),
        (HttpAnswer(500, b"secret"), "HTTP 500"),
        (HttpAnswer(204), "HTTP 204"),
        (HttpAnswer(200, b"<html>secret</html>"), "it is not JSON; is it the issuer's JWK set"),
        (HttpAnswer(200, b" " * (1024 * 1024 + 1)), "more than 1048576 bytes"),
        (HttpAnswer(200, b'{"keys": []}' * 100, drip_s=0.2), "no answer in time"),
        (HttpAnswer(200, b"", delay_s=30.0), "no answer in time"),
    ],
)
def test_answers_that_are_not_taken(
    issuer: TokenEndpoint, answer: HttpAnswer, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == "no answer in time":
        monkeypatch.setattr(key_source, "_TOTAL_S", 0.3)
    issuer.keys_answer = answer
    text = problem(issuer.jwks_url)
    assert said in text and "secret" not in text


def test_only_the_authority_that_is_named_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("idp", *LOOPBACK).pem_file())
    trusted = str(authority.pem_file())
    other = str(Authority(tmp_path / "other", "other").pem_file())
    with TokenEndpoint(tls_context=context) as issuer:
        assert list(source(issuer.jwks_url, ssl_truststore_location=trusted).fetch().keys) == ["test-key"]
        for options in ({}, {"ssl_truststore_location": other}):
            assert "its certificate is not trusted" in problem(issuer.jwks_url, **options)
        for url in (issuer.jwks_url, issuer.jwks_url.replace("https", "HTTPS")):
            with pytest.raises(ConfigError, match=f"{SETTING}={url}: .*/no/such/file: cannot be read"):
                source(url, ssl_truststore_location="/no/such/file").check()
        in_clear = issuer.jwks_url.replace("https", "http")
        assert "the answer is not HTTP" in problem(in_clear) or "cannot be reached" in problem(in_clear)
