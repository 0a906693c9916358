"""PLAIN's exchange, and the users that sasl.jaas.config names."""

from __future__ import annotations

import pytest

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.jaas import PLAIN_MODULE, SCRAM_MODULE
from spark_kafkalite.security.sasl_server import PlainServer, plain_passwords, user_problem

SETTING = "listener.name.l.plain.sasl.jaas.config"
PASSWORDS = {"alice": b"secret", "zo\xeb": "m\xfcnchen".encode()}


@pytest.mark.parametrize(
    ("message", "user"),
    [(b"\0alice\0secret", "alice"), (b"alice\0alice\0secret", "alice"), ("\0zo\xeb\0m\xfcnchen".encode(), "zo\xeb")],
)
def test_the_right_password_is_taken(message: bytes, user: str) -> None:
    server = PlainServer(PASSWORDS)
    assert not server.is_done
    assert server.answer(message) == b"" and server.is_done and server.user == user


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0\0",
        b"alice\0secret",
        b"\0alice\0secret\0",
        b"\0alice\0",
        b"\0alice\0secre",
        b"\0alice\0secrets",
        b"\0\0secret",
        b"\0bob\0secret",
        b"bob\0alice\0secret",
        b"\0al\xffice\0secret",
    ],
)
def test_anything_else_is_refused(message: bytes) -> None:
    server = PlainServer(PASSWORDS)
    with pytest.raises(SaslAuthenticationFailed) as refused:
        server.answer(message)
    assert not server.is_done and "secret" not in str(refused.value)


def test_users_are_options_of_the_login_module() -> None:
    text = f'{PLAIN_MODULE} required username="admin" password="x" user_alice="a=b;c" user_admin="\\"q\\"";'
    assert plain_passwords(text, SETTING) == {"alice": b"a=b;c", "admin": b'"q"'}


@pytest.mark.parametrize(
    ("jaas", "problem"),
    [
        (f'{SCRAM_MODULE} required user_a="hidden";', "ScramLoginModule; for PLAIN give"),
        (f'{PLAIN_MODULE} required username="hidden";', "names no user; add an option user_NAME"),
        (f'{PLAIN_MODULE} required user_a="";', "user a has an empty password"),
        (f'{PLAIN_MODULE} required user_="hidden";', "must not be empty"),
        (f'{PLAIN_MODULE} required user_broker-1="hidden";', "those of the brokers; choose another name"),
        (f'{PLAIN_MODULE} required user_a="hidden"', "does not end with a semicolon"),
    ],
)
def test_a_wrong_entry_stops_the_start_and_shows_no_password(jaas: str, problem: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        plain_passwords(jaas, SETTING)
    assert str(wrong.value).startswith(f"{SETTING}: ") and problem in str(wrong.value)
    assert "hidden" not in str(wrong.value)


@pytest.mark.parametrize("user", ["", "broker-1", "broker-007", "x" * 256, "a\nb", "a\0b"])
def test_names_that_no_user_may_have(user: str) -> None:
    assert user_problem(user) is not None


@pytest.mark.parametrize("user", ["alice", "CN=b,O=c", "a b/%~*", "broker-x", "broker-1a", "<default>", "\xfc"])
def test_names_that_a_user_may_have(user: str) -> None:
    assert user_problem(user) is None
