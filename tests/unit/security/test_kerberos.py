"""Kerberos in a client: its settings, its exchange against a context that is played, and the texts of its errors."""

import logging
import os
import struct
import sys
from types import SimpleNamespace

import pytest

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security import kerberos, kerberos_settings
from spark_kafkalite.security.kerberos import GssapiExchange, KerberosLogin
from spark_kafkalite.security.kerberos_errors import (
    NO_CREDENTIALS,
    TICKET_EXPIRED,
    Failure,
    explain,
    kdcs_of,
    minor_code,
    principals_in,
)
from spark_kafkalite.security.sasl import login_from

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
ALICE = "alice@EXAMPLE.TEST"
BASE = -1765328384
KEYTAB = {"sasl_kerberos_keytab": "/k", "sasl_kerberos_principal": ALICE}
LIBRARIES = kerberos.libraries


class GSSError(Exception):
    """Stands for python-gssapi's."""

    min_code = 0


class InvalidTokenError(GSSError):
    """Likewise."""


@pytest.fixture(autouse=True)
def _libraries(monkeypatch):
    errors = SimpleNamespace(
        GSSError=GSSError,
        ExpiredCredentialsError=type("E", (GSSError,), {}),
        MissingCredentialsError=type("M", (GSSError,), {}),
        InvalidTokenError=InvalidTokenError,
    )
    for module in (kerberos, kerberos_settings):
        monkeypatch.setattr(module, "libraries", lambda: (SimpleNamespace(exceptions=errors), None))


@pytest.fixture
def keytab(tmp_path):
    """A keytab with the keys of two principals."""

    def entry(*parts: str) -> bytes:
        realm, *names = [struct.pack(">H", len(part)) + part.encode() for part in parts]
        content = struct.pack(">H", len(names)) + realm + b"".join(names) + bytes(20)
        return struct.pack(">i", len(content)) + content

    path = tmp_path / "clients.keytab"
    hole = struct.pack(">i", -12) + bytes(12)
    path.write_bytes(b"\x05\x02" + entry("EXAMPLE.TEST", "alice") + hole + entry("EXAMPLE.TEST", "load", "host"))
    return path


@pytest.fixture
def login_of(parsed):
    """Return the login of these settings."""

    def made(**given: str) -> KerberosLogin:
        login = login_from(parsed(sasl_mechanism="GSSAPI", **given))
        assert isinstance(login, KerberosLogin)
        return login

    return made


def test_missing_libraries_are_named_with_how_to_install_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"needs python-gssapi and krb5.*pip install 'gssapi>=.*libkrb5-dev"):
        LIBRARIES()


# Settings -------------------------------------------------------------------------------------------------------------


def test_without_a_keytab_the_ticket_cache_is_used(login_of):
    login = login_of()
    assert (login._service, login._source, login._cache) == ("kafka", None, None)


def test_a_keytab_by_settings_and_by_jaas_are_the_same_source(login_of, keytab):
    by_settings = login_of(sasl_kerberos_keytab=str(keytab), sasl_kerberos_principal=ALICE)
    jaas = f'{MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{ALICE}" serviceName="log";'
    by_jaas = login_of(sasl_jaas_config=jaas)
    assert by_settings._source == by_jaas._source
    assert by_settings._keeper is by_jaas._keeper
    assert (by_settings._service, by_jaas._service) == ("kafka", "log")


def test_a_ticket_cache_by_jaas(login_of):
    login = login_of(sasl_jaas_config=f'{MODULE} required useTicketCache=true ticketCache="/tmp/cache" renewTGT=true;')
    assert login._cache == "FILE:/tmp/cache"


def test_a_keytab_that_was_shipped_is_found_by_its_name(login_of, keytab, monkeypatch):
    monkeypatch.chdir(keytab.parent)
    login = login_of(sasl_kerberos_keytab="/etc/security/clients.keytab", sasl_kerberos_principal=ALICE)
    assert login._source.keytab == str(keytab)


def test_a_pipe_is_no_keytab(login_of, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="it is not a regular file"):
        login_of(sasl_kerberos_keytab=str(pipe), sasl_kerberos_principal=ALICE)


@pytest.mark.parametrize("prefix", ["FILE:", "file:", "file://", "WRFILE:"])
def test_how_keytabs_are_named(login_of, keytab, prefix):
    named = {"sasl_kerberos_keytab": f"{prefix}{keytab}", "sasl_kerberos_principal": ALICE}
    if prefix == "WRFILE:":
        with pytest.raises(ConfigError, match="cannot be read"):
            login_of(**named)
    else:
        assert login_of(**named)._source.keytab == str(keytab)


