"""Random schedules of a leader, its followers and a registry whose answers and news come late, or not at all.

After every step the world is asked, which the leader cannot see: whoever the registry would let lead next has
everything that the leader has committed. In the end, when all is well again, everybody is in sync and everything is
committed.
"""

from __future__ import annotations

import math
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.replication.rules.in_sync import InSyncReplicas, IsrChange
from spark_kafkalite.model import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from tests.seeds import SEED, SOAK

ME, FOLLOWERS = BrokerId(1), (BrokerId(2), BrokerId(3), BrokerId(4))
LAG_S = 10.0
SCHEDULES, STEPS = 20_000 if SOAK else 1500, 120


class Process:
    """A follower's process: its incarnation, its log's end, and those whose logs it has proven to have."""

    def __init__(self, incarnation: int, end: int, steady: tuple[int, ...]) -> None:
        self.incarnation, self.end, self.steady = Incarnation(incarnation), end, steady
        self.fetches = True
        self.session = SimpleNamespace(last_fetch_s=-math.inf, name_again=lambda: None)
        # Its fetches on their way to the leader, and what was last said of the partition.
        self.sent: deque[tuple[float, int | None]] = deque()
        self.said = -1


class World:
    """One schedule of the rules, or of others that leave one out."""

    def __init__(self, seed: int, rules: type[InSyncReplicas] = InSyncReplicas) -> None:
        self.random = random.Random(seed)
        self.now_s = 100.0
        self.high_watermark = 0
        self.log_end = self.random.choice((0, 0, 5))
        self.incarnations = iter(range(1000, 10**6))
        self.processes: dict[BrokerId, Process] = {
            each: Process(next(self.incarnations), self.log_end, ()) for each in FOLLOWERS
        }
        self.disks = dict.fromkeys(FOLLOWERS, self.log_end)
        # The incarnations whose logs each disk has: it may prove that.
        self.unbroken: dict[BrokerId, tuple[int, ...]] = {}
        self.note_disks()
        isr = [ME, *(each for each in FOLLOWERS if self.random.random() < 0.7)]
        named = {each: self.processes[each].incarnation for each in isr if each != ME}
        self.node = PartitionState(
            (ME, *FOLLOWERS), ME, LeaderEpoch(3), tuple(isr), version=0, incarnations={ME: Incarnation(7), **named}
        )
        self.me = BrokerInfo(ME, "h", 1, None, BrokerEpoch(1), incarnation=Incarnation(7))
        self.news: deque[PartitionState] = deque()
        self.live = self.registered()
        self.requests: deque[IsrChange] = deque()
        self.lost: deque[IsrChange] = deque()
        self.answers: deque[tuple[IsrChange, int | None]] = deque()
        self.replicas = rules(ME, self.log_end, lambda: self.live)
        self.replicas.required = self.random.choice((1, 2, 2, 3))
        self.replicas.keeps_eligible = True
        self.replicas.take_state(self.node, self.now_s)
        self.commit()
        # How often news are heard when they might be; answers to later writes may come before them.
        self.hears_news = self.random.choice((1.0, 0.3, 0.1))

    def registered(self) -> dict[int, BrokerInfo]:
        live: dict[int, BrokerInfo] = {ME: self.me}
        for each, process in self.processes.items():
            steady = tuple(map(Incarnation, process.steady))
            live[each] = BrokerInfo(
                each, "h", 1, None, BrokerEpoch(process.incarnation), incarnation=process.incarnation, steady=steady
            )
        return live

    # What may happen ------------------------------------------------------------------------------------------------

    def append(self) -> None:
        self.log_end += self.random.randint(1, 3)
        self.replicas.appended()
        self.commit()

    def replicate(self) -> None:
        for process in self.processes.values():
            process.end = min(self.log_end, process.end + self.random.randint(0, 4))

    def send_fetch(self) -> None:
        each = self.pick()
        if each is not None and self.processes[each].fetches:
            process = self.processes[each]
            # What has not moved is not named again in a session, once it has been.
            process.sent.append((self.now_s, None if process.said == process.end else process.end))
            process.said = process.end

    def receive_fetch(self) -> None:
        each = self.pick()
        if each is not None and self.processes[each].sent:
            process = self.processes[each]
            _, offset = process.sent.popleft()
            process.session.last_fetch_s = self.now_s
            if offset is not None:
                self.replicas.fetched(
                    each,
                    process.incarnation,
                    offset,
                    self.log_end,
                    self.high_watermark,
                    self.now_s,
                    process.session,
                )
                self.commit()

    def pick(self) -> BrokerId | None:
        return self.random.choice([*self.processes]) if self.processes else None

    def kill(self) -> None:
        each = self.pick()
        if each is not None:
            self.disks[each] = self.processes.pop(each).end

    def start(self) -> None:
        gone = [each for each in FOLLOWERS if each not in self.processes]
        if gone:
            each = self.random.choice(gone)
            if self.random.random() < 0.5:
                # Its log is whole, and its registration proves it: whatever the nodes name was this disk's.
                self.processes[each] = Process(next(self.incarnations), self.disks[each], self.unbroken[each])
            else:
                end = self.random.randint(0, self.disks[each])
                self.processes[each] = Process(next(self.incarnations), end, ())

    def hear_of_brokers(self) -> None:
        self.live = self.registered()
        self.look()

    def hear_of_state(self) -> None:
        if self.news and self.random.random() < self.hears_news:
            self.replicas.take_state(self.news.popleft(), self.now_s)
            self.commit()

    def take_itself_out(self) -> None:
        """A follower that stops: it has fetched for the last time, and its fetches have come."""
        each = self.pick()
        if each is not None and each in self.node.isr and len(self.node.isr) > 1:
            self.processes[each].fetches = False
            while self.processes[each].sent:
                self.receive_all(each)
            isr = tuple(member for member in self.node.isr if member != each)
            named = {member: which for member, which in self.node.incarnations.items() if member != each}
            eligible = dict(self.node.eligible)
            self.set_node(isr, named, eligible)

    def receive_all(self, each: BrokerId) -> None:
        process = self.processes[each]
        while process.sent:
            _, offset = process.sent.popleft()
            process.session.last_fetch_s = self.now_s
            if offset is not None:
                self.replicas.fetched(
                    each, process.incarnation, offset, self.log_end, self.high_watermark, self.now_s, process.session
                )
        self.commit()

    def set_node(self, isr: Any, named: Any, eligible: Any) -> None:
        node = self.node
        self.node = PartitionState(
            node.replicas, node.leader, node.leader_epoch, isr, version=node.version + 1, incarnations=named,
            eligible=eligible,
        )  # fmt: skip
        self.news.append(self.node)

    def look(self, lag_max_s: float = math.inf) -> None:
        change = self.replicas.due(self.now_s, self.high_watermark, lag_max_s)
        if change is not None:
            self.requests.append(change)
        self.commit()

    def check_lag(self) -> None:
        self.look(LAG_S)

    def do_write(self) -> None:
        """The registry gets a write, whose answer may be lost, or it never gets it."""
        if self.requests:
            change = self.requests.popleft()
            fate = self.random.random()
            written = None
            if fate > 0.15 and self.node.version == change.before.version:
                self.set_node(change.after.isr, change.after.incarnations, change.after.eligible)
                written = self.node.version
            if fate < 0.3:
                self.lost.append(change)
            else:
                self.answers.append((change, written))

    def hear_answer(self) -> None:
        if self.answers:
            change, version = self.answers.popleft()
            if version is None:
                self.replicas.resolved(change, self.node, self.now_s)
            else:
                self.replicas.written(change, version, 1, self.now_s)
            self.commit()
            self.look()

    def read_again(self) -> None:
        if self.lost:
            self.replicas.resolved(self.lost.popleft(), self.node, self.now_s)
            self.commit()
            self.look()

    def change_setting(self) -> None:
        if self.random.random() < 0.2:
            self.replicas.required = self.random.choice((1, 2, 3))
            self.commit()

    def wait(self) -> None:
        self.now_s += self.random.choice((0.1, 1.0, 4.0))
        self.replicas.release(self.now_s)
        self.commit()

    # What must hold -------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        if self.replicas.may_commit:
            self.high_watermark = max(self.high_watermark, self.replicas.committed_end_offset(self.log_end))

    def check(self) -> None:
        may_lead = {**{each: self.node.incarnations[each] for each in self.node.isr}, **self.node.eligible}
        for each, incarnation in may_lead.items():
            if each == ME:
                continue
            process = self.processes.get(each)
            if process is not None:
                proven = process.incarnation == incarnation or incarnation in process.steady
                end = process.end if proven else None
            else:
                end = self.disks[each] if incarnation in self.unbroken[each] else None
            if end is not None:
                assert end >= self.high_watermark, f"broker {each} ends at {end} < {self.high_watermark}: {self.node}"

    def run(self, steps: int = STEPS) -> None:
        usual = [self.append, self.replicate, self.send_fetch, self.receive_fetch, self.hear_of_state, self.look]
        usual += [self.replicate, self.send_fetch, self.receive_fetch, self.do_write, self.hear_answer]
        rare = [self.kill, self.start, self.hear_of_brokers, self.take_itself_out, self.check_lag, self.read_again]
        rare += [self.change_setting, self.wait, self.start, self.hear_of_brokers, self.read_again]
        for _ in range(steps):
            step = self.random.choice(usual if self.random.random() < 0.7 else rare)
            step()
            self.note_disks()
            self.check()

    def note_disks(self) -> None:
        for each, process in self.processes.items():
            self.unbroken[each] = (process.incarnation, *process.steady)

    def heal(self) -> None:
        self.hears_news = 1.0
        for each in FOLLOWERS:
            process = self.processes.get(each)
            if process is None or not process.fetches:
                self.processes[each] = Process(next(self.incarnations), 0 if process is None else process.end, ())
        self.live = self.registered()
        for _ in range(20):
            self.now_s += 0.2
            for process in self.processes.values():
                process.end = self.log_end
            for each in FOLLOWERS:
                self.receive_all(each)
                process = self.processes[each]
                process.sent.append((self.now_s, None if process.said == process.end else process.end))
                process.said = process.end
                self.receive_all(each)
            while self.requests or self.answers or self.lost or self.news:
                for step in (self.hear_of_state, self.do_write, self.hear_answer, self.read_again):
                    step()
            self.replicas.release(self.now_s)
            self.look()
        self.commit()
        assert self.replicas.change is None
        assert sorted(self.node.isr) == [ME, *FOLLOWERS]
        assert self.replicas.state.isr == self.node.isr
        assert self.high_watermark == self.log_end


