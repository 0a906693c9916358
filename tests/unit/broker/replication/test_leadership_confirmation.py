"""Whether a leader still leads, as its followers say (rule R20): which fetch proves it, and what is not waited for."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_kafkalite.broker.replication.leadership_confirmation import CONFIRMED_WITHIN_S, AskedLeader, Confirmation
from spark_kafkalite.broker.requests.fetch_sessions import FetchSession, WaitingFetch
from spark_kafkalite.broker.waiting.purgatory import Purgatory


class Time:
    """The loop's time, moved by hand, with its timers."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[[], None], SimpleNamespace]] = []

    def now_s(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        timer = SimpleNamespace(is_cancelled=False)
        timer.cancel = lambda: setattr(timer, "is_cancelled", True)
        self._timers.append((self.now + delay_s, callback, timer))
        return timer

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self._timers if each[0] <= self.now]
        self._timers = [each for each in self._timers if each[0] > self.now]
        for _, callback, timer in due:
            if not timer.is_cancelled:
                callback()


class Waits(WaitingFetch):
    """A fetch that waits here; its answer is made when its wait is ended."""

    def __init__(self, follower: FollowerDouble) -> None:
        super().__init__()
        self.follower = follower

    def end_wait(self) -> None:
        self.follower.session.waiting = None
        self.follower.answer()


