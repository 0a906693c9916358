from __future__ import annotations

import base64
import http.client
import json
import urllib.parse

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from tests.lab.token_endpoint import HttpAnswer, TokenEndpoint
from tests.patience import PATIENCE_S


def decoded(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def asked(endpoint, method, path, credentials="client:secret", **form):
    """Return (status, content) of one request."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(endpoint.url).netloc, timeout=PATIENCE_S)
    headers = {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}
    connection.request(method, path, urllib.parse.urlencode(form) if form else None, headers)
    with connection.getresponse() as response:
        answer = response.status, response.read()
    connection.close()
    return answer


def test_a_token_can_be_verified_with_the_published_key():
    with TokenEndpoint(lifetime_s=60, audience="brokers") as endpoint:
        status, body = asked(endpoint, "POST", "/token", grant_type="client_credentials", scope="a b")
        key = json.loads(asked(endpoint, "GET", "/jwks")[1])["keys"][0]
    assert status == 200
    header, claims, signature = json.loads(body)["access_token"].split(".")
    public_key = RSAPublicNumbers(*(int.from_bytes(decoded(key[name])) for name in "en")).public_key()
    public_key.verify(decoded(signature), f"{header}.{claims}".encode(), PKCS1v15(), SHA256())
    assert json.loads(decoded(header))["kid"] == key["kid"]
    claims = json.loads(decoded(claims))
    assert (claims["sub"], claims["aud"], claims["scope"]) == ("client", "brokers", "a b")
    assert claims["exp"] - claims["iat"] == 60
    assert claims["iss"] == endpoint.issuer


def test_it_counts_requests_and_refuses_strangers():
    with TokenEndpoint(signed=False) as endpoint:
        assert asked(endpoint, "POST", "/token", "client:wrong", grant_type="client_credentials")[0] == 401
        assert asked(endpoint, "POST", "/token", grant_type="password")[0] == 400
        assert asked(endpoint, "POST", "/other", grant_type="client_credentials")[0] == 404
        tokens = {asked(endpoint, "POST", "/token", grant_type="client_credentials")[1] for _ in range(2)}
        assert len(tokens) == 2
        assert endpoint.request_count == 4
        assert endpoint.requests[0].client_secret == "wrong"


@pytest.mark.parametrize("always", [False, True])
def test_it_misbehaves_as_told(always):
    with TokenEndpoint(signed=False) as endpoint:
        moved = HttpAnswer(302, headers={"Location": "http://127.0.0.1:1/"})
        if always:
            endpoint.answer_always = moved
        else:
            endpoint.answer_next(moved)
        statuses = [asked(endpoint, "POST", "/token", grant_type="client_credentials")[0] for _ in range(2)]
    assert statuses == ([302, 302] if always else [302, 200])


def test_a_delayed_answer_does_not_outlive_it():
    with TokenEndpoint(signed=False) as endpoint:
        endpoint.answer_next(HttpAnswer(body=b"x", delay_s=1000))
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(endpoint.url).netloc, timeout=PATIENCE_S)
        connection.request("POST", "/token")
        assert endpoint.wait_for_requests(1)
        endpoint.stop()
        assert connection.getresponse().read() == b"x"
        connection.close()
