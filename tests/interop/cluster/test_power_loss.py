"""A power loss of all hosts, on three real brokers: the replica with the best log leads, and nothing it has is lost.

It does so without a command where its log contains the others (rule R18); ``unclean.recovery.strategy=None`` has an
operator asked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, TopicPartition
from spark_kafkalite.errors import FencedLeaderEpoch
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.registry.znodes import LOG_REPORTS
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.cluster.conftest import SESSION
from tests.interop.cluster.lost_power import (
    create,
    log_file,
    lose_all_power,
    produce,
    restart_all,
    wait_until_leaderless,
    whole_batches_bytes,
)
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import run_command

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaliteCluster]:
    with KafkaliteCluster(tmp_path / "cluster", overrides=SESSION) as cluster:
        yield cluster


def ends(cluster: KafkaliteCluster) -> dict[int, object]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return dict(admin.replica_ends([T0])[T0])


def lose_power_with_500_1500_1500(cluster: KafkaliteCluster, topic: str = "t") -> None:
    """Nobody leads then, because the topic's settings have an operator asked."""
    create(cluster, topic, [1, 2, 3])
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_configs({"unclean.recovery.strategy": "None"}, topic=topic)
    cut_power_with_500_1500_1500(cluster, topic)
    restart_all(cluster)
    wait_until_leaderless(cluster, topic)


def cut_power_with_500_1500_1500(cluster: KafkaliteCluster, topic: str) -> None:
    produce(cluster, topic, 0, 500)
    path = log_file(cluster, 1, topic)
    kept = whole_batches_bytes(path)
    produce(cluster, topic, 500, 1500)
    lose_all_power(cluster, {path: kept})


def test_the_log_that_contains_all_others_leads_by_itself_when_all_are_there(cluster: KafkaliteCluster) -> None:
    create(cluster, "t", [1, 2, 3])
    create(cluster, "nothing", [1, 2, 3])
    cut_power_with_500_1500_1500(cluster, "t")
    cluster.restart(1)
    cluster.restart(2)
    at = ("--bootstrap-server", cluster.broker(1).bootstrap)
    # Broker 3 may have more.
    wait_until(
        lambda: "no log leads by itself: broker 3 is not registered" in kafkalite("cluster", "status", *at)[0],
        "the status to say what is waited for",
    )
    for topic in ("t", "nothing"):
        wait_until_leaderless(cluster, topic)
    cluster.restart(3)
    for topic in ("t", "nothing"):
        cluster.wait_in_sync(topic, timeout_s=PATIENCE_S)
    assert cluster.leader_of("t") == 2
    wait_until(lambda: ends(cluster) == {1: 1500, 2: 1500, 3: 1500}, "all logs to be whole")
    told = "".join(broker.stderr_path.read_text(encoding="utf-8") for broker in cluster.brokers.values())
    assert "t-0: broker 2 is elected: no replica could prove its log" in told
    assert "it has a log that ends at 1500 under leader epoch 0; the highest high watermark" in told


def kafkalite(*arguments: str, code: int = 0) -> tuple[str, str]:
    done = run_command(*arguments)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def reported(cluster: KafkaliteCluster, broker: int = 1) -> dict[int, tuple[object, object]]:
    """What the replicas of t-0 have reported, as one broker says it: last leader epoch and end."""
    with Admin(bootstrap_servers=cluster.broker(broker).bootstrap) as admin:
        leaderless = admin.eligible_replicas(["t"])[T0].leaderless
    assert leaderless is not None
    return {
        each["broker"]: (each["lastEpoch"], each["endOffset"]) for each in leaderless.replicas if "endOffset" in each
    }


def test_the_command_says_what_is_lost_and_takes_the_replica_that_is_named(cluster: KafkaliteCluster) -> None:
    lose_power_with_500_1500_1500(cluster)
    # Any broker may be asked.
    for broker in cluster.brokers:
        wait_until(
            lambda broker=broker: reported(cluster, broker) == {1: (0, 500), 2: (0, 1500), 3: (0, 1500)},  # type: ignore[misc]
            f"broker {broker} to know all reports",
        )
    at = ("--bootstrap-server", cluster.bootstrap)
    status, _ = kafkalite("cluster", "status", *at)
    # All brokers are alive, and nobody is told to start some.
    why = "because broker 1 (was in sync, has not proven that its log is whole) has a log that ends at 500"
    assert why in status, status
    assert "no log leads by itself: unclean.recovery.strategy is None" in status
    assert "what to do: kafkalite cluster elect --unclean t:0" in status
    (leaderless,) = json.loads(kafkalite("cluster", "status", "--json", *at)[0])["leaderless"]
    assert (leaderless["best"], leaderless["command"]) == (2, "kafkalite cluster elect --unclean t:0")
    assert [each["endOffset"] for each in leaderless["logs"]] == [500, 1500, 1500]
    told = cluster.broker(3).stderr_path.read_text(encoding="utf-8")
    assert "kafkalite cluster elect --unclean has the best of their logs lead" in told
    assert "start the brokers" not in told
    shown, refused = kafkalite("cluster", "elect", "--unclean", *at, code=2)
    assert "t-0: broker 2 would lead: loses nothing that a replica has" in shown
    assert "there is no terminal here" in refused
    wish = ("--replica", "t:0=1")
    shown, _ = kafkalite("cluster", "elect", "--unclean", *wish, *at, code=2)
    assert "t-0: broker 1 would lead: loses 1,000 records that brokers 2 and 3 have" in shown
    _, refused = kafkalite("cluster", "elect", "--unclean", "--yes", "--replica", "t:0=7", *at, code=2)
    assert "it has to be a live replica of 1, 2, 3" in refused
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        # A state that the operator has not seen is left alone.
        assert isinstance(admin.elect_leaders(chosen={T0: (1, 0)})[T0], FencedLeaderEpoch)
    kafkalite("cluster", "elect", "--unclean", "--yes", *wish, *at)
    cluster.wait_in_sync("t", timeout_s=PATIENCE_S)
    assert cluster.leader_of("t") == 1
    wait_until(lambda: ends(cluster) == {1: 500, 2: 500, 3: 500}, "the others to follow")


