"""Runs one schedule: a cluster starts, clients begin, faults happen, all is mended, and then it must be whole."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import NoneType
from typing import Any, Final

from spark_kafkalite.broker.replication.partition import Partition
from spark_kafkalite.errors import TopicAlreadyExists, UnknownTopicOrPartition
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller.moves import AskedMove
from spark_kafkalite.registry.controller.topic_plan import TopicSpec
from spark_kafkalite.registry.znodes import TopicAssignment, topic_path
from spark_kafkalite.testing.memory_fs import CrashMode, MemoryFs
from tests.simulator.broker import Run, SimulatedBroker
from tests.simulator.clients import Seen, SimulatedProducer, SimulatedReader
from tests.simulator.invariants import Invariants
from tests.simulator.log_lines import Unforeseen
from tests.simulator.moved import Moved
from tests.simulator.network import CLIENT, Network
from tests.simulator.pipelined import PipelinedProducer
from tests.simulator.questions import Questions
from tests.simulator.registered import Registered
from tests.simulator.registry import SimulatedRegistry
from tests.simulator.schedule import Fault, FaultKind, Schedule, SimulatedTopic
from tests.simulator.world import World

_START_S: Final = 20.0
# The bound of C9: by then everything is as if nothing had happened.
HEALED_S: Final = 30.0
AFTER_FAULTS_S: Final = 1.0
# How often it is seen whether a broker has stopped.
_STOPPED_S: Final = 0.1
CRASHES: Final = {
    FaultKind.KILL: CrashMode.PROCESS,
    FaultKind.EMPTY_DISK: CrashMode.PROCESS,
    FaultKind.POWER_CUT: CrashMode.POWER,
    FaultKind.TORN_POWER_CUT: CrashMode.POWER_TORN,
}


class Simulation:
    """One cluster under one schedule; :meth:`run` returns what went wrong."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.world = World(schedule.seed)
        self.registry = SimulatedRegistry(self.world, schedule.session_timeout_s)
        self.network = Network(self.world)
        settings: dict[str, object] = {
            "replica.lag.time.max.ms": round(schedule.lag_time_max_s * 1000),
            **dict(schedule.settings),
        }
        self.brokers = {
            number: SimulatedBroker(self.world, self.registry, self.network, number, settings)
            for number in range(1, schedule.brokers + 1)
        }
        self.topics = {f"topic-{number}": topic for number, topic in enumerate(schedule.topics)}
        self.seen = Seen()
        self.registered = Registered(self.registry)
        self.invariants = Invariants(self.world, self.runs, self.registered, lambda: self._allows_loss)
        # Disks that were emptied, and power that was cut without flushes, take what is acknowledged with them when they
        # hit every replica that has it; then only what is left must be the same everywhere.
        self._allows_loss = False
        self._making: set[str] = set()
        self.producers: list[SimulatedProducer | PipelinedProducer] = []
        self.log: list[str] = []
        self._unforeseen = Unforeseen()
        self.questions = Questions(self.world, self.runs)
        self.moved = Moved(self.world, self.runs, self.registered, self.invariants)

    def runs(self) -> list[Run]:
        """Return the processes of brokers that live and have come to their partitions."""
        return [run for broker in self.brokers.values() if (run := broker.run) is not None and run.has_begun]

    # Clients ask ----------------------------------------------------------------------------------------------------

    def leader_of(self, topic_partition: TopicPartition) -> tuple[int, int, bytes] | None:
        running = [run for run in self.runs() if run.loop.stands_until_s <= self.world.now_s]
        if not running:
            return None
        topic = self.world.random.choice(running).view.state.topics.get(topic_partition.topic)
        state = None if topic is None else topic.partitions.get(topic_partition.partition)
        if topic is None or state is None or state.leader < 0:
            return None
        return state.leader, state.leader_epoch, topic.topic_id

    def has_topic(self, broker: int, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        topic, run = topic_partition.topic, self.brokers[broker].run
        node = self.registry.tree.nodes.get(topic_path(topic))
        if node is None or TopicAssignment.decode(topic, node.data).topic_id != topic_id:
            return False
        partition = None if run is None or not run.has_begun else run.replicas.find(topic_partition)
        return partition is not None and partition.topic_id == topic_id

    # The run --------------------------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Run the schedule; return the problems, none when all held."""
        with self._unforeseen:
            try:
                return self._run()
            finally:
                self.world.close()

    def _run(self) -> list[str]:
        for broker in self.brokers.values():
            broker.start()
        if not self.world.run_until(self._all_joined, _START_S):
            return [f"the cluster has not started: {[run.failure for run in self.runs()]}"]
        for name, topic in self.topics.items():
            self._make_topic(name, topic)
        if not self.world.run_until(self._all_whole, _START_S):
            return ["the topics have no leaders in the beginning", *self._state()]
        self._start_clients()
        self.world.after_each.append(self.invariants.check)
        if self.schedule.moves:
            self.world.after_each.append(self.moved.check)
        if self.schedule.asks_leaders:
            self.questions.start()
        began_s = self.world.now_s
        self._start_faults(began_s)
        last_s = max((fault.at_s + fault.lasts_s for fault in self.schedule.faults), default=1.0)
        found = self._watched(last_s + AFTER_FAULTS_S)
        if found:
            return found
        self._mend()
        found = self._heal()
        if found:
            return found
        for producer in self.producers:
            producer.is_stopped = True
        if not self.world.run_until(self._all_idle, HEALED_S):
            return ["a producer waits for ever", *self._state(), *self._problems()]
        self.world.run_for(AFTER_FAULTS_S)
        self._check_end()
        return self._problems()

    def _start_faults(self, began_s: float) -> None:
        for fault in self.schedule.faults:
            self.world.later(began_s + fault.at_s - self.world.now_s, lambda fault=fault: self._happen(fault))

    def _heal(self) -> list[str]:
        """Wait until everything is as if nothing had happened; return why it is not."""
        if not self.world.run_until(self._is_healed, HEALED_S):
            return ["it has not healed", *self._state(), *self._problems()]
        return []

    def _check_end(self) -> None:
        if self.schedule.moves:
            self.moved.check_end()
            if all(fault.kind is FaultKind.REASSIGN for fault in self.schedule.faults):
                self.moved.check_accepted(self.seen)
        self.invariants.check_end(self.seen, self._topic_ids())

    def _watched(self, seconds: float) -> list[str]:
        """Let time pass; stop at the first problem."""
        self.world.run_until(lambda: bool(self._problems()), seconds)
        return self._problems()

    def _problems(self) -> list[str]:
        errors = [
            f"{loop.name}: {context.get('exception') or context['message']!r}"
            for loop in self.world.all_loops
            for context in loop.errors
        ]
        return [
            *self.invariants.problems,
            *self.questions.problems,
            *self.moved.problems,
            *self._seen_problems(),
            *errors,
            *self._unforeseen.problems,
        ]

    def _seen_problems(self) -> list[str]:
        return [] if self._allows_loss else self.seen.problems

    # State ----------------------------------------------------------------------------------------------------------

    def _all_joined(self) -> bool:
        return all(
            run.failure is None
            and len(run.view.state.brokers) == len(self.brokers)
            and run.view.state.controller_id > 0
            for run in self.runs()
        ) and len(self.runs()) == len(self.brokers)

    def _all_whole(self) -> bool:
        """Whether every broker sees every partition led, with a full ISR."""
        return all(
            name in run.view.state.topics
            and len(run.view.state.topics[name].partitions) == topic.partitions
            and all(
                (state.leader > 0 and len(state.isr) == len(state.replicas) and not (state.eligible or state.is_moving))
                or (self._allows_loss and is_lost(state, run.view.state.brokers))
                for state in run.view.state.topics[name].partitions.values()
            )
            for run in self.runs()
            for name, topic in self.topics.items()
        )

    def _is_healed(self) -> bool:
        return bool(self._problems()) or (
            self._all_joined()
            and not self._making
            and self._all_whole()
            and all(
                producer.last_acknowledged_s > self._mended_s or self._is_lost(producer.topic_partition)
                for producer in self.producers
            )
        )

    def _all_idle(self) -> bool:
        return all(each.is_idle or self._is_lost(each.topic_partition) for each in self.producers)

    def _is_lost(self, topic_partition: TopicPartition) -> bool:
        cluster = self.runs()[0].view.state
        state = cluster.partition(topic_partition)
        return self._allows_loss and state is not None and is_lost(state, cluster.brokers)

    def _state(self) -> list[str]:
        lines = []
        for run in self.runs():
            lines.append(f"{run.loop.name}: failure {run.failure}, sees brokers {sorted(run.view.state.brokers)}")
            for partition in run.replicas or ():
                state = run.view.state.partition(partition.topic_partition)
                lines.append(f"  {partition!r} {state}")
        return lines

    def _topic_ids(self) -> dict[TopicPartition, bytes]:
        return {
            TopicPartition(name, number): topic.topic_id
            for name, topic in self.runs()[0].view.state.topics.items()
            for number in topic.partitions
            if not self._is_lost(TopicPartition(name, number))
        }

    # What clients and administrators do ------------------------------------------------------------------------------

    def _start_clients(self) -> None:
        number = 0
        for name, topic in self.topics.items():
            for partition in range(topic.partitions):
                topic_partition = TopicPartition(name, partition)
                for acks in (-1, -1, *(1 for _ in range(self.schedule.leader_acked))):
                    number += 1
                    self.producers.append(
                        SimulatedProducer(self.network, self, self.seen, topic_partition, number, acks)
                    )
                for _ in range(self.schedule.pipelined):
                    number += 1
                    self.producers.append(PipelinedProducer(self.network, self, self.seen, topic_partition, number))
                self._make_reader(topic_partition)

    def _make_reader(self, topic_partition: TopicPartition) -> SimulatedReader:
        return SimulatedReader(self.network, self, self.seen, topic_partition)

    def _make_topic(self, name: str, topic: SimulatedTopic) -> None:
        config = {"min.insync.replicas": str(topic.min_insync), **dict(topic.settings)}
        spec = TopicSpec(name, topic.partitions, topic.factor, config=config)
        self._making.add(name)

        def made(outcome: Any) -> None:
            if isinstance(outcome, dict) and isinstance(outcome[name], (TopicAssignment, TopicAlreadyExists)):
                self._making.discard(name)
            else:
                self.world.later(0.3, lambda: self._make_topic(name, topic))

        self._at_controller(lambda controller: controller.create_topics([spec]), made)

    def _make_again(self, name: str, topic: SimulatedTopic) -> None:
        self._making.add(name)

        def gone(outcome: Any) -> None:
            if isinstance(outcome, dict) and isinstance(outcome[name], (UnknownTopicOrPartition, NoneType)):
                self._make_topic(name, topic)
            else:
                self.world.later(0.3, lambda: self._make_again(name, topic))

        self._at_controller(lambda controller: controller.delete_topics([name]), gone)

    def _at_controller(self, do: Callable[[Any], Coroutine[Any, Any, Any]], done: Callable[[Any], None]) -> None:
        """Have the active controller do something; ``done`` gets the outcome, or None when there was none in time."""
        for run in self.runs():
            try:
                controller = run.membership.session.controller
            except Exception:
                continue
            if not controller.is_active or run.loop.stands_until_s > self.world.now_s:
                continue
            self._await(run, do(controller), done)
            return
        self.world.later(0.1, lambda: done(None))

    def _await(self, run: Run, work: Coroutine[Any, Any, Any], done: Callable[[Any], None]) -> None:
        is_open = True

        def tell(outcome: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                done(outcome)

        def start() -> None:
            task = run.loop.create_task(work)
            task.add_done_callback(
                lambda done_: tell(None if done_.cancelled() or done_.exception() else done_.result())
            )

        run.loop.call_soon(start)
        self.world.later(5.0, lambda: tell(None))

    # Faults -----------------------------------------------------------------------------------------------------------

    def _happen(self, fault: Fault) -> None:
        self.log.append(f"{self.world.now_s:.3f} {fault}")
        kind, seconds = fault.kind, fault.seconds
        if kind is FaultKind.MAKE_TOPIC_AGAIN:
            name = f"topic-{fault.target}"
            if name not in self._making:
                self._make_again(name, self.topics[name])
            return
        if kind is FaultKind.REGISTRY_DOWN:
            self._registry_down(seconds)
            return
        if kind is FaultKind.DELETE_RECORDS:
            self._delete_records(f"topic-{fault.target}")
            return
        if kind is FaultKind.REASSIGN:
            self._reassign(f"topic-{fault.target}", fault.what)
            return
        if kind is FaultKind.PREFER_LEADERS:
            name = f"topic-{fault.target}"
            partitions = [TopicPartition(name, number) for number in range(self.topics[name].partitions)]
            self._at_controller(lambda controller: controller.elect_leaders(partitions), lambda _: None)
            return
        broker = self.brokers[fault.target]
        if kind in CRASHES or kind is FaultKind.STOP:
            if broker.run is not None:
                self._end(broker, kind)
                self.world.later(seconds, lambda: self._start_again(broker))
            return
        if broker.run is None:
            return
        match kind:
            case FaultKind.PAUSE:
                broker.pause(seconds)
            case FaultKind.CUT_OFF | FaultKind.DEAF | FaultKind.MUTE:
                self._cut(fault)
            case FaultKind.RESET_CONNECTIONS:
                self.network.reset(fault.target)
            case FaultKind.STALL_CONNECTIONS:
                self.network.stall(fault.target, seconds)
            case FaultKind.JUMP_CLOCK:
                # Not further with each one: records more than message.timestamp.after.max.ms ahead are refused.
                broker.run.clock.wall_offset_ms = round(seconds * 1000)
            case _:
                self._registry_fault(broker.run, kind, seconds)

    def _reassign(self, topic: str, brokers: str, tries: int = 10) -> None:
        targets = tuple(map(int, brokers.split(","))) if brokers else None
        asked = [AskedMove(TopicPartition(topic, number), targets) for number in range(self.topics[topic].partitions)]

        def done(outcome: Any) -> None:
            if outcome is None and tries:
                self.world.later(0.1, lambda: self._reassign(topic, brokers, tries - 1))

        self._at_controller(lambda controller: controller.reassign(asked), done)

    def _delete_records(self, topic: str) -> None:
        """Have every broker that takes itself for a leader of the topic delete what is committed."""

        def delete(partition: Partition) -> None:
            if partition.leader is not None:
                key, until = (partition.topic_id, partition.topic_partition.partition), partition.high_watermark
                self.seen.deleted[key] = max(self.seen.deleted.get(key, 0), until)
                partition.log.advance_log_start(until)

        for run in self.runs():
            for partition in run.replicas:
                if partition.topic_partition.topic == topic and partition.leader is not None:
                    run.loop.call_soon(delete, partition)

    def _start_again(self, broker: SimulatedBroker) -> None:
        """Start a broker that does not run, once it has stopped."""
        if broker.run is None:
            broker.start()
        elif broker.run.is_stopping:
            self.world.later(_STOPPED_S, lambda: self._start_again(broker))

    def _end(self, broker: SimulatedBroker, kind: FaultKind) -> None:
        if kind is FaultKind.STOP:
            broker.stop()
            return
        if kind is not FaultKind.KILL:
            self._lose(broker)
        broker.kill(CRASHES[kind])
        if kind is FaultKind.EMPTY_DISK:
            broker.fs = MemoryFs()

    def _lose(self, broker: SimulatedBroker) -> None:
        """Note that a broker loses acknowledged records that only it may have by now, if so many have lost theirs."""
        for each in self.brokers.values():
            if each.losses and self._is_whole(each):
                each.losses = 0
        broker.losses += 1
        losses = sum(1 for each in self.brokers.values() if each.losses)
        if losses >= min(min(topic.min_insync, topic.factor) for topic in self.topics.values()):
            self._allows_loss = True

    def _is_whole(self, broker: SimulatedBroker) -> bool:
        """Whether a broker has everything that is committed again: it is in sync wherever it has a replica."""
        run, number = broker.run, broker.broker_id
        if run is None or not run.has_begun:
            return False
        return all(
            number in state.node.isr
            and self.registered.has_log_of(number, run.incarnation, state.node.incarnations[number])
            for state in self.registered.states.values()
            if number in state.replicas
        )

    def _cut(self, fault: Fault) -> None:
        for other in (CLIENT, *self.brokers):
            if other == fault.target or (other == CLIENT and fault.kind is not FaultKind.CUT_OFF):
                continue
            if fault.kind is not FaultKind.MUTE:
                self.network.cut(other, fault.target, fault.seconds)
            if fault.kind is not FaultKind.DEAF:
                self.network.cut(fault.target, other, fault.seconds)

    def _registry_fault(self, run: Run, kind: FaultKind, seconds: float) -> None:
        store = run.store
        if store is None:
            return
        if kind is FaultKind.CUT_FROM_REGISTRY:
            run.cut_from_registry(seconds)
        elif kind is FaultKind.BREAK_REGISTRY_CONNECTION:
            store.drop()
        elif kind is FaultKind.LOSE_REGISTRY_ANSWERS:
            store.lose_answers(seconds)
        elif kind is FaultKind.EXPIRE_SESSION:
            store.was_ended = True
            self.registry.end_session(store.session_id)
            store.drop()

    def _registry_down(self, seconds: float) -> None:
        self.registry.go_down()
        self.world.later(seconds, self.registry.come_up)

    def _mend(self) -> None:
        """End every fault that lasts."""
        self._mended_s = self.world.now_s
        self.network.mend_all()
        self.registry.come_up()
        for broker in self.brokers.values():
            self._start_again(broker)
            if broker.run is not None:
                broker.run.loop.paused_until_s = 0.0
                broker.run.mend_registry()


def is_lost(state: PartitionState, brokers: Mapping[int, BrokerInfo]) -> bool:
    """Whether nobody may lead: no member of the ISR, and no eligible replica, has proven that its log is whole."""
    members = {**state.incarnations, **state.eligible}
    return state.leader < 0 and not any(
        broker in brokers and brokers[broker].has_log_of(incarnation) for broker, incarnation in members.items()
    )
