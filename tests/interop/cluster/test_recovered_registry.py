"""docs/operations.md: a registry that is lost, or restored from a backup. Its commands are read from the page, and run;
on the registry of ``kafkalite registry`` and on ZooKeeper."""

from __future__ import annotations

import json
import shutil

import pytest

from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import REGISTRY_ZXID_FILE, write_registry_zxid
from tests.interop.cluster.lost_power import produce, whole_batches_bytes
from tests.interop.cluster.recovered_cluster import (
    BROKERS,
    Place,
    check_all_have,
    check_equal,
    commit,
    committed,
    follow,
    values_of,
)
from tests.interop.cluster.test_commands import kafkalite
from tests.patience import wait_until

pytestmark = pytest.mark.sampled("place")

EVENTS = TopicPartition("events", 0)


def test_the_registry_is_lost(place: Place) -> None:
    place.create("events", [2, 1, 3], [3, 2, 1], retention_ms="3600000000")
    produce(place.cluster, "events", 0, 300)
    produce(place.cluster, "events", 0, 50, 1)
    commit(place, "events", 300)
    # A follower that was away lacks what the others have; the leader has changed since, and has more.
    place.cluster.kill(2)
    produce(place.cluster, "events", 300, 600)
    for number in (1, 3):
        place.cluster.kill(number)
    place.lose_registry()
    said = place.refused(1)
    assert "/cluster/id" in said

    follow(place, "The registry is lost")
    check_all_have(place, "events", 600)
    check_all_have(place, "events", 50, 1)
    assert committed(place, "events") == 300
    produce(place.cluster, "events", 600, 700)
    assert values_of(place, "events", 700) == list(range(700))
    with Admin(bootstrap_servers=place.cluster.bootstrap) as admin:
        topic = admin.describe_topics(["events"])["events"]
    assert {tuple(sorted(each.replicas)) for each in topic.partitions} == {BROKERS}
    # What they have noted since counts again, not what they had noted of the lost one.
    place.stop_brokers()
    place.lose_registry()
    assert "/cluster/id" in place.refused(1)


def test_the_registry_is_restored_from_yesterday(place: Place) -> None:
    place.create("events", [2, 1, 3], retention_ms="3600000000")
    place.create("gone", [1, 2, 3])
    produce(place.cluster, "events", 0, 100)
    place.stop_all()
    yesterday = shutil.copytree(place.data, place.directory / "yesterday")
    place.start_registry()
    for number in BROKERS:
        place.cluster.restart(number)
    place.wait_in_sync()
    # Yesterday's leader has left the ISR, and lacks what was acknowledged since.
    place.cluster.kill(2)
    produce(place.cluster, "events", 100, 400)
    place.cluster.restart(2)
    place.wait_in_sync()
    place.create("since", [3, 1, 2])
    produce(place.cluster, "since", 0, 70)
    with Admin(bootstrap_servers=place.cluster.bootstrap) as admin:
        admin.delete_topics(["gone"])
    wait_until(
        lambda: not any(broker.data_dir.joinpath("gone-0").exists() for broker in place.cluster.brokers.values()),
        "the logs of the deleted topic to go",
    )
    place.cluster.kill(2)
    produce(place.cluster, "events", 400, 500)
    place.stop_brokers()
    place.put_back(yesterday)
    said = place.refused(2)
    assert "older than the logs" in said
    assert "kafkalite cluster recover-registry" in said

    # A broker that was not read may have the best log.
    for number in (1, 2):
        place.recover("--config", place.properties(number), "--to", place.file(number))
    two = ("--config", place.properties(1), "--from", f"{place.file(1)},{place.file(2)}")
    shown, warned = place.recover(*two)
    assert "events" in shown
    assert "broker 3 may have logs of events-0" in warned
    _, refused = place.recover(*two, "--execute", code=1)
    assert "nothing has been written" in refused
    assert "older than the logs" in place.refused(1)

    follow(place, "The registry is old")
    check_all_have(place, "events", 500)
    check_all_have(place, "since", 70)
    shown = kafkalite(
        "configs",
        "describe",
        "--entity-type",
        "topics",
        "--entity-name",
        "events",
        "--bootstrap-server",
        place.cluster.bootstrap,
    ).stdout
    assert "3600000000" in shown
    # The same copy is older than the logs again.
    place.stop_brokers()
    place.put_back(yesterday)
    assert "older than the logs" in place.refused(1)


