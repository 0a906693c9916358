"""Rows in which processes end, or stand still."""

from __future__ import annotations

import time
from typing import Final

from tests.chaos.broker_program import SLOW_WRITES
from tests.chaos.our_cluster import SESSION_S
from tests.chaos.rows.stage import (
    FAILOVER_S,
    GOES_ON,
    ISR_WITHIN_S,
    LAGGARD_OUT_S,
    NOT_ENOUGH_REPLICAS,
    REQUEST_TIMEOUT_S,
    SLACK_S,
    Row,
    Stage,
)
from tests.chaos.rows.troubles import KILL, PAUSE, trouble_brokers
from tests.chaos.workload import RunFailed

# A stop in order hands over what the broker leads.
_HANDOVER_S: Final = 1.0 + SLACK_S
# So many brokers commit.
_ENOUGH: Final = 2


def baseline(stage: Stage) -> None:
    """Nothing happens, and no client sees an error."""
    with stage.fault("nothing", errors_at_most=0, acks_at_least=100, longest_gap_s=1.0 + SLACK_S, elections=0):
        time.sleep(10)


def stop_in_order(stage: Stage) -> None:
    """Stop the leader with SIGTERM and start it again, then each broker in turn: what they lead is handed over, and no
    client sees an error, but who makes topics of three replicas meanwhile."""
    for number in (stage.leader, *sorted(stage.brokers)):
        broker = stage.brokers[number]
        bounds = {"longest_gap_s": _HANDOVER_S, "isr_within_s": ISR_WITHIN_S, "elections": 1}
        with stage.fault("stop and start", number, errors_at_most=0, errors_not_of="maker", **bounds):
            if code := broker.stop():
                raise RunFailed(f"broker {number} ends with exit code {code} when it is stopped in order")
            time.sleep(1)
            broker.start()


def chase_the_leader(stage: Stage) -> None:
    """Kill the leader of partition 0, and again."""
    cluster = stage.cluster
    for _ in range(2):
        leader = stage.leader
        bounds = {"longest_gap_s": FAILOVER_S, "isr_within_s": ISR_WITHIN_S, "acks_at_least": GOES_ON}
        with stage.fault("kill leader", leader, **bounds):
            cluster.brokers[leader].kill()
            stage.wait_until("all led", lambda leader=leader: not stage.led_by(leader))  # type: ignore[misc]
            stage.wait_for_more(GOES_ON)
            cluster.brokers[leader].start()


def kill_the_controller(stage: Stage) -> None:
    """Kill the controller, twice: another broker takes the role, partitions that it led are led by others, and those
    that others lead wait for its session at most, as for any follower."""
    for _ in range(2):
        _kill_the_controller(stage, stage.wait_for_controller())


def _kill_the_controller(stage: Stage, victim: int) -> None:
    led = stage.led_by(victim)
    bounds = {"isr_within_s": ISR_WITHIN_S, "acks_at_least": 100, "elections": 1, "longest_gap_s": FAILOVER_S}
    with stage.fault("kill controller", victim, **bounds) as fault:
        stage.brokers[victim].kill()
        stage.wait_for_controller(other_than=victim)
        stage.note_measure("a new controller", fault.begun, SESSION_S + 1 + SLACK_S)
        stage.wait_until("all led", lambda: not stage.led_by(victim))
        time.sleep(2)
        if others := tuple(each for each in stage.partitions if each not in led):
            stage.note_fault(
                fault.begun, time.monotonic(), "kill controller, partitions of other leaders", victim,
                partitions=others, longest_gap_s=SESSION_S + 1 + SLACK_S,
            )  # fmt: skip
        stage.brokers[victim].start()


