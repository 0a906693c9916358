"""Log directories of two partitions of a topic, exchanged while their broker was down: neither log is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.test_commands import kafkalite
from tests.patience import wait_until


def exchange(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_exchanged_logs_are_not_served_and_status_tells_what_to_do(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    cluster.stop(2)
    directories = [cluster.broker(2).data_dir / f"{topic}-{number}" for number in range(2)]
    exchange(*directories)
    cluster.restart(2)
    expected = [
        f"  {topic}-{number}: broker 2 has stopped: {directories[number]} holds a log of partition {topic}-{1 - number}"
        for number in range(2)
    ]

    def status() -> str:
        return kafkalite("cluster", "status", "--bootstrap-server", cluster.bootstrap).stdout

    wait_until(lambda: all(line in status() for line in expected), "the status to name the exchanged logs")
    assert "give the directory its name back while the broker is stopped" in status()
    assert all(2 not in cluster.in_sync(topic, number) for number in range(2))
    cluster.stop(2)
    exchange(*directories)
    cluster.restart(2)
    cluster.wait_in_sync(topic)
