"""A cluster becomes a secured one while it works, by the settings and commands that docs/security.md prints."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.cli.main import run
from spark_kafkalite.client.command_config import read_command_config
from spark_kafkalite.errors import KafkaliteError, RegistryError
from spark_kafkalite.processes.free_ports import free_ports
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.cluster.conftest import SESSION
from tests.interop.security.numbered_load import NumberedLoad
from tests.lab.certificates import LOOPBACK, Authority
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until

PAGE = PROJECT / "docs" / "security.md"
HEADING = "## From an open cluster to a secured one"
PASSWORDS = {"admin": "admin-pass", "shop": "shop-pass"}
DIGEST = "brokers:PASSWORD"


def printed(kind: str) -> list[list[str]]:
    """The lines of each block of this kind in the section."""
    section = PAGE.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    return [block.replace("\\\n", "").splitlines() for block in re.findall(rf"(?ms)^```{kind}\n(.*?)^```", section)]


class Steps:
    """Does the page's steps on a cluster, which has a load from :meth:`start` on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        authority = Authority(directory / "certificates", "ours")
        (directory / "ca.pem").write_bytes(authority.pem_file().read_bytes())
        (directory / "zk.secret").write_text(DIGEST)
        self.ports = dict(zip((1, 2, 3), zip(*[iter(free_ports(9))] * 3, strict=True), strict=True))
        for number in self.ports:
            self._private(
                f"broker-{number}.pem", authority.issue(f"broker-{number}", *LOOPBACK).pem_file().read_bytes()
            )
        for user, password in PASSWORDS.items():
            self._private(f"{user}.password", password.encode())
            secured = ",".join(f"127.0.0.1:{secured}" for _, secured, _ in self.ports.values())
            lines = (
                f"bootstrap.servers={secured}",
                "security.protocol=SASL_SSL",
                f"ssl.truststore.location={directory}/ca.pem",
                "sasl.mechanism=SCRAM-SHA-512",
                f"sasl.username={user}",
                f"sasl.password={password}",
            )
            self._private(f"{user}.properties", "\n".join(lines).encode())
        self.cluster = KafkaliteCluster(
            directory / "cluster",
            overrides={**SESSION, "group.initial.rebalance.delay.ms": 0},
            overrides_of={
                number: {"listeners": f"PLAINTEXT://127.0.0.1:{plain}"} for number, (plain, _, _) in self.ports.items()
            },
        )

    def _private(self, name: str, content: bytes) -> None:
        path = self.directory / name
        path.touch(0o600)
        path.write_bytes(content)

    def settings_of(self, user: str) -> dict[str, str]:
        return dict(read_command_config(str(self.directory / f"{user}.properties"), lambda _: None, {}))

    def restart_all(self, lines: list[str], without: tuple[str, ...] = ()) -> None:
        """Change the settings of one broker after the other, as operators do."""
        for number, ports in self.ports.items():
            self.cluster.stop(number)
            overrides = self.cluster.brokers[number].overrides
            for line in lines:
                name, _, value = line.partition("=")
                for printed_port, port in zip((9092, 9093, 9094), ports, strict=True):
                    value = value.replace(f"10.0.0.1:{printed_port}", f"127.0.0.1:{port}")
                value = value.replace("/etc/kafkalite/broker.pem", f"{self.directory}/broker-{number}.pem")
                overrides[name] = value.replace("/etc/kafkalite", str(self.directory))
            for name in without:
                del overrides[name]
            self.cluster.brokers[number].start()
            self.cluster.wait_in_sync()

    def run(self, lines: list[str], **replaced: str) -> None:
        for line in lines:
            command = line.removeprefix("$ kafkalite ")
            command = command.replace("zk1:2181", self.cluster.registry.connect)
            for name, value in replaced.items():
                command = command.replace(name, value)
            arguments = [
                str(self.directory / each) if re.fullmatch(r"\S+\.(secret|password|properties)", each) else each
                for each in shlex.split(command)
            ]
            # Brokers know a new user in a moment, and refuse the command before.
            wait_until(lambda arguments=arguments: run(arguments) == 0, line)

    def wait_until_known(self, user: str) -> None:
        """Wait until every broker lets a user in."""
        settings = str(self.directory / f"{user}.properties")
        for _, secured, _ in self.ports.values():
            at = ["--command-config", settings, "--bootstrap-server", f"127.0.0.1:{secured}"]
            wait_until(lambda at=at: run(["topics", "list", *at]) == 0, f"user {user} at {secured}")


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def test_a_cluster_under_load_is_secured_by_the_steps_of_the_page(steps: Steps) -> None:
    first, second, third = printed("properties")
    users, acls = printed("console")
    with steps.cluster as cluster, contextlib.ExitStack() as stack:
        in_the_clear = {"bootstrap.servers": cluster.bootstrap}
        before = started(stack, NumberedLoad(in_the_clear, "before", replicas=3, pause_s=0.05))
        steps.restart_all(first)
        steps.run(users)
        steps.wait_until_known("shop")
        steps.restart_all(second)
        # The clients move: each load has a producer, a group and an administrator.
        after = started(stack, NumberedLoad(steps.settings_of("shop"), "after", replicas=3, pause_s=0.05))
        before.finish()
        steps.run(acls, orders="after", billing="after")
        steps.restart_all(third, without=("allow.everyone.if.no.acl.found",))
        sent = after.sent
        after.wait_until(lambda: after.sent > sent)
        after.finish()
        check_what_is_closed(steps, in_the_clear)
        for broker in cluster.brokers.values():
            assert "Traceback" not in broker.stderr_path.read_text()


def started(stack: contextlib.ExitStack, load: NumberedLoad) -> NumberedLoad:
    """Start a load, which ends with the stack at the latest. Its clients fail the test if they fail."""
    stack.callback(load.finish)
    load.start()
    return load


def check_what_is_closed(steps: Steps, in_the_clear: dict[str, str]) -> None:
    """No client in the clear, nobody without a right, and no stranger at the registry."""
    with pytest.raises(KafkaliteError), Admin(in_the_clear) as admin:
        admin.list_topics(timeout_ms=1000)
    with Admin(steps.settings_of("shop")) as shop, Admin(steps.settings_of("admin")) as admin:
        assert shop.list_topics() == ["after"]
        assert {"before", "after"} <= set(admin.list_topics())
    stranger = open_zookeeper(steps.cluster.registry.connect)
    try:
        for path in ("/config/users/shop", "/kafka-acl/Topic/after"):
            with pytest.raises(RegistryError, match="NoAuth"):
                stranger.get(path).result(PATIENCE_S)
        with pytest.raises(RegistryError, match="NoAuth"):
            stranger.create("/config/users/mallory").result(PATIENCE_S)
    finally:
        stranger.close()
