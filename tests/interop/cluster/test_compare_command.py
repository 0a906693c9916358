"""``kafkalite cluster compare``: a bit that has flipped on the disk of a live broker is found when an operator asks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.lost_power import log_file
from tests.interop.cluster.recovered_cluster import wait_until_all_in_sync
from tests.interop.cluster.test_commands import kafkalite
from tests.interop.cluster.test_replication import values_of, wait_until_equal
from tests.interop.cluster.test_truncation import produce
from tests.patience import wait_until

COUNT = 200


def flip_a_bit(cluster: KafkaliteCluster, broker: int, topic: str) -> None:
    """Change a bit in the middle of a log while its broker runs."""
    with log_file(cluster, broker, topic).open("r+b") as file:
        position = file.seek(0, 2) // 2
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("of_leader", [True, False])
def test_a_flipped_bit_is_found_and_healed(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], of_leader: bool
) -> None:
    topic, untouched = new_topic(), new_topic()
    at = ("--bootstrap-server", cluster.bootstrap)
    for each in (topic, untouched):
        produce(cluster, each, range(COUNT))
    content = wait_until_equal(cluster, topic)
    cluster.wait_in_sync(topic, untouched)
    # Followers hear a little later what is committed.
    wait_until(
        lambda: kafkalite("cluster", "compare", untouched, *at).stdout.count(f"offsets 0 to {COUNT - 1}\n") == 2,
        "the followers to know that all is committed",
    )
    leader = cluster.leader_of(topic)
    followers = [number for number in cluster.brokers if number != leader]
    damaged = leader if of_leader else followers[0]
    flip_a_bit(cluster, damaged, topic)
    assert "under-replicated: 0" in kafkalite("cluster", "status", *at).stdout

    said = kafkalite("cluster", "compare", f"{topic}:0", *at, code=1).stdout
    (found,) = {line.partition(": DIFFERS from its leader's: ")[2] for line in said.splitlines() if "DIFFERS" in line}
    assert found.startswith("offsets ") and found.endswith(f" are damaged in broker {damaged}'s log")
    # Where the leader's is damaged, the follower that comes second may see that the leader has left meanwhile.
    assert len(said.splitlines()) == 2

    cluster.wait_in_sync(topic)
    wait_until(lambda: wait_until_equal(cluster, topic) == content, "the log to be healed")
    wait_until_all_in_sync(cluster.bootstrap)
    assert values_of(cluster.bootstrap, topic, COUNT) == [b"%d" % number for number in range(COUNT)]
    leaders = {each: cluster.leader_of(each) for each in (topic, untouched)}
    expected = [
        {"topic": each, "partition": 0, "broker": broker, "outcome": "same", "text": f"offsets 0 to {COUNT - 1}"}
        for each in sorted(leaders)
        for broker in cluster.brokers
        if broker != leaders[each]
    ]
    wait_until(
        lambda: json.loads(kafkalite("cluster", "compare", topic, untouched, "--json", *at).stdout) == expected,
        "the followers to know that all is committed, and to have the same",
    )


def test_a_replica_that_is_away_is_not_compared(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin
) -> None:
    topic = new_topic()
    cluster.wait_in_sync(topic)
    away = next(number for number in cluster.brokers if number != cluster.leader_of(topic))
    cluster.stop(away)
    try:
        wait_until(lambda: away not in cluster.in_sync(topic), "the broker to leave the ISR")
        (node, *_) = [number for number in cluster.brokers if number != away]
        said = kafkalite(
            "cluster", "compare", topic, "--bootstrap-server", cluster.broker(node).bootstrap, code=1
        ).stdout.splitlines()
        assert any(line.startswith(f"{topic}-0: broker {away}: not compared: ") for line in said)
        assert sum("the same as its leader's: no records" in line for line in said) == 1
    finally:
        cluster.restart(away)
        cluster.wait_in_sync(topic)


def test_a_leader_heals_what_a_follower_refuses_without_the_command(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    cluster.wait_in_sync(topic)
    leader = cluster.leader_of(topic)
    behind = next(number for number in cluster.brokers if number != leader)
    cluster.stop(behind)
    for first in range(0, COUNT, 20):
        produce(cluster, topic, range(first, first + 20))
    flip_a_bit(cluster, leader, topic)
    cluster.restart(behind)
    log = cluster.broker(behind).stderr_path
    wait_until(lambda: f"what broker {leader} sends is refused" in log.read_text(), "the copy to meet the damage")
    # In case the fault is one that the leader does not find.
    assert f"kafkalite cluster compare {topic}:0" in log.read_text()
    cluster.wait_in_sync(topic)
    wait_until_equal(cluster, topic)
    assert values_of(cluster.bootstrap, topic, COUNT) == [b"%d" % number for number in range(COUNT)]
