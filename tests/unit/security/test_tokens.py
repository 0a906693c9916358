from __future__ import annotations

import base64
import json
import os
import sys
import time
import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_kafkalite.errors import SaslAuthenticationFailed
from spark_kafkalite.security.oauthbearer import oauthbearer_login
from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.security.tokens import (
    LONGEST_TOKEN,
    FileSource,
    HeldToken,
    ProviderSource,
    UnsecuredSource,
    checked_token,
)
from spark_kafkalite.settings import SettingGroup

SECRET = "canary7Secret"
VALUES = SettingGroup("client", SECURITY_SETTINGS).defaults()


def jwt(**claims):
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{part}.c2ln"


@pytest.fixture
def provider(monkeypatch):
    """Make ``a_provider:give`` importable, as a function that does what it is told; return its source."""

    def make(give):
        module = types.ModuleType("a_provider")
        module.give = give
        monkeypatch.setitem(sys.modules, "a_provider", module)
        return ProviderSource("a_provider:give")

    return make


def refusal(source):
    with pytest.raises(SaslAuthenticationFailed) as caught:
        source.fetch()
    assert str(source) in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


def test_a_jwt_expires_when_it_says_and_another_token_when_its_source_says():
    assert checked_token(jwt(exp=1_900_000_000.5), 5.0, "x").expires_at_s == 1_900_000_000.5
    assert checked_token("opaque", 5.0, "x").expires_at_s == 5.0
    assert checked_token("opaque", None, "x").expires_at_s is None
    for claims in ({}, {"exp": "soon"}, {"exp": True}, {"exp": float("inf")}, {"exp": None}):
        assert checked_token(jwt(**claims), 5.0, "x").expires_at_s == 5.0


@pytest.mark.parametrize("exp", [1_900_000_000_000, -(10**15), 0, 10**400, 1e300], ids=lambda exp: f"{exp!s:.10}")
def test_a_jwt_that_expires_at_no_possible_time_is_left_to_the_broker(exp, tmp_path):
    path = tmp_path / "token"
    path.write_text(jwt(exp=exp))
    assert checked_token(jwt(exp=exp), None, "x").expires_at_s is None
    assert (
        oauthbearer_login(VALUES | {"sasl.token.file": str(path)}, None).exchange("broker").remedy
        == f"check sasl.token.file={path}"
    )


@given(st.from_regex(r"[A-Za-z0-9._~+/-]{1,80}={0,2}|([A-Za-z0-9_-]{0,9}\.){2}[a-z]", fullmatch=True))
@example("e30.e30.x")
@example("e30.e3.x")  # not JSON
@example("e30.e30-.x")  # not base64
@example(f"e30.{'W1tb' * 10_000}.x")  # very deep
def test_any_token_is_looked_into_without_trouble(value):
    assert checked_token(value, None, "x").value == value


def test_no_text_shows_a_token():
    assert SECRET not in repr(HeldToken(SECRET, 1.0))
    with pytest.raises(SaslAuthenticationFailed) as caught:
        checked_token(f"{SECRET}\x01", None, "here")
    assert str(caught.value) == "here: the token holds characters that no token has"


def test_a_file_is_read_again_each_time_without_its_last_line_end(tmp_path):
    path = tmp_path / "token"
    source = FileSource(f"sasl.token.file={path}", str(path))
    for value in (jwt(exp=2_000_000_000), "opaque"):
        path.write_text(f"{value}\r\n")
        assert source.fetch().value == value


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "the token is empty"),
        (f"root:{SECRET}:0:0\n".encode(), "holds characters that no token has"),
        (f"{SECRET}\n{SECRET}".encode(), "holds characters that no token has"),
        (b"a" * (LONGEST_TOKEN + 1), f"holds more than {LONGEST_TOKEN} bytes"),
        (b"\xff", "is not UTF-8 text"),
    ],
)
def test_a_file_that_holds_no_token_is_refused_without_its_content(tmp_path, content, problem):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    assert problem in refusal(FileSource(f"sasl.token.file={path}", str(path)))


def test_a_pipe_that_nobody_writes_to_holds_no_token(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "the token is empty" in refusal(FileSource(str(pipe), str(pipe)))
    writer = os.open(pipe, os.O_RDWR)
    assert "the token is empty" in refusal(FileSource(str(pipe), str(pipe)))
    os.close(writer)


def test_a_provider_gives_a_token_alone_or_with_its_time_of_expiry(provider):
    assert provider(lambda: jwt(exp=1_900_000_000)).fetch() == HeldToken(jwt(exp=1_900_000_000), 1_900_000_000.0)
    assert provider(lambda: "opaque").fetch() == HeldToken("opaque", None)
    assert provider(lambda: ("opaque", 1_900_000_000)).fetch() == HeldToken("opaque", 1_900_000_000.0)
    assert provider(lambda: ("opaque", None)).fetch() == HeldToken("opaque", None)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "returned NoneType, and is to return a token"),
        (SECRET.encode(), "returned bytes"),
        ((SECRET,), "returned tuple"),
        ((SECRET, 1, 2), "returned tuple"),
        ((SECRET, "soon"), "time of expiry as str"),
        ((SECRET, True), "time of expiry as bool"),
        ((SECRET, 1_900_000_000_000), "give seconds since 1970, not milliseconds"),
        ((SECRET, float("nan")), "give seconds since 1970"),
        ((SECRET, -1), "give seconds since 1970"),
        (f"{SECRET} {SECRET}", "holds characters that no token has"),
        ("", "the token is empty"),
        (SECRET * 10_000, "at most 65536 are sent"),
    ],
)
def test_a_providers_wrong_result_is_told_without_it(provider, result, problem):
    assert problem in refusal(provider(lambda: result))


def test_a_providers_exception_is_told_by_type_and_place_only(provider):
    def give():
        raise ValueError(f"the secret {SECRET} is wrong")

    told = refusal(provider(give))
    assert "raised ValueError (test_tokens.py, line " in told


def test_a_provider_that_exits_does_not_end_the_thread_that_asks_it(provider):
    login = oauthbearer_login(VALUES | {"sasl.token.provider": provider(lambda: sys.exit(SECRET)).name}, None)
    with pytest.raises(SaslAuthenticationFailed, match=r"it raised SystemExit \(test_tokens.py, line \d+\)$"):
        login.exchange("broker")
    provider(lambda: "opaque")
    assert b"Bearer opaque" in login.exchange("broker").first()


def test_a_provider_that_is_not_there(provider, tmp_path, monkeypatch):
    provider(lambda: "x")
    assert "there is no no_such_module_anywhere; see PYTHONPATH" in refusal(ProviderSource("no_such_module_anywhere:f"))
    assert "cannot be imported" in refusal(ProviderSource("a_provider:other"))
    assert "is not a function but of type str" in refusal(ProviderSource("a_provider:__name__"))
    (tmp_path / "a_broken_provider.py").write_text(f"raise KeyError('{SECRET}')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "its import raised KeyError (a_broken_provider.py, line 1)" in refusal(ProviderSource("a_broken_provider:f"))


def test_an_unsecured_token_is_a_jwt_without_signature():
    began_s = time.time()
    held = UnsecuredSource((("sub", "älice"),), lifetime_s=60).fetch()
    header, claims, signature = held.value.split(".")
    assert signature == "" and json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    assert json.loads(base64.urlsafe_b64decode(claims + "=="))["sub"] == "älice"
    assert began_s - 1 < held.expires_at_s - 60 <= time.time()
