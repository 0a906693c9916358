"""What a client's TLS context is made of: flags, versions, cipher suites, names."""

from __future__ import annotations

import ssl
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.tls import client_context, openssl_cipher_name
from tests.paths import PROJECT
from tests.unit.security.tls_pairs import Pair, parsed, server_context, trusting

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@cache
def authority() -> trustme.CA:
    return trustme.CA()


def test_flags_are_the_same_on_every_python() -> None:
    context = client_context(parsed())
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.hostname_checks_common_name
    # Neither VERIFY_X509_STRICT, which newer Pythons set, nor anything else.
    assert context.verify_flags == ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


def test_the_systems_authorities_are_trusted_when_none_are_given() -> None:
    context = client_context(parsed())
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.load_default_certs()
    assert context.cert_store_stats() == plain.cert_store_stats()
    assert trusting(authority()).cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}


@pytest.mark.parametrize(
    ("given", "lowest", "highest"),
    [
        ({}, V12, V13),
        ({"ssl_enabled_protocols": "TLSv1.2"}, V12, V12),
        ({"ssl_enabled_protocols": "TLSv1.3"}, V13, V13),
        ({"ssl_enabled_protocols": ""}, V12, V13),
        ({"ssl_protocol": "TLSv1.2"}, V12, V12),
        ({"ssl_protocol": "TLS"}, V12, V13),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, V13, V13),
        ({"ssl_cipher_suites": "ECDHE-RSA-AES128-GCM-SHA256"}, V12, V12),
        ({"ssl_cipher_suites": "TLS_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}, V12, V13),
    ],
)
def test_versions(given: dict[str, Any], lowest: ssl.TLSVersion, highest: ssl.TLSVersion) -> None:
    context = client_context(parsed(**given))
    assert (context.minimum_version, context.maximum_version) == (lowest, highest)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"ssl_protocol": "TLSv1.2", "ssl_enabled_protocols": "TLSv1.3"},
            "ssl.protocol=TLSv1.2 is older than every version in ssl.enabled.protocols=TLSv1.3; leave one of them out",
        ),
        (
            {"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256", "ssl_enabled_protocols": "TLSv1.2"},
            "ssl.cipher.suites=TLS_AES_128_GCM_SHA256: none of them belongs to a version in",
        ),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_RC4_128_MD5"}, "ssl.cipher.suites=TLS_RSA_WITH_RC4_128_MD5: "),
        # They exist, and authenticate nobody, or encrypt nothing.
        ({"ssl_cipher_suites": "ADH-AES128-GCM-SHA256"}, "ssl.cipher.suites=ADH-AES128-GCM-SHA256: "),
        ({"ssl_cipher_suites": "NULL-SHA256"}, "ssl.cipher.suites=NULL-SHA256: "),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_NULL_SHA256"}, "ssl.cipher.suites=TLS_RSA_WITH_NULL_SHA256: "),
        # Not names, but OpenSSL's language of lists.
        ({"ssl_cipher_suites": "ALL"}, "ssl.cipher.suites=ALL: "),
        ({"ssl_cipher_suites": "ECDHE-RSA-AES128-GCM-SHA256:aNULL"}, "ssl.cipher.suites=ECDHE-RSA-AES128-GCM-SHA256:a"),
    ],
)
def test_versions_and_suites_that_cannot_be(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        client_context(parsed(**given))
    assert text in str(raised.value)


def test_only_the_suites_that_are_named_are_used() -> None:
    both = Pair(
        trusting(authority(), ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
        server_context(authority()),
    )
    both.handshake()
    assert "TLSv1.2" in repr(both.client)
    chosen = trusting(authority(), ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256").get_ciphers()
    assert [cipher["name"] for cipher in chosen if cipher["protocol"] == "TLSv1.2"] == ["ECDHE-ECDSA-CHACHA20-POLY1305"]


@pytest.mark.parametrize(
    ("suite", "name", "code"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256", 0xC02F),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384", 0xC02C),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384", 0xC028),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA", 0xC013),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305", 0xCCA8),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384", 0x009F),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256", 0x009C),
        ("TLS_RSA_WITH_AES_256_CBC_SHA256", "AES256-SHA256", 0x003D),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CCM", "ECDHE-ECDSA-AES128-CCM", 0xC0AC),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CCM_8", "ECDHE-ECDSA-AES128-CCM8", 0xC0AE),
        ("TLS_DHE_RSA_WITH_CAMELLIA_128_CBC_SHA256", "DHE-RSA-CAMELLIA128-SHA256", 0x00BE),
        ("TLS_ECDHE_RSA_WITH_ARIA_128_GCM_SHA256", "ECDHE-ARIA128-GCM-SHA256", 0xC060),
        ("ECDHE-RSA-AES128-SHA", "ECDHE-RSA-AES128-SHA", 0xC013),
    ],
)
def test_names_of_suites(suite: str, name: str, code: int) -> None:
    """The code is the IANA's, and OpenSSL has it under this name."""
    assert openssl_cipher_name(suite) == name
    every = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    every.set_ciphers("ALL")
    assert {cipher["name"]: cipher["id"] & 0xFFFF for cipher in every.get_ciphers()}.get(name, code) == code