def test_a_jaas_line_of_kerberos_needs_no_mechanism(parsed):
    login = login_from(parsed(sasl_jaas_config=f"{MODULE} required useTicketCache=true;"))
    assert isinstance(login, KerberosLogin)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"sasl_kerberos_keytab": "/k"}, "sasl.kerberos.keytab=/k needs sasl.kerberos.principal"),
        ({"sasl_kerberos_keytab": "/no/k", "sasl_kerberos_principal": ALICE}, "spark-submit --files"),
        ({"sasl_kerberos_service_name": "kafka/host"}, "give the service alone"),
        ({"sasl_jaas_config": f"{MODULE} required;"}, "names no credentials: set useTicketCache=true"),
        ({"sasl_jaas_config": f"{MODULE} required useKeyTab=true;"}, "useKeyTab=true needs keyTab"),
        ({"sasl_jaas_config": f'{MODULE} required keyTab="/k" principal="p";'}, "no effect without useKeyTab=true"),
        (
            {"sasl_jaas_config": f'{MODULE} required useKeyTab=true keyTab="/k" principal="p" useTicketCache=true;'},
            "useTicketCache is true, and useKeyTab names a keytab: choose one",
        ),
        ({**KEYTAB, "sasl_jaas_config": f"{MODULE} required useTicketCache=true;"}, "keytab: choose one"),
        ({**KEYTAB, "sasl_jaas_config": f"{MODULE} required useKeyTab=false;"}, "useKeyTab is false, and there is a"),
        (
            {**KEYTAB, "sasl_jaas_config": f'{MODULE} required useKeyTab=true keyTab="/k" ticketCache="/c";'},
            "ticketCache has no effect without useTicketCache=true",
        ),
        ({**KEYTAB, "sasl_kerberos_principal": "alice\0@EXAMPLE.TEST"}, "the Kerberos principal 'alice?@EXAMPLE.TEST'"),
        ({"sasl_kerberos_service_name": "k" * 2000}, "has 2000 characters: give at most 1024"),
        ({"sasl_jaas_config": f"{MODULE} required useTicketCache=true isInitiator=false;"}, "is for a server"),
        ({"sasl_jaas_config": f"{MODULE} required useTiketCache=true;"}, "has no option useTiketCache; it has "),
        (
            {
                "sasl_kerberos_service_name": "log",
                "sasl_jaas_config": f'{MODULE} required useTicketCache=true serviceName="kafka";',
            },
            "sasl.kerberos.service.name=log and serviceName=kafka in sasl.jaas.config contradict each other",
        ),
    ],
)
def test_what_is_missing_or_contradictory_is_a_config_error(login_of, given, problem):
    with pytest.raises(ConfigError) as caught:
        login_of(**given)
    assert problem in str(caught.value)


def test_options_without_effect_are_warned_of_once(login_of, caplog, monkeypatch):
    monkeypatch.setattr(kerberos_settings, "_warned", set())
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        login_of(sasl_jaas_config=f"{MODULE} required useTicketCache=true debug=true renewTGT=true;")
    (record,) = caplog.records
    assert record.getMessage() == "sasl.jaas.config: debug, renewTGT: without effect in this client"


# The exchange ---------------------------------------------------------------------------------------------------------


class Context:
    """A security context of the initiator that needs one answer, as Kerberos with mutual authentication does."""

    def __init__(self, layers: bytes, error: Exception | None = None) -> None:
        self.complete = False
        self._layers = layers
        self._error = error
        self.wrapped: list[tuple[bytes, bool]] = []

    def step(self, token: bytes | None) -> bytes | None:
        if token is None:
            return b"request"
        if self._error is not None:
            raise self._error
        assert token == b"reply"
        self.complete = True
        return None

    def unwrap(self, token: bytes) -> SimpleNamespace:
        assert token == b"wrapped"
        return SimpleNamespace(message=self._layers)

    def wrap(self, message: bytes, *, encrypt: bool) -> SimpleNamespace:
        self.wrapped.append((message, encrypt))
        return SimpleNamespace(message=b"chosen")


def test_an_exchange_chooses_no_security_layer():
    context = Context(b"\x07\x00\x10\x00")
    exchange = GssapiExchange(context, Failure(service="kafka/h"), "")
    assert exchange.first() == b"request"
    assert exchange.answer(b"reply") == b""
    assert exchange.answer(b"wrapped") == b"chosen"
    assert context.wrapped == [(b"\x01\x00\x00\x00", False)]
    assert exchange.answer(b"") is None


@pytest.mark.parametrize("layers", [b"", b"\x01\x00\x00", b"\x06\x00\x10\x00", bytes(5)])
def test_a_broker_that_wants_a_security_layer_is_refused(layers):
    exchange = GssapiExchange(Context(layers), Failure(service="kafka/h"), "")
    exchange.first()
    exchange.answer(b"reply")
    with pytest.raises(SaslAuthenticationFailed, match=r"javax.security.sasl.qop=auth"):
        exchange.answer(b"wrapped")


def test_bytes_that_are_no_answer_of_kerberos_are_told_as_such():
    exchange = GssapiExchange(Context(b"", InvalidTokenError("bad")), Failure(ALICE, service="kafka/h"), "")
    exchange.first()
    with pytest.raises(SaslAuthenticationFailed, match="its bytes are no answer of Kerberos"):
        exchange.answer(b"reply")


