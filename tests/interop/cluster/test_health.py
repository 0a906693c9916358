"""``cluster status --exit-code`` and ``cluster wait`` as processes, and the version that each broker names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable

from spark_kafkalite import Admin
from spark_kafkalite.model import BrokerId, Incarnation
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.znodes import BrokerRegistration
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.version import VERSION
from tests.interop.cluster.heard import wait_until_told_of_isr
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import run_command

COMMAND = [sys.executable, "-m", "spark_kafkalite.cli"]


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = run_command(*arguments)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_every_broker_names_its_version(cluster: KafkaliteCluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap)
    heading, *rows = ended("cluster", "status", *at).stdout.splitlines()[1:5]
    at_column = heading.split().index("VERSION")
    assert [row.split()[at_column] for row in rows] == [VERSION] * 3
    found = json.loads(ended("cluster", "status", "--json", *at).stdout)
    assert [broker["version"] for broker in found["brokers"]] == [VERSION] * 3
    # And how full its disk is.
    assert [0 <= each["usedPercent"] <= 100 for broker in found["brokers"] for each in broker["logDirs"]] == [True] * 3
    assert all(re.fullmatch(r"\d+%", row.split()[heading.split().index("DISK")]) for row in rows)
    assert ended("--version").stdout == f"kafkalite {VERSION}\n"


def test_the_first_log_line_names_the_version(cluster: KafkaliteCluster) -> None:
    first = cluster.broker(1).stderr_path.read_text().splitlines()[0]
    assert re.search(rf" INFO .*kafkalite {re.escape(VERSION)}: broker 1 starts \(pid \d+\), log.dirs=/", first), first


def test_exit_codes_while_a_broker_is_away(cluster: KafkaliteCluster, new_topic: Callable[..., str]) -> None:
    topic, single = new_topic(), f"single-{uuid.uuid4().hex}"
    at = ("--bootstrap-server", cluster.bootstrap)
    wait_until(lambda: ended("cluster", "status", "--exit-code", *at).returncode == 0, "a whole cluster")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(single, 1, replication_factor=1)
    alone = cluster.leader_of(single)
    assert alone is not None
    try:
        away = next(number for number in cluster.brokers if number != alone)
        cluster.kill(away)
        wait_until(lambda: away not in cluster.in_sync(topic), "the dead broker to leave the ISR")
        wait_until(lambda: ended("cluster", "status", "--exit-code", *at).returncode == 1, "all to have leaders")
        # Without the option nothing that is found fails the command.
        assert ended("cluster", "status", *at).returncode == 0

        def is_only_under_replicated() -> bool:
            done = ended("cluster", "wait", "--healthy", "--timeout", "0", *at)
            told = r"kafkalite: the cluster is not healthy after 0 s: \d+ of \d+ partitions under-replicated\n"
            assert re.fullmatch(told, done.stderr), done.stderr
            return done.returncode == 1

        # It may ask a broker that hears of the elections later than the one asked before.
        wait_until(is_only_under_replicated, "all to have leaders at each broker")
        for number in set(cluster.brokers) - {away}:
            wait_until_told_of_isr(cluster.broker(number).bootstrap, topic, set(cluster.brokers) - {away})
        done = ended("cluster", "wait", "--in-sync", "--timeout", "0", *at)
        assert done.returncode == 1 and f" on broker {away}\n" in done.stderr
        cluster.restart(away)
        cluster.wait_in_sync(topic)
        done = ended("cluster", "wait", "--in-sync", *at)
        assert done.returncode == 0 and done.stdout.startswith("The cluster is in sync: all replicas of ")
        cluster.kill(alone)
        wait_until(lambda: cluster.leader_of(single) is None, "the only replica to be missed")

        def is_alone_leaderless() -> bool:
            shown = ended("cluster", "status", "--exit-code", "--json", *at)
            assert shown.returncode == 3
            return [each["topic"] for each in json.loads(shown.stdout)["leaderless"]] == [single]

        # The broker that is asked hears of the other elections one after the other.
        wait_until(is_alone_leaderless, "all others to have leaders")
    finally:
        for number in cluster.brokers:
            if not cluster.broker(number).running:
                cluster.restart(number)
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.delete_topics([single])


def test_wait_ends_when_the_cluster_is_healthy(cluster: KafkaliteCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    cluster.kill(1)
    # Either may be asked first.
    for number in (2, 3):
        wait_until_told_of_isr(cluster.broker(number).bootstrap, topic, {2, 3})
    command = [*COMMAND, "cluster", "wait", "--healthy", "--timeout", "3600", "--bootstrap-server", cluster.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        try:
            assert waiting.stderr is not None
            assert waiting.stderr.readline().startswith("kafkalite: waiting: ")
            cluster.restart(1)
            told, _ = waiting.communicate(timeout=PATIENCE_S)
        finally:
            waiting.kill()
    assert waiting.returncode == 0
    assert re.fullmatch(r"The cluster is healthy: all \d+ partitions are led and in sync; 3 brokers are live\n", told)
    at = ("--timeout", "0", "--bootstrap-server", cluster.bootstrap)
    done = ended("cluster", "wait", "--healthy", "--brokers", "4", *at)
    assert done.returncode == 1
    assert done.stderr == "kafkalite: the cluster is not healthy after 0 s: 3 of 4 brokers are live\n"
    assert ended("cluster", "wait", "--in-sync", "--brokers", "3", *at).returncode == 2


def test_a_cluster_that_does_not_answer_and_wrong_usage() -> None:
    at = ("--bootstrap-server", "127.0.0.1:1")
    done = ended("cluster", "status", "--exit-code", *at)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert ended("cluster", "status", *at).returncode == 1
    done = ended("cluster", "wait", "--healthy", "--timeout", "0", *at)
    assert done.returncode == 4 and done.stderr.startswith("kafkalite: the cluster is not healthy after 0 s: ")
    assert ended("cluster", "wait", "--in-sync", "--timeout", "0", *at).returncode == 1
    assert ended("cluster", "wait", *at).returncode == 2
    assert ended("cluster", "wait", "--healthy", "--in-sync", *at).returncode == 2
    assert ended("cluster", "status", "--exit-code", "--bootstrap-server", "no port").returncode == 2


def test_a_broker_of_an_older_version_is_shown_without_one(cluster: KafkaliteCluster) -> None:
    path = znodes.broker_path(9)
    older = BrokerRegistration(BrokerId(9), "127.0.0.1", 1, incarnation=Incarnation(9)).encode()
    store = open_zookeeper(cluster.registry.connect)
    living = dict.fromkeys(cluster.brokers, VERSION)

    def shown_by(address: str) -> dict[int, str | None]:
        status = ended("cluster", "status", "--json", "--bootstrap-server", address)
        return {broker["id"]: broker["version"] for broker in json.loads(status.stdout)["brokers"]}

    try:
        store.create(path, older, ephemeral=True).result(PATIENCE_S)
        wait_until(lambda: shown_by(cluster.bootstrap) == {**living, 9: None}, "broker 9 to be shown")
    finally:
        store.delete(path).result(PATIENCE_S)
        store.close()
        # Or a later test has its topics placed there.
        for broker in cluster.brokers.values():
            wait_until(lambda broker=broker: shown_by(broker.bootstrap) == living, "broker 9 to be gone")  # type: ignore[misc]
