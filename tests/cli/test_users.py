"""``kafkalite users`` as a process: the first administrator in the registry, then everything through a broker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.free_ports import free_ports
from tests.patience import wait_until
from tests.pool.forking import run_command

PASSWORD = b"admin secret\n"


def users(*arguments: str, password: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_command("users", *arguments, input=password)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "secret" not in done.stdout + done.stderr
    return done


def sasl(tmp_path: Path, **more: object) -> BrokerProcess:
    overrides = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{free_ports(1)[0]}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
        **more,
    }
    return BrokerProcess(tmp_path / "data", overrides=overrides)


def asking(tmp_path: Path, broker: BrokerProcess, user: str, password: str) -> list[str]:
    """Return the options with which a command asks a broker as a user."""
    config = tmp_path / f"{user}.properties"
    config.touch(0o600)
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username={user}\nsasl.password={password}\n"
    )
    return ["--bootstrap-server", broker.bootstrap, "--command-config", str(config)]


def test_the_first_administrator_adds_the_others(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    registry_dir = ("--registry-dir", str(tmp_path / "data" / "_registry"))
    made = users("add", "admin", *registry_dir, password=PASSWORD)
    assert "user 'admin' can authenticate by SCRAM-SHA-512" in made.stderr
    assert "there was no registry; a new one is made" in made.stderr
    with sasl(tmp_path) as broker:
        in_use = users("list", *registry_dir, code=1)
        assert "is in use by another process" in in_use.stderr and "stop that broker" in in_use.stderr
        admin = asking(tmp_path, broker, "admin", "admin secret")
        file = tmp_path / "password"
        file.write_text("bob secret\n")
        added = ("--mechanism", "SCRAM-SHA-256", "--iterations", "8192", "--password-file", str(file))
        users("add", "bob", *added, *admin)
        assert users("list", *admin).stdout.splitlines() == [
            "USER   MECHANISM      ITERATIONS",
            "admin  SCRAM-SHA-512  4096",
            "bob    SCRAM-SHA-256  8192",
        ]
        assert json.loads(users("list", "--json", *admin).stdout) == {
            "admin": {"SCRAM-SHA-512": 4096},
            "bob": {"SCRAM-SHA-256": 8192},
        }
        anonymous = users("list", "--bootstrap-server", broker.bootstrap, code=1)
        assert "a listener that authenticates by SASL does so" in anonymous.stderr
        needed = "a client of it needs security.protocol=SASL_PLAINTEXT, sasl.mechanism and credentials"
        assert needed in broker.stderr_path.read_text()
        wrong = users("list", *asking(tmp_path, broker, "bob", "x"), code=1)
        assert "check sasl.username and sasl.password" in wrong.stderr
        gone = users("delete", "bob", *admin)
        assert "its connections end within a second" in gone.stderr
        assert "kafkalite acls delete --allow-principal User:bob --deny-principal User:bob" in gone.stderr
        assert "there is no user 'bob' with a SCRAM credential" in users("delete", "bob", *admin, code=1).stderr
        nameless = users("add", "", *added, *admin, code=1)
        assert "user '': Username must not be empty" in nameless.stderr
        quota = ("--user", "carol", "--client", "c", "--add-config", "producer_byte_rate=1000")
        assert run_command("configs", "alter", *quota, *admin).returncode == 0
        missing = users("delete", "admin", "--mechanism", "SCRAM-SHA-256", *admin, code=1)
        assert "Attempt to delete a user credential that does not exist" in missing.stderr
    assert users("list", *registry_dir).stdout.splitlines()[1:] == ["admin  SCRAM-SHA-512  4096"]
    told = "the registry has users, but no listener asks for them, so every client may do everything"
    assert told not in broker.stderr_path.read_text()
    with BrokerProcess(tmp_path / "data") as without_sasl:
        assert told in without_sasl.stderr_path.read_text()
    users("delete", "admin", *registry_dir)
    assert "there is no user 'admin'" in users("delete", "admin", *registry_dir, code=1).stderr


def test_a_command_asks_the_brokers_of_its_file_unless_others_are_given(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        config = tmp_path / "client.properties"
        config.write_text(f"bootstrap.servers={broker.bootstrap}\n")
        assert users("list", "--command-config", str(config)).stdout.split() == ["USER", "MECHANISM", "ITERATIONS"]
        assert users("list", "--command-property", f"bootstrap.servers={broker.bootstrap}").stdout
        elsewhere = f"127.0.0.1:{free_ports(1)[0]}"
        given = users("list", "--command-config", str(config), "--bootstrap-server", elsewhere, code=1)
        assert f"tried {elsewhere}" in given.stderr


def test_users_of_a_shared_registry_that_runs(tmp_path: Path) -> None:
    digest = tmp_path / "digest"
    digest.write_text("cluster:secret\n")
    with RegistryProcess(tmp_path / "registry") as registry:
        place = ("--registry", registry.connect, "--digest-file", str(digest))
        users("add", "admin", *place, password=PASSWORD)
        settings = {"broker.id": 1, "zookeeper.connect": registry.connect, "zookeeper.digest": "cluster:secret"}
        with sasl(tmp_path, **settings) as broker:
            admin = asking(tmp_path, broker, "admin", "admin secret")
            assert "admin" in users("list", *admin).stdout
            users("add", "admin", *place, password=b"other secret\n")
            changed = asking(tmp_path, broker, "admin", "other secret")
            wait_until(lambda: run_command("users", "list", *changed).returncode == 0, "the running broker to follow")
        assert "admin" in users("list", *place).stdout
        refused = users("list", "--registry", registry.connect, code=1)
        assert "without --digest-file" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "password", "said"),
    [
        (("add", "a", "--registry", "x:1", "--registry-dir", "y"), b"p\n", "exclude each other"),
        (("add", "a", "--digest-file", "x"), b"p\n", "--digest-file is for --registry"),
        (("add", "a"), b"", "no password: type it when asked"),
        (("add", "a", "--iterations", "1"), b"p\n", "must be 4096 to 16384"),
        (("add", "a", "--password-file", "no-such-file"), b"", "--password-file no-such-file: No such file"),
        (("add", "a", "--registry-dir", "no-such/_registry"), b"p\n", "there is no such directory"),
        (("add", "a", "--registry", "x"), b"p\n", "not of the form HOST:PORT"),
    ],
)
def test_wrong_arguments_say_what_to_do(arguments: tuple[str, ...], password: bytes, said: str) -> None:
    assert said in " ".join(users(*arguments, password=password, code=2).stderr.split())


def test_a_broker_s_name_is_no_user_s(tmp_path: Path) -> None:
    refused = users("add", "broker-1", "--registry-dir", str(tmp_path / "_registry"), password=PASSWORD, code=2)
    assert "those of the brokers; choose another name" in refused.stderr
