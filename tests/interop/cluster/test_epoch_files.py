"""A wrong leader-epoch-checkpoint, put in the place of the right one while the brokers are down: nothing is cut off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.files.small_files import LEADER_EPOCH_FILE, read_epochs, write_epochs
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.test_replication import log_bytes, values_of, wait_until_equal
from tests.interop.cluster.test_truncation import produce

Entries = list[tuple[int, int]]
WRONG: dict[str, Callable[[Entries], Entries]] = {
    "starts-early": lambda right: [*right[:-1], (right[-1][0], right[-1][1] - 30)],
    "one-missing": lambda right: [right[0], *right[2:]],
    "older": lambda right: right[:1],
    "lower-last": lambda right: [*right[:-2], (right[-2][0], right[-1][1])],
    "empty": lambda right: [],
}
ROUNDS = 3
COUNT = 60


@pytest.mark.parametrize("wrong_on", ["leader", "follower"])
def test_a_wrong_file_of_leader_epochs_cuts_nothing_off(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], wrong_on: str
) -> None:
    topics = {case: new_topic(segment_bytes=2000) for case in WRONG}
    for number in range(ROUNDS):
        for topic in topics.values():
            produce(cluster, topic, range(number * COUNT, (number + 1) * COUNT))
        # A new leader epoch for each partition.
        for broker in cluster.brokers:
            cluster.stop(broker)
            cluster.restart(broker)
            cluster.wait_in_sync(*topics.values())
    # The broker that stops last is the only one in sync, and leads when all are back.
    *followers, leader = cluster.brokers
    for topic in topics.values():
        produce(cluster, topic, range(ROUNDS * COUNT, (ROUNDS + 1) * COUNT))
        wait_until_equal(cluster, topic)
    for broker in cluster.brokers:
        cluster.stop(broker)
    before = {topic: log_bytes(cluster, leader, topic) for topic in topics.values()}
    damaged = leader if wrong_on == "leader" else followers[0]
    for case, topic in topics.items():
        path = str(cluster.broker(damaged).data_dir / f"{topic}-0" / LEADER_EPOCH_FILE)
        right = read_epochs(OsFs(), path)
        assert len(right) > ROUNDS
        write_epochs(OsFs(), path, WRONG[case](right))
    for broker in (leader, *followers):
        cluster.restart(broker)
    cluster.wait_in_sync(*topics.values())
    for topic in topics.values():
        assert {log_bytes(cluster, number, topic) for number in cluster.brokers} == {before[topic]}
        assert values_of(cluster.bootstrap, topic, COUNT) is not None
    for number in cluster.brokers:
        log = cluster.broker(number).stderr_path.read_text()
        assert "cut back" not in log
        assert "committed records are gone" not in log
    # Another one leads: it has everything, too.
    cluster.stop(leader)
    for topic in topics.values():
        values = values_of(cluster.bootstrap, topic, (ROUNDS + 1) * COUNT)
        assert values == [b"%d" % each for each in range((ROUNDS + 1) * COUNT)]
