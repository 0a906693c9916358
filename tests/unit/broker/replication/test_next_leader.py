"""A produce to a partition whose leader goes waits to hear who leads it next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.replication.next_leader import LeaderMoves
from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.broker.replication.rules.lease import RegistryLease
from spark_kafkalite.broker.requests.handlers.produce import DelayedProduce
from spark_kafkalite.broker.requests.leader_hints import LeaderHints
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.wire.packed import ProducedPartition
from tests.lab.partition_states import partition_state
from tests.unit.broker.replication.led_partitions import LedPartitions
from tests.unit.broker.replication.test_leader import Answers

PARTITION = TopicPartition("t", 0)


class _Context(SimpleNamespace):
    """What of a ``BrokerContext`` a produce asks for."""

    @property
    def cluster(self) -> ClusterState:
        state: ClusterState = self.view.state
        return state


class Producing:
    """A produce to a partition that broker 1 leads, and what it is answered."""

    def __init__(self, led: LedPartitions) -> None:
        self.led = led
        self.outcomes: list[ProducedPartition] = []
        self.exchange: Any = Answers()
        self.exchange.api_key, self.exchange.api_version = 0, 10
        self.exchange.session = None

    def _waiting(self) -> DelayedProduce:
        led = self.led
        context: Any = _Context(
            view=led.view,
            purgatory=Purgatory(led.loop),
            clock=led.clock,
            config={"broker.id": 1},
            lease=RegistryLease(unlimited=True),
            address_of=lambda broker, _: ("there", 9000 + broker.broker_id),
        )
        hints = LeaderHints(context, self.exchange)
        return DelayedProduce(context, self.exchange, -1, [("t", self.outcomes)], hints)

    def appended(self) -> None:
        """Append now, and wait for the acknowledgement."""
        waiting = self._waiting()
        waiting.await_acknowledgement(
            self.led.partition().check_leader(), self.led.harness.append(self.led.partition()), self.outcomes
        )
        waiting.start(30_000)

    def refused(self) -> None:
        """Come when nobody leads, or when nothing is appended any more."""
        waiting = self._waiting()
        with pytest.raises(LeaderMoves) as refusal:
            self.led.partition().check_leader().check_acks(-1)
        waiting.await_next_leader(PARTITION, refusal.value, self.outcomes)
        waiting.start(30_000)

    @property
    def is_answered(self) -> bool:
        return bool(self.exchange.answers)

    @property
    def told(self) -> list[tuple[int, tuple[int, int] | None]]:
        """The error and the next leader with its epoch, of each partition, once they are answered."""
        assert self.is_answered
        return [(one.error_code, one.current_leader) for one in self.outcomes]


@pytest.fixture
def led() -> Iterator[LedPartitions]:
    led = LedPartitions(1, 1, 2, 3, min_insync_replicas=2)
    yield led
    led.loop.close()


def give_back(led: LedPartitions) -> None:
    led.partition().fence("broker 1 has given it back", is_given_back=True)


def lose(led: LedPartitions) -> None:
    led.set_node(partition_state(2, 3, leader=-1))
    led.publish()


def elect(led: LedPartitions, leader: int) -> None:
    led.set_node(partition_state(2, 3, leader=leader, epoch=led.node().leader_epoch + 1))
    led.publish()


@pytest.mark.parametrize("go", [give_back, lose])
def test_a_produce_is_told_who_leads_next(led: LedPartitions, go: Callable[[LedPartitions], None]) -> None:
    waits = Producing(led)
    go(led)
    waits.refused()
    led.run(0.2)
    if go is give_back:
        # What the broker itself has written is no news of who leads.
        lose(led)
        led.run(0.2)
    assert not waits.is_answered
    elect(led, 3)
    led.run(0.01)
    assert waits.told == [(6, (3, 1))]


@pytest.mark.parametrize("go", [give_back, lose])
def test_what_is_in_the_log_is_refused_before_anybody_else_can_lead(
    led: LedPartitions, go: Callable[[LedPartitions], None]
) -> None:
    """Else its client would send the next leader more than the five batches whose repeats a log knows, and then it."""
    waits = Producing(led)
    waits.appended()
    led.run()
    go(led)
    led.run(0.01)
    assert waits.told == [(6, None)]


def test_who_comes_before_the_leader_goes_is_told_who_leads_next(led: LedPartitions) -> None:
    waits = Producing(led)
    led.partition().close_to_appends("broker 1 has given it back")
    waits.refused()
    led.run(0.4)
    give_back(led)
    # Half a second from now on.
    led.run(0.4)
    assert not waits.is_answered
    elect(led, 3)
    led.run(0.01)
    assert waits.told == [(6, (3, 1))]


def test_who_comes_when_the_leader_has_gone_late_is_told_who_leads_next(led: LedPartitions) -> None:
    early, late = Producing(led), Producing(led)
    led.partition().close_to_appends("broker 1 has given it back")
    early.refused()
    led.run(0.6)
    # What was appended took long to be acknowledged.
    assert early.is_answered
    give_back(led)
    late.refused()
    led.run(0.4)
    assert not late.is_answered
    elect(led, 3)
    led.run(0.01)
    assert late.told == [(6, (3, 1))]


@pytest.mark.parametrize("end", [lambda led: led.partition().open_to_appends(), lambda led: elect(led, 3)])
def test_who_comes_before_the_leader_goes_is_answered_when_it_does_not(
    led: LedPartitions, end: Callable[[LedPartitions], None]
) -> None:
    waits = Producing(led)
    led.partition().close_to_appends("broker 1 has given it back")
    waits.refused()
    led.run(0.1)
    assert not waits.is_answered
    end(led)
    led.run(0.01)
    assert waits.is_answered


@pytest.mark.parametrize("go", [give_back, lose])
def test_a_produce_does_not_wait_long_for_an_election(led: LedPartitions, go: Callable[[LedPartitions], None]) -> None:
    waits = Producing(led)
    go(led)
    waits.refused()
    led.run(0.4)
    assert not waits.is_answered
    led.run(0.15)
    assert waits.told == [(6, None)]
    # Who comes now learns nothing by waiting.
    assert not isinstance(led.partition().role.refusal(), LeaderMoves)  # type: ignore[union-attr]


@pytest.mark.parametrize("end", [Partition.close, lambda each: each.go_offline(OSError("bad disk"))])
def test_who_waits_for_the_next_leader_is_answered_at_the_end(
    led: LedPartitions, end: Callable[[Partition], None]
) -> None:
    waits = Producing(led)
    give_back(led)
    waits.refused()
    led.run()
    assert not waits.is_answered
    end(led.partition())
    led.run()
    assert waits.is_answered


def test_who_has_lost_the_registry_tells_nobody_to_wait(led: LedPartitions) -> None:
    waits = Producing(led)
    waits.appended()
    led.run()
    led.partition().fence("its broker has lost its registration")
    led.run(0.01)
    assert waits.is_answered