class FollowerDouble:
    """A follower with at most two requests on their way, as ``replica_fetcher`` has them."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.session = FetchSession(1, time.now, is_by_id=True, is_of_client=False)
        self.follows = True
        # When answers have been made that have not been received.
        self.coming: list[float] = []
        # Of the requests that were sent, and have not arrived: the time of the latest answer that had been received.
        self.sent: list[float] = []
        self.received_s = -1.0
        # What the leader's latest request of it was in answer to.
        self.known_s = -1.0
        self.unanswered = 0

    def answer(self) -> None:
        self.session.answers_at(self.time.now)
        self.coming.append(self.time.now)

    def send(self) -> None:
        if self.unanswered < 2:
            self.unanswered += 1
            self.sent.append(self.received_s)

    def receive(self) -> None:
        if self.coming:
            self.received_s = self.coming.pop(0)
            self.unanswered -= 1

    def arrive(self) -> None:
        """A request arrives at the leader: the one before is answered, this one waits, unless it is hurried."""
        if not self.sent:
            return
        self.known_s = self.sent.pop(0)
        if self.session.waiting is not None:
            self.session.waiting.end_wait()
        self.session.begin_next(self.time.now)
        assert self.session.heard_s <= self.known_s
        if self.session.is_hurried:
            self.session.tell_questions()
        if self.session.is_hurried:
            self.answer()
        else:
            self.session.waiting = Waits(self)

    def go_round(self) -> None:
        """Receive what was answered, and ask again."""
        self.time.pass_by(0.001)
        self.receive()
        self.send()
        self.time.pass_by(0.001)
        self.arrive()


class LeaderDouble:
    def __init__(self, *followers: FollowerDouble) -> None:
        self.followers = list(followers)
        self.end_reason: Exception | None = None
        self.in_sync = SimpleNamespace(may_commit=True, counted_sessions=lambda: [each.session for each in followers])

    def is_fetched_in(self, session: Any) -> bool:
        return next(each for each in self.followers if each.session is session).follows


@pytest.fixture
def time() -> Time:
    return Time()


def confirmation_of(leader: LeaderDouble, time: Time) -> Confirmation:
    return Confirmation(cast(AskedLeader, leader), cast(Purgatory, time))


def test_a_leader_without_followers_is_certain(time: Time) -> None:
    answers: list[bool] = []
    confirmation_of(LeaderDouble(), time).ask(answers.append)
    assert answers == [True]


def test_a_fetch_that_was_on_its_way_proves_nothing_and_a_later_one_does(time: Time) -> None:
    follower, answers = FollowerDouble(time), list[bool]()
    confirmation = confirmation_of(LeaderDouble(follower), time)
    follower.go_round()
    follower.send()
    time.pass_by(0.001)
    confirmation.ask(answers.append)
    # The one that waits here is answered at once; the one that was on its way arrives.
    assert follower.coming == [time.now]
    follower.arrive()
    assert answers == []
    rounds = 0
    while not answers:
        follower.go_round()
        rounds += 1
    assert answers == [True]
    assert rounds <= 3
    assert not follower.session.is_hurried


def test_all_members_have_to_fetch_and_those_that_have_are_not_hurried_any_more(time: Time) -> None:
    followers, answers = [FollowerDouble(time), FollowerDouble(time)], list[bool]()
    confirmation = confirmation_of(LeaderDouble(*followers), time)
    for each in followers:
        each.go_round()
        each.go_round()
    confirmation.ask(answers.append)
    for _ in range(5):
        followers[0].go_round()
    assert answers == []
    assert [each.session.is_hurried for each in followers] == [False, True]
    for _ in range(5):
        followers[1].go_round()
    assert answers == [True]


def test_a_follower_of_another_leader_proves_nothing_and_is_not_asked_for_ever(time: Time) -> None:
    follower, answers = FollowerDouble(time), list[bool]()
    confirmation = confirmation_of(LeaderDouble(follower), time)
    follower.follows = False
    confirmation.ask(answers.append)
    for _ in range(5):
        follower.go_round()
    assert answers == []
    # It has heard of the round: whether it follows again, its next fetch of the partition says.
    assert not follower.session.is_hurried
    follower.follows = True
    confirmation.look()
    assert answers == [True]


def test_questions_that_come_during_a_round_have_the_next_one_together(time: Time) -> None:
    follower, answers = FollowerDouble(time), list[str]()
    confirmation = confirmation_of(LeaderDouble(follower), time)
    follower.go_round()
    confirmation.ask(lambda _: answers.append("first"))
    follower.go_round()
    for name in ("second", "third"):
        confirmation.ask(lambda _, name=name: answers.append(name))  # type: ignore[misc]
    while not answers:
        follower.go_round()
    assert answers == ["first"]
    while len(answers) < 2:
        follower.go_round()
    assert answers == ["first", "second", "third"]


def test_without_an_answer_in_time_it_is_no_and_later_questions_have_their_own_time(time: Time) -> None:
    follower, answers = FollowerDouble(time), list[tuple[str, bool]]()
    confirmation = confirmation_of(LeaderDouble(follower), time)
    confirmation.ask(lambda said: answers.append(("first", said)))
    time.pass_by(CONFIRMED_WITHIN_S - 1)
    confirmation.ask(lambda said: answers.append(("second", said)))
    time.pass_by(1)
    assert answers == [("first", False)]
    # The follower is back.
    follower.go_round()
    follower.go_round()
    follower.go_round()
    assert answers == [("first", False), ("second", True)]


@pytest.mark.parametrize("what", ["the epoch is over", "too few are in sync"])
def test_one_that_may_not_commit_or_leads_no_more_says_no_at_once(time: Time, what: str) -> None:
    leader, answers = LeaderDouble(FollowerDouble(time)), list[bool]()
    confirmation = confirmation_of(leader, time)
    confirmation.ask(answers.append)
    if what == "the epoch is over":
        leader.end_reason = ValueError()
    else:
        leader.in_sync.may_commit = False
    confirmation.look()
    assert answers == [False]
    confirmation.ask(answers.append)
    assert answers == [False, False]


def test_a_question_that_is_dropped_is_not_answered(time: Time) -> None:
    follower, answers = FollowerDouble(time), list[bool]()
    confirmation = confirmation_of(LeaderDouble(follower), time)
    confirmation.ask(answers.append).drop()
    confirmation.ask(answers.append)
    for _ in range(8):
        follower.go_round()
    assert answers == [True]


def test_by_chance_each_yes_is_proven_by_an_answer_that_was_made_after_the_question(time: Time) -> None:
    """Followers receive and send as they like; each yes comes after a request of every one that knew of an answer that
    was made after the question."""
    chance = random.Random(20)
    for _ in range(300):
        followers = [FollowerDouble(time) for _ in range(chance.randint(1, 3))]
        confirmation = confirmation_of(LeaderDouble(*followers), time)
        yes = 0

        def ask(confirmation: Confirmation = confirmation, followers: list[FollowerDouble] = followers) -> None:
            asked_s = time.now

            def answered(is_confirmed: bool) -> None:
                nonlocal yes
                if is_confirmed:
                    yes += 1
                    assert all(each.known_s > asked_s for each in followers)

            confirmation.ask(answered)

        ask()
        for _ in range(200):
            time.pass_by(chance.choice((0.0001, 0.001, 0.01)))
            if chance.random() < 0.05:
                ask()
            follower = chance.choice(followers)
            chance.choice((follower.receive, follower.send, follower.arrive))()
        for _ in range(10):
            for follower in followers:
                follower.go_round()
        assert yes
