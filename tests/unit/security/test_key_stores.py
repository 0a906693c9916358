"""The forms that keys and certificates come in, Kafka's rules about them, and what is said about what is wrong."""

from __future__ import annotations

import logging
import os
import random
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.tls import client_context
from tests.paths import GOLDEN
from tests.seeds import SEED, SOAK
from tests.unit.security.tls_pairs import Pair, parsed, pem_of, server_context

FOLDER = GOLDEN / "security"
PASSWORD = "pässword"


@dataclass(frozen=True)
class Made:
    """An authority, and a client's key and chain that it has issued."""

    authority: trustme.CA
    key: str
    chain: str

    def key_as(self, form: PrivateFormat, password: str | None = None) -> str:
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        private = load_pem_private_key(self.key.encode(), None)
        return private.private_bytes(Encoding.PEM, form, encryption).decode()

    def pkcs12(self, password: str | None = PASSWORD) -> bytes:
        private: Any = load_pem_private_key(self.key.encode(), None)
        own, *others = x509.load_pem_x509_certificates(self.chain.encode())
        others += x509.load_pem_x509_certificates(trustme.CA().cert_pem.bytes())  # of somebody else
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"me", private, own, others, encryption)

    def trust_pkcs12(self) -> bytes:
        trusted = [pkcs12.PKCS12Certificate(each, b"ca") for each in authority_certificates(self.authority)]
        return pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(PASSWORD.encode()))


def authority_certificates(authority: trustme.CA) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(authority.cert_pem.bytes())


@cache
def made() -> Made:
    root = trustme.CA()
    between = root.create_child_ca()
    issued = between.issue_cert("client.example")
    chain = "".join(pem.bytes().decode() for pem in issued.cert_chain_pems)
    return Made(root, issued.private_key_pem.bytes().decode(), chain)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], str]:
    def write_file(content: str | bytes) -> str:
        path = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o600)
        return str(path)

    return write_file


def connects(**given: object) -> None:
    """A server that wants a certificate of our authority is content with the client."""
    given.setdefault("ssl_truststore_certificates", pem_of(made().authority))
    server = server_context(made().authority, client_authority=made().authority)
    both = Pair(client_context(parsed(**given)), server)
    both.handshake()
    assert both.server_error is None
    assert both.client.read_into(memoryview(bytearray(1))) is None


def problem(**given: object) -> str:
    with pytest.raises(ConfigError) as raised:
        client_context(parsed(**given))
    text = str(raised.value)
    assert "\n" not in text
    assert PASSWORD not in text
    assert "secret" not in text
    assert raised.value.__cause__ is None
    return text


# Forms of keys ------------------------------------------------------------------------------------------------------


def one_line(pem: str) -> str:
    return pem.replace("\n", "")


def spaces(pem: str) -> str:
    return pem.replace("\n", " ")


def two_characters(pem: str) -> str:
    return pem.replace("\n", "\\n")


def text_around(pem: str) -> str:
    return "Bag Attributes\r\n  friendlyName: me\n" + pem.replace("\n", "\r\n") + "trailing"


CUTS = [str, one_line, spaces, two_characters, text_around]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_pem_text(cut: Callable[[str], str], form: PrivateFormat) -> None:
    connects(
        ssl_keystore_key=cut(made().key_as(form)),
        ssl_keystore_certificate_chain=cut(made().chain),
        ssl_truststore_certificates=cut(pem_of(made().authority)),
    )


@pytest.mark.parametrize("cut", CUTS)
def test_pem_text_of_an_encrypted_key(cut: Callable[[str], str]) -> None:
    connects(
        ssl_keystore_key=cut(made().key_as(PrivateFormat.PKCS8, PASSWORD)),
        ssl_keystore_certificate_chain=made().chain,
        ssl_key_password=PASSWORD,
    )


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("password", [None, PASSWORD])
@pytest.mark.parametrize("key_first", [True, False])
def test_pem_file(write: Callable[..., str], form: PrivateFormat, password: str | None, key_first: bool) -> None:
    parts = [made().key_as(form, password), made().chain]
    location = write("".join(parts if key_first else reversed(parts)))
    trust = write("our authority\n" + pem_of(made().authority))
    connects(
        ssl_keystore_location=location,
        ssl_key_password=password,
        ssl_keystore_type="PEM",
        ssl_truststore_location=trust,
        ssl_truststore_certificates=None,
    )


def test_a_password_that_a_key_does_not_need_is_not_asked_for() -> None:
    connects(ssl_keystore_key=made().key, ssl_keystore_certificate_chain=made().chain, ssl_key_password=PASSWORD)


