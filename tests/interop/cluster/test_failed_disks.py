"""One of two log directories fails or is full under a broker of three: others lead what lay there, nothing is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.conftest import SESSION
from tests.interop.cluster.failing_disk import broken_by, filled_by, hung_by, stalled_by
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until

PARTITIONS = 4


def directories_of(cluster: KafkaliteCluster, number: int) -> list[Path]:
    return [cluster.data_dir / f"broker-{number}" / name for name in ("one", "two")]


def directory_of(cluster: KafkaliteCluster, number: int, topic: str, partition: int) -> Path:
    """Return the log directory in which a broker has a partition."""
    (found,) = [
        directory for directory in directories_of(cluster, number) if (directory / f"{topic}-{partition}").exists()
    ]
    return found


def log_bytes(cluster: KafkaliteCluster, number: int, topic: str, partition: int) -> bytes:
    log = directory_of(cluster, number, topic, partition) / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(log.glob("*.log")))


@pytest.fixture(scope="module")
def two_disks_each(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaliteCluster]:
    data_dir = tmp_path_factory.mktemp("disks")
    overrides_of = {
        number: {"log.dirs": f"{data_dir}/broker-{number}/one,{data_dir}/broker-{number}/two"} for number in (1, 2, 3)
    }
    with KafkaliteCluster(
        data_dir,
        # A follower that only lags stays in the ISR for longer than any test takes.
        overrides={**SESSION, "replica.lag.time.max.ms": 600_000},
        overrides_of=overrides_of,
        environment={"PYTHONPATH": str(PROJECT)},
        command_prefix=(sys.executable, "-m", "tests.interop.cluster.failing_disk"),
    ) as cluster:
        yield cluster


class Numbers:
    """Sends 0, 1, 2... to each partition of a topic, with acks=all, until its block ends."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged = [0] * PARTITIONS
        self.sent = 0
        self.errors: list[str] = []
        self._bootstrap, self._topic = bootstrap, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with Producer(bootstrap_servers=self._bootstrap, linger_ms=0) as producer:
                while not self._stopping.wait(0.2):
                    for partition in range(PARTITIONS):
                        producer.send(
                            self._topic, b"%d" % self.sent, partition=partition,
                            on_delivery=lambda _, error, partition=partition: self._told(partition, error),
                        )  # fmt: skip
                    self.sent += 1
        except Exception as error:  # shown by the test
            self.errors.append(repr(error))

    def _told(self, partition: int, error: object) -> None:
        if error is None:
            self.acknowledged[partition] += 1
        else:
            self.errors.append(str(error))

    def wait_for_more(self, count: int = 5) -> None:
        """Wait until each partition has acknowledged some more."""
        wanted = [now + count for now in self.acknowledged]
        wait_until(
            lambda: all(now >= then for now, then in zip(self.acknowledged, wanted, strict=True)),
            lambda: f"{wanted} acknowledgements, there are {self.acknowledged}; {self.errors[:3]}",
        )

    def __enter__(self) -> Numbers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)


def values_of(cluster: KafkaliteCluster, topic: str, partition: int, count: int) -> list[int]:
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        consumer.seek_to_beginning()
        found: list[int] = []
        while len(found) < count and (records := consumer.poll(int(PATIENCE_S * 1000))):
            found += [int(record.value or b"-1") for record in records]
        return found


def victim_of(cluster: KafkaliteCluster, topic: str, role: str) -> tuple[int, Path, list[int]]:
    """Return the leader of partition 0, or a follower, its directory of that, and which partitions lie there."""
    cluster.wait_in_sync(topic)
    leader = cluster.wait_for_leader(topic)
    victim = leader if role == "leader" else min(cluster.brokers.keys() - {leader})
    directory = directory_of(cluster, victim, topic, 0)
    return victim, directory, [each for each in range(PARTITIONS) if (directory / f"{topic}-{each}").exists()]


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_what_lay_on_a_disk_that_failed_is_led_by_others(two_disks_each: KafkaliteCluster, role: str) -> None:
    cluster, topic = two_disks_each, f"disks-{role}"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS)
        victim, broken, lost = victim_of(cluster, topic, role)
        kept = [number for number in range(PARTITIONS) if number not in lost]
        assert kept, "all partitions lie in one directory"
        led_before = {number: cluster.leader_of(topic, number) for number in kept}
        with Numbers(cluster.bootstrap, topic) as numbers:
            numbers.wait_for_more()
            broken_by(broken).touch()

            def is_left() -> bool:
                states = [cluster.state_of(topic, number) for number in lost]
                return all(state.leader not in (-1, victim) and victim not in state.isr for state in states)

            wait_until(is_left, f"broker {victim} to give up what lay on its broken disk")
            numbers.wait_for_more()
            # The broker goes on with its other disk, in the same process.
            assert cluster.broker(victim).running
            for number in kept:
                assert victim in cluster.in_sync(topic, number)
                assert cluster.leader_of(topic, number) == led_before[number]
            broken_by(broken).unlink()
            cluster.restart(victim)
            cluster.wait_in_sync(topic)
            # It leads again what it has copied.
            admin.elect_leaders([TopicPartition(topic, number) for number in range(PARTITIONS)])
            numbers.wait_for_more()
        assert numbers.errors == []
        assert numbers.acknowledged == [numbers.sent] * PARTITIONS
        for number in range(PARTITIONS):
            assert values_of(cluster, topic, number, numbers.sent) == list(range(numbers.sent))
            wait_until(
                lambda number=number: len({log_bytes(cluster, each, topic, number) for each in cluster.brokers}) == 1,  # type: ignore[misc]
                f"equal replicas of {topic}-{number}",
            )


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_what_lies_on_a_full_disk_goes_on_without_it(two_disks_each: KafkaliteCluster, role: str) -> None:
    """Producers do not wait for replica.lag.time.max.ms, which is ten minutes here."""
    cluster, topic = two_disks_each, f"full-{role}"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS)
    victim, full, there = victim_of(cluster, topic, role)
    with Numbers(cluster.bootstrap, topic) as numbers:
        numbers.wait_for_more()
        filled_by(full).touch()

        def is_left() -> bool:
            states = [cluster.state_of(topic, number) for number in there]
            return all(state.leader not in (-1, victim) and victim not in state.isr for state in states)

        wait_until(is_left, f"broker {victim} to give up what lies on its full disk")
        numbers.wait_for_more()
        filled_by(full).unlink()
        # It comes back by itself.
        cluster.wait_in_sync(topic)
        numbers.wait_for_more()
    assert numbers.errors == []
    assert numbers.acknowledged == [numbers.sent] * PARTITIONS
    for number in range(PARTITIONS):
        assert values_of(cluster, topic, number, numbers.sent) == list(range(numbers.sent))


