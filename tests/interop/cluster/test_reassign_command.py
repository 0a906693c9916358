"""``kafkalite cluster reassign`` as a process, and Kafka's own tool for the same, on four real brokers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.support.java_tools import JavaTools
from tests.patience import wait_until
from tests.pool.forking import run_command

Replicas = list[tuple[int, ...]]
PLACED: Replicas = [(1, 2), (1, 2), (2, 1), (1, 3)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaliteCluster]:
    # A killed broker holds up a move for as long as its session lasts.
    overrides = {"zookeeper.session.timeout.ms": 40_000}
    with KafkaliteCluster(tmp_path_factory.mktemp("cluster"), size=4, overrides=overrides) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: KafkaliteCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("t", assignments={number: list(each) for number, each in enumerate(PLACED)})])
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(400):
                producer.send("t", b"x" * 1000, partition=number % 4)
        # A command may ask any broker.
        wait_for_replicas(cluster, lambda found: found == PLACED)
        yield admin
        admin.delete_topics(["t"])
        for broker in cluster.brokers.values():
            with Admin(bootstrap_servers=broker.bootstrap) as asked:
                wait_until(lambda asked=asked: "t" not in asked.list_topics(), f"{broker.bootstrap} to forget t")  # type: ignore[misc]


def run(cluster: KafkaliteCluster, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_command("cluster", *arguments, "--bootstrap-server", cluster.bootstrap)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def replicas(admin: Admin) -> Replicas:
    return [tuple(each.replicas) for each in admin.describe_topics(["t"])["t"].partitions]


def wait_for_replicas(cluster: KafkaliteCluster, are_there: Callable[[Replicas], bool]) -> None:
    """Wait until each live broker says that the replicas are as they are to be."""

    def are_told(admin: Admin) -> bool:
        with suppress(UnknownTopicOrPartition):
            return are_there(replicas(admin))
        return False

    for broker in cluster.brokers.values():
        with Admin(bootstrap_servers=broker.bootstrap) as asked:
            wait_until(lambda asked=asked: are_told(asked), f"{broker.bootstrap} to know the replicas")  # type: ignore[misc]


def is_spread(found: Replicas) -> bool:
    held = [sum(broker in each for each in found) for broker in (1, 2, 3, 4)]
    return max(held) - min(held) <= 1 and sorted(each[0] for each in found) == [1, 2, 3, 4]


def test_a_broker_is_drained_by_a_plan_in_a_file(cluster: KafkaliteCluster, admin: Admin, tmp_path: Path) -> None:
    planned = run(cluster, "reassign", "--plan", "--drain", "1")
    plan = json.loads(planned.stdout)
    assert plan["version"] == 1 and {each["partition"] for each in plan["partitions"]} == {0, 1, 2, 3}
    assert all(1 not in each["replicas"] for each in plan["partitions"])
    assert "kafkalite: broker 4: " in planned.stderr and " to copy, " in planned.stderr
    assert replicas(admin) == PLACED
    file = tmp_path / "plan.json"
    file.write_text(planned.stdout)
    pending = run(cluster, "reassign", "--verify", "--file", str(file), code=1)
    assert "There is no active reassignment of partition t-0, but its replicas are 1, 2, not " in pending.stdout
    assert run(cluster, "wait", "--drained", "1", "--timeout", "0", code=1).stderr.startswith(
        "kafkalite: broker 1 is not drained after 0 s: broker 1 has replicas of 4 of "
    )
    moved = run(cluster, "reassign", "--execute", "--file", str(file), "--wait")
    assert moved.stderr.endswith("kafkalite: all 4 partitions have moved\n")
    assert run(cluster, "reassign", "--verify", "--file", str(file)).stdout.count("is completed") == 4
    assert run(cluster, "wait", "--drained", "1").stdout.startswith("Broker 1 is drained: ")
    # What --execute prints is the way back.
    file.write_text(moved.stdout)
    run(cluster, "reassign", "--execute", "--file", str(file), "--wait")
    wait_for_replicas(cluster, lambda found: found == PLACED)


def test_replicas_are_spread_and_topics_get_more_of_them(
    cluster: KafkaliteCluster, admin: Admin, tmp_path: Path
) -> None:
    run(cluster, "reassign", "--execute", "--replication-factor", "3", "--topic", "t", "--wait")
    wait_for_replicas(cluster, lambda found: {len(each) for each in found} == {3})
    run(cluster, "reassign", "--execute", "--spread", "--wait")
    wait_for_replicas(cluster, is_spread)
    again = run(cluster, "reassign", "--plan", "--spread")
    assert (again.stdout, again.stderr.count("nothing is to be moved")) == ('{"version":1,"partitions":[]}\n', 1)
    file = tmp_path / "plan.json"
    file.write_text(again.stdout)
    for action in ("--execute", "--verify"):
        assert (
            "names no partition, so there is nothing to do"
            in run(cluster, "reassign", action, "--file", str(file)).stderr
        )
    unknown = run(cluster, "reassign", "--plan", "--drain", "40")
    assert unknown.stderr == (
        "kafkalite: no broker 40 is live, and no partition has a replica on it; live: 1, 2, 3, 4\n"
    )
    file.write_text(unknown.stdout)
    assert "nothing to do" in run(cluster, "reassign", "--execute", "--file", str(file)).stderr


def test_what_is_in_progress_is_cancelled(cluster: KafkaliteCluster, admin: Admin) -> None:
    assert run(cluster, "reassign", "--cancel").stdout == "No reassignment is in progress.\n"
    target = 3 if cluster.controller() == 4 else 4
    cluster.kill(target)
    try:
        wanted = {TopicPartition("t", 0): [target, 2]}
        assert admin.alter_partition_reassignments(wanted) == dict.fromkeys(wanted)
        done = run(cluster, "reassign", "--cancel")
        assert done.stdout == "The reassignment of t-0 is cancelled.\n"
    finally:
        cluster.restart(target)
    # Kafka's order, too: the targets that stay are the first ones.
    wait_for_replicas(cluster, lambda found: found[0] == (2, 1))


def test_a_plan_that_is_none(cluster: KafkaliteCluster, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("{}")
    said = run(cluster, "reassign", "--execute", "--file", str(file), code=2).stderr
    assert f'{file} is no plan of a reassignment: it must be {{"version": 1, "partitions": [...]}}' in said


def test_wrong_usage_and_what_does_not_exist(cluster: KafkaliteCluster, tmp_path: Path) -> None:
    for arguments in (["--plan"], ["--drain", "1"], ["--plan", "--drain", "1", "--spread"], ["--verify", "--spread"]):
        run(cluster, "reassign", *arguments, code=2)
    run(cluster, "reassign", "--plan", "--replication-factor", "2", code=2)
    missing = run(cluster, "reassign", "--plan", "--replication-factor", "2", "--topic", "none", code=1)
    assert "there is no topic none" in missing.stderr


@pytest.mark.kafka
def test_partitions_moved_by_kafkas_tool(
    cluster: KafkaliteCluster, admin: Admin, java_tools: JavaTools, tmp_path: Path
) -> None:
    file, topics = tmp_path / "plan.json", tmp_path / "topics.json"
    topics.write_text('{"version":1,"topics":[{"topic":"t"}]}')
    tool = ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", "--bootstrap-server", cluster.bootstrap)
    generated = java_tools.run(*tool, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "3,4")
    plan = generated.stdout.strip().splitlines()[-1]
    file.write_text(plan)
    named = ("--reassignment-json-file", str(file))
    executed = java_tools.run(*tool, "--execute", *named).stdout
    assert "Successfully started partition reassignments for t-0,t-1,t-2,t-3" in executed

    def verified() -> str:
        return str(java_tools.run(*tool, "--verify", *named).stdout)

    wait_until(lambda: verified().count("is completed.") == 4, "Kafka's tool to find all moved")
    wait_for_replicas(cluster, lambda found: {broker for each in found for broker in each} == {3, 4})
    assert "No partition reassignments found." in java_tools.run(*tool, "--list").stdout
    cancelled = java_tools.run(*tool, "--cancel", *named).stdout
    assert "None of the specified partition moves are active." in cancelled
