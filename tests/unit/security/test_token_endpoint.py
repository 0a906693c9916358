from __future__ import annotations

import json
import socket
import ssl
import threading
import time

import pytest
import trustme

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security import token_endpoint
from spark_kafkalite.security.http_request import URLS_VARIABLE
from spark_kafkalite.security.jaas import OAUTHBEARER_MODULE
from spark_kafkalite.security.sasl import login_from
from tests.lab.token_endpoint import HttpAnswer, TokenEndpoint

SECRET = "canary7=Secret&+ü"
GOOD = {"sasl_mechanism": "OAUTHBEARER", "sasl_login_retry_backoff_ms": "1"}


@pytest.fixture
def endpoint(monkeypatch):
    with TokenEndpoint(signed=False, client_id="me:too", client_secret=SECRET) as endpoint:
        monkeypatch.setenv(URLS_VARIABLE, f"https://elsewhere/token, {endpoint.url}")
        yield endpoint


@pytest.fixture
def login(endpoint, parsed):
    """Make a login at the endpoint; its client's id must not hold a colon unless the header is encoded."""

    def make(**given):
        settings = {
            "sasl_oauthbearer_token_endpoint_url": endpoint.url,
            "sasl_oauthbearer_client_credentials_client_id": "me",
            "sasl_oauthbearer_client_credentials_client_secret": SECRET,
        }
        return login_from(parsed(**{**GOOD, **settings, **given}))

    endpoint._client = ("me", SECRET)
    return make


def refusal(login):
    with pytest.raises(SaslAuthenticationFailed) as caught:
        login.current_token()
    assert "canary7" not in str(caught.value)
    return str(caught.value)


def test_a_token_by_client_credentials(login, endpoint):
    began_s = time.time()
    held = login(sasl_oauthbearer_scope="read write").current_token()
    # A JWT has whole seconds.
    assert held.value.count(".") == 2 and began_s - 1 < held.expires_at_s - 3600 <= time.time()
    (request,) = endpoint.requests
    assert request.form == {"grant_type": "client_credentials", "scope": "read write"}
    assert request.content_type == "application/x-www-form-urlencoded"
    assert (request.client_id, request.client_secret) == ("me", SECRET)


def test_credentials_from_jaas_and_settings_before_them(login, endpoint):
    jaas = f'{OAUTHBEARER_MODULE} required clientId="jaas" clientSecret="{SECRET}" scope="jaas scope";'
    login(sasl_jaas_config=jaas).current_token()
    refusal(login(sasl_jaas_config=jaas, sasl_oauthbearer_client_credentials_client_id=None))
    assert [request.client_id for request in endpoint.requests] == ["me", "jaas"]
    assert endpoint.requests[0].form["scope"] == "jaas scope"


def test_the_header_is_url_encoded_if_asked_for(login, endpoint):
    endpoint._client = ("me%3Atoo", "canary7%3DSecret%26%2B%C3%BC")
    given = {"sasl_oauthbearer_client_credentials_client_id": "me:too", "sasl_oauthbearer_header_urlencode": "true"}
    assert login(**given).current_token().value


def test_logins_with_the_same_settings_ask_once(login, endpoint):
    assert len({login().current_token().value for _ in range(10)}) == 1
    assert endpoint.request_count == 1
    login(sasl_oauthbearer_scope="another").current_token()
    assert endpoint.request_count == 2


def test_an_opaque_token_expires_as_the_answer_says(login, endpoint):
    endpoint.answer_next(HttpAnswer(body=b'{"access_token":"opaque","expires_in":100}'))
    began_s = time.time()
    held = login().current_token()
    assert held.value == "opaque" and began_s <= held.expires_at_s - 100 <= time.time()