# Names and trust ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (["b.example"], "b.example"),
        (["b.example"], "B.Example"),
        (["b.example"], "b.example."),
        (["*.brokers.example"], "b.brokers.example"),
        (["127.0.0.1"], "127.0.0.1"),
        (["fe80::1"], "fe80::1"),
        (["fe80::1"], "fe80::1%eth0"),
        (["a.example", "10.0.0.7", "b.example"], "b.example"),
    ],
)
def test_hosts_that_a_certificate_names(names: list[str], host: str) -> None:
    Pair(trusting(authority()), server_context(authority(), *names), host).handshake()


def as_tutorials_make_it(common_name: str) -> tuple[x509.Certificate, bytes]:
    """A self-signed certificate with no extension at all, and its key and itself as PEM."""
    import datetime

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate, pem + certificate.public_bytes(Encoding.PEM)


def test_the_brokers_own_certificate_may_be_what_is_trusted(tmp_path: Any) -> None:
    """As keytool makes it by default: self-signed, its name in the subject only."""
    certificate, pem = as_tutorials_make_it("old.example")
    (tmp_path / "server.pem").write_bytes(pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem")
    trust = certificate.public_bytes(Encoding.PEM).decode()
    Pair(client_context(parsed(ssl_truststore_certificates=trust)), server, "old.example").handshake()


@pytest.mark.parametrize("trusted", ["leaf", "intermediate"])
def test_trust_may_begin_below_the_root(trusted: str) -> None:
    between = authority().create_child_ca()
    issued = between.issue_cert("b.example")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(server)
    trust = issued.cert_chain_pems[0] if trusted == "leaf" else between.cert_pem
    client = client_context(parsed(ssl_truststore_certificates=trust.bytes().decode()))
    Pair(client, server, "b.example").handshake()


@pytest.mark.parametrize("demand", [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_certificate_that_is_asked_for(demand: ssl.VerifyMode, version: str) -> None:
    issued = authority().issue_cert("client")
    client = trusting(
        authority(),
        ssl_keystore_key=issued.private_key_pem.bytes().decode(),
        ssl_keystore_certificate_chain=issued.cert_chain_pems[0].bytes().decode(),
    )
    server = server_context(authority(), client_authority=authority(), client_certificate=demand, version=version)
    for context in (client, trusting(authority())) if demand is ssl.CERT_OPTIONAL else (client,):
        both = Pair(context, server)
        both.handshake()
        assert both.server_error is None
        assert both.client.read_into(memoryview(bytearray(1))) is None


def test_only_what_is_used_is_loaded() -> None:
    """A client without TLS does without OpenSSL, one with keys in PEM without the library for PKCS12."""
    program = """
import sys
from spark_kafkalite.client.config import producer_config

producer_config({"bootstrap.servers": "h:1"}, {})
assert not {"ssl", "cryptography"} & sys.modules.keys()
producer_config({"bootstrap.servers": "h:1", "security.protocol": "SSL", "ssl.truststore.location": sys.argv[1]}, {})
assert "ssl" in sys.modules
assert "cryptography" not in sys.modules
"""
    with authority().cert_pem.tempfile() as trust:
        subprocess.run([sys.executable, "-c", program, trust], check=True, cwd=PROJECT)
