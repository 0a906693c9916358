"""Kerberos in a client: its settings, its exchange against a context that is played, and the texts of its errors."""

import logging
import struct
import sys
from types import SimpleNamespace

import pytest

from spark_kafkalite.errors import ConfigError, SaslAuthenticationFailed
from spark_kafkalite.security import kerberos
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
LIBRARIES = kerberos.libraries


class GSSError(Exception):
    """Stands for python-gssapi's."""


@pytest.fixture(autouse=True)
def _libraries(monkeypatch):
    errors = SimpleNamespace(
        GSSError=GSSError,
        ExpiredCredentialsError=type("E", (GSSError,), {}),
        MissingCredentialsError=type("M", (GSSError,), {}),
    )
    monkeypatch.setattr(kerberos, "libraries", lambda: (SimpleNamespace(exceptions=errors), None))


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
    assert login._cache == "/tmp/cache"


def test_a_keytab_that_was_shipped_is_found_by_its_name(login_of, keytab, monkeypatch):
    monkeypatch.chdir(keytab.parent)
    login = login_of(sasl_kerberos_keytab="/etc/security/clients.keytab", sasl_kerberos_principal=ALICE)
    assert login._source.keytab == str(keytab)


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
            "are both true: choose one",
        ),
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
    monkeypatch.setattr(kerberos, "_warned", set())
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
