"""What a handshake that fails says: one line with the host, the reason, and the setting to change."""

from __future__ import annotations

import contextlib
import datetime
import random
import re
import ssl
from functools import cache
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from spark_kafkalite.errors import HandshakeFailed, SslHandshakeFailed
from spark_kafkalite.security.tls import TlsStream, client_context
from spark_kafkalite.security.tls_records import is_tls
from tests.paths import GOLDEN
from tests.seeds import SEED, SOAK
from tests.unit.security.tls_pairs import HOST, Pair, move, parsed, pem_of, server_context, trusting

VERSIONS = ("TLSv1.2", "TLSv1.3")


@cache
def authority() -> trustme.CA:
    return trustme.CA(organization_name="Ours")


@cache
def stranger() -> trustme.CA:
    return trustme.CA(organization_name="Theirs")


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> str:
    """The time that refusals name. The real day may end between an import and a test."""
    now = datetime.datetime(2026, 11, 30, 23, 59, tzinfo=datetime.UTC)
    monkeypatch.setattr("spark_kafkalite.security.tls_errors.time.time", now.timestamp)
    return "2026-11-30 23:59 UTC"


def refusal(client: ssl.SSLContext, server: ssl.SSLContext, host: str = HOST) -> str:
    """What the client says of a server that it, or which, refuses the other."""
    both = Pair(client, server, host)
    with pytest.raises(SslHandshakeFailed) as raised:
        both.handshake()
        # TLS 1.3: the client has done its part before the server looks at the client's certificate.
        both.client.read_into(memoryview(bytearray(10)))
    text = str(raised.value)
    assert text.startswith(f"TLS with {host}: ")
    assert "\n" not in text
    assert not raised.value.retriable
    return text


# Our refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_an_authority_that_is_not_trusted(version: str) -> None:
    text = refusal(trusting(authority()), server_context(stranger(), version=version))
    assert "the broker's certificate, issued by Theirs, is not trusted" in text
    assert "no certificate from ssl.truststore.certificates has signed it" in text


def test_an_authority_that_the_system_does_not_trust() -> None:
    text = refusal(client_context(parsed()), server_context(authority()))
    assert "no authority that this system trusts has signed it; set ssl.truststore.location" in text


def test_the_server_learns_why_and_sees_no_byte_of_data() -> None:
    both = Pair(trusting(authority()), server_context(stranger()))
    with pytest.raises(SslHandshakeFailed):
        both.handshake()
    assert move(both.client, both.server) < 30
    with pytest.raises(SslHandshakeFailed, match="unknown_ca"):
        both.server.handshake()


def test_a_certificate_that_has_expired(today: str) -> None:
    past = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)
    server = server_context(authority(), not_before=past - datetime.timedelta(9), not_after=past)
    text = refusal(trusting(authority()), server)
    assert f"the broker's certificate has expired: it ended on 2024-03-01 12:00 UTC, and today is {today}" in text


def test_a_certificate_that_is_not_valid_yet() -> None:
    future = datetime.datetime(2036, 3, 1, 12, tzinfo=datetime.UTC)
    server = server_context(authority(), not_before=future, not_after=future + datetime.timedelta(9))
    text = refusal(trusting(authority()), server)
    assert "the broker's certificate is not valid yet: it begins on 2036-03-01 12:00 UTC, and today is " in text


@pytest.mark.parametrize(
    ("host", "names", "said"),
    [
        ("b.example", ["a.example"], "but for a.example;"),
        ("b.example", ["a.example", "10.0.0.7"], "but for a.example, 10.0.0.7;"),
        ("127.0.0.1", ["localhost"], "but for localhost;"),
        ("x.example", [f"{i}.example" for i in range(10)], "but for 0.example, 1.example, 2.example, 3.example, "),
        ("x.example", [f"{i}.example" for i in range(10)], ", 7.example and 2 more;"),
    ],
)
def test_a_certificate_for_another_host(host: str, names: list[str], said: str) -> None:
    text = refusal(trusting(authority()), server_context(authority(), *names), host)
    assert f"the broker's certificate is not for this host, {said}" in text or said in text
    assert "ssl.endpoint.identification.algorithm" in text
    assert "bootstrap.servers" in text


