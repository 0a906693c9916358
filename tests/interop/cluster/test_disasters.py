"""The procedures of docs/operations.md for disasters: their commands are read from the page, and run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, TopicPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.conftest import SESSION
from tests.interop.cluster.lost_power import create, log_file, lose_all_power, produce, whole_batches_bytes
from tests.interop.cluster.operations_page import START, STATUS, commands_of
from tests.interop.cluster.test_commands import at_terminal, kafkalite
from tests.patience import wait_until

EVENTS = TopicPartition("events", 0)
RECORDS = 1500


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaliteCluster]:
    with KafkaliteCluster(tmp_path / "cluster", overrides=SESSION) as cluster:
        create(cluster, "events", [2, 1, 3])
        produce(cluster, "events", 0, 500)
        yield cluster


def follow(cluster: KafkaliteCluster, heading: str, *broken: int) -> None:
    """Do what the page says on the hosts of these brokers."""
    at = ("--bootstrap-server", cluster.bootstrap)
    commands = commands_of(heading)
    assert START in commands and STATUS in commands
    for place, command in enumerate(commands):
        if command == START:
            for number in broken:
                cluster.restart(number)
        elif command == STATUS:

            def is_as_the_page_says(place: int = place) -> bool:
                said = kafkalite("cluster", "status", *at).stdout
                # Before an unclean election a partition says how to have one.
                is_asked_for = commands[place + 1] in said and "--preferred" not in commands[place + 1]
                return is_asked_for or "under-replicated: 0" in said

            wait_until(is_as_the_page_says, f"the status before {commands[place + 1]}")
            if "--unclean" not in commands[place + 1]:
                # The broker that was asked may not have heard yet of what has gone.
                cluster.wait_in_sync("events")
        elif command.startswith("kafkalite cluster elect --unclean"):
            assert at_terminal(b"y\n", *command.split()[1:], *at) == 0
        elif command.startswith("kafkalite "):
            kafkalite(*command.split()[1:], *at)
        else:
            (number,) = broken
            name, *paths = command.replace("/var/lib/kafkalite", str(cluster.broker(number).data_dir)).split()
            {"mv": shutil.move, "mkdir": lambda path: Path(path).mkdir()}[name](*paths)


def check_all_have(cluster: KafkaliteCluster, records: int) -> None:
    """Every log has all records, byte by byte the same, and the first replica leads."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        wait_until(
            lambda: admin.replica_ends([EVENTS])[EVENTS] == dict.fromkeys((1, 2, 3), records), "all logs to be whole"
        )
    cluster.wait_for_leader("events")
    assert cluster.leader_of("events") == 2
    contents = set()
    for number in cluster.brokers:
        path = log_file(cluster, number, "events")
        contents.add(path.read_bytes()[: whole_batches_bytes(path)])
    assert len(contents) == 1


def test_power_loss_of_all_hosts(cluster: KafkaliteCluster) -> None:
    # The first replica has lost most.
    path = log_file(cluster, 2, "events")
    kept = whole_batches_bytes(path)
    produce(cluster, "events", 500, RECORDS)
    lose_all_power(cluster, {path: kept})
    follow(cluster, "Power loss of all hosts", 1, 2, 3)
    check_all_have(cluster, RECORDS)


def test_power_loss_that_has_taken_a_disk(cluster: KafkaliteCluster) -> None:
    produce(cluster, "events", 500, RECORDS)
    lose_all_power(cluster, {})
    shutil.rmtree(cluster.broker(2).data_dir)
    cluster.broker(2).data_dir.mkdir()
    follow(cluster, "Power loss that has taken a disk", 1, 2, 3)
    check_all_have(cluster, RECORDS)


def test_one_disk_is_damaged(cluster: KafkaliteCluster) -> None:
    produce(cluster, "events", 500, RECORDS)
    cluster.stop(2)
    path = log_file(cluster, 2, "events")
    with path.open("r+b") as file:
        file.seek(whole_batches_bytes(path) // 2)
        file.write(b"damaged")
    follow(cluster, "One disk is damaged", 2)
    check_all_have(cluster, RECORDS)
    assert cluster.broker(2).data_dir.with_name("broker-2-events-0.damaged").is_dir()


def test_one_disk_is_gone(cluster: KafkaliteCluster) -> None:
    produce(cluster, "events", 500, RECORDS)
    cluster.kill(2)
    shutil.rmtree(cluster.broker(2).data_dir)
    follow(cluster, "One disk is gone", 2)
    check_all_have(cluster, RECORDS)


def test_replicas_are_compared(cluster: KafkaliteCluster) -> None:
    create(cluster, "clicks", [1, 2, 3])
    at = ("--bootstrap-server", cluster.bootstrap)
    commands = commands_of("Do the replicas still have the same?")
    assert len(commands) == 3
    for command in commands:
        said = kafkalite(*command.split()[1:], *at).stdout.splitlines()
        assert said and all(" the same as its leader's: " in line for line in said)
