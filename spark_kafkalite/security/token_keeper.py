"""Keeps a token of each source, and renews it before it expires, so that connections do not wait for one.

One thread per source fetches: the first token when it is asked for, each further one in time
(``sasl.login.refresh.*``), as long as a login lives that uses the source. All logins of the process with the same
source share its token: a Spark worker makes a client per task, and asks the identity provider once. A renewal that
fails is tried again; the old token serves until it expires.

A token can also be handed over, as a Spark driver does to its tasks. It is used while it lives; only near its end, at
a time that chance decides, is the source asked, since a thousand workers hold the same token.

Lives in memory only. A process that forks goes on with the token in both halves, and with a thread of its own in each.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.errors import SaslAuthenticationFailed
from spark_kafkalite.security.tokens import HeldToken, TokenSource

_LOG = logging.getLogger("spark_kafkalite.security")

# How long a connection waits for a token when there is none: a wrong setting is to be told within ten seconds.
TOKEN_WAIT_S: Final = 8.0
# Source: ExpiringCredentialRefreshingLogin.DELAY_SECONDS_BEFORE_NEXT_RETRY_WHEN_RELOGIN_FAILS.
_RETRY_PAUSE_S: Final = 10.0
# However short a token's life, its source is not asked more often than this without need.
_SHORTEST_PAUSE_S: Final = 1.0
# The wall clock may jump, and users may go away: both are looked at this often.
_LONGEST_WAIT_S: Final = 10.0
_MOST_KEEPERS: Final = 16


@dataclass(frozen=True, slots=True)
class RefreshRules:
    """When a token is renewed. Source: org.apache.kafka...expiring.ExpiringCredentialRefreshingLogin.refreshMs.

    Unlike there a token's life is counted from when it came, and not from its ``iat``: that is the same unless the
    identity provider gives a token twice, or a clock is wrong.
    """

    window_factor: float
    window_jitter: float
    min_period_s: float
    buffer_s: float

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RefreshRules:
        """Return the rules that the settings describe."""
        return cls(
            values["sasl.login.refresh.window.factor"],
            values["sasl.login.refresh.window.jitter"],
            values["sasl.login.refresh.min.period.seconds"],
            values["sasl.login.refresh.buffer.seconds"],
        )

    def due_s(self, now_s: float, expires_at_s: float, chance: float) -> float:
        """Return when to renew a token that came at ``now_s``; ``chance`` is from 0 to 1."""
        left_s = expires_at_s - now_s
        part_s = left_s * min(1.0, self.window_factor + self.window_jitter * chance)
        if left_s < self.min_period_s + self.buffer_s:
            return now_s + part_s
        return now_s + max(self.min_period_s, min(part_s, left_s - self.buffer_s))


class NoTokenInTime(SaslAuthenticationFailed):
    """The source still works on a token when the time to wait for it is over."""


class TokenKeeper:
    """The token of one source. For any number of threads."""

    def __init__(self, source: TokenSource, rules: RefreshRules) -> None:
        self._source = source
        self._rules = rules
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        self._held: HeldToken | None = None
        self._due_s: float | None = None
        self._failure = SaslAuthenticationFailed("")
        self._attempts = 0
        self._has_had_one = False
        self._begin_without_thread()
        _ALL.add(self)

    def _begin_without_thread(self) -> None:
        """Set what does not outlive a fork: threads, and locks that one of them may hold."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_wanted = False

    @property
    def has_had_one(self) -> bool:
        """Whether the source has ever given a token to this process."""
        return self._has_had_one

    def current(self, user: object, wait_s: float = TOKEN_WAIT_S) -> HeldToken:
        """Return a token that has not expired as far as is known, fetching one if need be: for ``wait_s`` at most.

        While ``user`` lives the token is renewed. Raises SaslAuthenticationFailed when no token is to be had.
        """
        held = self._held
        if self._source.is_cheap:
            return held if held is not None and lives(held) else self._source.fetch()
        with self._changed:
            self._users.add(user)
            held = self._held
            if held is not None and lives(held):
                self._run_thread()
                return held
            self._is_wanted = True
            self._run_thread()
            return self._next_token(wait_s)

    def take(self, token: HeldToken) -> bool:
        """Use a token that another process has fetched from an equal source, unless the present one lives longer.

        Returns whether the next connection will do without an identity provider.
        """
        with self._changed:
            if token.expires_at_s is None or not lives(token):
                return self._source.is_cheap or (self._held is not None and lives(self._held))
            if self._held is not None and (self._held.expires_at_s or 0.0) >= token.expires_at_s:
                return True
            self._held = token
            due_s = self._rules.due_s(time.time(), token.expires_at_s, 1.0)
            # The giver renews it at that time and hands the new one over: only then is it time to look after oneself.
            self._due_s = random.uniform((due_s + token.expires_at_s) / 2, token.expires_at_s)
            self._changed.notify_all()
            return True

    def drop(self, token: HeldToken) -> None:
        """Use ``token`` no more, since a broker has refused it: what was wrong with it may have been put right."""
        with self._changed:
            if self._held is token:
                self._held = self._due_s = None
                self._changed.notify_all()

    def _next_token(self, wait_s: float) -> HeldToken:
        """Wait until a token is handed over, or the attempt to fetch one has ended. The caller holds the lock."""
        before = self._attempts

        def has_come() -> bool:
            return self._attempts != before or (self._held is not None and lives(self._held))

        if not self._changed.wait_for(has_come, wait_s):
            raise NoTokenInTime(f"{self._source}: no token came within {wait_s:.0f} s")
        held = self._held
        # A new one need not live: it seems to have expired when the clock here is ahead. The broker decides.
        if held is None or (str(self._failure) and not lives(held)):
            raise type(self._failure)(str(self._failure))
        return held

    def _run_thread(self) -> None:
        """Start the thread if needed, and wake it to check what has changed. The lock is held."""
        self._changed.notify_all()
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._renew, name="kafkalite-token", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process ends, or has as many threads as it may
            if self._is_wanted:
                self._is_wanted = False
                raise SaslAuthenticationFailed(f"{self._source}: no thread can fetch a token: {error}") from None
            return
        self._thread = thread

    def _renew(self) -> None:
        """Fetch tokens when they are due or wanted; end when neither is to be expected."""
        while self._wait_until_due():
            fetched, failure = self._attempt()
            with self._changed:
                self._attempts += 1
                self._is_wanted = False
                self._failure = failure
                self._held = fetched or self._held
                self._has_had_one |= fetched is not None
                self._due_s = self._next_due_s(has_failed=fetched is None)
                self._changed.notify_all()

    def _next_due_s(self, *, has_failed: bool) -> float | None:
        """Return when to fetch the next token in advance; None when it is fetched only on demand."""
        now_s = time.time()
        if self._held is None or self._held.expires_at_s is None or not lives(self._held):
            return None
        if has_failed:
            return now_s + _RETRY_PAUSE_S
        due_s = self._rules.due_s(now_s, self._held.expires_at_s, random.random())
        return max(due_s, now_s + _SHORTEST_PAUSE_S)

    def _wait_until_due(self) -> bool:
        """Return True when a token is to be fetched, False when the thread is to end."""
        with self._changed:
            while not self._is_wanted:
                pause_s = None if self._due_s is None else self._due_s - time.time()
                if pause_s is None or not self._users:
                    # One that comes later starts another thread.
                    self._thread = None
                    return False
                if pause_s <= 0:
                    break
                self._changed.wait(min(pause_s, _LONGEST_WAIT_S))
            return True

    def _attempt(self) -> tuple[HeldToken | None, SaslAuthenticationFailed]:
        """Return a new token, or why there is none; the error of a success has no text."""
        try:
            return self._source.fetch(), SaslAuthenticationFailed("")
        except SaslAuthenticationFailed as error:
            failure = error.with_traceback(None)
        except Exception as error:  # a mistake of ours: the caller that waits must hear of it
            failure = SaslAuthenticationFailed(f"{self._source}: {type(error).__name__}")
            _LOG.debug("fetching a token", exc_info=True)
        if self._held is not None and lives(self._held):
            _LOG.warning("no new token: %s. The present one is used until it expires", failure)
        return None, failure


_ALL: Final[weakref.WeakSet[TokenKeeper]] = weakref.WeakSet()
_KEEPERS: Final[OrderedDict[tuple[TokenSource, RefreshRules], TokenKeeper]] = OrderedDict()
_KEEPERS_LOCK = threading.Lock()


def keeper_of(source: TokenSource, rules: RefreshRules) -> TokenKeeper:
    """Return this process's keeper of a source; of the 16 last asked for there is one each."""
    with _KEEPERS_LOCK:
        keeper = _KEEPERS.pop((source, rules), None) or TokenKeeper(source, rules)
        _KEEPERS[source, rules] = keeper
        if len(_KEEPERS) > _MOST_KEEPERS:
            _KEEPERS.popitem(last=False)
        return keeper


def lives(token: HeldToken) -> bool:
    """Whether the token is known to be valid for now; a token without an expiry time serves one connection only."""
    return token.expires_at_s is not None and time.time() < token.expires_at_s


def _after_fork() -> None:
    global _KEEPERS_LOCK
    _KEEPERS_LOCK = threading.Lock()
    for keeper in list(_ALL):
        keeper._begin_without_thread()


os.register_at_fork(after_in_child=_after_fork)