@pytest.mark.parametrize("version", VERSIONS)
def test_the_servers_words_about_a_client(version: str) -> None:
    server = server_context(authority(), client_authority=authority(), version=version)
    both = Pair(with_certificate(stranger()), server)
    with contextlib.suppress(SslHandshakeFailed):
        both.handshake()
    assert "the client's certificate is not trusted" in str(both.server_error)
    both = Pair(trusting(stranger()), server_context(authority(), version=version))
    with pytest.raises(SslHandshakeFailed):
        both.handshake()
    move(both.client, both.server)
    with pytest.raises(SslHandshakeFailed, match=r"refuses this broker's certificate \(its alert: unknown_ca\)$"):
        both.server.handshake()


def dated_chain() -> tuple[bytes, bytes, bytes]:
    """Key and certificate of a broker, the expired authority that signed it, and that one's own (PEM)."""
    past = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
    names = ["Root", "Between", HOST]
    made = []
    for number, (key, name) in enumerate(zip(keys, names, strict=True)):
        issuer = max(number - 1, 0)
        made.append(
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[issuer])]))
            .public_key(key.public_key())
            .serial_number(number + 1)
            .not_valid_before(past - datetime.timedelta(9))
            .not_valid_after(past if name == "Between" else past + datetime.timedelta(36_500))
            .add_extension(x509.BasicConstraints(ca=name != HOST, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
            .sign(keys[issuer], hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )
    key_pem = keys[2].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key_pem + made[2], made[1], made[0]


def test_an_intermediate_authority_that_has_expired(tmp_path: Path) -> None:
    """Named as such, since a new certificate of the broker would not help."""
    broker, between, root = dated_chain()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "server.pem").write_bytes(broker + between)
    server.load_cert_chain(tmp_path / "server.pem")
    client = client_context(parsed(ssl_truststore_certificates=root.decode()))
    text = refusal(client, server)
    assert "the certificate of Between, which it depends on, has expired: it ended on 2024-03-01 12:00 UTC" in text


def test_texts_without_what_the_interpreter_tells_of_the_certificate(
    monkeypatch: pytest.MonkeyPatch, today: str
) -> None:
    monkeypatch.setattr("spark_kafkalite.security.tls_errors._unverified_chain", lambda _connection: [])
    assert "the broker's certificate is not trusted" in refusal(trusting(authority()), server_context(stranger()))
    assert "is not for this host; connect by" in refusal(trusting(authority()), server_context(authority()), "other")
    past = datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC)
    server = server_context(authority(), not_before=past - datetime.timedelta(9), not_after=past)
    assert f"the broker's certificate, or one that it depends on, has expired; today is {today}" in refusal(
        trusting(authority()), server
    )


# The server's refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_certificate_is_wanted_and_none_is_set(version: str) -> None:
    server = server_context(authority(), client_authority=authority(), version=version)
    text = refusal(trusting(authority()), server)
    alert = {"TLSv1.2": "handshake_failure", "TLSv1.3": "certificate_required"}[version]
    assert re.search(rf"wants a client certificate; set ssl\.keystore\.location.*\(its alert: {alert}\)$", text)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_certificate_is_not_trusted(version: str) -> None:
    server = server_context(authority(), client_authority=authority(), version=version)
    text = refusal(with_certificate(stranger()), server)
    assert "the broker refuses our certificate, which is from ssl.keystore.key (its alert: unknown_ca)" in text


@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_certificate_has_ended(version: str) -> None:
    server = server_context(authority(), client_authority=authority(), version=version)
    began, ended = (datetime.datetime(2020, 1, day, tzinfo=datetime.UTC) for day in (1, 2))
    text = refusal(with_certificate(authority(), not_before=began, not_after=ended), server)
    assert (
        "the broker refuses our certificate, which is from ssl.keystore.key and ended on 2020-01-02 00:00 UTC; it must "
        "be renewed (its alert: certificate_expired)" in text
    )


def with_certificate(issuer: trustme.CA, **issuing: datetime.datetime) -> ssl.SSLContext:
    issued = issuer.issue_cert("client", **issuing)
    return trusting(
        authority(),
        ssl_keystore_key=issued.private_key_pem.bytes().decode(),
        ssl_keystore_certificate_chain="".join(pem.bytes().decode() for pem in issued.cert_chain_pems),
    )


def test_of_several_keys_the_error_says_which_there_are() -> None:
    client = trusting(
        authority(),
        ssl_keystore_location=GOLDEN / "security" / "key.jks",
        ssl_keystore_password="store-secret",
        ssl_key_password="key-secret",
    )
    text = refusal(client, server_context(authority(), client_authority=authority()))
    assert re.search(r"key\.jks, alias '(\w+)' \(the first; there are also '(?!\1)\w+'\) \(its alert: unknown_ca", text)