@pytest.mark.parametrize("listed", [None, "", "{url}/", "{base}", "https://elsewhere/token"])
def test_a_url_that_the_environment_does_not_list_is_not_asked(login, endpoint, monkeypatch, listed):
    if listed is None:
        monkeypatch.delenv(URLS_VARIABLE)
    else:
        monkeypatch.setenv(URLS_VARIABLE, listed.format(url=endpoint.url, base=endpoint.base_url))
    assert f"the environment variable {URLS_VARIABLE} does not list this URL" in refusal(login())
    assert endpoint.request_count == 0


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (HttpAnswer(302, headers={"Location": "{url}"}), "it redirects (HTTP 302), which is not followed"),
        (HttpAnswer(307, headers={"Location": "{url}"}), "it redirects (HTTP 307)"),
        (HttpAnswer(401, b'{"error":"invalid_client","error_description":"no"}'), "HTTP 401, 'invalid_client: no'"),
        (HttpAnswer(401, json.dumps({"error": f"{SECRET} is wrong"}).encode()), "HTTP 401"),
        (HttpAnswer(403, b"<html>canary7</html>"), "HTTP 403"),
        (HttpAnswer(404), "HTTP 404"),
        (HttpAnswer(200, b""), "is not a JSON object with an access_token"),
        (HttpAnswer(200, b"[" * 100_000), "is not a JSON object with an access_token"),
        (HttpAnswer(200, b'["access_token"]'), "is not a JSON object with an access_token"),
        (HttpAnswer(200, b'{"access_token":7}'), "is not a JSON object with an access_token"),
        (HttpAnswer(200, b'{"access_token":""}'), "the token is empty"),
        (HttpAnswer(200, b'{"access_token":"canary7\\u0001auth=x"}'), "holds characters that no token has"),
        (HttpAnswer(200, b'{"access_token":"' + b"a" * 70_000 + b'"}'), "at most 65536 are sent"),
        (HttpAnswer(200, b" " * 1_100_000 + b'{"access_token":"a"}'), "has more than 1048576 bytes"),
    ],
)
def test_a_refusal_or_rubbish_is_told_at_once(login, endpoint, answer, problem):
    endpoint.answer_always = answer
    told = refusal(login())
    assert problem in told and endpoint.url in told
    assert endpoint.request_count == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(login, endpoint, status):
    endpoint.answer_next(*[HttpAnswer(status)] * 3)
    assert login().current_token().value
    assert endpoint.request_count == 4


@pytest.mark.parametrize("answer", [HttpAnswer(delay_s=1000), HttpAnswer(body=b"x" * 100_000, drip_s=0.03)])
def test_a_slow_answer_is_waited_for_until_the_total_time_is_over(login, endpoint, answer, monkeypatch):
    monkeypatch.setattr(token_endpoint, "_TOTAL_S", 0.1)
    endpoint.answer_always = answer
    told = refusal(login())
    assert any(reason in told for reason in ("no answer in time", "the connection was cut"))


def test_one_slow_answer_does_not_cost_the_token(login, endpoint):
    endpoint.answer_next(HttpAnswer(delay_s=1000))
    assert login(sasl_login_read_timeout_ms="100").current_token().value
    # One more where the machine is slow.
    assert endpoint.request_count >= 2


def test_an_endpoint_that_is_not_there(login, endpoint):
    # So long that there is no time for a second try: the time in which the first one is made is not bounded by it.
    client = login(sasl_login_retry_backoff_ms="10000", sasl_login_retry_backoff_max_ms="10000")
    endpoint.stop()
    assert "cannot be reached (Connection refused); check the URL" in refusal(client)


def test_a_failed_renewal_is_no_failure_of_the_login(login, endpoint):
    client = login()
    held = client.current_token()
    endpoint.answer_always = HttpAnswer(500)
    assert client.current_token() is held


@pytest.fixture
def trust(tmp_path, monkeypatch):
    """An authority, its certificate in a file, and a token endpoint whose certificate it signed."""
    authority = trustme.CA()
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with TokenEndpoint(tls_context=context, signed=False) as endpoint:
        monkeypatch.setenv(URLS_VARIABLE, endpoint.url)
        yield endpoint, path


