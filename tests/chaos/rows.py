"""The rows of the matrix of faults: each does something to a live cluster, heals it, and says what is asked for. Every
run of the tests plays ``ROWS``.

A row's numbers are those of the matrix. Bounds are in terms of the registry session, SESSION_S; where clients have to
find out by themselves that their leader does not answer, their request timeout comes on top.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.testing.child_process import ChildFailed
from tests.chaos.broker_program import DISK_FULL, REPLACES_REGISTRATION, SLOW_WRITES
from tests.chaos.clients.client import REQUEST_TIMEOUT_MS, Place
from tests.chaos.history import Fault
from tests.chaos.lines import REGISTRY
from tests.chaos.our_cluster import LAG_TIME_S, SESSION_S, ChaosCluster
from tests.chaos.power import lose_power, start_again

_REQUEST_TIMEOUT_S: Final = REQUEST_TIMEOUT_MS / 1000
# Three brokers, a registry, a JVM and a dozen clients share the processor: this much is not the cluster's doing.
_SLACK_S: Final = 1.0
_ISR_WITHIN_S: Final = 15.0
_BETWEEN_S: Final = 1.0
# Lags are looked at every half of the time that they may last.
_LAGGARD_OUT_S: Final = LAG_TIME_S * 1.5


@dataclass
class Stage:
    """What a row plays on; ``chance`` is seeded."""

    cluster: ChaosCluster
    place: Place
    chance: random.Random

    @contextlib.contextmanager
    def fault(self, name: str, target: int | str = "", **asked: float | None) -> Iterator[None]:
        """Note a fault that lasts as long as the block; it counts until every ISR is full again, or too long for it."""
        # What the last one has left behind is not this one's doing.
        time.sleep(_BETWEEN_S)
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        # That they do not come back is for the judge to say.
        with contextlib.suppress(ChildFailed):
            self.cluster.wait_in_sync(self.place)
        fault = Fault(name=name, target=str(target), begun=begun, ended=ended, settle_s=time.monotonic() - ended)
        for bound, value in asked.items():
            setattr(fault, bound, value)
        self.place.history.note(fault)

    @property
    def leader(self) -> int:
        return self.cluster.leader_of(self.place)

    @property
    def follower(self) -> int:
        return self.cluster.follower_of(self.place)


@dataclass(frozen=True)
class Row:
    number: int
    play: Callable[[Stage], None]


def baseline(stage: Stage) -> None:
    """Nothing happens, and no client sees an error."""
    with stage.fault("nothing", errors_at_most=0, acks_at_least=100, longest_gap_s=1.0 + _SLACK_S, elections=0):
        time.sleep(10)


def chase_the_leader(stage: Stage) -> None:
    """Kill whoever leads partition 0, and again."""
    cluster = stage.cluster
    for _ in range(2):
        leader = stage.leader
        bounds = {"longest_gap_s": SESSION_S + 2 + _SLACK_S, "isr_within_s": _ISR_WITHIN_S, "acks_at_least": 100}
        with stage.fault("kill leader", leader, **bounds):
            cluster.brokers[leader].kill()
            time.sleep(5)
            cluster.brokers[leader].start()


def pause_the_leader(stage: Stage) -> None:
    """Stop the leader's process for longer than its session; it wakes with requests in its buffers."""
    leader = stage.leader
    bound_s = SESSION_S + 2 + _REQUEST_TIMEOUT_S + _SLACK_S
    with stage.fault("pause leader", leader, longest_gap_s=bound_s, isr_within_s=_ISR_WITHIN_S):
        stage.cluster.brokers[leader].pause()
        time.sleep(10)
        stage.cluster.brokers[leader].resume()


def cut_the_leader_from_the_registry(stage: Stage) -> None:
    """The leader reaches everybody but the registry, for longer than its session."""
    leader = stage.leader
    bound_s = SESSION_S + 2 + _REQUEST_TIMEOUT_S + _SLACK_S
    with stage.fault("cut leader from the registry", leader, longest_gap_s=bound_s, isr_within_s=_ISR_WITHIN_S):
        stage.cluster.lines.hold(leader, REGISTRY)
        time.sleep(10)
        stage.cluster.lines.heal()


def unplug_the_leader(stage: Stage) -> None:
    """The leader's host reaches nobody, for longer than its session."""
    leader = stage.leader
    bound_s = SESSION_S + 2 + _REQUEST_TIMEOUT_S + _SLACK_S
    with stage.fault("unplug leader", leader, longest_gap_s=bound_s, isr_within_s=_ISR_WITHIN_S):
        stage.cluster.lines.unplug(leader)
        time.sleep(SESSION_S + 5)
        stage.cluster.lines.heal()


