"""What --secure makes: certificates that strict clients take, files that others cannot read, and the same again."""

from __future__ import annotations

import json
import ssl
import stat
from pathlib import Path

import pytest

from spark_kafkalite.client.command_config import read_command_config
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security import secure_directory
from spark_kafkalite.security.certificate import subject_text
from spark_kafkalite.security.jaas import parse_jaas
from spark_kafkalite.security.secure_directory import SecureDirectory
from spark_kafkalite.security.server_tls import names_host, server_context
from spark_kafkalite.security.tls import client_context
from spark_kafkalite.settings import read_properties
from tests.unit.security.tls_pairs import Pair, parsed


def server(settings: dict[str, object]) -> ssl.SSLContext:
    given = {
        name: value for name, value in settings.items() if name in ("ssl.keystore.location", "ssl.truststore.location")
    }
    return server_context({**parsed(), **given, "ssl.client.auth": settings.get("ssl.client.auth", "none")})


def client(made: SecureDirectory) -> ssl.SSLContext:
    return client_context({**parsed(), **{n: v for n, v in made.client_settings().items() if n.startswith("ssl")}})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "log1.example", "10.1.2.3"])
@pytest.mark.parametrize("sasl", [None, "SCRAM-SHA-512"])
def test_a_client_with_its_settings_comes_in_under_every_name(tmp_path: Path, host: str, sasl: str | None) -> None:
    made = SecureDirectory(tmp_path / "secure", sasl=sasl)
    context = server(made.broker_settings("broker-1", ["log1.example", "10.1.2.3"]))
    strict = client(made)
    # As Python sets it from 3.13 on.
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    pair = Pair(strict, context, host=host)
    pair.handshake()
    assert pair.server_error is None
    shown = pair.server.peer_certificate()
    assert (None if shown is None else subject_text(shown)) == ("CN=admin" if sasl is None else None)


def test_files_are_the_owners_alone_and_the_same_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "secure"
    first = SecureDirectory(path)
    first.broker_settings("broker-1", ["a.example"])
    first.write_client_files("a.example:9092")
    first.write_registry_files()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    public = {"ca.pem", "broker-1.hosts"}
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()}
    assert {name for name, mode in modes.items() if mode & 0o077} <= public
    assert {"ca-key.pem", "broker-1.pem", "admin.password", "client.properties", "spark.json"} <= modes.keys()
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    again = SecureDirectory(path)
    again.broker_settings("broker-1", ["a.example"])
    again.write_client_files("a.example:9092")
    digest, settings = again.write_registry_files()
    assert digest.startswith("brokers:") and read_properties(settings) == {"zookeeper.digest": digest}
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before
    options = json.loads((path / "spark.json").read_text())
    assert options["kafka.sasl.jaas.config"].endswith(f'password="{first.password}";')
    assert first.password not in repr(again)


def test_a_certificate_is_issued_again_for_another_host_and_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SecureDirectory(tmp_path)
    store = made.path / "broker-1.pem"
    made.broker_settings("broker-1", ["a.example"])
    first = store.read_bytes()
    context = server(made.broker_settings("broker-1", ["b.example"]))
    assert store.read_bytes() != first
    assert names_host(context, "b.example") and not names_host(context, "a.example")
    second = store.read_bytes()
    monkeypatch.setattr(secure_directory, "_RENEWED_BEFORE_S", 364 * 86_400)
    made.broker_settings("broker-1", ["b.example"])
    assert store.read_bytes() == second
    monkeypatch.setattr(secure_directory, "_RENEWED_BEFORE_S", 366 * 86_400)
    made.broker_settings("broker-1", ["b.example"])
    assert store.read_bytes() != second


def test_without_the_authoritys_key_nothing_is_issued(tmp_path: Path) -> None:
    made = SecureDirectory(tmp_path)
    (tmp_path / "ca-key.pem").unlink()
    with pytest.raises(ConfigError, match=r"ca-key\.pem: cannot be read: .* put it back, or remove"):
        made.broker_settings("broker-1", [])
    (tmp_path / "ca-key.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="the authority's key or certificate cannot be read"):
        made.broker_settings("broker-1", [])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file: is a file; name a directory"):
        SecureDirectory(tmp_path / "file")


def test_a_password_of_the_users_own_reaches_all_files(tmp_path: Path) -> None:
    made = SecureDirectory(tmp_path)
    password = 'Gr\u00fcn "und" \\blau'
    made.password_file.write_text(password + "\n", encoding="utf-8")
    made.write_client_files("a.example:9092")
    read = read_command_config(str(tmp_path / "client.properties"), print)
    assert parse_jaas(read["sasl.jaas.config"]).options["password"] == password
    assert read_command_config(str(tmp_path / "librdkafka.properties"), print)["sasl.password"] == password
    made.password_file.write_text("two\nlines\n")
    with pytest.raises(ConfigError, match=r"admin\.password: must hold one line"):
        made.write_client_files("a.example:9092")


def test_the_settings_fit_the_protocol(tmp_path: Path) -> None:
    plain = SecureDirectory(tmp_path / "plain", tls=False)
    assert plain.broker_settings("broker-1", []) == {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    assert plain.client_settings()["security.protocol"] == "SASL_PLAINTEXT"
    assert {each.name for each in plain.path.iterdir()} == {"admin.password"}
    tls = SecureDirectory(tmp_path / "tls", sasl=None)
    assert tls.broker_settings("broker-1", [])["ssl.client.auth"] == "required"
    assert tls.librdkafka_settings()["ssl.key.location"] == str(tls.path / "admin.pem")
    assert not (tls.path / "admin.password").exists()