@pytest.mark.parametrize("said_type", [None, "JKS", "PKCS12"])
def test_pkcs12(write: Callable[..., str], said_type: str | None) -> None:
    connects(
        ssl_keystore_location=write(made().pkcs12()),
        ssl_keystore_password=PASSWORD,
        ssl_keystore_type=said_type,
        ssl_truststore_location=write(made().trust_pkcs12()),
        ssl_truststore_password=PASSWORD,
        ssl_truststore_type=said_type,
        ssl_truststore_certificates=None,
    )


@pytest.mark.parametrize("file", ["key.jks", "key.p12"])
def test_key_stores_of_keytool(file: str, caplog: pytest.LogCaptureFixture) -> None:
    form = file.rpartition(".")[2]
    client = client_context(
        parsed(
            ssl_truststore_certificates=pem_of(made().authority),
            ssl_keystore_location=FOLDER / file,
            ssl_keystore_password="store-secret",
            ssl_key_password="key-secret" if form == "jks" else None,
        )
    )
    # As the server's own certificate it would have to be found by name; as a client's it only has to be trusted.
    server = server_context(made().authority)
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    server.load_verify_locations(cadata=certificates_of(file))
    both = Pair(client, server)
    both.handshake()
    assert both.server_error is None


def certificates_of(file: str) -> bytes:
    from spark_kafkalite.security.jks import read_jks

    data = (FOLDER / file).read_bytes()
    if file.endswith(".jks"):
        return b"".join(key.chain[0] for key in read_jks(data, None).keys)
    store = pkcs12.load_pkcs12(data, b"store-secret")
    assert store.cert is not None
    return store.cert.certificate.public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("file", "password"), [("trust.jks", "store-secret"), ("trust.jks", None), ("trust.p12", "store-secret")]
)
def test_trust_stores_of_keytool(file: str, password: str | None) -> None:
    """They hold what key.p12 shows as its certificate, which a server may use."""
    client = client_context(parsed(ssl_truststore_location=FOLDER / file, ssl_truststore_password=password))
    assert client.cert_store_stats()["x509"] == 2
    store = pkcs12.load_pkcs12((FOLDER / "key.p12").read_bytes(), b"store-secret")
    assert store.cert is not None
    assert store.key is not None
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with open(os.memfd_create("key"), "w+b", buffering=0) as file_of_key:
        file_of_key.write(pem + store.cert.certificate.public_bytes(Encoding.PEM))
        server.load_cert_chain(f"/proc/self/fd/{file_of_key.fileno()}")
    for host in ("first.example", "127.0.0.1"):
        Pair(client, server, host).handshake()


def test_no_file_and_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(os.listdir("/proc/self/fd"))
    connects(ssl_keystore_key=made().key, ssl_keystore_certificate_chain=made().chain)
    # What earlier tests have left to the collector may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= before
    assert list(tmp_path.iterdir()) == []


# Rules --------------------------------------------------------------------------------------------------------------


def test_forms_that_contradict_each_other(write: Callable[..., str]) -> None:
    location = write(made().key + made().chain)
    key, chain, trust = made().key, made().chain, pem_of(made().authority)
    assert problem(ssl_keystore_location=location, ssl_keystore_key=key, ssl_keystore_certificate_chain=chain) == (
        "ssl.keystore.location and ssl.keystore.key contradict each other; give one of them"
    )
    assert problem(ssl_truststore_location=write(trust), ssl_truststore_certificates=trust) == (
        "ssl.truststore.location and ssl.truststore.certificates contradict each other; give one of them"
    )
    assert problem(ssl_keystore_key=key).startswith("ssl.keystore.key is given without ssl.keystore.certificate.chain")
    assert problem(ssl_keystore_certificate_chain=chain).startswith(
        "ssl.keystore.certificate.chain is given without ssl.keystore.key"
    )


def test_pem_has_no_store_password(write: Callable[..., str]) -> None:
    pem, trust = made().key + made().chain, pem_of(made().authority)
    assert "leave ssl.keystore.password out; ssl.key.password is the key's" in problem(
        ssl_keystore_location=write(pem), ssl_keystore_password=PASSWORD
    )
    assert "leave ssl.keystore.password out" in problem(
        ssl_keystore_key=made().key, ssl_keystore_certificate_chain=made().chain, ssl_keystore_password=PASSWORD
    )
    assert "leave ssl.truststore.password out" in problem(
        ssl_truststore_location=write(trust), ssl_truststore_password=PASSWORD
    )
    assert "leave ssl.truststore.password out" in problem(
        ssl_truststore_certificates=trust, ssl_truststore_password=PASSWORD
    )


