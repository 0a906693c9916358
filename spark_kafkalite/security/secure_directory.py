"""A directory with all that a first secured broker, or a cluster on one host, and its clients need.

It has an authority, a certificate for each broker, a client's certificate, the password of the user ``admin``, for a
cluster also that of its registry, and files with the settings of clients. A file that exists is kept, so a broker that
starts again has the same ones. A broker's certificate is issued again if it ends within a month, or does not name a
host that the broker has now.

Keys and files with secrets have the mode 0600, and the directory 0700.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.certificate import ends_s
from spark_kafkalite.security.issuing import KeyAndCertificate, issue, new_authority
from spark_kafkalite.security.settings import SecurityProtocol

USER: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_AUTHORITY: Final = "kafkalite authority"
_RENEWED_BEFORE_S: Final = 30 * 86_400
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class SecureDirectory:
    """See the module's text. ``protocol`` is that of the listeners."""

    def __init__(self, path: Path, *, tls: bool = True, sasl: str | None = MECHANISM) -> None:
        """Without ``sasl``, a SCRAM mechanism, clients authenticate by certificates.

        Makes what is missing. Raises ConfigError, also without the library ``cryptography`` where certificates are to
        be made.
        """
        self.path = path.absolute()
        self.sasl = sasl
        self.protocol = next(
            each for each in SecurityProtocol if (each.encrypts, each.uses_sasl) == (tls, sasl is not None)
        )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_secrets()
        except FileExistsError:
            raise ConfigError(
                f"{self.path}: is a file; name a directory, or a path where there is nothing yet"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None

    @property
    def password(self) -> str:
        """The password of the user ``admin``. Raises ConfigError."""
        try:
            password = self.password_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{self.password_file}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.password_file}: is not UTF-8 text") from None
        if not password.isprintable() or not password:
            raise ConfigError(f"{self.password_file}: must hold one line, the password of the user {USER}")
        return password

    @property
    def password_file(self) -> Path:
        """The file that holds the password of the user ``admin``."""
        return self.path / f"{USER}.password"

    def broker_settings(self, name: str, hosts: Iterable[str]) -> dict[str, object]:
        """Return the settings of a broker whose advertised hosts these are, without its listeners."""
        settings: dict[str, object] = {"authorizer.class.name": _AUTHORIZER, "super.users": f"User:{USER}"}
        if self.sasl is not None:
            settings["sasl.enabled.mechanisms"] = self.sasl
        if self.protocol.encrypts:
            store = self._broker_store(name, dict.fromkeys((*_LOOPBACK, *hosts)))
            settings |= {"ssl.keystore.location": store, "ssl.truststore.location": self._authority_file}
        if self.protocol is SecurityProtocol.SSL:
            settings |= {
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            }
        return settings

    @property
    def registry_digest_file(self) -> Path:
        """The file that holds ``USER:PASSWORD``, by which brokers authenticate to a registry of their own."""
        return self.path / "registry.digest"

    def write_registry_files(self) -> tuple[str, Path]:
        """Return what :attr:`registry_digest_file` holds, and a file with it as a setting of brokers.

        Makes the first one if it is missing. Raises ConfigError.
        """
        settings = self.path / "registry.properties"
        try:
            if not self.registry_digest_file.exists():
                _write_secret(self.registry_digest_file, f"brokers:{secrets.token_urlsafe(24)}\n".encode())
            digest = self.registry_digest_file.read_text(encoding="ascii").strip()
            _write_secret(settings, properties_text({"zookeeper.digest": digest}).encode())
        except OSError as error:
            raise ConfigError(f"{error.filename}: cannot be read or written: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.registry_digest_file}: must hold one line of ASCII, USER:PASSWORD") from None
        return digest, settings

    def client_settings(self) -> dict[str, str]:
        """Return the settings of our clients and of Java's, without ``bootstrap.servers``."""
        settings = {"security.protocol": self.protocol.value}
        if self.protocol.encrypts:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._authority_file)}
        if self.protocol is SecurityProtocol.SSL:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self._client_store)}
        if self.sasl is not None:
            module = "org.apache.kafka.common.security.scram.ScramLoginModule"
            quoted = self.password.replace("\\", "\\\\").replace('"', '\\"')
            jaas = f'{module} required username="{USER}" password="{quoted}";'
            settings |= {"sasl.mechanism": self.sasl, "sasl.jaas.config": jaas}
        return settings

    def librdkafka_settings(self) -> dict[str, str]:
        """Return the same for librdkafka, and so for confluent-kafka and kcat."""
        settings = {"security.protocol": self.protocol.value}
        if self.protocol.encrypts:
            settings["ssl.ca.location"] = str(self._authority_file)
        if self.protocol is SecurityProtocol.SSL:
            store = str(self._client_store)
            settings |= {"ssl.certificate.location": store, "ssl.key.location": store}
        if self.sasl is not None:
            settings |= {"sasl.mechanism": self.sasl, "sasl.username": USER, "sasl.password": self.password}
        return settings

    def write_client_files(self, bootstrap: str | None) -> tuple[Path, Path, Path]:
        """Write the settings of clients to files.

        Returns that of our clients and Java's, that of librdkafka, and one with options of Spark (JSON). ``bootstrap``
        is None while it is not known. Raises ConfigError.
        """
        address = {} if bootstrap is None else {"bootstrap.servers": bootstrap}
        ours, librdkafka, spark = (
            self.path / name for name in ("client.properties", "librdkafka.properties", "spark.json")
        )
        settings = {**address, **self.client_settings()}
        options = {f"kafka.{name}": value for name, value in settings.items()}
        try:
            _write_secret(ours, properties_text(settings).encode())
            _write_secret(librdkafka, properties_text({**address, **self.librdkafka_settings()}).encode())
            _write_secret(spark, (json.dumps(options, indent=2) + "\n").encode())
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None
        return ours, librdkafka, spark

    # Files ----------------------------------------------------------------------------------------------------------

    @property
    def _authority_file(self) -> Path:
        return self.path / "ca.pem"

    @property
    def _client_store(self) -> Path:
        return self.path / f"{USER}.pem"

    def _make_secrets(self) -> None:
        if self.sasl is not None and not self.password_file.exists():
            _write_secret(self.password_file, f"{secrets.token_urlsafe(24)}\n".encode())
        if not self.protocol.encrypts:
            return
        if not self._authority_file.exists():
            authority = new_authority(_AUTHORITY)
            _write_secret(self.path / "ca-key.pem", authority.key)
            self._authority_file.write_bytes(authority.certificate)
        if self.protocol is SecurityProtocol.SSL and not self._client_store.exists():
            _write_secret(self._client_store, b"".join(issue(self._authority(), USER)))

    def _authority(self) -> KeyAndCertificate:
        key = self.path / "ca-key.pem"
        try:
            return KeyAndCertificate(key.read_bytes(), self._authority_file.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{error.filename}: cannot be read: {error.strerror}; without the authority's key no certificate can "
                f"be issued: put it back, or remove {self._authority_file} to have a new one made, which all clients "
                "then need"
            ) from None

    def _broker_store(self, name: str, hosts: Iterable[str]) -> Path:
        path, names = self.path / f"{name}.pem", self.path / f"{name}.hosts"
        wanted = "\n".join(sorted(hosts)) + "\n"
        try:
            lasts = ends_s(ssl.PEM_cert_to_DER_cert(_first_certificate(path.read_text("ascii")))) - time.time()
            if lasts > _RENEWED_BEFORE_S and names.read_text("utf-8") == wanted:
                return path
        except (OSError, ValueError):
            pass  # there is none yet, or what is there is damaged
        _write_secret(path, b"".join(issue(self._authority(), name, wanted.split())))
        names.write_text(wanted, "utf-8")
        return path


def _first_certificate(pem: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + pem.partition(begin)[2].partition(end)[0] + end


def properties_text(settings: Mapping[str, str]) -> str:
    """Return a properties file with these settings, whose values have no line breaks."""
    return "".join("{}={}\n".format(name, value.replace("\\", "\\\\")) for name, value in settings.items())


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, in the place of one that may be there."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(new, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)) as file:
        file.write(content)
    new.replace(path)