def secure_login(parsed, endpoint, options, **given):
    jaas = f'{OAUTHBEARER_MODULE} required clientId="client" clientSecret="secret" {options};'
    url = {"sasl_oauthbearer_token_endpoint_url": endpoint.url}
    return login_from(parsed(**GOOD, **url, sasl_jaas_config=jaas, **given))


def test_https_with_an_authority_from_the_jaas_options(parsed, trust):
    endpoint, path = trust
    options = f'ssl.truststore.type="PEM" ssl.truststore.location="{path}"'
    assert secure_login(parsed, endpoint, options).current_token().value
    assert endpoint.request_count == 1


def test_an_endpoint_that_is_not_trusted_sees_no_secret(parsed, trust):
    endpoint, path = trust
    # As in Kafka the truststore of the brokers says nothing about the identity provider.
    told = refusal(secure_login(parsed, endpoint, "", ssl_truststore_location=str(path)))
    assert "its certificate is not trusted" in told and "set ssl.truststore.location in sasl.jaas.config" in told
    assert endpoint.request_count == 0


def test_a_certificate_with_another_name_is_not_trusted(parsed, trust, monkeypatch):
    endpoint, path = trust
    url = endpoint.url.replace("127.0.0.1", "localhost")
    monkeypatch.setenv(URLS_VARIABLE, url)
    jaas = f'{OAUTHBEARER_MODULE} required clientId=a clientSecret=b ssl.truststore.location="{path}";'
    told = refusal(login_from(parsed(**GOOD, sasl_oauthbearer_token_endpoint_url=url, sasl_jaas_config=jaas)))
    assert "its certificate is not trusted (Hostname mismatch" in told and endpoint.request_count == 0


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_a_server_that_says_nothing_costs_no_more_than_its_time(parsed, monkeypatch, speaks_tls):
    monkeypatch.setattr(token_endpoint, "_TOTAL_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http{'s' if speaks_tls else ''}://127.0.0.1:{silent.getsockname()[1]}/"
        monkeypatch.setenv(URLS_VARIABLE, url)
        jaas = f"{OAUTHBEARER_MODULE} required clientId=a clientSecret=b;"
        told = refusal(login_from(parsed(**GOOD, sasl_oauthbearer_token_endpoint_url=url, sasl_jaas_config=jaas)))
        assert "no answer in time" in told


def test_http_at_an_https_port_and_the_reverse(parsed, trust, monkeypatch):
    monkeypatch.setattr(token_endpoint, "_TOTAL_S", 0.1)
    endpoint, _ = trust
    with TokenEndpoint(signed=False) as plain:
        for url in (endpoint.url.replace("https", "http"), plain.url.replace("http", "https")):
            monkeypatch.setenv(URLS_VARIABLE, url)
            jaas = f"{OAUTHBEARER_MODULE} required clientId=a clientSecret=b;"
            told = refusal(login_from(parsed(**GOOD, sasl_oauthbearer_token_endpoint_url=url, sasl_jaas_config=jaas)))
            told_of = ("is not HTTP", "does not speak TLS", "no TLS connection", "Connection reset", "no answer")
            assert any(text in told for text in told_of), told


def test_a_truststore_that_is_not_there_is_an_error_of_settings(parsed, trust):
    endpoint, _ = trust
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config: .*/no/such/store"):
        secure_login(parsed, endpoint, 'ssl.truststore.location="/no/such/store"')


def test_a_thread_that_fetches_is_a_daemon(login, endpoint):
    endpoint.answer_next(HttpAnswer(delay_s=1000))
    client = login(sasl_login_read_timeout_ms="200")
    waiter = threading.Thread(target=client.current_token)
    waiter.start()
    assert endpoint.wait_for_requests(1)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "kafkalite-token")
    waiter.join()
