"""The rules of what is safe, shown and acknowledged, under thousands of random schedules."""

from __future__ import annotations

import random

import pytest

from spark_kafkalite.broker.replication.bounds import ACKS_ALL, Bounds, required_isr
from spark_kafkalite.log.topic_config import TopicConfig
from tests.seeds import SEED

SCHEDULES = 3000


def settings(visibility: str = "committed", **others: object) -> TopicConfig:
    properties = {name.replace("_", "."): value for name, value in others.items()}
    return TopicConfig.from_properties({"visibility.policy": visibility, **properties})


@pytest.mark.parametrize(
    ("visibility", "others", "visible", "acks_1", "acks_all"),
    [
        ("committed", {}, 8, 10, 8),
        ("flushed", {}, 5, 10, 8),
        ("committed", {"flush_before_ack": True}, 8, 5, 5),
        ("committed", {"flush_messages": 1}, 8, 5, 5),
        ("flushed", {"flush_messages": 2}, 5, 10, 8),
    ],
)
def test_what_each_setting_asks_for(
    visibility: str, others: dict[str, object], visible: int, acks_1: int, acks_all: int
) -> None:
    bounds = Bounds(8, settings(visibility, **others))
    assert bounds.visible_end_offset(5) == visible
    assert bounds.acknowledged_end_offset(1, 10, 5) == acks_1
    assert bounds.acknowledged_end_offset(ACKS_ALL, 10, 5) == acks_all


def test_a_commit_takes_min_insync_replicas_but_not_more_than_there_are() -> None:
    assert [required_isr(2, replicas) for replicas in (0, 1, 2, 3)] == [1, 1, 2, 2]


class Replica:
    """A log and its bounds as a leader and as a follower would move them; what was promised is remembered."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.end = self.flushed = self.shown = self.committed = 0
        self.follower_end = 0
        self.bounds = Bounds(0, self.any_settings())

    def any_settings(self) -> TopicConfig:
        chance = self.chance
        return settings(
            chance.choice(["committed", "flushed"]),
            flush_before_ack=chance.random() < 0.3,
            flush_messages=chance.choice([1, 5, 2**63 - 1]),
        )

    def step(self) -> None:
        chance, bounds = self.chance, self.bounds
        step = chance.random()
        if step < 0.35:
            self.end += chance.randint(1, 5)
        elif step < 0.55:
            self.follower_end = chance.randint(self.follower_end, self.end)
            bounds.commit(min(self.end, self.follower_end))
        elif step < 0.75:
            self.flushed = chance.randint(self.flushed, self.end)
        elif step < 0.85:
            bounds.obey(self.any_settings(), self.flushed)
        elif step < 0.95:
            bounds.commit(min(chance.randint(0, 2 * self.end), self.end, self.follower_end))
        else:
            self.change_leader()

    def change_leader(self) -> None:
        """Follow another leader, which may not have what was not committed."""
        bounds = self.bounds
        bounds.forget_shown()
        self.end = self.chance.randint(bounds.high_watermark, self.end)
        self.flushed = min(self.flushed, self.end)
        self.follower_end = min(self.follower_end, self.end)
        bounds.truncated(self.end)
        self.shown = 0

    def check(self) -> None:
        bounds = self.bounds
        visible = bounds.visible_end_offset(self.flushed)
        assert self.committed <= bounds.high_watermark <= self.end, "the high watermark went back, or beyond the log"
        self.committed = bounds.high_watermark
        assert bounds.high_watermark <= self.follower_end, "committed is what the follower does not have"
        assert self.shown <= visible <= bounds.high_watermark, "what was shown is hidden, or what is not safe is shown"
        if bounds.shows_flushed:
            assert visible <= max(self.flushed, self.shown), "shown is what was not flushed, nor shown before"
        self.shown = visible
        for acks, end in ((1, self.end), (ACKS_ALL, bounds.high_watermark)):
            acknowledged = bounds.acknowledged_end_offset(acks, self.end, self.flushed)
            assert acknowledged <= end, "acknowledged is what is not safe"
            assert acknowledged <= self.flushed or not bounds.acknowledges_flushed, "acknowledged before the flush"


def test_bounds_keep_their_promises_whatever_happens() -> None:
    seed = SEED
    for number in range(seed, seed + SCHEDULES):
        replica = Replica(random.Random(number))
        for step in range(30):
            replica.step()
            try:
                replica.check()
            except AssertionError as error:
                raise AssertionError(f"schedule {number}, step {step}: {error}") from error


def test_a_log_cut_below_the_high_watermark_takes_it_back() -> None:
    bounds = Bounds(8, settings("flushed"))
    bounds.truncated(9)
    assert bounds.high_watermark == 8
    bounds.truncated(3)
    assert (bounds.high_watermark, bounds.visible_end_offset(5)) == (3, 3)
    assert not bounds.commit(3) and bounds.commit(5)
    assert bounds.high_watermark == 5


def test_what_was_committed_is_remembered_until_there_is_news_of_a_leader() -> None:
    """A power loss has taken the log's end: it ends at 8, and 12 was written down."""
    bounds = Bounds(8, settings("committed"), 12)
    assert (bounds.high_watermark, bounds.remembered_high_watermark) == (8, 12)
    # Who leads has nothing more.
    assert not bounds.commit(8)
    assert bounds.remembered_high_watermark == 12
    assert bounds.commit(9)
    assert bounds.remembered_high_watermark == 9
    bounds = Bounds(8, settings("committed"), 12)
    bounds.truncated(5)
    assert bounds.remembered_high_watermark == 5