def test_other_forms_need_one(write: Callable[..., str]) -> None:
    for location in (write(made().pkcs12()), str(FOLDER / "key.jks")):
        assert "ssl.keystore.password is not set; a file of form " in problem(ssl_keystore_location=location)
    text = problem(ssl_truststore_location=write(made().trust_pkcs12()))
    assert text.endswith(": ssl.truststore.password is not set; a file of form PKCS12 needs it")


def test_exactly_one_private_key(write: Callable[..., str]) -> None:
    assert "holds 2 private keys; exactly one is needed" in problem(
        ssl_keystore_location=write(made().key * 2 + made().chain)
    )
    assert "holds no private key; exactly one is needed" in problem(ssl_keystore_location=write(made().chain))
    assert "holds no certificate; a key needs its certificate chain" in problem(ssl_keystore_location=write(made().key))
    assert "ssl.keystore.key: holds no private key" in problem(
        ssl_keystore_key="none", ssl_keystore_certificate_chain=made().chain
    )


def test_stores_with_nothing_in_them(write: Callable[..., str]) -> None:
    assert "holds no certificate to trust" in problem(ssl_truststore_location=write(made().key))
    assert "holds no certificate to trust" in problem(ssl_truststore_certificates="none")
    text = problem(ssl_keystore_location=FOLDER / "trust.p12", ssl_keystore_password="store-secret")
    assert text.endswith("trust.p12: holds no private key with a certificate")
    text = problem(ssl_keystore_location=FOLDER / "trust.jks", ssl_keystore_password="store-secret")
    assert text.endswith("trust.jks: holds no private key with a certificate")


# Errors -------------------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path: Path, write: Callable[..., str]) -> None:
    missing = tmp_path / "missing.pem"
    assert problem(ssl_truststore_location=missing) == (
        f"ssl.truststore.location={missing}: cannot be read: No such file or directory"
    )
    assert problem(ssl_keystore_location=tmp_path).endswith(": cannot be read: Is a directory")
    assert problem(ssl_keystore_location=write("")).endswith(
        ": the file is empty, or a pipe; name a file that holds the store"
    )
    os.mkfifo(tmp_path / "pipe")
    assert "or a pipe" in problem(ssl_keystore_location=tmp_path / "pipe")
    assert problem(ssl_keystore_location="a\0b").endswith(": not the name of a file")
    assert "has more than 16777216 bytes" in problem(ssl_truststore_location="/dev/zero")
    assert "none of PEM, PKCS12 and JKS" in problem(ssl_truststore_location=write("something else"))
    der = authority_certificates(made().authority)[0].public_bytes(Encoding.DER)
    assert "none of PEM, PKCS12 and JKS" in problem(ssl_truststore_location=write(der))


def test_jceks_is_refused_with_the_command_that_converts() -> None:
    text = problem(ssl_keystore_location=FOLDER / "other.jceks", ssl_keystore_password=PASSWORD)
    assert "keytool -importkeystore -srcstoretype JCEKS" in text


def test_wrong_passwords(write: Callable[..., str]) -> None:
    encrypted = made().key_as(PrivateFormat.PKCS8, PASSWORD)
    location = write(encrypted + made().chain)
    assert problem(ssl_keystore_location=location).endswith("the private key is encrypted; set ssl.key.password")
    assert problem(ssl_keystore_location=location, ssl_key_password="other").endswith(
        "the private key cannot be decrypted: wrong ssl.key.password, or damaged"
    )
    assert "longer than the 1024 bytes" in problem(ssl_keystore_location=location, ssl_key_password="x" * 2000)
    assert problem(ssl_keystore_location=write(made().pkcs12()), ssl_keystore_password="other").endswith(
        ": wrong password, or the file is damaged (see ssl.keystore.password)"
    )
    jks = FOLDER / "key.jks"
    assert problem(ssl_keystore_location=jks, ssl_keystore_password="other").endswith(
        ": wrong password, or the file is damaged (see ssl.keystore.password)"
    )
    assert ": wrong password of a private key, alias " in problem(
        ssl_keystore_location=jks, ssl_keystore_password="store-secret"
    )
    assert problem(ssl_truststore_location=FOLDER / "trust.p12", ssl_truststore_password="other").endswith(
        ": wrong password, or the file is damaged (see ssl.truststore.password)"
    )


def test_a_certificate_that_does_not_belong_to_the_key(write: Callable[..., str]) -> None:
    other = made().authority.issue_cert("x").private_key_pem.bytes().decode()
    rsa = trustme.CA(key_type=trustme.KeyType.RSA).issue_cert("x", key_type=trustme.KeyType.RSA)
    for key in (other, rsa.private_key_pem.bytes().decode()):
        assert problem(ssl_keystore_location=write(key + made().chain)).endswith(
            ": the first certificate does not belong to the private key"
        )