@pytest.mark.parametrize(("ours", "theirs"), [("TLSv1.3", "TLSv1.2"), ("TLSv1.2", "TLSv1.3")])
def test_no_version_in_common(ours: str, theirs: str) -> None:
    client = trusting(authority(), ssl_enabled_protocols=ours)
    text = refusal(client, server_context(authority(), version=theirs))
    assert f"no TLS version in common; we offer {ours} (ssl.enabled.protocols, ssl.protocol)" in text


def test_no_cipher_suite_in_common() -> None:
    server = server_context(authority(), version="TLSv1.2")
    server.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    client = trusting(authority(), ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    assert "no cipher suite in common with us (ssl.cipher.suites)" in refusal(client, server)


# Wrong doors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server answers there"),
        (b"\x00\x00\x00\x20\x00\x00\x00\x01", "does not speak TLS; see the port in bootstrap.servers, or"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak TLS"),
        (b"220 mail.example ESMTP\r\n", "does not speak TLS"),
        (bytes(100), "does not speak TLS"),
        (b"\xff" * 100, "does not speak TLS"),
    ],
)
def test_what_answers_does_not_speak_tls(answer: bytes, said: str) -> None:
    stream = TlsStream(trusting(authority()), host=HOST)
    assert not stream.handshake()
    stream.received(memoryview(answer))
    with pytest.raises(HandshakeFailed, match=said) as raised:
        stream.handshake()
    assert str(raised.value).startswith(f"TLS with {HOST}: ")


def test_a_close_without_an_answer() -> None:
    stream = TlsStream(trusting(authority()), host=HOST)
    assert not stream.handshake()
    stream.ended()
    with pytest.raises(HandshakeFailed, match=r"closed the connection without an answer.*security\.protocol=PLAINTEXT"):
        stream.handshake()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_close_anywhere_in_the_handshake(version: str) -> None:
    server = server_context(authority(), version=version)
    length = len(server_flight(server)[1])
    # The heads of the first records, and every so often from there on.
    for received in range(1, length) if SOAK else [*range(1, 12), *range(12, length, 97), length - 1]:
        client, flight = server_flight(server)
        client.received(memoryview(flight)[:received])
        assert not client.handshake()
        client.ended()
        with pytest.raises(HandshakeFailed, match="closed the connection during the handshake"):
            client.handshake()


def server_flight(context: ssl.SSLContext) -> tuple[TlsStream, bytes]:
    """A client that has said hello, and the server's answer, its last bytes cut off, since they differ in number."""
    client, server = TlsStream(trusting(authority()), host=HOST), TlsStream(context, server_side=True)
    client.handshake()
    move(client, server)
    server.handshake()
    return client, server.take_output()[:-10]


def test_a_broken_handshake_is_no_other_error() -> None:
    """Whatever bytes come, one of our two errors comes of it, or the handshake waits for more."""
    rng = random.Random(SEED)
    server = server_context(authority())
    outcomes = set()
    for _ in range(2_000 if SOAK else 60):
        client, flight = server_flight(server)
        damaged = bytearray(flight)
        for _ in range(rng.choice((1, 1, 2, 20))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        client.received(memoryview(damaged))
        try:
            outcomes.add(str(client.handshake()))
        except (HandshakeFailed, SslHandshakeFailed) as error:
            outcomes.add(type(error).__name__)
            assert str(error).startswith(f"TLS with {HOST}: ")
    assert "True" not in outcomes
    assert len(outcomes) > 1


def test_names_of_a_stranger_are_printed_as_one_line() -> None:
    odd = trustme.CA(organization_name="Two\nLines\x1b[2J")
    text = refusal(trusting(authority()), server_context(odd))
    assert "issued by Two?Lines?[2J" in text


def test_trust_is_needed_with_any_name_too() -> None:
    client = client_context(
        parsed(ssl_truststore_certificates=pem_of(authority()), ssl_endpoint_identification_algorithm="")
    )
    Pair(client, server_context(authority()), "another.example").handshake()
    assert "is not trusted" in refusal(client, server_context(stranger()), "another.example")


@pytest.mark.parametrize(
    ("begin", "answer"),
    [
        (b"\x15\x03\x03\x00\x02", True),
        (b"\x16\x03\x01\x02\x00", True),
        (b"\x16\x03", True),
        (b"\x16", False),
        (b"", False),
        (b"\x00\x00\x00\x20", False),
        (b"HTTP/1.1", False),
        (b"\x15\x00\x00\x00", False),
    ],
)
def test_answers_of_tls_are_known_by_their_first_bytes(begin: bytes, answer: bool) -> None:
    assert is_tls(begin) is answer