def run(seed: int, rules: type[InSyncReplicas] = InSyncReplicas) -> None:
    world = World(seed, rules)
    world.run()
    world.heal()


def test_whoever_may_lead_next_has_what_is_committed() -> None:
    first = SEED
    for seed in range(first, first + SCHEDULES):
        try:
            run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


class GoesByOlderStates(InSyncReplicas):
    """Without R2: news of a state count although a later one is known from the answer to a write."""

    __slots__ = ()

    def take_state(self, state: PartitionState, now_s: float) -> None:
        if state.order < self.state.order:
            self._adopt(state, now_s)
        else:
            super().take_state(state, now_s)


class CountsTheConfirmedIsrAlone(InSyncReplicas):
    """Without R4's first half: who joins counts once that is written."""

    __slots__ = ()

    def _recount(self) -> None:
        change, self.change = self.change, None
        super()._recount()
        self.change = change


class CountsTheProposedIsr(InSyncReplicas):
    """Without R4's other half: who leaves counts no more before that is written."""

    __slots__ = ()

    def _recount(self) -> None:
        state = self.state
        if self.change is not None:
            self.state = self.change.after
        super()._recount()
        self.state = state


class ForgetsAnUnknownOutcome(InSyncReplicas):
    """Without R5: a change that may have been written counts as one that has not."""

    __slots__ = ()

    def resolved(self, change: IsrChange, state: PartitionState | None, now_s: float) -> None:
        if self.change is change:
            self.change = None
            self._recount()


