"""Rows in which brokers lose what they had written: by a loss of power, or with their whole disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from spark_kafkalite import Admin, TopicPartition
from spark_kafkalite.errors import ElectionNotNeeded, KafkaliteError
from tests.chaos.broker_program import REPLACES_REGISTRATION
from tests.chaos.history import Rewind
from tests.chaos.our_cluster import SESSION_S, DisksOfBroker
from tests.chaos.power import Images, lose_power, start_again
from tests.chaos.rows.stage import FAILOVER_S, ISR_WITHIN_S, Row, Stage, empty
from tests.chaos.workload import RunFailed

_ONE_WITHOUT_LEADER_S: Final = 3.0
# A follower that lost records which it had been told to be committed says so when it is cut back to a log without them.
_CUT_BELOW_COMMITTED: Final = "committed records are gone"


def bounce_a_follower_that_lost_its_tail(stage: Stage) -> None:
    """A follower loses power, is back before anybody has seen that it was away, and gets nothing from others; the
    leader writes the ISR for another reason (the other follower dies), and dies. Who lost its tail must not lead by
    having been in that ISR (rule R11)."""
    cluster = stage.cluster
    leader, bounced = stage.leader, stage.follower
    other = next(iter(cluster.brokers.keys() - {leader, bounced}))
    with stage.fault("lose power, then kill the others", bounced, isr_within_s=ISR_WITHIN_S):
        lose_power(cluster.brokers[bounced], stage.chance)
        for each in (leader, other):
            cluster.lines.hold(bounced, each)
        with cluster.disk(bounced, REPLACES_REGISTRATION):
            start_again(cluster.brokers[bounced])
        cluster.brokers[other].kill()
        time.sleep(SESSION_S + 1)
        cluster.brokers[leader].kill()
        cluster.lines.heal()
        time.sleep(SESSION_S + 1)
        cluster.brokers[other].start()
        cluster.brokers[leader].start()


def cut_the_power_of_one(stage: Stage) -> None:
    """The power goes for a follower, and then for the leader: what they had not synced the others have."""
    for role in ("follower", "leader"):
        number = stage.leader if role == "leader" else stage.follower
        broker = stage.brokers[number]
        with stage.fault(f"cut {role}'s power", number, longest_gap_s=FAILOVER_S, isr_within_s=ISR_WITHIN_S):
            _images(stage).lose_power({number: broker}, stage.chance)
            time.sleep(stage.chance.uniform(0, 5))
            start_again(broker)


def cut_all_power_flushed(stage: Stage) -> None:
    """The power goes for all three in the same moment, where acknowledgements wait for fsync and readers see what is
    synced: a log that contains the others leads, where none does one is asked for, and nothing is missing."""
    for _ in range(2):
        _cut_all_power(stage)


def cut_all_power(stage: Stage) -> None:
    """The power goes for all three in the same moment, where nobody waits for fsync: a log that contains the others
    leads, where none does one is asked for; then the end of what was acknowledged may be missing, and nothing else; all
    agree on what is left."""
    place = stage.place
    with Admin(bootstrap_servers=stage.cluster.bootstrap) as admin:
        groups = [each.group_id for each in admin.list_groups()]
    begun, ended = _cut_all_power(stage)
    place.history.note(
        *(
            Rewind(begun=begun, ended=ended, topic=place.topic_id, partition=partition, group=group)
            for partition in stage.partitions
            for group in ("", *groups)
        )
    )


def _cut_all_power(stage: Stage) -> tuple[float, float]:
    """Return from when to when it took until everything is led again."""
    with stage.fault("cut all power", isr_within_s=ISR_WITHIN_S, resumes_within_s=30) as fault:
        _images(stage).lose_power(stage.brokers, stage.chance)
        for broker in stage.brokers.values():
            start_again(broker)
        _elect_unclean(stage)
    return fault.begun, fault.ended


def _images(stage: Stage) -> Images:
    assert stage.cluster.images is not None
    return stage.cluster.images


def _check_leaderless(stage: Stage, topic: str, partitions: int) -> None:
    """See that nobody leads, and that a broker that lives says so."""
    leader_of = stage.cluster.cluster.leader_of
    until = time.monotonic() + _ONE_WITHOUT_LEADER_S
    # The dead are named until the controller has seen that they are.
    stage.wait_until(f"{topic} has no leader", lambda: all(leader_of(topic, at) is None for at in range(partitions)))
    while time.monotonic() < until:
        for partition in range(partitions):
            if (leader := leader_of(topic, partition)) is not None:
                raise RunFailed(
                    f"broker {leader} leads {topic}-{partition}, although its log is not proven to be whole"
                )
        time.sleep(0.05)
    said = [each.stderr_path.read_text(encoding="utf-8") for each in stage.brokers.values() if each.running]
    if not any("without a leader" in text for text in said):
        raise RunFailed(f"no broker says that {topic} is without a leader")


def _elect_unclean(stage: Stage, *partitions: TopicPartition) -> None:
    """Have unclean elections, of everything that is led by nobody unless partitions are named, until there are none to
    be had."""

    def are_done() -> bool:
        try:
            with Admin(bootstrap_servers=stage.cluster.bootstrap) as admin:
                outcomes = admin.elect_leaders(partitions or None, unclean=True)
        except KafkaliteError:
            return False
        return all(error is None or isinstance(error, ElectionNotNeeded) for error in outcomes.values())

    stage.wait_until("elected", are_done)


def return_empty(stage: Stage) -> None:
    """Brokers come back with empty log directories: beside others, as the last one in sync, and as the only one that
    had the newest records. None of them leads for what it had, nobody is cut back to nothing, and an unclean election
    by hand gives what is left."""
    for role in ("follower", "leader"):
        number = stage.leader if role == "leader" else stage.follower
        with stage.fault(f"kill and empty {role}", number, longest_gap_s=FAILOVER_S, isr_within_s=ISR_WITHIN_S):
            _empty(stage, number)
            stage.brokers[number].start()
    _empty_the_last_one_in_sync(stage)
    _empty_the_only_one(stage)


def _empty(stage: Stage, number: int) -> None:
    stage.brokers[number].kill()
    for directory in stage.cluster.log_directories(number):
        empty(directory)


def _empty_the_last_one_in_sync(stage: Stage) -> None:
    """The second one left an ISR that was too small for commits: it is eligible, and has everything."""
    first, second = stage.follower, stage.leader
    (last,) = stage.brokers.keys() - {first, second}
    with stage.fault("kill all, empty the last in sync", last, isr_within_s=ISR_WITHIN_S) as fault:
        stage.brokers[first].kill()
        stage.wait_for_isr({second, last})
        stage.brokers[second].kill()
        stage.wait_for_isr({last})
        _empty(stage, last)
        stage.brokers[last].start()
        _check_leaderless(stage, stage.place.topic, stage.place.partitions)
        stage.brokers[second].start()
        fault.longest_gap_s = time.monotonic() - fault.begun + FAILOVER_S
        stage.wait_until("led again", lambda: stage.led_by(second) == tuple(stage.partitions))
        stage.brokers[first].start()


def _empty_the_only_one(stage: Stage) -> None:
    """A topic of two replicas has records that only one of them has, and that one loses them."""
    topic = f"{stage.place.topic}-two"
    behind, only = stage.follower, stage.leader
    configs = {"min.insync.replicas": "1"}
    topic_id = stage.make_topic(topic, 1, configs, assignments={0: [only, behind]})

    def send(count: int, broker: Callable[[], int]) -> None:
        for _ in range(count):
            stage.wait_until("acknowledged", lambda: stage.send_one(topic, topic_id, 0, broker()) == 0)

    send(5, lambda: only)
    with stage.fault("kill two, empty one", f"{behind}, {only}", isr_within_s=ISR_WITHIN_S):
        stage.brokers[behind].kill()
        stage.wait_for_isr({only}, topic, 1)
        send(5, lambda: only)
        _empty(stage, only)
        stage.brokers[behind].start()
        stage.brokers[only].start()
        begun = time.monotonic()
        _check_leaderless(stage, topic, 1)
        # Members of the ISR are chosen first, and this one is known to be empty.
        stage.brokers[only].stop()
        _elect_unclean(stage, TopicPartition(topic, 0))
        ended = time.monotonic()
        stage.brokers[only].start()
        stage.place.history.note(Rewind(begun=begun, ended=ended, topic=topic_id, partition=0))
        send(5, lambda: stage.cluster.cluster.wait_for_leader(topic, 0))
    stage.cluster.cluster.wait_in_sync(topic)
    stage.note_topic(topic_id, topic, 1, replicas=2, is_kept=True)


MORE_ROWS: Final = (
    Row("31", bounce_a_follower_that_lost_its_tail),
    Row("7a", cut_the_power_of_one, disks=DisksOfBroker.IMAGED),
    Row(
        "7b",
        cut_all_power_flushed,
        overrides={"log.flush.before.ack": "true", "log.visibility.policy": "flushed"},
        disks=DisksOfBroker.IMAGED,
        foreseen=(_CUT_BELOW_COMMITTED,),
        is_alone=True,
    ),
    Row(
        "7c",
        cut_all_power,
        disks=DisksOfBroker.IMAGED,
        foreseen=(_CUT_BELOW_COMMITTED,),
        is_alone=True,
        loses_records=True,
    ),
    # A broker that copies everything opens files of idle topics that it had not opened before.
    Row("32", return_empty, is_alone=True, loses_records=True),
)