def test_logs_that_have_parted(place: Place) -> None:
    """The longest log is that of a leader that was alone: what it has was never acknowledged by the others."""
    place.create("events", [2, 1, 3])
    produce(place.cluster, "events", 0, 100)
    for number in (1, 3):
        place.cluster.pause(number)
    alone = place.cluster.broker(2).data_dir / "events-0" / f"{0:020d}.log"

    def count_alone() -> int:
        return alone.read_bytes()[: whole_batches_bytes(alone)].count(b"-1")

    with Producer(bootstrap_servers=place.cluster.broker(2).bootstrap, acks=0, batch_size=1) as producer:
        # What followers had asked for before they stood still is answered with the first of these.
        producer.send("events", b"-1", partition=0)
        wait_until(count_alone, "a record at one broker")
        for _ in range(200):
            producer.send("events", b"-1", partition=0)
        wait_until(lambda: count_alone() == 201, "records at one broker")
    place.cluster.kill(2)
    for number in (1, 3):
        place.cluster.resume(number)
    produce(place.cluster, "events", 100, 150)
    for number in (1, 3):
        place.cluster.kill(number)
    place.lose_registry()
    follow(place, "The registry is lost")
    with Admin(bootstrap_servers=place.cluster.bootstrap) as admin:
        (end,) = set(admin.replica_ends([EVENTS])[EVENTS].values())
    assert end < 100 + 201, "the log of the leader that was alone has been chosen"
    assert [value for value in values_of(place, "events", end) if value >= 0] == list(range(150))
    check_equal(place, "events")


def test_a_broker_that_is_lost_too_is_given_up(place: Place) -> None:
    place.create("events", [2, 1, 3])
    produce(place.cluster, "events", 0, 200)
    place.stop_brokers()
    shutil.rmtree(place.cluster.broker(2).data_dir)
    place.lose_registry()
    for number in (1, 3):
        place.recover("--config", place.properties(number), "--to", place.file(number))
    source = ("--config", place.properties(1), "--from", f"{place.file(1)},{place.file(3)}")
    shown, _ = place.recover(*source, "--json", "--execute")
    (events,) = [each for each in json.loads(shown)["topics"] if each["topic"] == "events"]
    assert events["in_sync"] == {"0": 1}
    for number in (1, 3, 2):
        place.cluster.restart(number)
    place.wait_in_sync()
    assert values_of(place, "events", 200) == list(range(200))


def test_a_broker_that_was_given_up_comes_back(place: Place) -> None:
    place.create("events", [2, 1, 3])
    place.stop_all()
    yesterday = shutil.copytree(place.data, place.directory / "yesterday")
    place.start_registry()
    for number in BROKERS:
        place.cluster.restart(number)
    place.wait_in_sync()
    produce(place.cluster, "events", 0, 300)
    place.stop_brokers()
    # As after many more transactions than a recovery and two starts make.
    note = place.cluster.broker(3).data_dir / REGISTRY_ZXID_FILE
    write_registry_zxid(OsFs(), str(note), 2**48)
    place.put_back(yesterday)
    for number in (1, 2):
        place.recover("--config", place.properties(number), "--to", place.file(number))
    source = ("--config", place.properties(1), "--from", f"{place.file(1)},{place.file(2)}")
    _, said = place.recover(*source, "--without", "3", "--execute")
    assert "broker 3: before it starts again, remove registry-zxid-checkpoint" in said
    for number in (1, 2):
        place.cluster.restart(number)
    assert "older than the logs" in place.refused(3)
    note.unlink()
    place.cluster.restart(3)
    place.wait_in_sync()
    check_all_have(place, "events", 300)


def test_nothing_is_written_or_read_while_brokers_run(place: Place) -> None:
    place.create("events", [1, 2, 3])
    running = kafkalite("cluster", "recover-registry", "--config", place.properties(1), "--to", place.file(1), code=2)
    assert "in use by a broker" in running.stderr
    place.cluster.stop(1)
    place.recover("--config", place.properties(1), "--to", place.file(1))
    source = ("--config", place.properties(1), "--from", place.file(1), "--without", "2", "--without", "3")
    _, refused = place.recover(*source, "--execute", code=1)
    assert "brokers 2, 3 are registered: stop all brokers" in refused


def test_backup_and_restore(place: Place) -> None:
    place.create("events", [2, 1, 3])
    produce(place.cluster, "events", 0, 200)
    place.stop_brokers()
    place.lose_registry()
    follow(place, "Backup and restore of a cluster")
    check_all_have(place, "events", 200)
