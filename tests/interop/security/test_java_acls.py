"""Java's ``kafka-acls``, unmodified, against the broker."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from spark_kafkalite.processes.cluster import BrokerProcess
from tests.interop.security.asked_rights import ASKED, codes, login, plain
from tests.interop.security.test_authorization import SECURED
from tests.interop.support.java_tools import JavaTools
from tests.lab import apache_kafka

pytestmark = [pytest.mark.kafka]

TOOL = "org.apache.kafka.tools.AclCommand"
_LINE = re.compile(r"\(principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)\)")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    if (reason := apache_kafka.available()) is not None:
        pytest.skip(reason)
    with BrokerProcess(tmp_path_factory.mktemp("acls") / "data", overrides=SECURED) as running:
        yield running


class Tool(Protocol):
    """Runs ``kafka-acls`` as a user."""

    def __call__(self, *arguments: str, user: str = "admin", check: bool = True) -> str: ...


@pytest.fixture
def tool(broker: BrokerProcess, java_tools: JavaTools, tmp_path: Path) -> Tool:
    def run(*arguments: str, user: str = "admin", check: bool = True) -> str:
        settings = tmp_path / f"{user}.properties"
        settings.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{user}" password="{user}-secret";\n'
        )
        where = ("--bootstrap-server", broker.bootstrap, "--command-config", str(settings))
        done: subprocess.CompletedProcess[str] = java_tools.run(TOOL, *where, *arguments, check=check)
        return done.stdout + done.stderr

    return run


def listed(text: str) -> set[tuple[str, ...]]:
    return {match.groups() for match in _LINE.finditer(text)}


def test_acls_from_their_addition_to_their_removal(broker: BrokerProcess, tool: Tool) -> None:
    produce = next(asked for asked in ASKED if asked.label == "Produce")
    added = tool("--add", "--allow-principal", "User:alice", "--operation", "Write", "--topic", "by-tool")
    write = ("User:alice", "*", "WRITE", "ALLOW")
    assert listed(added) == {write}
    with login(broker.bootstrap, "alice") as alice:
        # Kafka's order: rights, and then whether there is such a topic.
        assert set(codes(plain(alice.call(produce.request("by-tool"), produce.version), ""))) == {3}
        tool(
            "--add", "--deny-principal", "User:alice", "--deny-host", "127.0.0.1", "--operation", "Write",
            "--topic", "by-", "--resource-pattern-type", "prefixed",
        )  # fmt: skip
        denied = ("User:alice", "127.0.0.1", "WRITE", "DENY")
        shown = tool("--list", "--topic", "by-tool", "--resource-pattern-type", "match")
        assert listed(shown) == {write, denied}
        assert "patternType=PREFIXED" in shown and "patternType=LITERAL" in shown
        assert set(codes(plain(alice.call(produce.request("by-tool"), produce.version), ""))) == {29}
    assert listed(tool("--list", "--principal", "User:bob")) == set()
    assert listed(tool("--list", "--principal", "User:alice")) == {write, denied}
    tool("--remove", "--force", "--topic", "by-", "--resource-pattern-type", "prefixed")
    tool("--remove", "--force", "--allow-principal", "User:alice", "--operation", "Write", "--topic", "by-tool")
    assert listed(tool("--list")) == set()


def test_roles_of_producers_and_consumers(tool: Tool) -> None:
    tool("--add", "--allow-principal", "User:bob", "--producer", "--topic", "raw")
    tool("--add", "--allow-principal", "User:bob", "--consumer", "--topic", "raw", "--group", "etl")
    found = listed(tool("--list", "--principal", "User:bob"))
    assert {operation for _, _, operation, _ in found} == {"WRITE", "DESCRIBE", "CREATE", "READ"}
    tool("--remove", "--force", "--topic", "raw")
    tool("--remove", "--force", "--group", "etl")
    assert listed(tool("--list")) == set()


def test_a_user_without_the_right_is_refused(tool: Tool) -> None:
    for arguments in (
        ("--list",),
        ("--add", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "t"),
    ):
        assert "Cluster authorization failed" in tool(*arguments, user="bob", check=False)


def test_what_cannot_be_an_acl_is_refused(broker: BrokerProcess, tool: Tool) -> None:
    refused = tool(
        "--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "a/b", check=False
    )  # fmt: skip
    assert "contains '/'" in refused or "InvalidRequestException" in refused
