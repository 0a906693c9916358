from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time

import pytest

from spark_kafkalite.errors import SaslAuthenticationFailed
from spark_kafkalite.security import token_keeper
from spark_kafkalite.security.token_keeper import RefreshRules, TokenKeeper, keeper_of
from spark_kafkalite.security.tokens import HeldToken, ProviderSource
from tests.patience import PATIENCE_S, wait_until

AT_ONCE = RefreshRules(window_factor=0.5, window_jitter=0.0, min_period_s=0, buffer_s=0)
HOUR = RefreshRules(window_factor=0.8, window_jitter=0.05, min_period_s=60, buffer_s=300)


class ScriptedSource:
    """Gives tokens 1, 2, ... that live for ``lifetime_s``; fails or waits when told to."""

    is_cheap = False

    def __init__(self, lifetime_s=3600.0):
        self.lifetime_s = lifetime_s
        self.fails = ""
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._changed = threading.Condition()

    def __str__(self):
        return "the source"

    def fetch(self):
        with self._changed:
            self.asked += 1
            number = self.asked
            self._changed.notify_all()
        assert self.may_answer.wait(PATIENCE_S)
        if self.fails:
            raise SaslAuthenticationFailed(self.fails)
        return HeldToken(str(number), None if self.lifetime_s is None else time.time() + self.lifetime_s)

    def wait_until_asked(self, times):
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked >= times, PATIENCE_S)


def wait_for_end_of_attempt(keeper, number):
    with keeper._changed:
        assert keeper._changed.wait_for(lambda: keeper._attempts >= number, PATIENCE_S)


def look_at_the_time(keeper):
    """Do what the end of its wait does to a keeper's thread."""
    with keeper._changed:
        keeper._changed.notify_all()


class Login:
    """Somebody who uses a token: only who lives has it renewed."""


class Clock:
    """Stands for the module ``time``; a thread that waits looks at it when somebody asks for a token."""

    now_s = 1_900_000_000.0

    def time(self):
        return self.now_s

    def advance(self, by_s):
        self.now_s += by_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(token_keeper, "time", clock)
    # Sources in this file make tokens by it, too.
    monkeypatch.setattr(sys.modules[__name__], "time", clock)
    return clock


@pytest.fixture
def login():
    return Login()


def test_the_rules_are_kafkas():
    rules = RefreshRules(window_factor=0.8, window_jitter=0.05, min_period_s=60, buffer_s=300)
    assert rules.due_s(1000.0, 4600.0, 0.0) == 1000 + 2880
    assert rules.due_s(1000.0, 4600.0, 1.0) == pytest.approx(1000 + 3060)
    assert rules.due_s(1000.0, 2000.0, 0.0) == 1000 + 700, "the buffer before its end counts more"
    assert rules.due_s(1000.0, 1359.0, 0.0) == pytest.approx(1000 + 0.8 * 359), "too short for period and buffer"
    assert RefreshRules(0.5, 0.0, 900, 0).due_s(0.0, 1000.0, 0.0) == 900, "not before the least period"
    assert RefreshRules(1.0, 0.25, 0, 0).due_s(0.0, 1000.0, 1.0) == 1000, "not after its end"


def test_a_token_is_fetched_once_for_any_number_of_connections(login):
    source = ScriptedSource()
    keeper = TokenKeeper(source, HOUR)
    source.may_answer.clear()
    got = []
    threads = [threading.Thread(target=lambda: got.append(keeper.current(login).value)) for _ in range(20)]
    for thread in threads:
        thread.start()
    source.wait_until_asked(1)
    source.may_answer.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert got == ["1"] * 20
    assert keeper.current(login).value == "1" and source.asked == 1


def test_a_token_is_renewed_before_it_expires_and_without_anybody_waiting(login, clock):
    source = ScriptedSource(lifetime_s=3600.0)
    keeper = TokenKeeper(source, AT_ONCE)
    first = keeper.current(login)
    clock.advance(1801)
    assert clock.now_s < first.expires_at_s
    look_at_the_time(keeper)
    source.wait_until_asked(2)
    wait_for_end_of_attempt(keeper, 2)
    assert keeper.current(login).value == "2"


def test_a_renewal_that_fails_leaves_the_old_token_and_is_tried_again(login, clock, caplog):
    source = ScriptedSource(lifetime_s=3600.0)
    keeper = TokenKeeper(source, HOUR)
    assert keeper.current(login).value == "1"
    source.fails = "no"
    for times in (2, 3, 4):
        clock.advance(3100 if times == 2 else 11)
        assert keeper.current(login).value == "1"
        source.wait_until_asked(times)
        wait_for_end_of_attempt(keeper, times)
    assert caplog.text.count("no new token: no. The present one is used until it expires") == 3
    source.fails = ""
    clock.advance(11)
    assert keeper.current(login).value in ("1", "5"), "the thread may be quicker"
    wait_for_end_of_attempt(keeper, 5)
    assert keeper.current(login).value == "5"


def test_without_a_token_the_failure_is_told_to_all_and_the_next_try_is_free(login):
    source = ScriptedSource()
    keeper = TokenKeeper(source, HOUR)
    source.fails = "the reason"
    for asked in (1, 2):
        with pytest.raises(SaslAuthenticationFailed, match=r"^the reason$"):
            keeper.current(login)
        assert source.asked == asked
    source.fails = ""
    assert keeper.current(login).value == "3"