def test_an_error_of_libkrb5_is_explained():
    error = GSSError("Wrong")
    error.min_code = BASE + 41 + 2**32
    exchange = GssapiExchange(Context(b"", error), Failure(ALICE, service="kafka/h"), "")
    exchange.first()
    with pytest.raises(SaslAuthenticationFailed, match=r"did not authenticate as kafka/h@EXAMPLE.TEST"):
        exchange.answer(b"reply")


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (NO_CREDENTIALS, ("no Kerberos credentials", "kinit", "sasl.kerberos.keytab", "--files")),
        (TICKET_EXPIRED, ("has expired", "kinit")),
        (BASE + 37, ("clocks", "NTP", "127.0.0.1:88")),
        (BASE + 7, ("does not know the service kafka/h@EXAMPLE.TEST", "sasl.kerberos.service.name")),
        (BASE + 6, ("does not accept alice@EXAMPLE.TEST",)),
        (-1765328228, ("no KDC of the realm EXAMPLE.TEST can be reached (127.0.0.1:88)", "krb5.conf")),
        (-1765328230, ("realm", "krb5.conf", "sasl.kerberos.principal")),
        (BASE + 14, ("encryption type", "alice@EXAMPLE.TEST")),
        (BASE + 60, ("asked for kafka/h@EXAMPLE.TEST as alice@EXAMPLE.TEST",)),
    ],
)
def test_each_error_names_its_cause_and_what_to_do(code, words, tmp_path, monkeypatch):
    conf = tmp_path / "krb5.conf"
    conf.write_text("[realms]\n  EXAMPLE.TEST = {\n    kdc = 127.0.0.1:88\n  }\n")
    monkeypatch.setenv("KRB5_CONFIG", str(conf))
    said = explain(code, "what libkrb5\nsays", Failure(ALICE, service="kafka/h"))
    assert not [word for word in words if word not in said], said
    assert "\n" not in said


def test_a_keytab_without_the_principal_names_those_that_it_has(keytab):
    said = explain(-1765328203, "", Failure("bob@EXAMPLE.TEST", str(keytab)))
    assert f"{keytab} has no key of bob@EXAMPLE.TEST: it has alice@EXAMPLE.TEST, load/host@EXAMPLE.TEST" in said
    keytab.write_bytes(b"not a keytab")
    assert "it has no keys, or is no keytab" in explain(-1765328203, "", Failure(ALICE, str(keytab)))


def test_damaged_keytabs_name_what_can_be_read(keytab):
    data = keytab.read_bytes()
    for size in range(len(data)):
        keytab.write_bytes(data[:size])
        assert set(principals_in(str(keytab))) <= {"alice@EXAMPLE.TEST", "load/host@EXAMPLE.TEST"}


def test_the_codes_of_gssapi_are_unsigned():
    assert minor_code(2529638919) == BASE + 7
    assert minor_code(0) == 0


def test_no_kdc_is_named_where_the_file_names_none(tmp_path, monkeypatch):
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "none"))
    assert list(kdcs_of("EXAMPLE.TEST")) == []
    assert "DNS" in Failure(ALICE).kdcs


def test_the_realm_of_a_service_that_is_not_known(tmp_path, monkeypatch):
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "none"))
    unknown = BASE + 7
    assert explain(unknown, "", Failure("alice", service="kafka/h")).startswith(
        "the KDC of the default realm does not know the service kafka/h: "
    )
    here = Failure(ALICE, service="kafka/h@EXAMPLE.TEST")
    assert "the KDC of EXAMPLE.TEST does not know the service kafka/h@EXAMPLE.TEST" in explain(unknown, "", here)
    there = Failure(ALICE, service="kafka/h@OTHER.TEST")
    assert "has no key for the realm of kafka/h@OTHER.TEST" in explain(unknown, "", there)


def test_a_new_ticket_that_has_expired_already_tells_of_the_clock():
    said = explain(TICKET_EXPIRED, "", Failure(ALICE, keytab="/k", cache="FILE:/c"))
    assert "by the clock of this host" in said and "/c" not in said


def test_kdcs_of_files_that_are_included(tmp_path, monkeypatch):
    included = tmp_path / "krb5.conf.d"
    included.mkdir()
    (included / "realms").write_text(
        "[realms]\nEXAMPLE.TEST = {\n  auth_to_local_names = {\n    a = b\n  }\n  kdc = a.test:88\n  kdc = b.test\n}\n"
    )
    (included / "ignored.rpmnew").write_text("[realms]\nEXAMPLE.TEST = {\n  kdc = old.test\n}\n")
    main = tmp_path / "krb5.conf"
    main.write_text(f"includedir {included}\n[libdefaults]\ndefault_realm = EXAMPLE.TEST\n")
    second = tmp_path / "second.conf"
    second.write_text("[realms]\nEXAMPLE.TEST = { kdc = c.test }\nOTHER.TEST = {\n kdc = d.test\n}\n")
    monkeypatch.setenv("KRB5_CONFIG", f"{main}:{second}")
    assert list(kdcs_of("EXAMPLE.TEST")) == ["a.test:88", "b.test", "c.test"]
    assert Failure("alice").realm == "EXAMPLE.TEST"
