"""Elections over random histories of one partition: whoever is elected has every record that was ever committed.

Brokers here are a log, a list of records, and an incarnation. They are killed (the log stays, and proves it), lose
power (the log loses its end), get an empty disk, lose their sessions and come back. Leaders append, followers copy, and
cut what the leader has not; the high watermark follows the in-sync replicas by rules R4 and R16. The elections, and who
stays eligible, are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from spark_kafkalite.model import BrokerEpoch, BrokerId, ControllerEpoch, Incarnation
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller import election
from spark_kafkalite.registry.controller.election import elect, elect_preferred, kept_eligible, needs_election
from spark_kafkalite.registry.znodes import LeaderAndIsr
from tests.seeds import SEED

Named = Mapping[BrokerId, Incarnation]

HISTORIES = 2000
STEPS = 250


@dataclass
class Broker:
    number: BrokerId
    incarnation: Incarnation
    log: list[int] = field(default_factory=list)
    steady: tuple[Incarnation, ...] = ()
    runs: bool = True
    registered: bool = True

    @property
    def info(self) -> BrokerInfo:
        return BrokerInfo(self.number, "h", 1, None, BrokerEpoch(1), incarnation=self.incarnation, steady=self.steady)


class LostRecords(AssertionError):
    pass


class History:
    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)
        self.numbers = count(1)
        size = self.chosen.randint(1, 4)
        self.min_insync = self.chosen.randint(1, size)
        self.brokers = {number: Broker(BrokerId(number), self._incarnation()) for number in range(1, size + 1)}
        self.state = PartitionState(tuple(BrokerId(number) for number in self.brokers))
        self.committed: list[int] = []
        # What the leader of this epoch knows of each incarnation's log end.
        self.ends: dict[Incarnation, int] = {}
        self.high_watermark = 0
        self.elections = 0

    def _incarnation(self) -> Incarnation:
        return Incarnation(next(self.numbers))

    def live(self) -> dict[int, BrokerInfo]:
        return {number: each.info for number, each in self.brokers.items() if each.runs and each.registered}

    @property
    def leader(self) -> Broker | None:
        found = self.brokers.get(self.state.leader)
        if found is None or not found.runs or not found.registered or not self.state.is_led_by(found.info):
            return None
        return found

    def _write(self, node: LeaderAndIsr) -> None:
        self.state = replace(
            self.state,
            leader=node.leader,
            leader_epoch=node.leader_epoch,
            isr=node.isr,
            controller_epoch=node.controller_epoch,
            incarnations=node.incarnations,
            eligible=node.eligible,
            version=self.state.version + 1,
        )

    # What may happen --------------------------------------------------------------------------------------------------

    def controller(self) -> None:
        if not needs_election(self.state, self.live()):
            return
        outcome = elect(self.state, self.live(), min_insync=self.min_insync)
        if outcome.leader >= 0 or (self.state.has_state and self.state.leader >= 0):
            self._elected(outcome)

    def preferred(self) -> None:
        if self.state.has_state and self.leader is not None:
            outcome = elect_preferred(self.state, self.live(), min_insync=self.min_insync)
            if outcome is not None:
                self._elected(outcome)

    def _elected(self, outcome: election.Elected) -> None:
        self._write(outcome.as_node(self.state.leader_epoch + 1, ControllerEpoch(1)))
        self.ends, self.high_watermark = {}, 0
        leader = self.leader
        if outcome.leader < 0:
            return
        self.elections += 1
        assert leader is not None
        if leader.log[: len(self.committed)] != self.committed:
            raise LostRecords(f"{leader} was elected: {self.state}; committed {self.committed}")
        assert set(self.state.isr).isdisjoint(self.state.eligible)
        assert set(self.state.incarnations) == set(self.state.isr) <= set(self.state.replicas)

    def append(self) -> None:
        if self.leader is not None:
            self.leader.log += [next(self.numbers) for _ in range(self.chosen.randint(1, 3))]

    def fetch(self) -> None:
        leader, follower = self.leader, self._one()
        if leader is None or follower is leader or not follower.runs:
            return
        same = 0
        while same < min(len(leader.log), len(follower.log)) and leader.log[same] == follower.log[same]:
            same += 1
        follower.log = leader.log[: same + self.chosen.randint(0, 4)]
        self.ends[follower.incarnation] = len(follower.log)
        self._commit(leader)

    def _commit(self, leader: Broker) -> None:
        ends = [self.ends.get(self.state.incarnations[each], 0) for each in self.state.isr if each != leader.number]
        enough = len(self.state.isr) >= min(self.min_insync, len(self.brokers))
        if enough and not self.state.eligible:
            self.high_watermark = max(self.high_watermark, min([len(leader.log), *ends]))
        if self.high_watermark > len(self.committed):
            self.committed = leader.log[: self.high_watermark]

    def grow_isr(self) -> None:
        leader, follower = self.leader, self._one()
        if leader is None or follower.number in self.state.isr or not (follower.runs and follower.registered):
            return
        if self.ends.get(follower.incarnation, -1) >= max(self.high_watermark, len(self.committed)):
            isr = (*self.state.isr, follower.number)
            self._change_isr(isr, {**self.state.incarnations, follower.number: follower.incarnation})

    def shrink_isr(self) -> None:
        leader, follower = self.leader, self._one()
        if leader is not None and follower is not leader and follower.number in self.state.isr:
            isr = tuple(each for each in self.state.isr if each != follower.number)
            self._change_isr(isr, self.state.incarnations)

    def _change_isr(self, isr: tuple[BrokerId, ...], incarnations: Named) -> None:
        state = self.state
        left = {each: state.incarnations[each] for each in state.isr if each not in isr}
        self._write(
            LeaderAndIsr(
                state.leader,
                state.leader_epoch,
                isr,
                state.controller_epoch,
                {each: incarnations[each] for each in isr},
                kept_eligible(state.eligible, left, isr, state.replicas, self.min_insync),
            )
        )
        if self.leader is not None:
            self._commit(self.leader)

    def session(self) -> None:
        broker = self._one()
        broker.registered = not broker.registered or not broker.runs

    def kill(self) -> None:
        """Nothing that was written is lost, and the next run can prove it."""
        broker = self._one()
        if broker.runs:
            broker.runs = False
            broker.steady = (broker.incarnation, *broker.steady)[:3]

    def lose_power(self) -> None:
        broker = self._one()
        broker.runs, broker.steady = False, ()
        del broker.log[self.chosen.randint(0, len(broker.log)) :]

    def replace_disk(self) -> None:
        broker = self._one()
        broker.runs, broker.steady, broker.log = False, (), []

    def start(self) -> None:
        broker = self._one()
        if not broker.runs:
            broker.runs, broker.registered, broker.incarnation = True, True, self._incarnation()

    def _one(self) -> Broker:
        return self.brokers[self.chosen.choice(list(self.brokers))]

    def play(self, steps: int) -> None:
        usual = [self.controller, self.append, self.fetch, self.fetch, self.grow_isr, self.grow_isr, self.start]
        rare = [self.shrink_isr, self.session, self.kill, self.preferred, self.lose_power, self.replace_disk]
        for _ in range(steps):
            self.chosen.choice(usual if self.chosen.random() < 0.85 else rare)()

    def heal(self) -> None:
        """Let everybody run and register; nobody may be needed who is not there."""
        for broker in self.brokers.values():
            if not broker.runs:
                broker.runs, broker.incarnation = True, self._incarnation()
            broker.registered = True
        self.controller()
        may_lead = [*self.state.isr, *self.state.eligible]
        named = {**self.state.eligible, **self.state.incarnations}
        if len(self.brokers) == 1 or any(self.brokers[each].info.has_log_of(named[each]) for each in may_lead):
            assert self.leader is not None


def test_whoever_is_elected_has_all_that_was_committed() -> None:
    elections = committed = 0
    first = SEED
    for seed in range(first, first + HISTORIES):
        history = History(seed)
        # One replica goes on after any loss, and nothing can be said of what it has then.
        if len(history.brokers) == 1:
            history.kill = history.lose_power = history.replace_disk = lambda: None  # type: ignore[method-assign]
        try:
            history.play(STEPS)
            history.heal()
        except AssertionError as error:
            raise AssertionError(f"History({seed})") from error
        elections += history.elections
        committed += len(history.committed)
    assert elections > HISTORIES
    assert committed > HISTORIES


def _is_here(replica: int, _: object, live: dict[int, BrokerInfo]) -> bool:
    return replica in live


def _nobody_is_forgotten(before: Named, left: Named, isr: Sequence[BrokerId], *_: object) -> Named:
    return {replica: each for replica, each in {**before, **left}.items() if replica not in isr}


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        # Whoever is there may lead, whatever became of its log.
        ("_is_whole", _is_here),
        # Eligible replicas are not forgotten when the high watermark moves on.
        ("kept_eligible", _nobody_is_forgotten),
    ],
)
def test_the_histories_tell_broken_elections(monkeypatch: pytest.MonkeyPatch, name: str, broken: object) -> None:
    monkeypatch.setattr(election, name, broken)
    if name == "kept_eligible":
        # The leader here is as broken; else it would wait for a state without eligible replicas for ever.
        monkeypatch.setattr(f"{__name__}.kept_eligible", broken)
        monkeypatch.setattr(History, "_commit", _commit_at_once)
    with pytest.raises(LostRecords):
        for seed in range(HISTORIES):
            history = History(seed)
            if len(history.brokers) > 1:
                history.play(STEPS)


def _commit_at_once(self: History, leader: Broker) -> None:
    ends = [self.ends.get(self.state.incarnations[each], 0) for each in self.state.isr if each != leader.number]
    if len(self.state.isr) >= min(self.min_insync, len(self.brokers)):
        self.high_watermark = max(self.high_watermark, min([len(leader.log), *ends]))
    if self.high_watermark > len(self.committed):
        self.committed = leader.log[: self.high_watermark]
