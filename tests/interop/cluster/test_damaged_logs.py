"""Segments that are cut or gone under a broker of three: its partition alone is affected, and heals by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.errors import KafkaStorageError
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.interop.cluster.test_commands import kafkalite
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SOAK

COUNT = 600
# Some forty records in each.
SEGMENT_BYTES = 4096
FILLER = b"x" * 80


def produce(cluster: KafkaliteCluster, topic: str, first: int = 0, count: int = COUNT) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for at in range(first, first + count, 10):
            values = [b"%d:%b" % (number, FILLER) for number in range(at, at + 10)]
            producer.send_batch(topic, values).result(PATIENCE_S)


def read(cluster: KafkaliteCluster, topics: list[str], count: int = COUNT) -> None:
    """Read all of the topics with one consumer, and see that each has all its records."""
    partitions = [TopicPartition(topic, 0) for topic in topics]
    found: dict[str, list[int]] = {topic: [] for topic in topics}
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()

        def have_all() -> bool:
            for record in consumer.poll(100):
                assert record.value is not None
                found[record.topic].append(int(record.value.partition(b":")[0]))
            return all(len(each) >= count for each in found.values())

        wait_until(have_all, lambda: f"all of {topics}, there are { {k: len(v) for k, v in found.items()} }", poll_s=0)
    assert all(each == list(range(count)) for each in found.values())


def segments(cluster: KafkaliteCluster, number: int, topic: str) -> list[Path]:
    return sorted((cluster.broker(number).data_dir / f"{topic}-0").glob("*.log"))


def replicas_of(cluster: KafkaliteCluster, topic: str) -> set[int]:
    return {number for number in cluster.brokers if segments(cluster, number, topic)}


def damaged(cluster: KafkaliteCluster, number: int, topic: str) -> bool:
    return (cluster.broker(number).data_dir / f"{topic}-0" / "damaged-ranges").exists()


def contents(cluster: KafkaliteCluster, number: int, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in segments(cluster, number, topic))


def wait_until_same(cluster: KafkaliteCluster, topic: str) -> None:
    def are_same() -> bool:
        replicas = replicas_of(cluster, topic)
        # A file goes while a log is cut back.
        with suppress(FileNotFoundError):
            is_damaged = any(damaged(cluster, number, topic) for number in replicas)
            return not is_damaged and len({contents(cluster, number, topic) for number in replicas}) == 1
        return False

    cluster.wait_in_sync(topic)
    wait_until(are_same, "the replicas to be the same")
    cluster.wait_in_sync(topic)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def spoil(path: Path) -> None:
    """Damage a batch that others lie before and behind."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 16)


