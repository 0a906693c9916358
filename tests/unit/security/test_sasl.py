from __future__ import annotations

import pytest

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE
from spark_kafkalite.security.sasl import TOKEN_VARIABLE, login_from
from spark_kafkalite.security.scram import SCRAM_HASHES, ScramServer, scram_credential

SECRET = "canary7Secret"
scrams = pytest.mark.parametrize("mechanism", SCRAM_HASHES)


@pytest.fixture(autouse=True)
def _no_token_from_outside(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def logged_in(login, user, password, is_token):
    """Run one exchange of ``login`` against a server that knows this user; return whether it was let in."""
    credential = scram_credential(login.mechanism, password, b"salt" * 4, 4096)
    server = ScramServer(login.mechanism, lambda *asked: credential if asked == (user, is_token) else None, b"s" * 32)
    exchange = login.exchange("broker")
    try:
        assert exchange.answer(server.answer(exchange.answer(server.answer(exchange.first())))) is None
    except SaslAuthenticationFailed:
        return False
    return server.is_done


def test_plain_sends_user_and_password_and_is_content_with_any_answer(parsed):
    login = login_from(parsed(sasl_mechanism="PLAIN", sasl_username="älice", sasl_password="s=c r,t"))
    assert login.mechanism == "PLAIN"
    exchange = login.exchange("broker")
    assert exchange.first() == "\0älice\0s=c r,t".encode()
    assert exchange.answer(b"") is None and exchange.answer(b"\xff\0") is None
    assert exchange.remedy == "check sasl.username and sasl.password"


@pytest.mark.parametrize("password", ["${KAFKA_PASSWORD}", "$KAFKA_PASSWORD", "${env:KAFKA_PASSWORD}"])
def test_a_variable_that_nobody_has_replaced_is_told_with_the_refusal(parsed, password):
    login = login_from(parsed(sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=password))
    assert login.exchange("broker").remedy.endswith(", where the password looks like a variable that was not replaced")
    assert login.exchange("broker").first() == f"\0alice\0{password}".encode()


def test_plain_takes_a_jaas_entry(parsed):
    jaas = f'{PLAIN_MODULE} required username="alice" password="a;b" serviceName="ignored";'
    exchange = login_from(parsed(sasl_mechanism="PLAIN", sasl_jaas_config=jaas)).exchange("broker")
    assert exchange.first() == b"\0alice\0a;b"
    assert "sasl.jaas.config" in exchange.remedy


@scrams
def test_scram_takes_user_and_password_from_settings_and_from_jaas(parsed, mechanism):
    by_name = login_from(parsed(sasl_mechanism=mechanism, sasl_username="bob", sasl_password=SECRET))
    jaas = f'{SCRAM_MODULE} required username="bob" password="{SECRET}";'
    by_jaas = login_from(parsed(sasl_mechanism=mechanism, sasl_jaas_config=jaas))
    for login in (by_name, by_jaas):
        assert login.mechanism == mechanism
        assert logged_in(login, "bob", SECRET, False)
        assert not logged_in(login, "bob", "another", False)


@scrams
def test_a_delegation_token_by_jaas(parsed, mechanism):
    jaas = f'{SCRAM_MODULE} required username="id" password="aG1hYw==" tokenauth="TRUE";'
    assert logged_in(login_from(parsed(sasl_mechanism=mechanism, sasl_jaas_config=jaas)), "id", "aG1hYw==", True)


def test_a_delegation_token_file_is_read_again_for_each_connection(parsed, tmp_path):
    path = tmp_path / "token"
    path.write_text("first:aG1hYw==\n")
    login = login_from(parsed(sasl_mechanism="SCRAM-SHA-512", sasl_token_file=str(path)))
    assert logged_in(login, "first", "aG1hYw==", True)
    path.write_text("second:bm90aGVy")
    assert logged_in(login, "second", "bm90aGVy", True)
    assert str(path) in login.exchange("broker").remedy


def test_a_delegation_token_is_nothing_for_plain(parsed, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "id:aG1hYw==")
    with pytest.raises(ConfigError, match="needs credentials"):
        login_from(parsed(sasl_mechanism="PLAIN"))


def test_a_delegation_token_from_the_environment_where_no_setting_names_one(parsed, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "id:aG1hYw==")
    login = login_from(parsed(sasl_mechanism="SCRAM-SHA-256"))
    assert logged_in(login, "id", "aG1hYw==", True)
    monkeypatch.setenv(TOKEN_VARIABLE, "renewed:aG1hYw==")
    assert logged_in(login, "renewed", "aG1hYw==", True)
    named = login_from(parsed(sasl_mechanism="SCRAM-SHA-256", sasl_username="bob", sasl_password="p"))
    assert logged_in(named, "bob", "p", False)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "does not hold a delegation token of the form TOKENID:HMAC"),
        (f"{SECRET}".encode(), "of the form TOKENID:HMAC"),
        (f"{SECRET}:".encode(), "of the form TOKENID:HMAC"),
        (f":{SECRET}".encode(), "of the form TOKENID:HMAC"),
        (f"id: {SECRET}".encode(), "of the form TOKENID:HMAC"),
        (f"id:{SECRET}\nid:{SECRET}".encode(), "of the form TOKENID:HMAC"),
        (b"id:\xff" + SECRET.encode(), "is not UTF-8 text"),
        (SECRET.encode() * 1000, "holds more than 4096 bytes"),
    ],
)
def test_a_bad_token_file_is_told_without_its_content(parsed, tmp_path, content, problem):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    login = login_from(parsed(sasl_mechanism="SCRAM-SHA-256", sasl_token_file=str(path)))
    with pytest.raises(SaslAuthenticationFailed) as caught:
        login.exchange("broker")
    assert problem in str(caught.value) and str(path) in str(caught.value)
    assert SECRET not in str(caught.value)
    # Its ``object`` is what could not be decoded, and a debugger or an error reporter shows it.
    assert not isinstance(caught.value.__context__, UnicodeDecodeError)


