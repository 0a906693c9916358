"""Certificates for tests, in every form that Kafka's clients and brokers read: PEM, PKCS12 and JKS.

An :class:`Authority` issues :class:`Certificate` objects for a server or a client; both write files of the wanted form
into one directory, once each.
"""

from __future__ import annotations

import datetime
import itertools
import subprocess
from pathlib import Path
from typing import Any, Final

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from spark_kafkalite.processes.java_process import JavaToolFailed, java_command

LOOPBACK: Final = ("localhost", "127.0.0.1")
STORE_PASSWORD: Final = "store-password"
KEY_PASSWORD: Final = "key-password"

_PROGRAM_TIMEOUT_S: Final = 60

# Tells the files of certificates for the same name apart.
_numbers: Final = itertools.count(1)


class Authority:
    """A certificate authority of its own; ``name`` separates its files from those of others in ``directory``."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._directory = directory
        self._authority = trustme.CA(organization_name=name)

    def copy_to(self, directory: Path) -> Authority:
        """Return the same authority, with its files in another directory: two processes must not share one."""
        copy = Authority(directory, self.name)
        copy._authority = self._authority
        return copy

    def __getstate__(self) -> dict[str, object]:
        ca = self._authority
        return {**self.__dict__, "_authority": (ca.cert_pem.bytes(), ca.private_key_pem.bytes())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._authority = trustme.CA.from_pem(*state["_authority"])

    @property
    def pem(self) -> str:
        """The authority's certificate: what a truststore holds."""
        return self._authority.cert_pem.bytes().decode("ascii")

    def pem_file(self) -> Path:
        return _written(self._directory / f"{self.name}.pem", self.pem.encode("ascii"))

    def pkcs12_file(self) -> Path:
        """Return a truststore whose password is STORE_PASSWORD, marked as trusted in Java's way."""
        path = self._directory / f"{self.name}.p12"
        if not path.exists():
            certificate = pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(self.pem.encode("ascii")), b"ca")
            encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
            path.write_bytes(pkcs12.serialize_java_truststore([certificate], encryption))
        return path

    def jks_file(self) -> Path:
        """Return a truststore whose password is STORE_PASSWORD. Raises JavaToolFailed when there is no keytool."""
        path = self._directory / f"{self.name}.jks"
        if not path.exists():
            _keytool(
                "-importcert", "-noprompt", "-alias", "ca", "-file", str(self.pem_file()),
                "-keystore", str(path), "-storetype", "JKS", "-storepass", STORE_PASSWORD,
            )  # fmt: skip
        return path

    def issue(
        self,
        common_name: str,
        *hosts: str,
        rsa_key: bool = False,
        expired: bool = False,
        intermediate: bool = False,
        days: int = 90,
    ) -> Certificate:
        """Issue a certificate for ``hosts`` (names or addresses; for a client any), with an EC key unless RSA is asked.

        It lives for ``days`` from now. With ``intermediate``, an authority below this one signs it, and its chain has
        two certificates.
        """
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        signer = self._authority.create_child_ca() if intermediate else self._authority
        issued = signer.issue_cert(
            *(hosts or ("client.example",)),
            common_name=common_name,
            not_before=now - 30 * day,
            not_after=now - day if expired else now + days * day,
            key_type=trustme.KeyType.RSA if rsa_key else trustme.KeyType.ECDSA,
        )
        return Certificate(self._directory, f"{self.name}-{common_name}-{next(_numbers)}", issued)


class Certificate:
    """A private key and its certificate chain. Every file with a store password has STORE_PASSWORD."""

    def __init__(self, directory: Path, name: str, issued: trustme.LeafCert) -> None:
        self._directory = directory
        self._name = name
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
        self._key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = key
        self._chain = [x509.load_pem_x509_certificate(pem.bytes()) for pem in issued.cert_chain_pems]

    def key_pem(self, password: str | None = None) -> str:
        """Return the private key in PKCS#8 form, encrypted when there is a password."""
        encryption = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password.encode())
        )
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        ).decode("ascii")

    def key_pem_for_java_17(self, password: str) -> str:
        """Return the private key encrypted in the one way that Kafka reads on Java 17: with SHA-1 and triple DES.

        Runs the ``openssl`` program, since no library here writes it.
        """
        return subprocess.run(
            ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", "stdin"],
            input=f"{password}\n{self.key_pem()}",
            capture_output=True, text=True, timeout=_PROGRAM_TIMEOUT_S, check=True,
        ).stdout  # fmt: skip

    @property
    def chain_pem(self) -> str:
        return "".join(link.public_bytes(serialization.Encoding.PEM).decode("ascii") for link in self._chain)

    def pem_file(self, key_password: str | None = None) -> Path:
        """Return one file with key and chain; its key is encrypted when there is a password."""
        path = self._directory / f"{self._name}{'-encrypted' if key_password else ''}.pem"
        return _written(path, (self.key_pem(key_password) + self.chain_pem).encode("ascii"))

    def pkcs12_file(self) -> Path:
        path = self._directory / f"{self._name}.p12"
        if not path.exists():
            encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
            chain = self._chain
            path.write_bytes(pkcs12.serialize_key_and_certificates(b"key", self._key, chain[0], chain[1:], encryption))
        return path

    def jks_file(self, key_password: str | None = None) -> Path:
        """Return a JKS file; its key has a password of its own if one is given, else the store's.

        Raises JavaToolFailed when there is no keytool.
        """
        path = self._directory / f"{self._name}{'-own-password' if key_password else ''}.jks"
        if not path.exists():
            _keytool(
                "-importkeystore", "-noprompt", "-srckeystore", str(self.pkcs12_file()), "-srcstoretype", "PKCS12",
                "-srcstorepass", STORE_PASSWORD, "-srcalias", "key", "-destkeystore", str(path),
                "-deststoretype", "JKS", "-deststorepass", STORE_PASSWORD,
                "-destkeypass", key_password or STORE_PASSWORD,
            )  # fmt: skip
        return path


def _written(path: Path, content: bytes) -> Path:
    if not path.exists():
        path.write_bytes(content)
    return path


def _keytool(*arguments: str) -> None:
    java = java_command()
    if java is None:
        raise JavaToolFailed("there is no Java, and so no keytool")
    done = subprocess.run(
        [Path(java).resolve().with_name("keytool"), "-J-XX:TieredStopAtLevel=1", *arguments],
        capture_output=True, text=True, timeout=_PROGRAM_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise JavaToolFailed(f"keytool {arguments[0]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
