"""``kafkalite acls`` as a process against a real broker."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.client.admin.cluster import ClusterAdmin
from spark_kafkalite.exporter.scrape import ExporterSettings, Scraper
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.settings import read_properties
from tests.interop.security.test_authorization import SECURED
from tests.patience import PATIENCE_S
from tests.pool.forking import run_command

Run = Callable[..., subprocess.CompletedProcess[str]]
HEADINGS = ["PERMISSION", "PRINCIPAL", "OPERATION", "RESOURCE", "PATTERN", "NAME", "HOST"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("acl-commands") / "data", overrides=SECURED) as running:
        yield running


@pytest.fixture
def run(broker: BrokerProcess, tmp_path: Path) -> Run:
    def command(*arguments: str, user: str = "admin", code: int = 0) -> subprocess.CompletedProcess[str]:
        settings = tmp_path / f"{user}.properties"
        settings.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{user}" password="{user}-secret";\n'
        )
        settings.chmod(0o600)
        where = ("--bootstrap-server", broker.bootstrap, "--command-config", str(settings))
        done = run_command("acls", *arguments, *where)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return command


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    headings, *lines = [line.split() for line in done.stdout.splitlines()]
    assert headings == HEADINGS
    return lines


def test_acls_from_their_addition_to_their_deletion(run: Run) -> None:
    added = run(
        "add", "--allow-principal", "User:alice", "--operation", "Read", "--operation", "describe_configs",
        "--topic", "orders", "--allow-host", "10.0.0.1",
    )  # fmt: skip
    expected = [
        ["Allow", "User:alice", "Read", "Topic", "Literal", "orders", "10.0.0.1"],
        ["Allow", "User:alice", "DescribeConfigs", "Topic", "Literal", "orders", "10.0.0.1"],
    ]
    assert rows(added) == expected
    assert added.stderr == "kafkalite: in force: 2 ACLs\n"
    run(
        "add",
        "--deny-principal",
        "User:*",
        "--operation",
        "All",
        "--topic",
        "ord",
        "--resource-pattern-type",
        "prefixed",
    )
    denied = ["Deny", "User:*", "All", "Topic", "Prefixed", "ord", "*"]
    assert rows(run("list", "--topic", "orders")) == expected
    assert rows(run("list", "--topic", "orders", "--resource-pattern-type", "match")) == [*expected, denied]
    assert rows(run("list", "--principal", "User:*")) == [denied]
    (first, *_) = json.loads(run("list", "--json").stdout)
    assert list(first) == [heading.lower() for heading in HEADINGS]
    gone = run("delete", "--force", "--topic", "orders", "--operation", "Read")
    assert rows(gone) == expected[:1]
    # Kafka's spelling.
    run("--remove", "--force", "--topic", "orders", "--resource-pattern-type", "match")
    assert rows(run("--list")) == []
    assert "there is no such ACL" in run("delete", "--force", "--topic", "orders").stderr


def test_the_rights_of_roles(run: Run) -> None:
    run("add", "--allow-principal", "User:bob", "--producer", "--topic", "raw", "--transactional-id", "load")
    run("add", "--allow-principal", "User:bob", "--consumer", "--topic", "raw", "--group", "etl")
    found = {(row[2], row[3]) for row in rows(run("list", "--principal", "User:bob"))}
    assert found == {
        ("Write", "Topic"), ("Describe", "Topic"), ("Create", "Topic"), ("Read", "Topic"), ("Read", "Group"),
        ("Write", "TransactionalId"), ("Describe", "TransactionalId"),
    }  # fmt: skip
    run("delete", "--force", "--allow-principal", "User:bob")
    assert rows(run("list")) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "--topic", "t"), "--allow-principal or --deny-principal"),
        (("add", "--allow-principal", "User:a"), "--topic, --group, --cluster or --transactional-id"),
        (("add", "--allow-principal", "a", "--topic", "t"), "not of the form TYPE:NAME"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--operation", "Fly"), "'Fly' is none of All, Read"),
        (("add", "--allow-principal", "User:a", "--group", "g", "--operation", "Write"), "no operation on GROUP"),
        (("add", "--allow-host", "::1", "--topic", "t"), "--allow-host is given without --allow-principal"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--resource-pattern-type", "any"), "list and delete"),
        (("add", "--allow-principal", "User:a", "--producer", "--group", "g"), "--producer is for topics"),
        (
            ("add", "--deny-principal", "User:a", "--deny-host", "10.0.0.0/8", "--topic", "t"),
            "the host '10.0.0.0/8' is neither an IP address nor '*'",
        ),
        (
            ("add", "--allow-principal", "User:a", "--allow-host", "0:0:0:0:0:0:0:1", "--topic", "t"),
            "write the host '0:0:0:0:0:0:0:1' as '::1'",
        ),
        (
            ("add", "--deny-principal", "User:a", "--deny-host", "::ffff:10.0.0.1", "--topic", "t"),
            "write the host '::ffff:10.0.0.1' as '10.0.0.1'",
        ),
        (("add", "--deny-principal", "User:a", "--topic", "ev*"), "no topic can have the name or prefix 'ev*'"),
        (
            ("add", "--deny-principal", "User:a", "--topic", "*", "--resource-pattern-type", "prefixed"),
            "no topic can have the name or prefix '*'",
        ),
        (("delete", "--force"), "name what to delete"),
    ],
)
def test_what_cannot_be_done_is_said_before_a_broker_is_asked(run: Run, arguments: tuple[str, ...], said: str) -> None:
    assert said in run(*arguments, code=2).stderr


def test_a_broker_without_an_authorizer_says_what_to_set(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        for action in (("add", "--allow-principal", "User:a", "--topic", "t"), ("list",)):
            done = run_command("acls", *action, "--bootstrap-server", broker.bootstrap)
            assert done.returncode == 1
            assert "obeys no ACLs; set authorizer.class.name and super.users" in done.stderr


def test_a_user_without_the_right_learns_which_it_needs(run: Run) -> None:
    assert "needs DESCRIBE on the cluster" in run("list", user="alice", code=1).stderr
    arguments = ("add", "--allow-principal", "User:alice", "--topic", "t")
    assert "needs ALTER on the cluster" in run(*arguments, user="alice", code=1).stderr


def test_a_client_that_may_not_describe_the_cluster_is_told_and_calls_nothing_healthy(
    broker: BrokerProcess, run: Run, tmp_path: Path
) -> None:
    run("list", user="alice", code=1)
    where = ("--bootstrap-server", broker.bootstrap, "--command-config", str(tmp_path / "alice.properties"))
    told = "this client may not DESCRIBE the cluster"
    for command, code in (
        (("cluster", "status"), 0),
        (("cluster", "status", "--exit-code"), 4),
        (("cluster", "wait", "--healthy", "--timeout", "1"), 4),
        (("top", "--once"), 0),
    ):
        done = run_command(*command, *where)
        assert done.returncode == code and told in done.stderr, done
    hidden = run_command("topics", "describe", "--topic", "t", *where)
    assert hidden.returncode == 1 and "needs DESCRIBE on the topic" in hidden.stderr
    pattern = run_command("topics", "describe", "--topic", "t|u", *where)
    assert pattern.returncode == 1 and "matches the pattern 't|u'" in pattern.stderr
    names = ("--topic", "*", "--group", "*", "--cluster")
    run("add", "--allow-principal", "User:alice", "--operation", "Describe", *names)
    try:
        for command in (("cluster", "status", "--exit-code"), ("top", "--once")):
            done = run_command(*command, *where)
            assert done.returncode == 0 and told not in done.stderr, done
    finally:
        run("delete", "--force", "--allow-principal", "User:alice")


def test_a_client_that_may_not_read_sees_lags_without_seconds_and_why(
    broker: BrokerProcess, run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run("list")
    run("list", user="alice", code=1)
    of_admin, of_alice = (tmp_path / f"{name}.properties" for name in ("admin", "alice"))
    with Admin({**read_properties(of_admin), "bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topic("lagging", 1)
        with Producer({**read_properties(of_admin), "bootstrap.servers": broker.bootstrap}) as producer:
            producer.send("lagging", b"one").result(PATIENCE_S)
        admin.alter_group_offsets("billing", {TopicPartition("lagging", 0): 0})
    run(
        "add", "--allow-principal", "User:alice", "--operation", "Describe", "--topic", "*", "--group", "*", "--cluster"
    )
    told = "this client may not READ topic 'lagging', so the lag of groups in seconds is not known there; allow it: "
    settings = ExporterSettings(re.compile("lagging"), None, re.compile("billing"), None, True, 1000, 30_000)
    try:
        where = ("--bootstrap-server", broker.bootstrap, "--command-config", str(of_alice))
        done = run_command("top", "--once", "--json", *where)
        assert done.returncode == 0 and told in done.stderr, done
        (group,) = json.loads(done.stdout)["groups"]
        assert (group["lag"], group["lag_seconds"]) == (1, None)
        with ClusterAdmin({**read_properties(of_alice), "bootstrap.servers": broker.bootstrap}) as admin:
            scraper = Scraper(admin.cluster, settings)
            pages = [gzip.decompress(scraper.page()).decode() for _ in range(2)]
        assert caplog.text.count(told) == 1
        for page in pages:
            assert 'kafka_consumergroup_lag{consumergroup="billing",topic="lagging",partition="0"} 1\n' in page
            assert "kafka_consumergroup_lag_seconds{" not in page
            assert "kafkalite_exporter_ages_left_out 1\n" in page
    finally:
        run("delete", "--force", "--allow-principal", "User:alice")