def test_nobody_waits_for_ever(login, monkeypatch):
    monkeypatch.setattr(token_keeper, "TOKEN_WAIT_S", 0.05)
    source = ScriptedSource()
    keeper = TokenKeeper(source, HOUR)
    source.may_answer.clear()
    with pytest.raises(SaslAuthenticationFailed, match="the source: no token came within"):
        keeper.current(login)
    source.may_answer.set()
    monkeypatch.setattr(token_keeper, "TOKEN_WAIT_S", PATIENCE_S)
    assert keeper.current(login).value == "1", "the one that was under way"


def test_any_exception_of_a_source_reaches_who_waits(login):
    source = ScriptedSource()
    source.fetch = lambda: 1 / 0
    with pytest.raises(SaslAuthenticationFailed, match="the source: ZeroDivisionError"):
        TokenKeeper(source, HOUR).current(login)


@pytest.mark.parametrize("lifetime_s", [None, -5.0])
def test_a_token_that_is_not_known_to_live_serves_once_and_is_not_renewed_in_a_circle(login, lifetime_s):
    source = ScriptedSource(lifetime_s)
    keeper = TokenKeeper(source, AT_ONCE)
    assert [keeper.current(login).value for _ in range(3)] == ["1", "2", "3"]
    wait_until(lambda: keeper._thread is None, "the end of the thread")
    assert source.asked == 3


def test_renewal_ends_with_the_last_login(clock):
    source = ScriptedSource()
    keeper = TokenKeeper(source, HOUR)
    login = Login()
    keeper.current(login)
    thread = keeper._thread
    del login
    gc.collect()
    clock.advance(3500)
    look_at_the_time(keeper)
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and source.asked == 1
    assert keeper.current(Login()).value == "1"


def test_a_refused_token_is_not_used_again(login):
    source = ScriptedSource()
    keeper = TokenKeeper(source, HOUR)
    refused = keeper.current(login)
    keeper.drop(refused)
    renewed = keeper.current(login)
    assert renewed.value == "2"
    keeper.drop(refused)
    assert keeper.current(login) is renewed


def test_a_token_that_was_handed_over_is_used_until_the_last_part_of_its_life(login, clock):
    source = ScriptedSource()
    keeper = TokenKeeper(source, HOUR)
    keeper.take(HeldToken("opaque without a time", None))
    keeper.take(HeldToken("too old", clock.now_s - 1))
    handed = HeldToken("handed", clock.now_s + 3600)
    keeper.take(handed)
    keeper.take(HeldToken("ends earlier", clock.now_s + 1800))
    # The giver renews it after 85 % of its life at the latest: half of what is left then is for that.
    clock.advance(3600 * 0.92)
    assert keeper.current(login) is handed and source.asked == 0
    clock.advance(3600 * 0.08 - 0.001)
    assert keeper.current(login).value in ("handed", "1"), "the thread may be quicker"
    wait_for_end_of_attempt(keeper, 1)
    assert keeper.current(login).value == "1" and source.asked == 1


def test_a_handed_over_token_ends_the_wait_for_one(login):
    source = ScriptedSource()
    source.fails = "too late to matter"
    keeper = TokenKeeper(source, HOUR)
    with pytest.raises(SaslAuthenticationFailed):
        keeper.current(login)
    source.may_answer.clear()
    got = []
    waiter = threading.Thread(target=lambda: got.append(keeper.current(login).value))
    waiter.start()
    source.wait_until_asked(2)
    keeper.take(HeldToken("handed", time.time() + 3600))
    waiter.join(PATIENCE_S)
    source.may_answer.set()
    wait_for_end_of_attempt(keeper, 2)
    assert got == ["handed"] and keeper.current(login).value == "handed"


def test_handed_over_tokens_spare_a_worker_the_source_as_long_as_fresh_ones_come(login, clock):
    source = ScriptedSource()
    keeper = TokenKeeper(source, HOUR)
    for number in range(10):
        keeper.take(HeldToken(f"handed {number}", clock.now_s + 3600))
        clock.advance(3000)
        assert keeper.current(login).value == f"handed {number}"
    assert source.asked == 0


def test_a_thousand_workers_with_one_token_do_not_ask_at_the_same_time(clock):
    due = []
    for _ in range(1000):
        keeper = TokenKeeper(ScriptedSource(), HOUR)
        keeper.take(HeldToken("handed", clock.now_s + 3600))
        due.append(keeper._due_s - clock.now_s)
    assert min(due) > 3300 and max(due) < 3600
    assert sorted(due)[500] - min(due) > 60, "they are spread over minutes"


def test_logins_with_the_same_source_share_a_keeper_and_their_number_is_bounded():
    keeper = keeper_of(ProviderSource("shared:one"), HOUR)
    assert keeper_of(ProviderSource("shared:one"), HOUR) is keeper
    assert keeper_of(ProviderSource("shared:one"), AT_ONCE) is not keeper
    for number in range(40):
        keeper_of(ProviderSource(f"shared:n{number}"), HOUR)
    assert len(token_keeper._KEEPERS) == 16
    assert keeper_of(ProviderSource("shared:one"), HOUR) is not keeper


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # that is what it is about
def test_a_forked_process_goes_on_with_the_token_and_fetches_its_own(login):
    source = ScriptedSource()
    keeper = TokenKeeper(source, HOUR)
    held = keeper.current(login)
    with keeper._changed:  # as if another thread were in the middle of something
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            works = keeper.current(login) == held
            keeper.drop(held)
            works = works and keeper.current(login).value == "2"
            os._exit(0 if works else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert keeper.current(login) is held