def test_what_lies_on_a_disk_that_does_not_answer_is_led_by_others(two_disks_each: KafkaliteCluster) -> None:
    """The broker's loop hangs in a write, while its session with the registry is kept alive by another thread."""
    cluster, topic = two_disks_each, "hung"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS)
    victim, hung, _ = victim_of(cluster, topic, "leader")
    with Numbers(cluster.bootstrap, topic) as numbers:
        numbers.wait_for_more()
        hung_by(hung).touch()

        def is_left() -> bool:
            states = [cluster.state_of(topic, number) for number in range(PARTITIONS)]
            return all(state.leader not in (-1, victim) and victim not in state.isr for state in states)

        wait_until(is_left, f"broker {victim} to give up what it leads")
        numbers.wait_for_more()
        # It gives its session up before it says so.
        said = cluster.broker(victim).stderr_path.read_text
        wait_until(lambda: "the event loop has not turned for" in said(), "the broker to say that its loop hangs")
        assert "pwrite (failing_disk.py" in said()
        hung_by(hung).unlink()
        # It comes back by itself, in the same process.
        cluster.wait_in_sync(topic)
        numbers.wait_for_more()
    wait_until(lambda: "the event loop turns again" in said(), "the broker to say that its loop turns")
    assert numbers.errors == []
    assert numbers.acknowledged == [numbers.sent] * PARTITIONS
    for number in range(PARTITIONS):
        assert values_of(cluster, topic, number, numbers.sent) == list(range(numbers.sent))
        wait_until(
            lambda number=number: len({log_bytes(cluster, each, topic, number) for each in cluster.brokers}) == 1,  # type: ignore[misc]
            f"equal replicas of {topic}-{number}",
        )


def test_what_lies_on_a_disk_that_flushes_nothing_is_led_by_others(two_disks_each: KafkaliteCluster) -> None:
    """Threads hang in flushes, while the loop turns; what lies on the other disk goes on. A stop does not wait."""
    cluster, topic = two_disks_each, "stalled"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, configs={"flush.before.ack": "true"})
    victim, stalled, there = victim_of(cluster, topic, "leader")
    kept = [number for number in range(PARTITIONS) if number not in there]
    assert kept, "all partitions lie in one directory"
    led_before = {number: cluster.leader_of(topic, number) for number in kept}

    def is_left() -> bool:
        states = [cluster.state_of(topic, number) for number in there]
        return all(state.leader not in (-1, victim) and victim not in state.isr for state in states)

    def log() -> str:
        return cluster.broker(victim).stderr_path.read_text()

    hung_before = log().count("the event loop has not turned")
    with Numbers(cluster.bootstrap, topic) as numbers:
        numbers.wait_for_more()
        stalled_by(stalled).touch()
        wait_until(is_left, f"broker {victim} to give up what lies on the disk that flushes nothing")
        numbers.wait_for_more()
        assert f"log directory {stalled} does not answer: fdatasync of {stalled}/" in log()
        for number in kept:
            assert victim in cluster.in_sync(topic, number)
            assert cluster.leader_of(topic, number) == led_before[number]
        stalled_by(stalled).unlink()
        # It comes back by itself, in the same process.
        cluster.wait_in_sync(topic)
        numbers.wait_for_more()
        assert f"log directory {stalled} answers again, after" in log()
        assert log().count("the event loop has not turned") == hung_before
        stalled_by(stalled).touch()
        wait_until(is_left, f"broker {victim} to give up what lies on the disk that flushes nothing once more")
        assert cluster.stop(victim, PATIENCE_S) == 1
        assert "the stop ends here, because a disk does not answer: fdatasync of" in log()
        stalled_by(stalled).unlink()
        cluster.broker(victim).start()
        cluster.wait_in_sync(topic)
        numbers.wait_for_more()
    assert numbers.errors == []
    assert numbers.acknowledged == [numbers.sent] * PARTITIONS
    for number in range(PARTITIONS):
        assert values_of(cluster, topic, number, numbers.sent) == list(range(numbers.sent))