def test_damaged_parts_are_told_apart(write: Callable[..., str]) -> None:
    key, chain = made().key, made().chain
    bad_key = key.replace("MHc", "AAA").replace("MIG", "AAA")
    assert bad_key != key
    assert problem(ssl_keystore_location=write(bad_key + chain)).endswith(
        ": the private key is damaged, or of a kind that OpenSSL cannot read"
    )
    second = chain.rindex("MII")
    bad_chain = chain[:second] + "AAA" + chain[second + 3 :]
    assert problem(ssl_keystore_location=write(key + bad_chain)).endswith(": certificate 2 of 2 is damaged")
    assert problem(ssl_truststore_certificates=bad_chain).endswith(": certificate 2 of 2 is damaged")
    assert "is not base64 text" in problem(ssl_truststore_certificates=chain.replace("MII", "M*I"))
    assert "no -----END line that fits" in problem(ssl_truststore_certificates=chain[:-10])


def test_the_library_for_pkcs12_is_missing(write: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    location, pem = write(made().trust_pkcs12()), pem_of(made().authority)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    assert "pip install 'cryptography>=42'" in problem(
        ssl_truststore_location=location, ssl_truststore_password=PASSWORD
    )
    # PEM does without.
    client_context(
        parsed(
            ssl_truststore_certificates=pem,
            ssl_keystore_key=made().key,
            ssl_keystore_certificate_chain=made().chain,
        )
    )


# The library's word for what it reads all the same.
@pytest.mark.filterwarnings("ignore:PKCS#12 bundle could not be parsed as DER")
def test_whatever_a_file_holds_the_error_is_ours(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    encrypted = made().key_as(PrivateFormat.PKCS8, PASSWORD)
    pem = {"ssl_key_password": PASSWORD}
    stores: list[tuple[bytes, dict[str, str]]] = [
        ((made().key + made().chain).encode(), {}),
        ((encrypted + made().chain).encode(), pem),
        (made().pkcs12(), {"ssl_keystore_password": PASSWORD}),
        (
            (FOLDER / "key.jks").read_bytes(),
            {"ssl_keystore_password": "store-secret", "ssl_key_password": "key-secret"},
        ),
    ]
    trusts: list[tuple[bytes, dict[str, str]]] = [
        (pem_of(made().authority).encode(), {}),
        (made().trust_pkcs12(), {"ssl_truststore_password": PASSWORD}),
        ((FOLDER / "trust.jks").read_bytes(), {}),
    ]
    path = tmp_path / "damaged"
    path.touch(0o600)
    outcomes = {True: 0, False: 0}
    for _ in range(200 if SOAK else 20):
        for which, kinds in (("ssl_keystore_location", stores), ("ssl_truststore_location", trusts)):
            # The system's certificates take their time.
            trusted = {"ssl_truststore_certificates": None if kinds is trusts else pem_of(made().authority)}
            for data, passwords in kinds:
                path.write_bytes(damaged(data, rng))
                try:
                    client_context(parsed(**(trusted | {which: path}), **passwords))
                    outcomes[True] += 1
                except ConfigError as error:
                    outcomes[False] += 1
                    assert PASSWORD not in str(error)
    # Some changes hit text around what counts.
    assert outcomes[False] > outcomes[True] > 0, f"seed {SEED}"


def damaged(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return data[: rng.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 10))):
        changed[rng.randrange(len(changed))] = rng.choice((0, 0x80, 0xFF, rng.randrange(256)))
    return bytes(changed)


# Permissions --------------------------------------------------------------------------------------------------------


def test_a_file_without_a_key_is_no_secret(write: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    location = write(made().chain)
    os.chmod(location, 0o644)
    with caplog.at_level(logging.WARNING, "spark_kafkalite.client"), pytest.raises(ConfigError, match="no private key"):
        client_context(parsed(ssl_keystore_location=location))
    assert not caplog.records


def test_a_key_that_others_may_read_is_warned_of_once(
    write: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    location = write(made().key + made().chain)
    os.chmod(location, 0o640)
    with caplog.at_level(logging.WARNING, "spark_kafkalite.client"):
        for _ in range(2):
            client_context(parsed(ssl_keystore_location=location))
    assert [record.getMessage() for record in caplog.records] == [
        f"the private key in {location} is open to others than its owner (mode 640); chmod 600 closes it"
    ]
    caplog.clear()
    client_context(parsed(ssl_keystore_location=write(made().key + made().chain)))
    assert not caplog.records
