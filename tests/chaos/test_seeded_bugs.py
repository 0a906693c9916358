"""A cluster with a bug that was planted on purpose, and just what brings it to light: the judge names the rule.

The soak runs all of them, and each schedule without its bug as well, where it must find nothing. ``make test`` checks
that every bug can be planted; ``test_judge`` shows that the judge finds what is wrong. Raising the high watermark
before truncating shows nothing to clients for as long as nothing else is wrong: the broker that does it notices, and
says so.

A run that fails by itself, as when a cluster with a bug does not get to work before anything is done to it, is neither
a catch nor a pass: the test fails, with what the brokers have said. Either the bug does more than is meant, as when
what it replaces is called in another way now, or the machine is too busy.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.chaos.broker_program import NO_BUG
from tests.chaos.clients.client import Place
from tests.chaos.history import OK, UNKNOWN, Bound, Client, HistoryWriter, Send
from tests.chaos.judge import judge_files
from tests.chaos.lines import ForwardedLines
from tests.chaos.our_cluster import SIZE, ChaosCluster
from tests.chaos.power import lose_power, start_again
from tests.chaos.rows import Stage, bounce_a_follower_that_lost_its_tail
from tests.chaos.seeded_bugs import BUGS
from tests.chaos.values import payload_of
from tests.chaos.workload import RunFailed, Workload, make_topic
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until
from tests.seeds import SEED, SOAK

_STEADY_S = 2.0
_STEADY_RECORDS = 20


def _doors_of(cluster: ChaosCluster) -> ForwardedLines:
    """Return the lines of a cluster whose single connections can be disturbed."""
    assert isinstance(cluster.lines, ForwardedLines)
    return cluster.lines


def leader_dies_alone(stage: Stage) -> None:
    """Followers do not hear the leader of partition 0, and it dies before it can report that."""
    assert stage.workload is not None
    cluster, leader = stage.cluster, stage.leader
    others = cluster.brokers.keys() - {leader}
    for other in others:
        cluster.lines.hold(leader, other)
    # It takes records, acknowledges those with acks=1, and with the bug the others as well, of which more are sent.
    stage.workload.wait_for_more_in(0, 20, acks="1")
    cluster.brokers[leader].kill()
    cluster.lines.heal()
    cluster.cluster.wait_for_leader(stage.place.topic, 0, other_than=leader)
    cluster.brokers[leader].start()
    cluster.wait_in_sync(stage.place)


def two_leaders_die_in_turn(stage: Stage) -> None:
    """A follower hears of a new leader, not from it, and leads after that: it has all that was acknowledged."""
    cluster, topic = stage.cluster, stage.place.topic
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        # Who is first of those in sync is elected.
        first, second, third = admin.describe_topics([topic])[topic].partitions[0].replicas
    # It acknowledges what it has been sent, and is not told for a while that this is committed by that.
    lines = _doors_of(cluster)
    ways = [lines.inner_doors[other].link(third).back for other in (first, second)]
    lines.network.change(ways, delay_s=0.2)
    time.sleep(1)
    lines.network.change(ways, held=True)
    time.sleep(0.3)
    cluster.brokers[first].kill()
    cluster.cluster.wait_for_leader(topic, 0, other_than=first)
    time.sleep(0.5)
    cluster.brokers[second].kill()
    cluster.cluster.wait_for_leader(topic, 0, other_than=second)
    cluster.lines.heal()
    for other in (first, second):
        cluster.brokers[other].start()
    cluster.wait_in_sync(stage.place)


def leader_returns_with_more(stage: Stage) -> None:
    """The leader is cut off from everybody but clients, takes records that nobody else gets, and comes back when its
    successor has committed others in their place."""
    cluster, place, leader = stage.cluster, stage.place, stage.leader
    cluster.lines.isolate(leader)
    successor = cluster.cluster.wait_for_leader(place.topic, 0, other_than=leader)
    _wait_for_records(place, successor, 100)
    cluster.lines.heal()
    cluster.wait_in_sync(place)


def deposed_leader_is_asked(stage: Stage) -> None:
    """The leader is cut off from everybody but a client, which asks its successor and then it."""
    cluster, leader = stage.cluster, stage.leader
    cluster.lines.isolate(leader)
    successor = cluster.cluster.wait_for_leader(stage.place.topic, 0, other_than=leader)
    # What only the successor has.
    _wait_for_records(stage.place, successor, 20)
    _ask_latest(stage.place, leader)
    cluster.lines.heal()
    cluster.wait_in_sync(stage.place)


def _wait_for_records(place: Place, broker: int, count: int) -> None:
    """Wait until a leader has so many records of partition 0 more than it first says."""
    ends: list[int] = []

    def has_more() -> bool:
        if (now := _ask_latest(place, broker)) is not None:
            ends.append(now)
        return bool(ends) and ends[-1] >= ends[0] + count

    wait_until(has_more, lambda: f"records at broker {broker}, which ends at {ends[-1:]}", poll_s=0.1)


def _ask_latest(place: Place, broker: int) -> int | None:
    begun = time.monotonic()
    asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=place.topic, partitions=[asked])]
    )
    with RawClient(place.brokers[broker]) as client:
        found = client.call(request, 6).topics[0].partitions[0]
    if found.error_code:
        return None
    place.history.note(
        Bound(
            who="prober", begun=begun, ended=time.monotonic(), topic=place.topic_id, partition=0, bound="latest",
            offset=found.offset,
        )
    )  # fmt: skip
    return int(found.offset)


def only_replica_loses_power(stage: Stage) -> None:
    """Acknowledged means flushed here, and nobody else has the records."""
    cluster, leader = stage.cluster, stage.leader
    lose_power(cluster.brokers[leader], stage.chance)
    start_again(cluster.brokers[leader])
    cluster.wait_in_sync(stage.place)


def line_damages_records(stage: Stage) -> None:
    """A bit of a record changes on the way from the leader to a follower."""
    cluster, leader, follower = stage.cluster, stage.leader, stage.follower
    network = _doors_of(cluster).network
    way = _doors_of(cluster).inner_doors[leader].link(follower).back
    network.change([way], mark="ours-", damages=3)
    wait_until(lambda: not network.damages_left(way), "records that can be damaged", poll_s=0.1)
    time.sleep(1)
    cluster.wait_in_sync(stage.place)


def waits_outlive_their_leader(stage: Stage) -> None:
    """A record waits at a leader that is cut off; others are written at its offset, and the old leader copies them."""
    cluster, place, leader = stage.cluster, stage.place, stage.leader
    place.history.note(Client(who="prober", kind="producer"))
    cluster.lines.isolate(leader)
    begun = time.monotonic()
    with RawClient(place.brokers[leader], PATIENCE_S) as client:
        batch = make_batch([payload_of("prober-0")], timestamp_ms=time.time_ns() // 1_000_000)
        client.send_produce([(place.topic, [(0, batch)])], timeout_ms=int(PATIENCE_S * 1000))
        successor = cluster.cluster.wait_for_leader(place.topic, 0, other_than=leader)
        end = _ask_latest(place, successor)
        time.sleep(_STEADY_S)
        assert end is None or (_ask_latest(place, successor) or 0) > end, "nobody sends to the successor"
        cluster.lines.heal()
        told = client.receive_produce().topics[0][1][0]
    outcome = OK if told.error_code == 0 else UNKNOWN
    place.history.note(
        Send(
            who="prober", begun=begun, ended=time.monotonic(), topic=place.topic_id, partition=0, value="prober-0",
            number=0, outcome=outcome, offset=told.base_offset if outcome == OK else -1, error=str(told.error_code),
        )
    )  # fmt: skip
    cluster.wait_in_sync(place)


@dataclass(frozen=True)
class Planted:
    """A bug, what brings it to light, and a rule that is broken then."""

    bug: str
    play: Callable[[Stage], None]
    breaks: str
    replicas: int = SIZE
    configs: dict[str, str] = field(default_factory=dict)


PLANTED = (
    Planted("acknowledge-before-replication", leader_dies_alone, "C2"),
    Planted("truncate-to-high-watermark", two_leaders_die_in_turn, "C2"),
    Planted("raise-before-truncating", leader_returns_with_more, "C10"),
    Planted("skip-the-lease", deposed_leader_is_asked, "C14"),
    Planted("drop-fsync", only_replica_loses_power, "C2", 1, {"flush.before.ack": "true"}),
    Planted("accept-every-crc", line_damages_records, "C1"),
    Planted("trust-every-log", bounce_a_follower_that_lost_its_tail, "C2"),
    Planted("answer-waits-of-old-epochs", waits_outlive_their_leader, "C2"),
)


@pytest.mark.soak
@pytest.mark.parametrize("planted", [pytest.param(each, id=each.bug) for each in PLANTED])
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_seeded_bug_is_caught(planted: Planted, is_planted: bool, tmp_path: Path) -> None:
    bug = planted.bug if is_planted else NO_BUG
    with ChaosCluster(tmp_path / "cluster", bug=bug) as cluster, HistoryWriter(tmp_path / "history.jsonl") as history:
        place = make_topic(
            cluster.bootstrap, cluster.addresses, "bugs", history,
            replicas=planted.replicas, seed=SEED, configs=planted.configs,
        )  # fmt: skip
        workload = Workload(place, tmp_path)
        try:
            workload.start()
            workload.wait_for_more(_STEADY_RECORDS)
            planted.play(Stage(cluster, place, random.Random(SEED), workload=workload))
            # Idempotent producers may not go on, where the bug has cost the log what it had acknowledged.
            workload.wait_for_more_in(0, _STEADY_RECORDS, acks="1")
            workload.finish()
        except RunFailed as error:
            pytest.fail(
                f"seed {SEED}: nothing is shown, the run failed: {error}\nthe brokers say: {cluster.complaints()}"
            )
        finally:
            workload.stop()
        cluster.note_states(place)
        cluster.stop()
        cluster.note_files(history, {place.topic_id: place.topic})
        history.note(*cluster.complaints())
    verdict = judge_files([tmp_path / "history.jsonl"], asks_for_times=SOAK)
    if is_planted:
        assert planted.breaks in verdict.rules, verdict.text()
    else:
        assert not verdict.violations, verdict.text()


def test_every_bug_can_be_planted() -> None:
    """What they replace is where they look for it; a process of its own, since nothing is put back."""
    names = sorted(BUGS)
    script = f"from tests.chaos.seeded_bugs import BUGS\nfor name in {names}: BUGS[name]()"
    subprocess.run([sys.executable, "-c", script], cwd=PROJECT, check=True, timeout=PATIENCE_S)
    assert names == sorted(planted.bug for planted in PLANTED)