def latest_by_time(cluster: KafkaliteCluster, number: int, topic: str) -> int:
    """Return the error code of a look-up by time that goes through the whole log."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=0)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    with RawClient(cluster.broker(number).bootstrap) as client:
        return int(client.call(request, 5).topics[0].partitions[0].error_code)


def test_a_segment_that_is_cut_under_its_leader_concerns_its_partition_alone(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], admin: Admin
) -> None:
    topics = [new_topic(segment_bytes=SEGMENT_BYTES) for _ in range(6)]
    by_leader: dict[int, list[str]] = {}
    for topic in topics:
        by_leader.setdefault(cluster.wait_for_leader(topic), []).append(topic)
    leader, led = max(by_leader.items(), key=lambda item: len(item[1]))
    bad, *good = led
    assert good
    for topic in led:
        produce(cluster, topic)
        cluster.wait_in_sync(topic)
    path = segments(cluster, leader, bad)[2]
    said_before = cluster.broker(leader).stderr_path.read_text().count("cannot be read from")
    cut(path)
    # One consumer of all: it gets all of the good ones, whatever becomes of the bad one, and that in the end, too.
    read(cluster, led)
    assert cluster.leader_of(bad) != leader
    assert {cluster.leader_of(topic) for topic in good} == {leader}
    wait_until_same(cluster, bad)
    read(cluster, [bad])
    lines = [
        line for line in cluster.broker(leader).stderr_path.read_text().splitlines() if "cannot be read from" in line
    ]
    assert len(lines) == said_before + 1
    assert re.search(rf"ERROR \S+ {bad}-0: offsets \d+ to \d+ cannot be read from {path}: it ends at", lines[-1])


def test_damage_while_a_broker_is_down_heals_from_the_others(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topics = [new_topic(segment_bytes=SEGMENT_BYTES) for _ in range(4)]
    for topic in topics:
        produce(cluster, topic)
        cluster.wait_in_sync(topic)
    number = cluster.wait_for_leader(topics[0])
    cluster.stop(number)
    cut(segments(cluster, number, topics[0])[1])
    segments(cluster, number, topics[1])[3].unlink()
    for path in segments(cluster, number, topics[2])[-2:]:
        path.unlink()
    segments(cluster, number, topics[3])[0].unlink()
    cluster.restart(number)
    for topic in topics:
        wait_until_same(cluster, topic)
        produce(cluster, topic, COUNT, 20)
        wait_until_same(cluster, topic)
    read(cluster, topics, COUNT + 20)


def test_the_last_member_leads_on_and_the_next_whole_one_takes_over(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(segment_bytes=SEGMENT_BYTES, min_insync_replicas=1)
    produce(cluster, topic)
    cluster.wait_in_sync(topic)
    leader = cluster.wait_for_leader(topic)
    others = [number for number in cluster.brokers if number != leader]
    for number in others:
        cluster.stop(number)
    wait_until(lambda: cluster.in_sync(topic) == {leader}, "the leader to be the last member")
    cut(segments(cluster, leader, topic)[2])
    partition = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=cluster.broker(leader).bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        # The leader knows of it once the reader has come there. Until then an empty poll may be that of a slow host.
        wait_until(
            lambda: not consumer.poll(100) and consumer.position(partition) > 0 and damaged(cluster, leader, topic),
            "what is before the hole",
            poll_s=0,
        )
        hole = consumer.position(partition)
        assert 0 < hole < COUNT
        consumer.seek(partition, COUNT - 1)
        wait_until(lambda: bool(consumer.poll(100)), "what is behind the hole", poll_s=0)
    assert latest_by_time(cluster, leader, topic) in (0, KafkaStorageError.code)
    assert cluster.leader_of(topic) == leader and damaged(cluster, leader, topic)
    produce(cluster, topic, COUNT, 20)
    for number in others:
        cluster.restart(number)
    wait_until(lambda: cluster.leader_of(topic) in others, "a whole replica to lead")
    wait_until_same(cluster, topic)
    read(cluster, [topic], COUNT + 20)


def values_read(cluster: KafkaliteCluster, topic: str, last: int) -> list[int]:
    """Return what a consumer is given from the beginning up to a value."""
    found: list[int] = []
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()

        def has_last() -> bool:
            for record in consumer.poll(100):
                assert record.value is not None
                found.append(int(record.value.partition(b":")[0]))
            return bool(found) and found[-1] >= last

        wait_until(has_last, lambda: f"value {last} of {topic}, the last one is {found[-1:]}", poll_s=0)
    return found


@pytest.mark.parametrize("harm", [cut, spoil])
def test_an_operator_accepts_a_hole_when_a_replica_does_not_come_back(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], harm: Callable[[Path], None]
) -> None:
    topic = new_topic(segment_bytes=SEGMENT_BYTES, min_insync_replicas=1)
    leader = cluster.wait_for_leader(topic)
    away, returning = (number for number in cluster.brokers if number != leader)
    for number in (away, returning):
        cluster.stop(number)
    wait_until(lambda: cluster.in_sync(topic) == {leader}, "the leader to be the last member")
    produce(cluster, topic)
    harm(segments(cluster, leader, topic)[2])
    cluster.restart(returning)
    at = ("--bootstrap-server", cluster.broker(leader).bootstrap)

    def damage() -> list[tuple[int, list[list[int]]]]:
        said = json.loads(kafkalite("cluster", "status", "--json", *at).stdout)["damaged"]
        return [(each["broker"], each["ranges"]) for each in said if each["topic"] == topic]

    # The follower comes to the hole, and so the leader does.
    wait_until(lambda: bool(damage()), "the status to show the damage")
    ((broker, [[start, end]]),) = damage()
    assert broker == leader and 0 < start < end < COUNT
    assert f"kafkalite cluster elect --unclean {topic}:0\n" in kafkalite("cluster", "status", *at).stdout
    # Without the partition's name only those without a leader are meant.
    assert "every partition has a leader" in kafkalite("cluster", "elect", "--unclean", "--yes", *at).stderr
    shown = kafkalite("cluster", "elect", "--unclean", "--yes", f"{topic}:0", *at).stdout
    assert (
        f"{topic}-0: accepts the hole {start}-{end - 1} of broker {leader}: up to {end - start} records that no "
        f"replica that has reported has\n{topic}-0: broker {away} has not reported\n" in shown
    )
    wait_until(lambda: cluster.in_sync(topic) == {leader, returning}, "the follower to pass over the hole")
    left = [*range(start), *range(end, COUNT)]
    assert values_read(cluster, topic, COUNT - 1) == left
    assert damage() == [] and not damaged(cluster, leader, topic)
    lines = cluster.broker(leader).stderr_path.read_text().splitlines()
    (line,) = [each for each in lines if f" {topic}-0: offsets" in each and "are lost" in each]
    assert f": {topic}-0: offsets {start} to {end - 1} are lost: an operator has accepted" in line
    # It is no damage any more: not after a kill, and not when another replica leads.
    cluster.kill(leader)
    wait_until(lambda: cluster.leader_of(topic) == returning, "the follower to lead")
    assert values_read(cluster, topic, COUNT - 1) == left
    for number in (leader, away):
        cluster.restart(number)
    if harm is cut:
        wait_until_same(cluster, topic)
    else:
        # The damaged batch lies in its place until a comparison finds it again.
        cluster.wait_in_sync(topic)
    assert values_read(cluster, topic, COUNT - 1) == left


def read_damage(cluster: KafkaliteCluster, leader: int, topic: str, offset: int) -> None:
    """Have a leader meet its damage at an offset."""
    path = cluster.broker(leader).data_dir / f"{topic}-0" / "damaged-ranges"

    def is_known() -> bool:
        found = re.findall(r"^(\d+) (\d+)$", path.read_text(), re.MULTILINE) if path.exists() else []
        return any(int(start) <= offset < int(end) for start, end in found)

    with Consumer(bootstrap_servers=cluster.broker(leader).bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), offset)
        wait_until(lambda: not consumer.poll(100) and is_known(), "the leader to know its damage", poll_s=0)


def test_two_damaged_logs_heal_each_other_and_lose_what_both_lack(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    """The emptied segments of the leader, and those that its only follower has no more."""
    holes = [({3, 4}, {2, 3}), ({1, 5}, {3, 7}), ({2, 6}, {1, 2, 3}), ({2, 3}, {3, 4}), ({3, 7}, {1, 5})]
    for of_leader, of_follower in holes if SOAK else holes[:3]:
        topic = new_topic(segment_bytes=SEGMENT_BYTES, replication_factor=2, min_insync_replicas=1)
        produce(cluster, topic)
        cluster.wait_in_sync(topic)
        leader = cluster.wait_for_leader(topic)
        (follower,) = replicas_of(cluster, topic) - {leader}
        bases = [int(path.stem) for path in segments(cluster, leader, topic)]
        lost = {offset for at in of_leader & of_follower for offset in range(bases[at], bases[at + 1])}
        cluster.stop(follower)
        wait_until(lambda: cluster.in_sync(topic) == {leader}, "the leader to be the last member")  # noqa: B023
        for at, path in enumerate(segments(cluster, follower, topic)):
            if at in of_follower:
                path.unlink()
        for at, path in enumerate(segments(cluster, leader, topic)):
            if at in of_leader:
                path.write_bytes(b"")
                read_damage(cluster, leader, topic, bases[at])
        cluster.restart(follower)
        wait_until_same(cluster, topic)
        assert values_read(cluster, topic, COUNT - 1) == [each for each in range(COUNT) if each not in lost]


def test_one_damaged_log_takes_no_proof_from_the_others_of_its_broker(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    good, bad = (new_topic(segment_bytes=SEGMENT_BYTES, min_insync_replicas=1) for _ in range(2))
    for topic in (good, bad):
        produce(cluster, topic)
        cluster.wait_in_sync(topic)
    first, *others = cluster.brokers
    for number in others:
        cluster.stop(number)
    wait_until(lambda: cluster.in_sync(good) == cluster.in_sync(bad) == {first}, "one member to be left")
    cluster.kill(first)
    segments(cluster, first, bad)[1].unlink()
    cluster.restart(first)
    # Its only member leads it on, and the other one waits for somebody that knows better.
    produce(cluster, good, COUNT, 20)
    wait_until(lambda: cluster.leader_of(bad) is None, "the damaged log to be led by nobody")
    assert cluster.state_of(bad).incarnations == {}
    for number in others:
        cluster.restart(number)
    # Theirs are whole.
    kafkalite("cluster", "elect", "--unclean", "--yes", f"{bad}:0", "--bootstrap-server", cluster.bootstrap)
    for topic in (good, bad):
        wait_until_same(cluster, topic)
    read(cluster, [good], COUNT + 20)
    read(cluster, [bad])


def test_all_replicas_that_were_killed_and_lack_segments_lose_what_all_lack(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    """Behind what is missing each log goes on: together they have all but one segment."""
    topic = new_topic(segment_bytes=SEGMENT_BYTES)
    produce(cluster, topic)
    cluster.wait_in_sync(topic)
    bases = [int(path.stem) for path in segments(cluster, min(cluster.brokers), topic)]
    for number in cluster.brokers:
        cluster.kill(number)
    for number, own in zip(cluster.brokers, (2, 5, 8), strict=True):
        paths = segments(cluster, number, topic)
        assert [int(path.stem) for path in paths] == bases
        for at in (own, 6):
            paths[at].unlink()
    for number in cluster.brokers:
        cluster.restart(number)
    shown = kafkalite("cluster", "elect", "--unclean", "--yes", f"{topic}:0", "--bootstrap-server", cluster.bootstrap)
    assert "does not accept the hole" in shown.stdout and "accepts the hole" in shown.stdout, shown
    wait_until_same(cluster, topic)
    lost = range(bases[6], bases[7])
    assert values_read(cluster, topic, COUNT - 1) == [each for each in range(COUNT) if each not in lost]


def test_all_replicas_that_were_killed_and_have_bad_batches_lose_what_is_bad_in_all(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    """One segment, in which another batch is bad in each replica: what lies behind each stays."""
    topic = new_topic()
    produce(cluster, topic)
    cluster.wait_in_sync(topic)
    for number in cluster.brokers:
        cluster.kill(number)
    for number, own in zip(cluster.brokers, (100, 250, 400), strict=True):
        (path,) = segments(cluster, number, topic)
        content = bytearray(path.read_bytes())
        for record in (own, 300):
            at = content.index(b"%d:%b" % (record, FILLER))
            content[at + 20] ^= 1
        path.write_bytes(content)
    for number in cluster.brokers:
        cluster.restart(number)
    wait_until(lambda: cluster.leader_of(topic) is None, "the damaged logs to be led by nobody")
    kafkalite("cluster", "elect", "--unclean", "--yes", f"{topic}:0", "--bootstrap-server", cluster.bootstrap)
    wait_until_same(cluster, topic)
    found = values_read(cluster, topic, COUNT - 1)
    # Batches of ten.
    assert found == [*range(300), *range(310, COUNT)]
