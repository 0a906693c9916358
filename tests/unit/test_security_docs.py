"""docs/security.md is true: settings and options exist, files are taken as they are printed, errors say that."""

from __future__ import annotations

import ast
import re
import sys
import types
from functools import cache
from pathlib import Path

import pytest

from spark_kafkalite.broker.network.listener_tls import BrokerTls
from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.client.command_config import read_command_config
from spark_kafkalite.client.config import CONSUMER_SETTINGS, consumer_config
from spark_kafkalite.processes.java_process import JavaToolFailed
from spark_kafkalite.security import kerberos
from spark_kafkalite.security.tokens import ProviderSource
from spark_kafkalite.spark.options.options import reader_options
from tests.lab.certificates import KEY_PASSWORD, STORE_PASSWORD, Authority
from tests.paths import PROJECT

PAGE = PROJECT / "docs" / "security.md"
TEXT = PAGE.read_text()


def blocks(language: str) -> list[str]:
    """The blocks of a language, also those in lists, without their indentation."""
    found = re.findall(rf"(?ms)^( *)```{language}\n(.*?)^ *```", TEXT)
    return [re.sub(rf"(?m)^{indent}", "", block) for indent, block in found]


PROPERTIES = blocks("properties")
CLIENT_FILES = [block for block in PROPERTIES if block.startswith("security.protocol=")]
PROGRAMS = blocks("python")


@pytest.fixture(scope="module")
def etc(tmp_path_factory) -> Path:
    """The directory that stands for /etc/kafka."""
    directory = tmp_path_factory.mktemp("etc")
    authority = Authority(tmp_path_factory.mktemp("certificates"), "authority")
    certificate = authority.issue("client")
    (directory / "ca.pem").write_bytes(authority.pem_file().read_bytes())
    (directory / "truststore.p12").write_bytes(authority.pkcs12_file().read_bytes())
    (directory / "client.pem").write_bytes(certificate.pem_file(KEY_PASSWORD).read_bytes())
    (directory / "client.p12").write_bytes(certificate.pkcs12_file().read_bytes())
    try:
        (directory / "truststore.jks").write_bytes(authority.jks_file().read_bytes())
    except JavaToolFailed as error:
        pytest.skip(str(error))
    for path in directory.iterdir():
        path.chmod(0o600)
    return directory


def test_there_is_an_example_of_each_kind() -> None:
    assert len(CLIENT_FILES) >= 8
    together = "".join(CLIENT_FILES)
    mechanisms = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
    for each in (*mechanisms, ".jks", ".p12", ".pem", "token.file", "token.provider"):
        assert each in together


@pytest.mark.parametrize("block", CLIENT_FILES, ids=range(len(CLIENT_FILES)))
def test_the_files_are_taken_as_they_are_printed(block: str, etc: Path, tmp_path, monkeypatch, caplog) -> None:
    assert STORE_PASSWORD == "store-password"
    assert KEY_PASSWORD == "key-password"
    monkeypatch.setenv("KAFKALITE_OAUTHBEARER_ALLOWED_URLS", "https://idp.example/oauth2/token")
    monkeypatch.setitem(sys.modules, "msk_tokens", types.ModuleType("msk_tokens"))
    sys.modules["msk_tokens"].token = lambda: "x"  # type: ignore[attr-defined]
    # They are not on every host that runs the tests.
    monkeypatch.setattr(kerberos, "libraries", lambda: None)
    path = tmp_path / "client.properties"
    path.write_text(block.replace("/etc/kafka", str(etc)))
    path.chmod(0o600)
    warnings: list[str] = []
    environment = {"KAFKA_PASSWORD": "p", "OAUTH_SECRET": "s"}
    settings = read_command_config(str(path), warnings.append, environment)
    config = consumer_config({"bootstrap.servers": "127.0.0.1:1", **settings}, {})
    assert config.client.security.protocol.value == settings["security.protocol"]
    assert warnings == []
    assert caplog.text == ""
    options = {f"kafka.{name}": value for name, value in settings.items()}
    assert reader_options({**options, "kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}).client == {
        "bootstrap.servers": "127.0.0.1:1",
        **settings,
    }


def test_the_signer_of_msk(monkeypatch) -> None:
    (program,) = [program for program in PROGRAMS if "MSKAuthTokenProvider" in program]
    signer = types.ModuleType("aws_msk_iam_sasl_signer")

    class Provider:
        """In the place of Amazon's, which returns the time in milliseconds."""

        @staticmethod
        def generate_auth_token(region: str) -> tuple[str, int]:
            return f"token-of-{region}", 1_900_000_000_000

    signer.MSKAuthTokenProvider = Provider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    module = types.ModuleType("msk_tokens")
    exec(compile(program, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "msk_tokens", module)
    held = ProviderSource("msk_tokens:token").fetch()
    assert (held.value, held.expires_at_s) == ("token-of-eu-west-1", 1_900_000_000.0)


def test_programs_compile_and_give_settings_that_exist() -> None:
    assert len(PROGRAMS) == 4
    for program in PROGRAMS:
        names = [
            node.value
            for node in ast.walk(ast.parse(program))
            if isinstance(node, ast.Constant) and re.match(r"(kafka\.)?(ssl|sasl|security)\.", str(node.value))
        ]
        assert [name for name in names if str(name).removeprefix("kafka.") not in CONSUMER_SETTINGS] == []


@cache
def texts_in_code() -> str:
    """All texts of the package, with {} where values are put in."""
    found = []
    for path in (PROJECT / "spark_kafkalite").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                pieces = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
                found.append("".join(map(str, pieces)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_the_errors_that_the_page_explains_exist() -> None:
    table = TEXT.partition("## Troubleshooting")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    errors = [re.findall(r"`([^`]+)`", row[1])[0] for row in rows]
    assert len(errors) >= 14
    missing = []
    for error in errors:
        pattern = re.escape(error).replace("PLAINTEXT", r"(PLAINTEXT|\{\})")
        if not re.search(pattern, texts_in_code()):
            missing.append(error)
    assert missing == []


def test_the_settings_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`((?:ssl|sasl|security)\.[a-z.]+[a-z])(?:=[^`]*)?`", TEXT))
    # Of the JVM.
    others = {"ssl.provider", "ssl.engine.factory.class"}
    assert len(named) > 15
    missing = {name for name in named - others if name not in CONSUMER_SETTINGS and name not in BROKER_SETTINGS}
    assert missing == set()


@pytest.mark.parametrize("more", [block for block in PROPERTIES if block.startswith("ssl.principal")])
def test_a_broker_takes_the_file_with_tls(more: str, tmp_path: Path) -> None:
    (block,) = [block for block in PROPERTIES if "OUTSIDE:SSL" in block]
    authority = Authority(tmp_path, "operators")
    (tmp_path / "broker.pem").write_bytes(authority.issue("broker", "10.0.0.1", "192.168.7.1").pem_file().read_bytes())
    (tmp_path / "ca.pem").write_bytes(authority.pem_file().read_bytes())
    path = tmp_path / "server.properties"
    path.write_text(block.replace("/etc/kafkalite", str(tmp_path)) + more)
    config = BrokerConfig.load(path)
    assert {each.name: each.protocol.value for each in config.listeners} == {
        "PLAINTEXT": "PLAINTEXT",
        "OUTSIDE": "SSL",
        "INNER": "SSL",
    }
    assert BrokerTls(config).warnings() == []
