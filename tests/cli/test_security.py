"""The commands at secured listeners of Apache Kafka: settings from a file, refusals in one line, no secret shown."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import canary
from tests.lab.certificates import KEY_PASSWORD, STORE_PASSWORD, Authority, Certificate
from tests.lab.secure_kafka import ALICE, PLAIN, SCRAM_256, SCRAM_512, SecuredListener, SecureKafka, User
from tests.paths import PROJECT
from tests.patience import PATIENCE_S
from tests.pool.forking import run_command
from tests.seeds import SOAK

pytestmark = [pytest.mark.kafka]

# For the machine's own troubles beside what a person may be kept waiting.
WAITED_S = 10
START_S = 5
WRONG = User(ALICE.name, canary.PASSWORD)


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str
    seconds: float


def kafkalite(*arguments: str, given: bytes = b"", **environment: str) -> Done:
    began = time.monotonic()
    ended = run_command(*arguments, input=given, environment=environment or None)
    done = Done(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)
    assert "Traceback" not in done.err, done.err
    assert [leak for text in (done.out, done.err) for leak in canary.leaks(text.encode())] == []
    return done


@pytest.fixture
def command_config(tmp_path: Path) -> Callable[[Mapping[str, str]], str]:
    """Write settings into a file for one user's eyes."""

    def write(settings: Mapping[str, str]) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.properties"
        lines = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in settings.items()}
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        path.chmod(0o600)
        return str(path)

    return write


def split(settings: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the address, and the settings without it."""
    return settings.pop("bootstrap.servers"), settings


# What goes well -----------------------------------------------------------------------------------------------------


def test_records_go_in_and_out(secure_kafka: SecureKafka, command_config) -> None:
    address, settings = split(secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512))
    at = ("--bootstrap-server", address)
    file = command_config(settings)
    lines = b"".join(b"%d\n" % number for number in range(50))
    assert kafkalite("topics", "create", "--topic", "secured-cli", *at, "--command-config", file).code == 0
    assert kafkalite("produce", "--topic", "secured-cli", *at, "--producer.config", file, given=lines).code == 0
    consume = ("consume", "--topic", "secured-cli", "--from-beginning", "--until-end", *at)
    done = kafkalite(*consume, "--consumer.config", file, "--group", "secured-cli")
    assert (done.code, done.out.encode()) == (0, lines)
    listed = kafkalite("groups", "describe", "--group", "secured-cli", *at, "--command-config", file)
    assert "secured-cli" in listed.out
    # Nothing shows the settings, though commands show much in JSON.
    for command in ("topics describe", "cluster log-dirs", "configs describe --entity-type brokers --all"):
        done = kafkalite(*command.split(), "--json", *at, "--command-config", file)
        assert done.code == 0
        assert ALICE.password not in done.out


def blocks() -> list[str]:
    """The files of docs/security.md that reach a cluster of ours, of all ways in."""
    found = re.findall(r"(?ms)^```properties\n(security.protocol=.*?)^```", (PROJECT / "docs/security.md").read_text())
    return [block for block in found if "OAUTHBEARER" not in block]


@pytest.fixture(scope="module")
def etc(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that stands for /etc/kafka."""
    directory = tmp_path_factory.mktemp("etc")
    certificate = secure_kafka.authority.issue(ALICE.name)
    for name, path in {
        "ca.pem": secure_kafka.authority.pem_file(),
        "truststore.p12": secure_kafka.authority.pkcs12_file(),
        "truststore.jks": secure_kafka.authority.jks_file(),
        "client.pem": certificate.pem_file(KEY_PASSWORD),
        "client.p12": certificate.pkcs12_file(),
    }.items():
        (directory / name).write_bytes(path.read_bytes())
        (directory / name).chmod(0o600)
    assert STORE_PASSWORD == "store-password"
    assert KEY_PASSWORD == "key-password"
    return directory


def test_the_doctor_comes_in_and_sees_the_certificate(secure_kafka: SecureKafka, command_config) -> None:
    config = command_config(secure_kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512) | {"acks": "all"})
    at = secure_kafka.address(SecuredListener.SASL_SSL.listener_name)
    done = kafkalite("doctor", "--bootstrap-server", at, "--command-config", config, "--json")
    assert (done.code, done.err) == (0, ""), done.out + done.err
    [address] = json.loads(done.out)["driver"]["addresses"]
    assert address["problem"] is None
    assert address["certificate_expires_s"] > time.time()


def test_the_doctor_sees_the_end_of_its_own_certificate(secure_kafka: SecureKafka, command_config) -> None:
    at, settings = split(secure_kafka.client_settings(SecuredListener.MTLS))

    def doctor(certificate: Certificate) -> Done:
        settings["ssl.keystore.location"] = str(certificate.pem_file())
        certificate.pem_file().chmod(0o600)
        return kafkalite("doctor", "--bootstrap-server", at, "--command-config", command_config(settings))

    done = doctor(secure_kafka.authority.issue(ALICE.name))
    assert (done.code, done.out.splitlines()[-1]) == (0, "Nothing to do."), done.out + done.err
    done = doctor(secure_kafka.authority.issue(ALICE.name, days=9))
    [told] = [line for line in done.out.splitlines() if line.startswith("To do: ")]
    assert (done.code, done.err) == (1, "")
    assert f"our own certificate, from ssl.keystore.location={settings['ssl.keystore.location']}, expires on " in told
    done = doctor(secure_kafka.authority.issue(ALICE.name, expired=True))
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert "the broker refuses our certificate" in done.err
    assert "it must be renewed" in done.err


