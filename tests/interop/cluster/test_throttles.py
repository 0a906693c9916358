"""Throttled replication (KIP-73) on real brokers: reassignments, and a follower that copies everything again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.client.admin.configs import AlterOperation, ConfigChange
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.broker.test_metrics import METRICS, scraped, scraped_anew, value
from tests.interop.support.java_tools import JavaTools
from tests.patience import PATIENCE_S, wait_until
from tests.pool.forking import run_command

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
RATES = tuple(f"{role}.replication.throttled.rate" for role in ("leader", "follower"))
LISTS = tuple(f"{role}.replication.throttled.replicas" for role in ("leader", "follower"))
# Each value is a batch, and one of them passes in eleven seconds at the lowest rates. So all of them take ten minutes.
VALUES, VALUE_BYTES = 60, 20_000
# No broker dies here, and one that stands still for a while stays in sync.
PATIENT = {"zookeeper.session.timeout.ms": 30_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaliteCluster]:
    with KafkaliteCluster(tmp_path_factory.mktemp("throttled"), size=3, overrides={**METRICS, **PATIENT}) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: KafkaliteCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin
        # What a test that has failed leaves must not fail the next ones.
        left = admin.list_partition_reassignments()
        admin.alter_partition_reassignments(dict.fromkeys(left))
        for broker in (1, 2, 3):
            admin.incremental_alter_configs([ConfigChange(name, "delete") for name in RATES], broker_id=broker)
        admin.incremental_alter_configs([ConfigChange(name, "delete") for name in RATES], all_brokers=True)


def made(
    cluster: KafkaliteCluster, admin: Admin, topic: str, assignments: dict[int, list[int]], **configs: object
) -> str:
    settings = {"min.insync.replicas": "1", **{name.replace("_", "."): str(each) for name, each in configs.items()}}
    admin.create_topics([NewTopic(topic, assignments=assignments, configs=settings)])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(VALUES * len(assignments)):
            producer.send(topic, b"x" * VALUE_BYTES, partition=number % len(assignments)).result(PATIENCE_S)
    return topic


def size(admin: Admin, topic: str, partition: int, broker: int) -> int:
    """Return the bytes that a broker has of a partition."""
    for directory in admin.describe_log_dirs([broker], topics=[topic])[broker]:
        replica = directory.replicas.get(TopicPartition(topic, partition))
        if replica is not None:
            return replica.size_bytes
    return 0


def isr(admin: Admin, topic: str, partition: int = 0) -> set[int]:
    return set(admin.describe_topics([topic])[topic].partitions[partition].isr)


def settings(admin: Admin, topic: str) -> tuple[set[str | None], set[str | None]]:
    """Return the lists of a topic, and the rates of all brokers."""
    found = admin.describe_configs(topic=topic)
    rates = {admin.describe_configs(broker_id=broker)[name].value for broker in (1, 2, 3) for name in RATES}
    return {found[name].value for name in LISTS}, rates


def reassigned(
    cluster: KafkaliteCluster, directory: Path, action: str, *arguments: str, moves: Sequence[object], code: int = 0
) -> str:
    """Run the command about a plan of these moves, and return all that it prints."""
    file = directory / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    named = ("--file", str(file), "--bootstrap-server", cluster.bootstrap)
    done = run_command("cluster", "reassign", action, *arguments, *named)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout + done.stderr


def wait_for_settings(admin: Admin, topic: str, lists: set[str], rates: set[str]) -> None:
    """Wait until whichever broker is asked has heard of what another one was told."""
    wait_until(
        lambda: settings(admin, topic) == (lists, rates),
        lambda: f"{lists} and {rates}; there are {settings(admin, topic)}",
    )


@pytest.mark.kafka
def test_kafkas_tool_throttles_changes_the_rate_and_takes_it_back(
    cluster: KafkaliteCluster, admin: Admin, java_tools: JavaTools, tmp_path: Path
) -> None:
    topic = made(cluster, admin, "slow", {0: [1], 1: [2]})
    other = made(cluster, admin, "quick", {0: [1]})
    file = tmp_path / "plan.json"
    moves = [{"topic": topic, "partition": number, "replicas": [3]} for number in (0, 1)]
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    named = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(file))
    executed = java_tools.run(TOOL, *named, "--execute", "--throttle", "1").stdout
    assert "The inter-broker throttle limit was set to 1 B/s" in executed
    wait_for_settings(admin, topic, {"0:1,1:2", "0:3,1:3"}, {"1"})
    # What is not listed moves from the same leader to the same follower, and has more bytes.
    wanted = {TopicPartition(other, 0): [3]}
    assert admin.alter_partition_reassignments(wanted) == dict.fromkeys(wanted)
    # The state of a partition and the list of its replicas are two nodes, of which brokers hear one after the other.
    wait_until(
        lambda: admin.list_partition_reassignments().keys() == {TopicPartition(topic, number) for number in (0, 1)},
        "the other topic to move",
    )
    assert all(size(admin, topic, number, 3) < VALUES * VALUE_BYTES / 2 for number in (0, 1))

    def sent() -> tuple[float, float, float]:
        """Return what the first broker leads that moves, and the bytes it has sent with and without a throttle."""
        metrics = scraped(cluster.broker(1))
        assert value(metrics, "kafkalite_throttled_replication_rate", role="leader") == 1
        throttled = value(metrics, "kafkalite_throttled_replication_bytes", role="leader")
        whole = value(metrics, "kafka_server_brokertopicmetrics_reassignmentbytesout")
        return value(metrics, "kafka_server_replicamanager_reassigningpartitions"), throttled, whole - throttled

    # The other topic's bytes moved, too, but not under the throttle.
    def has_begun() -> bool:
        moving, throttled, other_bytes = sent()
        assert throttled < VALUES * VALUE_BYTES / 2
        return moving == 1 and throttled > 0 and other_bytes > VALUES * VALUE_BYTES

    wait_until(has_begun, "one partition to move on, and a batch of it")
    # Between two batches there may be a moment without any.
    wait_until(
        lambda: 0 < value(scraped(cluster.broker(1)), "kafka_server_leaderreplication_byte_rate") < VALUE_BYTES,
        "a batch to pass",
    )
    # The target has copied the other topic whole.
    metrics = scraped_anew(cluster.broker(3))
    for counted in ("reassignmentbytesin", "replicationbytesin"):
        assert value(metrics, f"kafka_server_brokertopicmetrics_{counted}") > VALUES * VALUE_BYTES
    executed = java_tools.run(TOOL, *named, "--execute", "--additional", "--throttle", "100000000").stdout
    assert "The inter-broker throttle limit was set to 100000000 B/s" in executed
    wait_until(lambda: not admin.list_partition_reassignments(), "all to move")
    verified = java_tools.run(TOOL, *named, "--verify").stdout
    assert verified.count("is completed.") == 2 and "Clearing broker-level throttles on brokers 1,2,3" in verified
    assert f"Clearing topic-level throttles on topic {topic}" in verified
    wait_for_settings(admin, topic, {""}, {str(2**63 - 1)})
    # A cancellation takes the throttle back, too.
    moves[0]["replicas"] = [1]
    file.write_text(json.dumps({"version": 1, "partitions": moves[:1]}))
    java_tools.run(TOOL, *named, "--execute", "--throttle", "1")
    java_tools.run(TOOL, *named, "--cancel")
    wait_for_settings(admin, topic, {""}, {str(2**63 - 1)})
    assert not admin.list_partition_reassignments()


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_follower_that_copies_everything_again_is_throttled(
    cluster: KafkaliteCluster, admin: Admin, side: str
) -> None:
    topic = made(cluster, admin, f"again-{side}", {0: [1, 2], 1: [1, 2]})
    listed, rate = (name for name in (*LISTS, *RATES) if name.startswith(side))
    # The first partition alone, at its leader or at its follower.
    replica = "0:1" if side == "leader" else "0:2"
    admin.incremental_alter_configs([ConfigChange(listed, "set", replica)], topic=topic)
    admin.incremental_alter_configs([ConfigChange(rate, "set", "1")], all_brokers=True)
    # In-sync replicas are not held up: all producers are answered.
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for _ in range(10):
            producer.send(topic, b"x" * VALUE_BYTES, partition=0).result(PATIENCE_S)
    assert isr(admin, topic) == {1, 2}
    cluster.stop(2)
    wait_until(lambda: isr(admin, topic) == isr(admin, topic, 1) == {1}, "the follower to leave")
    for number in (0, 1):
        shutil.rmtree(cluster.broker(2).data_dir / f"{topic}-{number}")
    # A leader that knows nothing of the follower: for one that was in sync a second ago commits wait, and no throttle.
    cluster.stop(1)
    cluster.restart(1)
    cluster.restart(2)
    wait_until(lambda: isr(admin, topic, 1) == {1, 2}, "the partition without a throttle to be in sync")
    assert isr(admin, topic) == {1}
    assert 0 <= size(admin, topic, 0, 2) < VALUES * VALUE_BYTES / 2
    admin.incremental_alter_configs([ConfigChange(rate, "delete")], all_brokers=True)
    wait_until(lambda: isr(admin, topic) == {1, 2}, "the throttled partition to be in sync")


def test_the_heal_of_a_damaged_replica_is_throttled(cluster: KafkaliteCluster, admin: Admin) -> None:
    topic = made(cluster, admin, "healed", {0: [1, 2], 1: [1, 2]}, segment_bytes=VALUE_BYTES * 5)
    cluster.wait_in_sync(topic)
    admin.incremental_alter_configs([ConfigChange(LISTS[1], "set", "0:2")], topic=topic)
    admin.incremental_alter_configs([ConfigChange(RATES[1], "set", "1")], broker_id=2)
    cluster.stop(2)
    for number in (0, 1):
        second = sorted((cluster.broker(2).data_dir / f"{topic}-{number}").glob("*.log"))[1]
        second.unlink()
    cluster.restart(2)
    wait_until(lambda: isr(admin, topic, 1) == {1, 2}, "the partition without a throttle to be healed")
    assert not (cluster.broker(2).data_dir / f"{topic}-1" / "damaged-ranges").exists()
    wait_until(lambda: 0 < size(admin, topic, 0, 2) < VALUES * VALUE_BYTES / 2, "the other log to be cut back")
    assert isr(admin, topic) == {1}
    # In-sync replicas are not held up while it heals.
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        producer.send(topic, b"x", partition=0).result(PATIENCE_S)
    metrics = scraped_anew(cluster.broker(2))
    assert 0 < value(metrics, "kafkalite_throttled_replication_bytes", role="follower") < VALUES * VALUE_BYTES / 2
    # No reassignment has given this broker anything.
    assert value(metrics, "kafka_server_brokertopicmetrics_reassignmentbytesin") == 0
    assert value(metrics, "kafka_server_brokertopicmetrics_replicationbytesin") > VALUES * VALUE_BYTES / 2
    admin.incremental_alter_configs([ConfigChange(RATES[1], "delete")], broker_id=2)
    wait_until(lambda: isr(admin, topic) == {1, 2}, "the throttled partition to be healed")


def test_our_command_sets_a_throttle_changes_it_and_removes_it(
    cluster: KafkaliteCluster, admin: Admin, tmp_path: Path
) -> None:
    topic = made(cluster, admin, "ours", {0: [1], 1: [2]})
    moves = [{"topic": topic, "partition": number, "replicas": [3]} for number in (0, 1)]

    def reassign(action: str, *arguments: str, code: int = 0) -> str:
        return reassigned(cluster, tmp_path, action, *arguments, moves=moves, code=code)

    # A plan that the controller would refuse changes nothing, not even a throttle.
    moves[1]["replicas"] = [3, 9]
    for action in (("--plan",), ("--execute", "--throttle", "1")):
        assert reassign(*action, code=1).endswith(
            f"not live: broker 9, which is to get {topic}-1. Start it, or name another; live are 1, 2, 3. Nothing has "
            "been changed\n"
        )
    wait_for_settings(admin, topic, {""}, {str(2**63 - 1)})
    moves[1]["replicas"] = [3]
    planned = reassign("--plan", "--throttle", "10")
    assert "kafkalite: at 10 B/s to and from each broker this takes at least 3 d\n" in planned
    wait_for_settings(admin, topic, {""}, {str(2**63 - 1)})
    begun = reassign("--execute", "--throttle", "1")
    assert "kafkalite: the throttle is set to 1 B/s; --verify and --wait remove it" in begun
    wait_for_settings(admin, topic, {"0:1,1:2", "0:3,1:3"}, {"1"})
    reassign("--verify", code=1)
    shown = run_command("cluster", "status", "--bootstrap-server", cluster.bootstrap).stdout
    assert "Reassignments in progress: 2, " in shown and f"  {topic}-0: from 1 to 3, " in shown
    assert "Throttles: broker 1 1 B/s, broker 2 1 B/s, broker 3 1 B/s\n" in shown
    assert "If broker 2 fails: " in shown
    wait_for_settings(admin, topic, {"0:1,1:2", "0:3,1:3"}, {"1"})
    waited = reassign("--execute", "--throttle", "100000000", "--wait")
    assert "kafkalite: 2 were in progress, and go on\n" in waited
    assert waited.endswith(
        "kafkalite: all 2 partitions have moved\n"
        f"kafkalite: the throttle of topic {topic} is removed\n"
        "kafkalite: the throttle of broker 1, 2, 3 is removed\n"
    )
    wait_for_settings(admin, topic, {""}, {str(2**63 - 1)})
    assert "removed" not in reassign("--verify")
    # A cancellation removes it, too, unless it is to stay.
    moves[0]["replicas"], moves[1]["replicas"] = [1], [2]
    reassign("--execute", "--throttle", "1")
    reassign("--cancel", "--preserve-throttles")
    wait_until(lambda: settings(admin, topic)[1] == {"1"}, "the rates to stay")
    # What was left over also holds for a plan that sets no throttle, and the command says so.
    begun = reassign("--execute")
    assert (
        "kafkalite: a throttle from before holds for this plan: broker 1 1 B/s, broker 2 1 B/s, broker 3 1 B/s; give "
        f"--throttle for another rate, or remove it from topic {topic}: kafkalite configs alter --topic {topic} "
        f"--delete-config {','.join(LISTS)}\n"
    ) in begun
    removed = f"configs alter --topic {topic} --delete-config {','.join(LISTS)}"
    assert run_command(*removed.split(), "--bootstrap-server", cluster.bootstrap).returncode == 0
    wait_until(lambda: not admin.list_partition_reassignments(), "the move to go on without it")
    moves[0]["replicas"], moves[1]["replicas"] = [3], [3]
    assert "throttle" not in reassign("--execute")
    # It goes at full speed. What has ended cannot be cancelled.
    wait_until(lambda: not admin.list_partition_reassignments(), "the move without a throttle to end")
    assert "is removed" in reassign("--verify")
    wait_for_settings(admin, topic, {""}, {str(2**63 - 1)})


def test_a_second_plan_keeps_the_first_one_throttled(cluster: KafkaliteCluster, admin: Admin, tmp_path: Path) -> None:
    topic = made(cluster, admin, "twice", {0: [1], 1: [2]})

    def reassign(action: str, *arguments: str, partition: int) -> str:
        moves = [{"topic": topic, "partition": partition, "replicas": [3]}]
        return reassigned(cluster, tmp_path, action, *arguments, moves=moves)

    # What a command does first: its lists are set, and no broker knows of its moves.
    first = [ConfigChange(name, "set", value) for name, value in zip(LISTS, ("0:1", "0:3"), strict=True)]
    admin.incremental_alter_configs(first, topic=topic)
    reassign("--execute", "--throttle", "1", partition=1)
    wait_until(lambda: settings(admin, topic)[0] == {"0:1,1:2", "0:3,1:3"}, "the lists of both plans")
    reassign("--execute", "--throttle", "2", partition=0)
    wait_for_settings(admin, topic, {"0:1,1:2", "0:3,1:3"}, {"2"})
    # A list of all replicas stays one.
    admin.incremental_alter_configs([ConfigChange(LISTS[0], "set", "*")], topic=topic)
    reassign("--execute", "--throttle", "2", partition=0)
    wait_for_settings(admin, topic, {"*"}, {"2"})
    assert len(admin.list_partition_reassignments()) == 2
    reassign("--cancel", partition=0)
    wait_for_settings(admin, topic, {"*"}, {"2"})
    reassign("--cancel", partition=1)
    wait_for_settings(admin, topic, {""}, {str(2**63 - 1)})


def test_verify_removes_the_rates_of_a_plan_whose_topic_was_deleted(
    cluster: KafkaliteCluster, admin: Admin, tmp_path: Path
) -> None:
    topic, kept = (made(cluster, admin, name, {0: [1]}) for name in ("deleted", "kept"))
    moves = [
        {"topic": topic, "partition": 0, "replicas": [3]},
        {"topic": kept, "partition": 0, "replicas": [1]},
        {"topic": kept, "partition": 7, "replicas": [1]},
    ]

    reassigned(cluster, tmp_path, "--execute", "--throttle", "1", moves=moves[:1])
    wait_until(lambda: settings(admin, kept)[1] == {str(2**63 - 1), "1"}, "the rates of two brokers")
    admin.delete_topics([topic])
    wait_until(lambda: not admin.list_partition_reassignments(), "the move to end with its topic")
    verified = reassigned(cluster, tmp_path, "--verify", moves=moves, code=1)
    for key in (f"{topic}-0", f"{kept}-7"):
        assert f"There is no active reassignment of partition {key}, and no such partition.\n" in verified
    assert f"Reassignment of partition {kept}-0 is completed.\n" in verified
    assert "kafkalite: the throttle of broker 1, 3 is removed\n" in verified
    wait_until(lambda: settings(admin, kept)[1] == {str(2**63 - 1)}, "the rates to go")


def test_the_end_of_a_plan_leaves_the_throttle_of_one_that_has_not_begun(
    cluster: KafkaliteCluster, admin: Admin, tmp_path: Path
) -> None:
    topic, other = made(cluster, admin, "ended", {0: [1], 1: [2]}), made(cluster, admin, "beginning", {0: [1]})

    def reassign(action: str, *arguments: str, partition: int) -> str:
        moves = [{"topic": topic, "partition": partition, "replicas": [3]}]
        return reassigned(cluster, tmp_path, action, *arguments, moves=moves)

    def throttle(of: str, operation: AlterOperation, *values: str) -> None:
        changes = [ConfigChange(name, operation, value) for name, value in zip(LISTS, values, strict=True)]
        admin.incremental_alter_configs(changes, topic=of)

    reassign("--execute", "--throttle", "100000000", partition=0)
    wait_until(lambda: not admin.list_partition_reassignments(), "the partition to move")
    # What other commands do before they begin to move anything, in the same topic and in another one.
    throttle(topic, "append", "1:2", "1:3")
    throttle(other, "set", "0:1", "0:3")
    wait_for_settings(admin, topic, {"0:1,1:2", "0:3,1:3"}, {"100000000", str(2**63 - 1)})
    verified = reassign("--verify", partition=0)
    assert f"kafkalite: the throttle of topic {topic} is removed for the partitions of this plan\n" in verified
    assert (
        f"kafkalite: broker 1, 3 keeps its throttle: topic {other}, {topic} is throttled for a plan that has not "
        "begun; --verify of that plan removes it\n"
    ) in verified
    wait_for_settings(admin, topic, {"1:2", "1:3"}, {"100000000", str(2**63 - 1)})
    # Each plan removes its own; the rates go with the last list.
    throttle(other, "delete", "", "")
    wait_for_settings(admin, other, {""}, {"100000000", str(2**63 - 1)})
    ended = reassign("--execute", "--throttle", "100000000", "--wait", partition=1)
    assert "kafkalite: the throttle of broker 1, 2, 3 is removed\n" in ended
    wait_for_settings(admin, topic, {""}, {str(2**63 - 1)})