def lose_power_after_all_was_deleted(cluster: KafkaliteCluster, strategy: str) -> None:
    """Brokers 1 and 2 have deleted the 580 records; broker 3 comes back with its directory of before."""
    create(cluster, "t", [1, 2, 3])
    produce(cluster, "t", 0, 580)
    data_dir = cluster.broker(3).data_dir
    before = data_dir.parent / "before"
    shutil.copytree(data_dir / "t-0", before)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_configs({"unclean.recovery.strategy": strategy}, topic="t")
        assert admin.delete_records({T0: 580}) == {T0: 580}
    lose_all_power(cluster, {})
    for broker in (1, 2):
        # As retention leaves it that has rolled the segment: a recovery finds no record of the epoch.
        directory = cluster.broker(broker).data_dir / "t-0"
        for path in directory.glob(f"{0:020d}.*"):
            path.unlink()
        (directory / f"{580:020d}.log").touch()
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 580\n", encoding="ascii")
    shutil.rmtree(data_dir / "t-0")
    before.rename(data_dir / "t-0")
    for name in ("log-start-offset-checkpoint", "kafkalite-log-starts"):
        (data_dir / name).unlink(missing_ok=True)
    restart_all(cluster)


def test_a_log_of_which_all_was_deleted_needs_no_operator(cluster: KafkaliteCluster) -> None:
    lose_power_after_all_was_deleted(cluster, "Balanced")
    cluster.wait_in_sync("t", timeout_s=PATIENCE_S)
    produce(cluster, "t", 580, 590)
    wait_until(lambda: ends(cluster) == {1: 590, 2: 590, 3: 590}, "all logs to go on behind what was deleted")


def test_records_that_were_deleted_are_not_named_as_lost(cluster: KafkaliteCluster) -> None:
    lose_power_after_all_was_deleted(cluster, "None")
    wait_until_leaderless(cluster, "t")
    for broker in cluster.brokers:
        wait_until(lambda broker=broker: len(reported(cluster, broker)) == 3, f"broker {broker} to know all reports")  # type: ignore[misc]
    assert reported(cluster) == {1: (-1, 580), 2: (-1, 580), 3: (0, 580)}
    for broker in (1, 2, 3):
        shown, _ = kafkalite(
            *("cluster", "elect", "--unclean", "--replica", f"t:0={broker}", "--bootstrap-server", cluster.bootstrap),
            code=2,
        )
        assert f"t-0: broker {broker} would lead: loses nothing that a replica has" in shown


def test_reports_are_those_of_the_present_state_and_go_when_somebody_leads(cluster: KafkaliteCluster) -> None:
    lose_power_with_500_1500_1500(cluster)
    wait_until(lambda: len(reported(cluster)) == 3, "all logs to be reported")
    cluster.kill(3)
    cluster.restart(3)
    # Another incarnation: what the last one has said does not count.
    wait_until(lambda: reported(cluster) == {1: (0, 500), 2: (0, 1500), 3: (0, 1500)}, "broker 3 to report again")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.elect_leaders([T0], unclean=True) == {T0: None}
    store = open_zookeeper(cluster.registry.connect)
    try:
        wait_until(lambda: store.children(LOG_REPORTS).result(PATIENCE_S) == [], "the reports to be removed")
    finally:
        store.close()


def test_an_unclean_election_that_a_setting_allows_takes_the_best_log(cluster: KafkaliteCluster) -> None:
    lose_power_with_500_1500_1500(cluster)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_configs({"unclean.leader.election.enable": "true"}, topic="t")
    cluster.wait_in_sync("t", timeout_s=PATIENCE_S)
    # Their logs are equal: the first one of them to be known leads.
    assert cluster.leader_of("t") in (2, 3)
    wait_until(lambda: ends(cluster) == {1: 1500, 2: 1500, 3: 1500}, "all logs to be whole")
