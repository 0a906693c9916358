"""The TLS of listeners: what stops the start, who a client is by its certificate, what may replace a certificate."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from spark_kafkalite.broker.network.listener_tls import BrokerTls
from spark_kafkalite.broker.network.listeners import Listener
from spark_kafkalite.broker.network.session import ANONYMOUS, Session
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.server_tls import check_replaces, server_context
from spark_kafkalite.security.tls import TlsStream, client_context
from tests.lab.certificates import KEY_PASSWORD, LOOPBACK, STORE_PASSWORD, Authority, Certificate
from tests.unit.security.tls_pairs import Pair, parsed

CLUSTERED = {"zookeeper.connect": "h:1", "inter.broker.secret.file": "secret"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Certificate:
    return authority.issue("broker", *LOOPBACK)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"), "strange")


def tls(*listeners: str, **given: object) -> BrokerTls:
    settings = {name if "." in name else name.replace("_", "."): value for name, value in given.items()}
    addresses = ",".join(listeners or ("SSL://127.0.0.1:1",))
    if "SASL" in addresses:
        settings["sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
    return BrokerTls(BrokerConfig.from_properties({"listeners": addresses, **settings}))


def stores(broker: Certificate, authority: Authority) -> dict[str, object]:
    return {"ssl_keystore_location": broker.pem_file(), "ssl_truststore_location": authority.pem_file()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"listener SSL: ssl\.keystore\.location is not set"),
        ({"ssl.keystore.location": "/missing"}, r"listener SSL: .*/missing: cannot be read"),
        ({"listener.name.ssl.ssl.keystore.location": "/missing"}, "/missing: cannot be read"),
        ({"store": "pkcs12", "ssl.keystore.password": "wrong"}, "wrong password, or the file is damaged"),
        ({"store": "pkcs12"}, r"ssl\.keystore\.password is not set"),
        ({"store": "encrypted"}, r"the private key is encrypted; set ssl\.key\.password"),
        ({"store": "encrypted", "ssl.key.password": "wrong"}, r"cannot be decrypted: wrong ssl\.key\.password"),
        ({"store": "mixed"}, "the first certificate does not belong to the private key"),
        ({"store": "pem", "ssl.client.auth": "required"}, r"required: ssl\.truststore\.location is not set"),
        ({"store": "pem", "ssl.principal.mapping.rules": "RULE:("}, r"listener SSL: ssl\.principal.* is not a rule"),
        ({"store": "pem", "ssl.cipher.suites": "NOTHING"}, r"ssl\.cipher\.suites=NOTHING: .* does not know it"),
        ({"store": "future"}, r"the certificate is not valid before 20.*; see this host's clock"),
    ],
)
def test_what_cannot_work_stops_the_start(
    authority: Authority, broker: Certificate, tmp_path: Path, given: dict[str, object], message: str
) -> None:
    settings = dict(given)
    if (store := settings.pop("store", None)) is not None:
        mixed = tmp_path / "mixed.pem"
        mixed.write_text(authority.issue("other").key_pem() + broker.chain_pem)
        files = {
            "pem": broker.pem_file,
            "pkcs12": broker.pkcs12_file,
            "encrypted": lambda: broker.pem_file(KEY_PASSWORD),
            "mixed": lambda: mixed,
            "future": lambda: future(authority, tmp_path),
        }
        settings["ssl.keystore.location"] = files[str(store)]()
    with pytest.raises(ConfigError, match=message) as raised:
        BrokerTls(BrokerConfig.from_properties({"listeners": "SSL://127.0.0.1:1", **settings}))
    assert "\n" not in str(raised.value)


def future(authority: Authority, directory: Path) -> Path:
    begins = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    issued = trustme.CA().issue_cert("localhost", not_before=begins, not_after=begins + datetime.timedelta(days=9))
    path = directory / "future.pem"
    path.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    return path


def test_an_expired_certificate_and_one_for_another_host_are_warned_of(authority: Authority) -> None:
    expired = authority.issue("broker", *LOOPBACK, expired=True)
    (text,) = tls(ssl_keystore_location=expired.pem_file()).warnings()
    assert "the certificate ended on 20" in text and text.startswith("listener SSL: ssl.keystore.location=")
    (text,) = tls(ssl_keystore_location=authority.issue("b", "other.example").pem_file()).warnings()
    assert "does not name '127.0.0.1', which clients connect to (advertised.listeners)" in text
    (text,) = tls(ssl_keystore_location=authority.issue("b", *LOOPBACK, days=3).pem_file()).warnings()
    assert "the certificate ends on 20" in text
    assert tls(ssl_keystore_location=authority.issue("b", *LOOPBACK).pem_file()).warnings() == []


def test_passwords_in_the_clear_are_warned_of_beyond_loopback() -> None:
    (text,) = tls("SASL_PLAINTEXT://10.1.2.3:1").warnings()
    assert text.startswith("listener SASL_PLAINTEXT: SASL_PLAINTEXT does not encrypt")
    assert tls("SASL_PLAINTEXT://127.0.0.1:1").warnings() == []


def test_a_broker_that_others_would_refuse_does_not_start(
    authority: Authority, broker: Certificate, stranger: Authority
) -> None:
    tls(**stores(broker, authority), **{name.replace(".", "_"): value for name, value in CLUSTERED.items()})
    with pytest.raises(ConfigError, match=r"other brokers with these settings would refuse this one: .*not trusted"):
        tls(**stores(broker, stranger), zookeeper_connect="h:1")
    elsewhere = authority.issue("broker", "other.example")
    with pytest.raises(ConfigError, match=r"would refuse this one: .*not for this host, but for other\.example"):
        tls(**stores(elsewhere, authority), zookeeper_connect="h:1")
    tls(
        **stores(elsewhere, authority),
        zookeeper_connect="h:1",
        ssl_endpoint_identification_algorithm="",
    )
    # Without other brokers nobody is refused.
    tls(**stores(broker, stranger))


def principal(
    listener_tls: BrokerTls, client: Certificate | None, authority: Authority, name: str = "SSL"
) -> str | ConnectionError:
    """Return the principal of a client with a certificate, or the error that ends its connection."""
    given: dict[str, object] = {"ssl_truststore_location": authority.pem_file()}
    if client is not None:
        given["ssl_keystore_location"] = client.pem_file()
    of_listener = listener_tls.listeners[name]
    pair = Pair(client_context(parsed(**given)), of_listener.contexts.server, host="localhost")
    pair.handshake()
    if pair.server_error is not None:
        return ConnectionError(str(pair.server_error))
    session = Session("peer", of_listener.listener)
    try:
        of_listener.name_client(session, pair.server)
    except ConnectionError as error:
        return error
    return session.principal


def test_a_client_is_whom_its_certificate_names(authority: Authority, broker: Certificate, stranger: Authority) -> None:
    of = stores(broker, authority)
    client = authority.issue("anna")
    asked = tls(**of, ssl_client_auth="required")
    found = principal(asked, client, authority)
    assert isinstance(found, str) and found.startswith("User:CN=anna,OU=")
    by_rule = tls(**of, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=(.*?),.*$/$1/U")
    assert principal(by_rule, client, authority) == "User:ANNA"
    assert "showed no certificate" in str(principal(asked, None, authority))
    assert "is not trusted" in str(principal(asked, stranger.issue("anna"), authority))
    assert principal(tls(**of, ssl_client_auth="requested"), None, authority) == ANONYMOUS
    assert "is not trusted" in str(principal(tls(**of, ssl_client_auth="requested"), stranger.issue("a"), authority))
    # Not asked for, a certificate names nobody.
    assert principal(tls(**of), client, authority) == ANONYMOUS
    unmatched = tls(**of, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=bert$/b/")
    assert "give the subject 'CN=anna" in str(principal(unmatched, client, authority))


def test_nobody_is_named_like_a_broker(authority: Authority, broker: Certificate) -> None:
    given = {
        **stores(broker, authority),
        "ssl_client_auth": "required",
        "ssl_principal_mapping_rules": "RULE:^CN=(.*?),.*$/$1/",
    }
    both = tls("SSL://127.0.0.1:1", "OUT://127.0.0.1:2", listener_security_protocol_map="OUT:SSL", **given)
    client = authority.issue("broker-7")
    assert "like a broker: broker-7" in str(principal(both, client, authority, "OUT"))
    # Where brokers come in, the cluster secret decides.
    assert principal(both, client, authority, "SSL") == ANONYMOUS


def test_on_a_sasl_listener_a_certificate_is_asked_for_by_its_own_setting_only(
    authority: Authority, broker: Certificate
) -> None:
    of = stores(broker, authority)
    client = authority.issue("anna")
    everywhere = tls("SASL_SSL://127.0.0.1:1", **of, ssl_client_auth="required")
    assert principal(everywhere, None, authority, "SASL_SSL") == ANONYMOUS
    own = tls("SASL_SSL://127.0.0.1:1", **of, **{"listener.name.sasl_ssl.ssl.client.auth": "required"})
    assert "showed no certificate" in str(principal(own, None, authority, "SASL_SSL"))
    # And who the client is, SASL says.
    assert principal(own, client, authority, "SASL_SSL") == ANONYMOUS


def test_a_certificate_is_replaced_by_one_for_the_same_only(authority: Authority) -> None:
    def context(name: str, *hosts: str) -> Any:
        certificate = authority.issue(name, *hosts)
        return server_context({**parsed(ssl_keystore_location=certificate.pem_file()), "ssl.client.auth": "none"})

    old = context("a", "x.example", "y.example")
    refuse, allow = (
        {"ssl.allow.dn.changes": False, "ssl.allow.san.changes": False},
        {"ssl.allow.dn.changes": True, "ssl.allow.san.changes": True},
    )
    check_replaces(old, old, refuse)
    with pytest.raises(ConfigError, match=r"the subject of the new certificate is CN=b,.* and was CN=a,"):
        check_replaces(context("b", "x.example", "y.example"), old, refuse)
    fewer, more = context("a", "x.example"), context("a", "x.example", "y.example", "z.example")
    with pytest.raises(ConfigError, match="lacks names that the old one has"):
        check_replaces(fewer, old, {**refuse, "ssl.allow.dn.changes": True})
    check_replaces(more, old, {**refuse, "ssl.allow.dn.changes": True})
    check_replaces(fewer, old, allow)


def test_secrets_are_not_in_the_text_of_contexts(broker: Certificate) -> None:
    made = tls(ssl_keystore_location=broker.pkcs12_file(), ssl_keystore_password=STORE_PASSWORD)
    contexts = made.listeners["SSL"].contexts
    assert STORE_PASSWORD not in repr(contexts)
    assert STORE_PASSWORD not in repr(Session("peer", Listener("SSL", "h", 1, "h", 1)))
    assert STORE_PASSWORD not in repr(made.listeners["SSL"].listener)
    assert isinstance(TlsStream(contexts.server, server_side=True), TlsStream)
