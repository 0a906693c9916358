"""A cluster whose registry is lost or put back, and what a recovery of it is judged by. The commands are those of
docs/operations.md."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.lost_power import whole_batches_bytes
from tests.interop.cluster.operations_page import START, STATUS, commands_of
from tests.interop.cluster.test_commands import kafkalite
from tests.interop.support.collect import collected
from tests.patience import wait_until

BROKERS = (1, 2, 3)


@dataclass
class Place:
    """A cluster, and how its registry is stopped and started; ``data`` is the registry's directory."""

    cluster: KafkaliteCluster
    directory: Path
    data: Path
    start_registry: Callable[[], object]
    stop_registry: Callable[[], object]

    def stop_all(self) -> None:
        self.stop_brokers()
        self.stop_registry()

    def stop_brokers(self) -> None:
        for broker in self.cluster.brokers.values():
            if broker.running:
                broker.stop()

    def lose_registry(self) -> None:
        self.stop_registry()
        shutil.rmtree(self.data)
        self.start_registry()

    def put_back(self, copy: Path) -> None:
        self.stop_registry()
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)
        self.start_registry()

    def create(self, topic: str, *replicas: list[int], **settings: str) -> None:
        configs = {name.replace("_", "."): value for name, value in settings.items()}
        with Admin(bootstrap_servers=self.cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, assignments=dict(enumerate(replicas)), configs=configs)])
        self.wait_in_sync()

    def wait_in_sync(self) -> None:
        wait_until_all_in_sync(self.cluster.bootstrap)

    def refused(self, number: int) -> str:
        """Start a broker that does not start; return what it says."""
        with pytest.raises(ChildFailed) as failure:
            self.cluster.broker(number).start()
        return str(failure.value)

    def recover(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        done = kafkalite("cluster", "recover-registry", *arguments, code=code)
        return done.stdout, done.stderr

    def properties(self, number: int) -> str:
        path = self.directory / f"broker-{number}.properties"
        settings = self.cluster.broker(number).settings
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return str(path)

    def word(self, text: str) -> str:
        """Return a word of a command of the page with the names that things have here."""
        if text == "broker.properties":
            return self.properties(1)
        text = re.sub(r"host-(\d)\.json", lambda it: self.file(int(it[1])), text)
        return re.sub(r"host-(\d):9092", lambda it: self.cluster.broker(int(it[1])).bootstrap, text)

    def file(self, number: int) -> str:
        return str(self.directory / f"host-{number}.json")


def wait_until_all_in_sync(bootstrap: str) -> None:
    """Wait until a broker reports that all replicas are in sync, and then until ``cluster status`` does. Each call of
    the command costs more than the cluster does meanwhile."""

    def lacking() -> list[str]:
        return [
            f"{topic}-{each.partition}"
            for topic, info in admin.describe_topics().items()
            for each in info.partitions
            if each.leader is None or set(each.isr) != set(each.replicas)
        ]

    with Admin(bootstrap_servers=bootstrap) as admin:
        wait_until(lambda: not lacking(), lambda: f"all to be in sync, but {lacking()}", poll_s=0.1)
    at = ("--bootstrap-server", bootstrap)
    wait_until(lambda: "under-replicated: 0" in kafkalite("cluster", "status", *at).stdout, "all to be in sync")


def follow(place: Place, heading: str) -> None:
    """Do what the page says on all hosts."""
    commands = commands_of(heading)
    assert START in commands and STATUS in commands
    for command in commands:
        if command == START:
            for number in BROKERS:
                place.cluster.restart(number)
        elif command == STATUS:
            place.wait_in_sync()
        elif "--to " in command:
            assert command.endswith("--config broker.properties --to host-1.json")
            for number in BROKERS:
                place.recover("--config", place.properties(number), "--to", place.file(number))
        elif command.startswith("kafkalite cluster recover-registry"):
            place.recover(*[place.word(word) for word in command.split()[3:]])
        elif command.startswith("kafkalite "):
            kafkalite(*command.split()[1:], "--bootstrap-server", place.cluster.bootstrap)
        else:
            name, option, *paths = command.split()
            for number in BROKERS:
                data = place.cluster.broker(number).data_dir
                here = [
                    Path(
                        each.replace("/var/lib/kafkalite", str(data)).replace(
                            "/backup", f"{place.directory}/backup-{number}"
                        )
                    )
                    for each in paths
                ]
                if (name, option) == ("cp", "-a"):
                    shutil.copytree(*here)
                else:
                    assert (name, option) == ("rm", "-r")
                    shutil.rmtree(here[0])


def values_of(place: Place, topic: str, count: int, partition: int = 0) -> list[int]:
    with Consumer(bootstrap_servers=place.cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        return [int(record.value or b"") for record in collected(lambda: consumer.poll(timeout_ms=200), count)]


def check_all_have(place: Place, topic: str, count: int, partition: int = 0) -> None:
    """What was acknowledged is there, in order, and every replica has the same."""
    assert values_of(place, topic, count, partition) == list(range(count))
    check_equal(place, topic, partition)


def check_equal(place: Place, topic: str, partition: int = 0) -> None:
    """Every replica comes to have the same bytes."""

    def contents() -> set[bytes]:
        logs = [broker.data_dir / f"{topic}-{partition}" / f"{0:020d}.log" for broker in place.cluster.brokers.values()]
        return {path.read_bytes()[: whole_batches_bytes(path)] for path in logs}

    wait_until(lambda: len(contents()) == 1, f"equal replicas of {topic}-{partition}")


def commit(place: Place, topic: str, count: int) -> None:
    with Consumer(bootstrap_servers=place.cluster.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        collected(lambda: consumer.poll(timeout_ms=200, max_records=count), count)
        consumer.commit()


def committed(place: Place, topic: str) -> int | None:
    with Consumer(bootstrap_servers=place.cluster.bootstrap, group_id="g") as consumer:
        found = consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        return None if found is None else int(getattr(found, "offset", found))