@pytest.mark.parametrize("block", blocks(), ids=range(len(blocks())))
def test_the_files_of_the_documentation_work(secure_kafka: SecureKafka, etc: Path, tmp_path: Path, block: str) -> None:
    listener = (
        SecuredListener.SASL_SSL
        if "SASL_SSL" in block
        else SecuredListener.MTLS
        if "keystore" in block
        else SecuredListener.SSL
    )
    path = tmp_path / "client.properties"
    token = secure_kafka.delegation_token() if "token.file" in block else None
    if token is not None:
        (tmp_path / "token").write_text(f"{token.token_id}:{token.hmac}")
    path.write_text(block.replace("/etc/kafka", str(etc)).replace("/run/kafka/token", str(tmp_path / "token")))
    path.chmod(0o600)
    done = kafkalite(
        *("topics", "list", "--bootstrap-server", secure_kafka.address(listener.listener_name)),
        *("--command-config", str(path)),
        KAFKA_PASSWORD=ALICE.password,
    )
    assert (done.code, done.err) == (0, "")


def test_the_program_of_the_documentation_works(secure_kafka: SecureKafka, etc: Path) -> None:
    page = (PROJECT / "docs/security.md").read_text()
    (program,) = [each for each in re.findall(r"(?ms)^```python\n(.*?)^```", page) if "Admin(" in each]
    program = program.replace("kafka.example:9093", secure_kafka.address(SecuredListener.SASL_SSL.listener_name))
    done = subprocess.run(
        [sys.executable, "-c", program.replace("/etc/kafka", str(etc))],
        env={"KAFKA_PASSWORD": ALICE.password}, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[")


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def silent_port() -> Iterator[str]:
    """A port that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


Refusal = tuple[dict[str, str], str, int]


def refused(door: str, kafka: SecureKafka, silent: str, directory: Path) -> Refusal:
    """Return settings that are refused, what the line must say, and the exit code."""
    scram = kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_512)
    tls = kafka.client_settings(SecuredListener.SSL)
    other = Authority(directory / "other", "other")
    store, token = directory / "store.p12", directory / "token"
    store.write_bytes(other.issue("x").pkcs12_file().read_bytes())
    store.chmod(0o600)
    token.write_text(canary.TOKEN)

    def at(address: str, settings: dict[str, str]) -> dict[str, str]:
        return settings | {"bootstrap.servers": address if ":" in address else kafka.address(address)}

    by_token = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.token.file": str(token)}
    wrong_store = {"ssl.keystore.location": str(store), "ssl.keystore.password": canary.PASSWORD}
    doors: dict[str, Refusal] = {
        "wrong password": (kafka.client_settings(SecuredListener.SASL_SSL, SCRAM_256, WRONG), "sasl.jaas.config", 1),
        "wrong password in clear": (
            kafka.client_settings(SecuredListener.SASL_PLAINTEXT, PLAIN, WRONG),
            "sasl.jaas.config",
            1,
        ),
        "mechanism not offered": (at("SASL_PLAINTEXT", by_token), "does not offer sasl.mechanism=OAUTHBEARER", 1),
        "untrusted authority": (tls | {"ssl.truststore.location": str(other.pem_file())}, "ssl.truststore", 1),
        "plaintext at TLS": (at("SSL", {}), "security.protocol=SSL", 1),
        "TLS at plaintext": (at("PLAINTEXT", tls), "security.protocol=PLAINTEXT", 1),
        "no credentials": (at("SASL_SSL", tls), "security.protocol=SASL_SSL", 1),
        "unwanted credentials": (at("SSL", scram), "security.protocol=SSL", 1),
        "silence": (at(silent, {}), "security.protocol", 1),
        "silence to TLS": (at(silent, tls), "security.protocol", 1),
        "wrong password of a store": (tls | wrong_store, "ssl.keystore.password", 2),
    }
    return doors[door]


DOORS = (
    "wrong password",
    "wrong password in clear",
    "mechanism not offered",
    "untrusted authority",
    "plaintext at TLS",
    "TLS at plaintext",
    "no credentials",
    "unwanted credentials",
    "silence",
    "silence to TLS",
    "wrong password of a store",
)
OTHER_COMMANDS = ("produce --topic t", "consume --topic t", "consume --topic t --group g", "groups list")
REFUSALS = [
    *((door, "topics list") for door in DOORS),
    *((door, command) for door in ("wrong password", "no credentials") for command in OTHER_COMMANDS),
    *((door, "doctor") for door in ("wrong password", "untrusted authority", "plaintext at TLS", "TLS at plaintext")),
]
# Each command once, each exit code, and each way to be refused: by a password, a certificate, or at the wrong door.
# What is said of the other doors is what clients say (tests/interop/security/test_refusals.py).
FEW = [
    ("wrong password of a store", "topics list"),
    ("no credentials", "produce --topic t"),
    ("wrong password", "consume --topic t"),
    ("wrong password", "consume --topic t --group g"),
    ("no credentials", "groups list"),
    ("untrusted authority", "doctor"),
]


@pytest.mark.parametrize(("door", "command"), REFUSALS if SOAK else FEW)
def test_a_refusal_is_one_line(
    secure_kafka: SecureKafka, command_config, tmp_path: Path, silent_port: str, door: str, command: str
) -> None:
    settings, said, code = refused(door, secure_kafka, silent_port, tmp_path)
    address, settings = split(settings)
    file = command_config(settings)
    done = kafkalite(*command.split(), "--bootstrap-server", address, "--command-config", file)
    assert done.code == code, done.err
    assert len(done.err.splitlines()) == 1, done.err
    line = done.err.strip()
    assert line.startswith("kafkalite: ")
    assert said in line
    assert "is a broker running there" not in line
    assert done.out == ""
    if SOAK:
        assert done.seconds < WAITED_S + START_S
