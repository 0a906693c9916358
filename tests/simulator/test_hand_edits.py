"""Somebody edits a partition's nodes by hand while clients write and read: whole brokers obey, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from spark_kafkalite.model import BrokerId, LeaderEpoch, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.store import ANY_VERSION, Create, Delete, Operation, SetData
from spark_kafkalite.registry.znodes import LeaderAndIsr, TopicAssignment, partitions_path, state_path, topic_path
from tests.seeds import SEED, SOAK
from tests.simulator.run import Simulation
from tests.simulator.schedule import Schedule, SimulatedTopic

SEEDS: Final = range(SEED * 1_000, SEED * 1_000 + (300 if SOAK else 3))
TOPIC: Final = "topic-0"
PARTITION: Final = TopicPartition(TOPIC, 0)
STATE: Final = state_path(*PARTITION)
# How long brokers have to obey, in simulated seconds.
WITHIN_S: Final = 10.0

# What to do by hand, and then what is waited for before the next thing is done.
Step = tuple[Callable[["Edited"], list[Operation]], Callable[["Edited"], bool]]


class Edited(Simulation):
    """A cluster of four with one partition, on two of them; ``steps`` are done one after the other."""

    def __init__(self, seed: int, steps: Iterator[Step]) -> None:
        super().__init__(Schedule(seed, 4, (SimulatedTopic(1, 2, 1),), 3.0, 2.0, ()))
        self._session = self.registry.new_session()
        self._steps = steps
        self.is_done = False

    def _start_clients(self) -> None:
        super()._start_clients()
        self.world.later(1.0, self._next)

    def _next(self) -> None:
        step = next(self._steps, None)
        if step is None:
            self.is_done = True
            return
        edit, is_obeyed = step
        registry = self.registry
        registry.tree.apply(edit(self), self._session, registry.next_zxid(), registry.now_ms())
        registry.settle()
        self._wait(is_obeyed, self.world.now_s + WITHIN_S)

    def _wait(self, is_obeyed: Callable[[Edited], bool], until_s: float) -> None:
        if is_obeyed(self):
            self.world.later(self.world.random.uniform(0.0, 0.5), self._next)
        elif self.world.now_s > until_s:
            self.invariants.problems.append(f"what was written by hand is not obeyed: {self.state}, {self._state()}")
        else:
            self.world.later(0.01, lambda: self._wait(is_obeyed, until_s))

    def _is_healed(self) -> bool:
        return (self.is_done and super()._is_healed()) or bool(self._problems())

    @property
    def assignment(self) -> TopicAssignment:
        return TopicAssignment.decode(TOPIC, self.registry.tree.nodes[topic_path(TOPIC)].data)

    @property
    def node(self) -> LeaderAndIsr:
        return LeaderAndIsr.decode(*PARTITION, self.registry.tree.nodes[STATE].data)

    @property
    def state(self) -> PartitionState:
        """What the brokers have heard last."""
        state = self.runs()[0].view.state.partition(PARTITION)
        assert state is not None
        return state

    def leads(self, broker: int, epoch: int) -> bool:
        run = self.brokers[broker].run if broker in self.brokers else None
        partition = None if run is None else run.replicas.find(PARTITION)
        return partition is not None and partition.is_leader and partition.leader_epoch == epoch

    def hosts(self, broker: int) -> bool:
        run = self.brokers[broker].run
        return run is not None and run.replicas.find(PARTITION) is not None


def list_replicas(choose: Callable[[Edited], list[int]]) -> Callable[[Edited], list[Operation]]:
    def edit(at: Edited) -> list[Operation]:
        chosen = {**at.assignment.partitions, 0: tuple(map(BrokerId, choose(at)))}
        return [SetData(topic_path(TOPIC), replace(at.assignment, partitions=chosen).encode(), ANY_VERSION)]

    return edit


def others(at: Edited) -> list[int]:
    """Return the brokers that are no replicas."""
    return [each for each in at.brokers if each not in at.assignment.partitions[0]]


def is_in_sync(at: Edited) -> bool:
    return sorted(at.node.isr) == sorted(at.assignment.partitions[0])


def replicas_added_and_taken_out() -> Iterator[Step]:
    def grown(at: Edited) -> list[int]:
        return [*at.assignment.partitions[0], others(at)[0]]

    def shrunk(at: Edited) -> list[int]:
        leader = at.node.leader
        return [leader, *[each for each in at.assignment.partitions[0] if each != leader][1:]]

    def moved(at: Edited) -> list[int]:
        return [at.node.leader, others(at)[-1]]

    def left_alone(at: Edited) -> bool:
        return is_in_sync(at) and not any(at.hosts(each) for each in others(at))

    for choose in (grown, grown, shrunk, moved, grown, moved):
        yield list_replicas(choose), left_alone


def states_made_again() -> Iterator[Step]:
    for _ in range(3):
        wanted: list[tuple[int, int]] = []

        def edit(at: Edited, wanted: list[tuple[int, int]] = wanted) -> list[Operation]:
            node = at.node
            next_leader = next(each for each in node.isr if each != node.leader)
            wanted.append((next_leader, node.leader_epoch + 1))
            made = replace(node, leader=next_leader, leader_epoch=LeaderEpoch(node.leader_epoch + 1))
            return [Delete(STATE), Create(STATE, made.encode())]

        def is_obeyed(at: Edited, wanted: list[tuple[int, int]] = wanted) -> bool:
            return at.leads(*wanted[0]) and is_in_sync(at)

        yield edit, is_obeyed


def states_deleted() -> Iterator[Step]:
    """The controller makes the node again, by what the logs have."""
    for top in (STATE, STATE, partitions_path(TOPIC), topic_path(TOPIC)):
        epochs: list[int] = []

        def edit(at: Edited, epochs: list[int] = epochs, top: str = top) -> list[Operation]:
            epochs.append(at.node.leader_epoch)
            nodes = at.registry.tree.nodes
            below = sorted((each for each in nodes if f"{each}/".startswith(f"{top}/")), reverse=True)
            # Of a topic its own node is put back.
            again = [Create(top, nodes[top].data)] if top == topic_path(TOPIC) else []
            return [*map(Delete, below), *again]

        def is_obeyed(at: Edited, epochs: list[int] = epochs) -> bool:
            return STATE in at.registry.tree.nodes and at.leads(at.node.leader, epochs[0] + 1) and is_in_sync(at)

        yield edit, is_obeyed


@pytest.mark.parametrize("steps", [replicas_added_and_taken_out, states_made_again, states_deleted])
def test_what_is_written_by_hand_is_obeyed_and_nothing_is_lost(steps: Callable[[], Iterator[Step]]) -> None:
    for seed in SEEDS:
        simulation = Edited(seed, steps())
        assert simulation.run() == [], f"seed {seed}"
        assert simulation.is_done
