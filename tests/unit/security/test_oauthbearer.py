from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.jaas import OAUTHBEARER_MODULE
from spark_kafkalite.security.oauthbearer import OAuthBearerExchange
from spark_kafkalite.security.sasl import login_from
from spark_kafkalite.security.tokens import HeldToken

SECRET = "canary7Secret"
URL = "sasl_oauthbearer_token_endpoint_url"
NO_CREDENTIALS = "set sasl.oauthbearer.client.credentials.client.id and"


def jaas(options=""):
    return f"{OAUTHBEARER_MODULE} required {options};"


def oauth(**given):
    return {"sasl_mechanism": "OAUTHBEARER", **given}


def test_the_token_and_its_extensions_are_sent_as_rfc_7628_says():
    exchange = OAuthBearerExchange("abc.def", {"traceId": "1 2", "x": "y"}, "check it")
    assert exchange.first() == b"n,,\x01auth=Bearer abc.def\x01traceId=1 2\x01x=y\x01\x01"
    assert exchange.answer(b"") is None


def test_a_refused_token_is_acknowledged_and_the_reason_shown():
    refused = []
    exchange = OAuthBearerExchange("abc", {}, "check x", lambda: refused.append(True))
    challenge = {"status": "invalid_token", "scope": "kafka", "openid-configuration": "https://idp"}
    assert exchange.answer(json.dumps(challenge).encode()) == b"\x01"
    assert refused == [True]
    reason = "check x (the broker's reason: status 'invalid_token', scope 'kafka', openid-configuration 'https://idp')"
    assert exchange.remedy == reason
    with pytest.raises(SaslAuthenticationFailed) as caught:
        exchange.answer(b"")
    assert reason in str(caught.value)


@given(st.binary(min_size=1) | st.text(alphabet='{}[]":status, \x01', min_size=1).map(str.encode))
def test_whatever_the_broker_says_against_a_token_only_a_failed_authentication_comes_out(challenge):
    exchange = OAuthBearerExchange(SECRET, {}, "check x")
    assert exchange.answer(challenge) == b"\x01"
    with pytest.raises(SaslAuthenticationFailed) as caught:
        exchange.answer(challenge)
    assert len(str(caught.value)) < 1000 and SECRET not in str(caught.value)


def test_a_deeply_nested_answer_is_no_trouble():
    exchange = OAuthBearerExchange("abc", {}, "check x")
    assert exchange.answer(b"[" * 60_000) == b"\x01"
    assert "60000 bytes that are not of the form" in exchange.remedy


def test_an_unsecured_token_from_jaas(parsed):
    entry = jaas('unsecuredLoginStringClaim_sub="alice" extension_traceId="7"')
    login = login_from(parsed(**oauth(sasl_jaas_config=entry)))
    assert login.mechanism == "OAUTHBEARER"
    first = login.exchange("broker").first()
    assert first.startswith(b"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.") and first.endswith(b".\x01traceId=7\x01\x01")


@pytest.mark.parametrize("form", ["file", "url"])
def test_a_token_from_a_file(parsed, tmp_path, form):
    path = tmp_path / "a token"
    path.write_text("opaque-1\n")
    name = {"sasl_token_file": str(path)} if form == "file" else {URL: f"file://{str(path).replace(' ', '%20')}"}
    login = login_from(parsed(**oauth(**name)))
    assert login.exchange("broker").first() == b"n,,\x01auth=Bearer opaque-1\x01\x01"
    path.write_text("opaque-2")
    assert b"opaque-2" in login.exchange("broker").first()
    # One that was handed over counts while it lives.
    login.take_token(HeldToken("handed-over", 4_000_000_000.0))
    assert b"handed-over" in login.exchange("broker").first()


def test_the_remedy_tells_when_the_token_expires(parsed, tmp_path):
    path = tmp_path / "token"
    path.write_text("e30.eyJleHAiOjE3MDAwMDAwMDB9.c2ln")
    login = login_from(parsed(**oauth(sasl_token_file=str(path))))
    assert login.exchange("broker").remedy == f"check sasl.token.file={path}: the token expired at 2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {},
            "no source of tokens is given; give exactly one of sasl.token.provider, sasl.token.file, sasl.oauthbearer.",
        ),
        ({"sasl_jaas_config": jaas()}, "no source of tokens is given"),
        (
            {"sasl_token_provider": "a:b", "sasl_token_file": "/t"},
            "sasl.token.provider and sasl.token.file are both given; give exactly one of",
        ),
        (
            {"sasl_token_file": "/t", "sasl_jaas_config": jaas("unsecuredLoginStringClaim_sub=a")},
            "sasl.token.file and unsecuredLoginStringClaim_sub in sasl.jaas.config are both given",
        ),
        ({"sasl_jaas_config": jaas('unsecuredLoginStringClaim_sub=""')}, "unsecuredLoginStringClaim_sub is empty"),
        (
            {"sasl_jaas_config": jaas("unsecuredLoginStringClaim_sub=a unsecuredLoginLifetimeSeconds='-1'")},
            "unsecuredLoginLifetimeSeconds must be a whole number",
        ),
        (
            {"sasl_token_file": "/t", "sasl_jaas_config": jaas(f"extension_auth={SECRET}")},
            "the name of an extension must consist of the letters",
        ),
        ({"sasl_token_file": "/t", "sasl_jaas_config": jaas("extension_a1=x")}, "the name of an extension"),
        ({"sasl_token_file": "/t", "sasl_jaas_config": jaas('extension_a="\\1"')}, "extension_a must not be empty"),
        ({"sasl_token_provider": "no colon"}, "must be of the form module:function"),
        ({URL: "https://idp/token"}, f"needs the client's id; {NO_CREDENTIALS}"),
        ({URL: "https://idp/token", "sasl_jaas_config": jaas("clientId=a")}, "needs the client's secret"),
        ({URL: "https://idp/t", "sasl_jaas_config": jaas('clientId=a clientSecret=""')}, "clientSecret in sasl.jaas."),
        ({URL: f"https://user:{SECRET}@idp/token"}, "a URL with a user name in it"),
        ({URL: "http://idp.example.com/token"}, "http:// would send the client's secret in clear"),
        ({URL: "ftp://idp/token"}, "must be of the form https://HOST[:PORT]/PATH or file:///PATH"),
        ({URL: "idp/token"}, "must be of the form https://"),
        ({URL: "https://"}, "must be of the form https://"),
        ({URL: "https://idp:99999/"}, "is not a URL"),
        ({URL: "https://[idp/"}, "is not a URL"),
        ({URL: "https://idp/token#x"}, "must be of the form https://"),
        ({URL: "https://idp/\x7ftoken"}, "must be of the form https://"),
        ({URL: "file://host/path"}, "must be of the form file:///PATH"),
    ],
)
def test_what_is_missing_contradictory_or_not_allowed_is_a_config_error(parsed, given, problem):
    with pytest.raises(ConfigError) as caught:
        login_from(parsed(**oauth(**given)))
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)


def test_no_text_of_a_login_holds_a_secret(parsed, tmp_path):
    path = tmp_path / "token"
    path.write_text(SECRET)
    entry = jaas(f'clientId="a" clientSecret="{SECRET}"')
    for settings in ({"sasl_token_file": str(path)}, {URL: "http://localhost/token", "sasl_jaas_config": entry}):
        login = login_from(parsed(**oauth(**settings)))
        assert SECRET not in repr(login) and SECRET not in repr(vars(login))
    exchange = login_from(parsed(**oauth(sasl_token_file=str(path)))).exchange("broker")
    assert SECRET not in repr(exchange) and SECRET not in exchange.remedy