NAMED = {"sasl_username": "bob", "sasl_password": SECRET}
PLAIN_JAAS = f'{PLAIN_MODULE} required username="bob" password="{SECRET}";'
SCRAM_JAAS = f'{SCRAM_MODULE} required username="bob" password="{SECRET}";'


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (NAMED, "sasl.mechanism is not set: give one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        ({"sasl_mechanism": "", **NAMED}, "sasl.mechanism is not set"),
        ({"sasl_mechanism": "GSSAPI", **NAMED}, "sasl.username is for PLAIN and SCRAM-SHA-256 and SCRAM-SHA-512, and"),
        (
            {"sasl_mechanism": "PLAIN", **NAMED, "sasl_kerberos_keytab": "/k"},
            "sasl.kerberos.keytab is for GSSAPI, and sasl.mechanism is PLAIN",
        ),
        ({"sasl_mechanism": "scram-sha-256", **NAMED}, "written in capitals, SCRAM-SHA-256"),
        ({"sasl_mechanism": "AWS_MSK_IAM"}, "sasl.token.provider=module:function"),
        ({"sasl_mechanism": "DIGEST-MD5"}, "must be one of PLAIN, "),
        ({"sasl_mechanism": "PLAIN"}, "needs credentials: set sasl.username and sasl.password, or sasl.jaas.config"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "or a delegation token by sasl.token.file or KAFKALITE_TOKEN"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "bob"}, "sasl.password is not set, and sasl.username is"),
        ({"sasl_mechanism": "PLAIN", "sasl_password": SECRET}, "sasl.username is not set, and sasl.password is"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "bob", "sasl_password": ""}, "sasl.password is empty"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "", "sasl_password": SECRET}, "sasl.username is empty"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": " "}, "sasl.jaas.config is empty"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "b\0b", "sasl_password": SECRET}, "cannot be sent"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "bob", "sasl_password": SECRET + "\udc80"}, "cannot be sent"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_jaas_config": PLAIN_JAAS, **NAMED},
            "sasl.jaas.config and sasl.username are both given",
        ),
        (
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_token_file": "/t", **NAMED},
            "sasl.username and sasl.token.file are both given",
        ),
        ({"sasl_mechanism": "PLAIN", "sasl_token_file": "/t"}, "sasl.token.file is for SCRAM-SHA-256 and "),
        ({"sasl_mechanism": "PLAIN", "sasl_token_provider": "a:b"}, "sasl.token.provider is for OAUTHBEARER, and "),
        ({"sasl_mechanism": "OAUTHBEARER", **NAMED}, "sasl.username is for PLAIN and "),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": SCRAM_JAAS}, "ScramLoginModule is for sasl.mechanism=SCRAM-"),
        (
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_jaas_config": PLAIN_JAAS},
            "PlainLoginModule is for sasl.mechanism=PLAIN",
        ),
        ({"sasl_mechanism": "OAUTHBEARER", "sasl_jaas_config": PLAIN_JAAS}, "and sasl.mechanism is OAUTHBEARER"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_jaas_config": f"{OAUTHBEARER_MODULE} required;"},
            "OAuthBearerLoginModule is for sasl.mechanism=OAUTHBEARER",
        ),
        (
            {"sasl_mechanism": "PLAIN", "sasl_jaas_config": f"{PLAIN_MODULE} required usrname=a password={SECRET};"},
            "sasl.jaas.config: username is not set, and password is",
        ),
        (
            {"sasl_mechanism": "PLAIN", "sasl_jaas_config": f'{PLAIN_MODULE} required username="" password={SECRET};'},
            "sasl.jaas.config: username is empty",
        ),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": SECRET}, "sasl.jaas.config: position"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_login_callback_handler_class": "com.example.MyHandler", **NAMED},
            "sasl.login.callback.handler.class=com.example.MyHandler: a Java class cannot run",
        ),
    ],
)
def test_what_is_missing_contradictory_or_not_supported_is_a_config_error(parsed, given, problem):
    with pytest.raises(ConfigError) as caught:
        login_from(parsed(**given))
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
        "kafkashaded.org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    ],
)
def test_kafkas_own_login_callback_handler_is_a_hint(parsed, name):
    login_from(parsed(sasl_mechanism="PLAIN", sasl_login_callback_handler_class=name, **NAMED))


def test_no_text_of_a_login_holds_a_secret(parsed, tmp_path):
    path = tmp_path / "token"
    path.write_text(f"id:{SECRET}")
    for given in (
        {"sasl_mechanism": "PLAIN", **NAMED},
        {"sasl_mechanism": "SCRAM-SHA-256", **NAMED},
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_jaas_config": SCRAM_JAAS},
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_token_file": str(path)},
    ):
        login = login_from(parsed(**given))
        for thing in (login, login.exchange("broker"), login.exchange("broker").remedy):
            assert SECRET not in repr(thing)
