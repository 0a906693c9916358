"""Rows in which lines between brokers are cut."""

from __future__ import annotations

import time
from typing import Final

from tests.chaos.our_cluster import SESSION_S
from tests.chaos.rows.stage import FAILOVER_S, ISR_WITHIN_S, LAGGARD_OUT_S, REQUEST_TIMEOUT_S, SLACK_S, Row, Stage


def cut_the_leader_from_its_followers(stage: Stage) -> None:
    """The leader reaches clients and the registry, and no follower, until it has taken both out of its ISR: it leads
    on, and acknowledges nothing that only it has."""
    cluster, leader = stage.cluster, stage.leader
    lasts_s = LAGGARD_OUT_S + 2
    # TCP waits twice as long each time before it sends again: a connection that lives is silent for as long once more.
    bound_s = 2 * lasts_s + SLACK_S
    with stage.fault("cut leader from followers", leader, longest_gap_s=bound_s, isr_within_s=ISR_WITHIN_S):
        for follower in cluster.brokers.keys() - {leader}:
            cluster.lines.hold(leader, follower)
        time.sleep(lasts_s)
        cluster.lines.heal()


def unplug_the_leader(stage: Stage) -> None:
    """The leader's host reaches nobody, for longer than its session."""
    leader = stage.leader
    bound_s = FAILOVER_S + REQUEST_TIMEOUT_S
    with stage.fault("unplug leader", leader, longest_gap_s=bound_s, isr_within_s=ISR_WITHIN_S):
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
        with stage.fault(name, leader, longest_gap_s=LAGGARD_OUT_S + SLACK_S, isr_within_s=ISR_WITHIN_S):
            stage.cluster.lines.hold_ways(ways)
            time.sleep(2)
            stage.cluster.lines.heal()


# Played where hosts are apart, by the soak, and by hand.
MORE_ROWS: Final = (
    Row("10", cut_the_leader_from_its_followers, needs_hosts=True),
    Row("12", unplug_the_leader, needs_hosts=True),
    Row("13", deafen_and_mute_the_leader, needs_hosts=True),
)
