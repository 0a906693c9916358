"""Rule R20: a leader whose lease is over asks its followers whether it still leads, before it speaks alone.

A question is answered with yes once each other member of the maximal ISR has sent a fetch under this leader epoch, in
answer to something that this leader sent after the question was asked. Then no other broker had begun to lead before
the question: the next leader is one of these members (R16: only where this leader may commit, so no other replica is
eligible). And a broker that knows a later epoch does not fetch under this one any more (R3). It is what an ``acks=all``
write of one record proves, without the write. Raft calls it ReadIndex.

A follower's session has at most two requests on their way. So a request is certainly in answer to what had been
answered when the request before it came: ``FetchSession.heard_s``. A fetch that was on its way, or that waits here when
the question is asked, proves nothing; those that wait are answered at once, and no fetch waits until its session has
proven what is asked.

One round serves all questions that have come before it began; later ones have the next round. A question that is not
answered within ``CONFIRMED_WITHIN_S`` is answered with no.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from spark_kafkalite.broker.replication.rules.in_sync import FetchClock, InSyncReplicas
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.errors import KafkaError

CONFIRMED_WITHIN_S: Final = 5.0

OnAnswer = Callable[[bool], None]


class AskedLeader(Protocol):
    """What is asked of a leader; see ``leader.Leader``."""

    end_reason: KafkaError | None
    in_sync: InSyncReplicas

    def is_fetched_in(self, session: FetchClock) -> bool: ...


class Question:
    """One question to a leader. ``on_answer`` is called once, unless the question is dropped."""

    __slots__ = ("_on_answer", "timer")

    def __init__(self, on_answer: OnAnswer) -> None:
        self._on_answer: OnAnswer | None = on_answer
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether a question waits for the answer."""
        return self._on_answer is not None

    def answer(self, *, is_confirmed: bool) -> None:
        """Answer it, unless that is done."""
        on_answer = self._on_answer
        self.drop()
        if on_answer is not None:
            on_answer(is_confirmed)

    def drop(self) -> None:
        """Want no answer any more."""
        self._on_answer = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Confirmation:
    """The questions to one leader, in its one leader epoch."""

    __slots__ = ("_began_s", "_hurried", "_in_next_round", "_in_round", "_leader", "_purgatory")

    def __init__(self, leader: AskedLeader, purgatory: Purgatory) -> None:
        self._leader = leader
        self._purgatory = purgatory
        self._began_s = 0.0
        self._in_round: list[Question] = []
        self._in_next_round: list[Question] = []
        self._hurried: list[FetchClock] = []

    def ask(self, on_answer: OnAnswer) -> Question:
        """Ask whether this leader still leads; ``on_answer`` is called at once, or within ``CONFIRMED_WITHIN_S``."""
        question = Question(on_answer)
        question.timer = self._purgatory.call_later(CONFIRMED_WITHIN_S, lambda: self._give_up(question))
        if self._in_round:
            self._in_next_round.append(question)
        else:
            self._begin([question])
        return question

    def look(self) -> None:
        """See whether the round is over: a follower has fetched, the ISR has changed, or the epoch is over."""
        if not self._in_round:
            return
        leader = self._leader
        if leader.end_reason is not None or not leader.in_sync.may_commit:
            self._answer(is_confirmed=False)
            return
        lacking = [each for each in leader.in_sync.counted_sessions() if not self._is_proven_by(each)]
        if not lacking:
            self._answer(is_confirmed=True)
            return
        # One that has heard of this round says the rest by itself, when it fetches this partition again.
        self._hurry([each for each in lacking if each is not None and not self._has_heard(each)])

    def _has_heard(self, session: FetchClock) -> bool:
        """Whether a follower's last request is in answer to something that was sent in this round."""
        return session.heard_s > self._began_s

    def _is_proven_by(self, session: FetchClock | None) -> bool:
        return session is not None and self._has_heard(session) and self._leader.is_fetched_in(session)

    def _hurry(self, sessions: list[FetchClock]) -> None:
        """Have the next requests of these sessions come at once, and of no others."""
        before, self._hurried = self._hurried, sessions
        for session in before:
            if session not in sessions:
                session.hurry_no_more(self)
        for session in sessions:
            if session not in before:
                session.hurry(self)

    def _begin(self, questions: list[Question]) -> None:
        self._in_round = questions
        self._began_s = self._purgatory.now_s()
        self.look()

    def _answer(self, *, is_confirmed: bool) -> None:
        """End the round, and begin the next one for those that have come meanwhile."""
        answered, self._in_round = self._in_round, []
        self._hurry([])
        for question in answered:
            question.answer(is_confirmed=is_confirmed)
        waiting = [each for each in self._in_next_round if each.is_open]
        self._in_next_round = []
        if waiting and not self._in_round:
            self._begin(waiting)
        else:
            self._in_next_round = waiting

    def _give_up(self, question: Question) -> None:
        question.timer = None
        question.answer(is_confirmed=False)
        if self._in_round and not any(each.is_open for each in self._in_round):
            self._answer(is_confirmed=False)