class KnowsNoIncarnations(InSyncReplicas):
    """Without R11: a broker is a member, whatever has become of its log."""

    __slots__ = ()

    def _staying(self, now_s: float, lag_max_s: float) -> dict[BrokerId, Incarnation]:
        live = self._live()
        return {each: live[each].incarnation for each in self.state.isr if each in live}


class CommitsWhileSomebodyIsEligible(InSyncReplicas):
    """Without half of R16."""

    __slots__ = ()

    @property
    def may_commit(self) -> bool:
        return self.is_enough


class CommitsWithTooFew(InSyncReplicas):
    """Without the other half of R16."""

    __slots__ = ()

    @property
    def may_commit(self) -> bool:
        return True


@pytest.mark.parametrize(
    "rules",
    [
        GoesByOlderStates,
        CountsTheConfirmedIsrAlone,
        CountsTheProposedIsr,
        ForgetsAnUnknownOutcome,
        KnowsNoIncarnations,
        CommitsWhileSomebodyIsEligible,
        CommitsWithTooFew,
    ],
)
def test_rules_that_leave_something_out_are_found_out(rules: type[InSyncReplicas]) -> None:
    for seed in range(SCHEDULES):
        try:
            run(seed, rules)
        except AssertionError:
            return
    pytest.fail(f"no schedule shows what is wrong with {rules.__name__}")