def kill_two(stage: Stage) -> None:
    """Kill the leader and one more: the one that is left refuses acks=all with NOT_ENOUGH_REPLICAS, and commits
    nothing, until one of them is back."""
    leader, other = stage.leader, stage.follower
    (left,) = stage.brokers.keys() - {leader, other}
    with stage.fault("kill two", f"{leader}, {other}", isr_within_s=ISR_WITHIN_S, resumes_within_s=FAILOVER_S):
        for number in (leader, other):
            stage.brokers[number].kill()
        stage.wait_for_isr({left})
        # What the last but one had been sent is committed when the first has left; clients hear of it.
        time.sleep(1)
        begun = time.monotonic()
        topic, topic_id = stage.place.topic, stage.place.topic_id
        # It may not have heard yet that it leads.
        stage.wait_until("refused", lambda: stage.send_one(topic, topic_id, 0, left) == NOT_ENOUGH_REPLICAS)
        for _ in range(3):
            time.sleep(1)
            if (code := stage.send_one(topic, topic_id, 0, left)) != NOT_ENOUGH_REPLICAS:
                raise RunFailed(f"the only broker in sync answers acks=all with {code}, not with {NOT_ENOUGH_REPLICAS}")
        stage.note_fault(begun, time.monotonic(), "one is left", left, commits_nothing=True)
        for number in (leader, other):
            stage.brokers[number].start()


def kill_all(stage: Stage) -> None:
    """Kill all three in the same moment, and start them in a random order: what they had written is in the page cache,
    and nothing is lost."""
    for _ in range(2):
        order = sorted(stage.brokers)
        stage.chance.shuffle(order)
        with stage.fault("kill all", ", ".join(map(str, order)), isr_within_s=ISR_WITHIN_S) as fault:
            for number in order:
                stage.brokers[number].kill()
            for started, number in enumerate(order, 1):
                time.sleep(stage.chance.uniform(0, 2))
                stage.brokers[number].start()
                if started == _ENOUGH:
                    fault.longest_gap_s = time.monotonic() - fault.begun + FAILOVER_S
            fault.resumes_within_s = FAILOVER_S


def pause_the_leader(stage: Stage) -> None:
    """Stop the leader's process for longer than its session; it wakes with requests in its buffers."""
    leader = stage.leader
    bound_s = FAILOVER_S + REQUEST_TIMEOUT_S
    with stage.fault("pause leader", leader, longest_gap_s=bound_s, isr_within_s=ISR_WITHIN_S):
        stage.cluster.brokers[leader].pause()
        time.sleep(10)
        stage.cluster.brokers[leader].resume()


def mix_pauses_and_kills(stage: Stage) -> None:
    """Pause or kill a random broker every 5 to 15 s, whatever the others are doing; a pause lasts up to 12 s, and a
    dead broker is started up to 8 s later. The row's length is an option."""
    with stage.fault("pauses and kills", isr_within_s=30, resumes_within_s=30, acks_at_least=100):
        trouble_brokers(stage, {PAUSE: (0.2, 12), KILL: (0, 8)}, (5, 15))


def trouble_a_follower(stage: Stage) -> None:
    """A follower dies, stands still for a moment, has a slow disk, and is isolated: producers hardly notice."""
    cluster = stage.cluster
    bound_s = SESSION_S + 1 + SLACK_S
    follower = stage.follower
    with stage.fault("kill follower", follower, longest_gap_s=bound_s, isr_within_s=ISR_WITHIN_S):
        cluster.brokers[follower].kill()
        time.sleep(SESSION_S + 1)
        cluster.brokers[follower].start()
    follower = stage.follower
    with stage.fault("pause follower", follower, longest_gap_s=bound_s, isr_within_s=ISR_WITHIN_S):
        cluster.brokers[follower].pause()
        time.sleep(2)
        cluster.brokers[follower].resume()
    follower = stage.follower
    with stage.fault("isolate follower", follower, longest_gap_s=bound_s, isr_within_s=ISR_WITHIN_S):
        cluster.lines.isolate(follower)
        time.sleep(SESSION_S + 2)
        cluster.lines.heal()
    follower = stage.follower
    # Until it is found to be too slow everybody waits for it.
    asked = stage.fault(
        "slow follower's disk", follower, longest_gap_s=LAGGARD_OUT_S + 1 + SLACK_S, isr_within_s=ISR_WITHIN_S
    )
    with asked, cluster.disk(follower, SLOW_WRITES):
        time.sleep(3)


ROWS: Final = (Row("3", chase_the_leader),)
MORE_ROWS: Final = (
    Row("1", baseline),
    Row("2", stop_in_order),
    Row("4", kill_the_controller),
    Row("5", kill_two),
    Row("6", kill_all),
    Row("8", pause_the_leader),
    Row("9", mix_pauses_and_kills),
    Row("33", trouble_a_follower),
)