def deafen_and_mute_the_leader(stage: Stage) -> None:
    """The leader does not hear its followers, and then they do not hear it; neither side is told."""
    leader = stage.leader
    followers = stage.cluster.brokers.keys() - {leader}
    for name, ways in (
        ("deafen leader", [(follower, leader) for follower in followers]),
        ("mute leader", [(leader, follower) for follower in followers]),
    ):
        with stage.fault(name, leader, longest_gap_s=_LAGGARD_OUT_S + _SLACK_S, isr_within_s=_ISR_WITHIN_S):
            stage.cluster.lines.hold_ways(ways)
            time.sleep(2)
            stage.cluster.lines.heal()


def cut_the_leader_from_its_followers(stage: Stage) -> None:
    """The leader reaches clients and the registry, and no follower, until it has taken both out of its ISR: it leads
    on, and acknowledges nothing that only it has."""
    cluster, leader = stage.cluster, stage.leader
    lasts_s = _LAGGARD_OUT_S + 2
    # TCP waits twice as long each time before it sends again: a connection that lives is silent for as long once more.
    bound_s = 2 * lasts_s + _SLACK_S
    with stage.fault("cut leader from followers", leader, longest_gap_s=bound_s, isr_within_s=_ISR_WITHIN_S):
        for follower in cluster.brokers.keys() - {leader}:
            cluster.lines.hold(leader, follower)
        time.sleep(lasts_s)
        cluster.lines.heal()


def fill_disks(stage: Stage) -> None:
    """The leader's disk is full, then a follower's, and each has space again."""
    cluster = stage.cluster
    broker = stage.leader
    with stage.fault("fill leader's disk", broker, isr_within_s=_ISR_WITHIN_S), cluster.disk(broker, DISK_FULL):
        time.sleep(4)
    broker = stage.follower
    asked = stage.fault("fill follower's disk", broker, isr_within_s=_ISR_WITHIN_S)
    with asked, cluster.disk(broker, DISK_FULL):
        time.sleep(_LAGGARD_OUT_S + _SLACK_S)


def bounce_a_follower_that_lost_its_tail(stage: Stage) -> None:
    """A follower loses power, is back before anybody has seen that it was away, and gets nothing from others; the
    leader writes the ISR for another reason (the other follower dies), and dies. Who lost its tail must not lead by
    having been in that ISR (rule R11)."""
    cluster = stage.cluster
    leader, bounced = stage.leader, stage.follower
    other = next(iter(cluster.brokers.keys() - {leader, bounced}))
    with stage.fault("lose power, then kill the others", bounced, isr_within_s=_ISR_WITHIN_S):
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


def trouble_a_follower(stage: Stage) -> None:
    """A follower dies, stands still for a moment, has a slow disk, and is isolated: producers hardly notice."""
    cluster = stage.cluster
    bound_s = SESSION_S + 1 + _SLACK_S
    follower = stage.follower
    with stage.fault("kill follower", follower, longest_gap_s=bound_s, isr_within_s=_ISR_WITHIN_S):
        cluster.brokers[follower].kill()
        time.sleep(SESSION_S + 1)
        cluster.brokers[follower].start()
    follower = stage.follower
    with stage.fault("pause follower", follower, longest_gap_s=bound_s, isr_within_s=_ISR_WITHIN_S):
        cluster.brokers[follower].pause()
        time.sleep(2)
        cluster.brokers[follower].resume()
    follower = stage.follower
    with stage.fault("isolate follower", follower, longest_gap_s=bound_s, isr_within_s=_ISR_WITHIN_S):
        cluster.lines.isolate(follower)
        time.sleep(SESSION_S + 2)
        cluster.lines.heal()
    follower = stage.follower
    # Until it is found to be too slow everybody waits for it.
    asked = stage.fault(
        "slow follower's disk", follower, longest_gap_s=_LAGGARD_OUT_S + 1 + _SLACK_S, isr_within_s=_ISR_WITHIN_S
    )
    with asked, cluster.disk(follower, SLOW_WRITES):
        time.sleep(3)


ROWS: Final = (
    Row(1, baseline),
    Row(3, chase_the_leader),
    Row(8, pause_the_leader),
    Row(11, cut_the_leader_from_the_registry),
    Row(19, fill_disks),
    Row(31, bounce_a_follower_that_lost_its_tail),
    Row(33, trouble_a_follower),
)
# Played where hosts are apart, by the soak, and by hand.
MORE_ROWS: Final = (
    Row(10, cut_the_leader_from_its_followers),
    Row(12, unplug_the_leader),
    Row(13, deafen_and_mute_the_leader),
)
