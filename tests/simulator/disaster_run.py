"""Runs a schedule of disasters: as ``run`` does, on disks that are damaged, and with an operator in the end.

The operator does what docs/cluster.md says: starts brokers again whose log directory is offline or that did not start,
and asks for unclean elections where no replica has proven its log. What is left then must be led, in sync and readable.
At last all logs are compared with their leaders', as brokers do it once a week.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from spark_kafkalite.broker.replication.comparison import COMPARING, DIFFERENT, SAME, WAITING, Comparison
from spark_kafkalite.broker.replication.rules.compare_rounds import CompareRounds
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.testing.memory_fs import CrashMode
from tests.simulator.broker import Run, SimulatedBroker
from tests.simulator.clients import SimulatedReader
from tests.simulator.copies import Copies
from tests.simulator.disaster_clients import CheckingReader, LastReader
from tests.simulator.disaster_judge import DisasterJudge
from tests.simulator.disasters import OF_FILES, Chosen, RegistryCopy, change_nodes, needs_copy
from tests.simulator.disk import Disk
from tests.simulator.log_lines import LOG, LogLines
from tests.simulator.registry_recovery import RegistryRecovery
from tests.simulator.run import AFTER_FAULTS_S, CRASHES, Simulation, is_lost
from tests.simulator.schedule import OF_OLD_REGISTRIES, OF_TOPICS, Fault, FaultKind, Schedule

_OLDEST_COPY_S: Final = 0.2
# How long one waits before an operator is called, and for what he has done.
_OPERATOR_S: Final = 9.0
_OPERATED: Final = 3
_STOPS_S: Final = 0.05
_READ_S: Final = 20.0
# How long comparisons may take, and how often all logs are compared.
_COMPARED_S: Final = 20.0
_COMPARISONS: Final = 4
_ROUNDS: Final = CompareRounds(100_000_000, 0)
_RECOVERED_S: Final = 60.0
_OF_NODES: Final = frozenset({FaultKind.NODE_BY_HAND, FaultKind.NODE_DELETED})


class DisasterSimulation(Simulation):
    """See the module's text."""

    invariants: DisasterJudge

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        for broker in self.brokers.values():
            broker.disk = Disk()
            broker.has_upkeep = True
            # Nothing else hangs, and other schedules stay what they were when they were recorded.
            broker.watches_disk = FaultKind.WRITES_HANG in {fault.kind for fault in schedule.faults}
        self._not_mounted: dict[int, Disk] = {}
        topics = self.topics.items()
        partitions = [TopicPartition(name, each) for name, topic in topics for each in range(topic.partitions)]
        self.copies = Copies(partitions, self._disks)
        self.invariants = DisasterJudge(self.world, self.runs, self.registered, self.copies)
        self._chosen: dict[Fault, Chosen] = {}
        self._registry_copies: dict[Fault, RegistryCopy] = {}
        # Who makes the registry again at present.
        self._recovery: RegistryRecovery | None = None
        self._lines = LogLines(self.world)
        # Whether an operator was called, and why.
        self.operated: list[str] = []

    def _disks(self) -> dict[str, Disk]:
        present = {f"{number}": broker.disk for number, broker in self.brokers.items()}
        return present | {f"{number} (not mounted)": disk for number, disk in self._not_mounted.items()}

    def run(self) -> list[str]:
        level = LOG.level
        LOG.addHandler(self._lines)
        LOG.setLevel(logging.INFO)
        try:
            return super().run()
        finally:
            LOG.removeHandler(self._lines)
            LOG.setLevel(level)

    def _problems(self) -> list[str]:
        return [*super()._problems(), *self._lines.problems]

    def _seen_problems(self) -> list[str]:
        """What clients must not see, as long as nothing may be lost and nobody has interfered."""
        is_plain = not (self.copies.any_lost or self.operated or self.invariants.registry_is_older)
        return self.seen.problems if is_plain else []

    def _make_reader(self, topic_partition: TopicPartition) -> SimulatedReader:
        return CheckingReader(self.network, self, self.seen, topic_partition, self._start_of)

    def _start_faults(self, began_s: float) -> None:
        super()._start_faults(began_s)
        for fault in self.schedule.faults:
            if fault.kind in OF_FILES:
                self._chosen[fault] = Chosen(fault)
            if needs_copy(fault) or fault.kind in OF_OLD_REGISTRIES:
                at_s = began_s + max(_OLDEST_COPY_S, fault.at_s - fault.apart_s)
                self.world.later(at_s - self.world.now_s, lambda fault=fault: self._copy(fault))

    def _target(self, fault: Fault) -> Fault:
        """Return it with the broker that it is about."""
        if fault.target > 0 or fault.kind in OF_TOPICS:
            return fault
        state = self.registered.states.get(TopicPartition(min(self.topics), 0))
        return replace(fault, target=1 - fault.target if state is None else state.replicas[-fault.target])

    def _copy(self, fault: Fault) -> None:
        if fault.kind in OF_OLD_REGISTRIES:
            self._registry_copies[fault] = RegistryCopy(self.registry)
        else:
            self._chosen[fault].keep_copy(self.brokers[self._target(fault).target].disk)

    # Faults ---------------------------------------------------------------------------------------------------------

    def _happen(self, fault: Fault) -> None:
        kind, chosen, copy = fault.kind, self._chosen.get(fault), self._registry_copies.get(fault)
        fault = self._target(fault)
        if chosen is not None:
            self._note(fault)
            self._damage(fault, chosen)
        elif kind is FaultKind.NOT_MOUNTED:
            self._note(fault)
            self._unmount(fault)
        elif kind is FaultKind.ALL_POWER:
            self._note(fault)
            for broker in self.brokers.values():
                if broker.run is not None:
                    self._cut_power(broker)
                    self.world.later(
                        fault.seconds * self.world.random.uniform(0.5, 1.0), lambda each=broker: self._start_again(each)
                    )
        elif kind is FaultKind.WRITES_HANG:
            self._note(fault)
            broker = self.brokers[fault.target]
            broker.hangs_until_s, broker.has_hung = self.world.now_s + fault.seconds, False
            broker.hanging_call = fault.what
        elif kind in _OF_NODES:
            self._note(fault)
            self.invariants.registry_is_touched = True
            try:
                self.log.append(change_nodes(self.registry, fault, sorted(self.topics)))
            except LookupError as error:
                self.log.append(str(error))
        elif kind is FaultKind.REGISTRY_OLDER:
            self._note(fault)
            self._restore_registry(fault.seconds, copy)
        elif kind is FaultKind.REGISTRY_RECOVERED:
            self._note(fault)
            self._recover_registry(fault.seconds, copy)
        else:
            super()._happen(fault)

    def _note(self, fault: Fault) -> None:
        self.log.append(f"{self.world.now_s:.3f} {fault}")

    def _damage(self, fault: Fault, chosen: Chosen) -> None:
        broker = self.brokers[fault.target]
        if fault.seconds > 0 and broker.run is not None:
            if chosen.is_stopped_first:
                # It has stopped some time later.
                if not broker.run.is_stopping:
                    broker.stop()
                self.world.later(_STOPS_S, lambda: self._damage(fault, chosen))
                return
            broker.kill()
        if fault.seconds > 0:
            self.world.later(fault.seconds, lambda: self._start_again(broker))
        how = f"{fault.kind.value} {fault.what} while {'down' if broker.run is None else 'running'}"
        with self.copies.harm(fault.target, how):
            try:
                where = chosen.damage(broker.disk, self.copies)
            except LookupError as error:
                self.log.append(f"nothing: {error}")
            else:
                self.copies.touch(fault.target, where, how)

    def _unmount(self, fault: Fault) -> None:
        """Start with an empty directory, and again with the one of before."""
        broker = self.brokers[fault.target]
        if broker.run is None or fault.target in self._not_mounted:
            return
        broker.kill()
        self.copies.touch(fault.target, None, "not mounted while down")
        self._not_mounted[fault.target], broker.disk = broker.disk, Disk()
        self.world.later(fault.seconds, lambda: self._start_again(broker))
        self.world.later(fault.seconds + fault.apart_s, lambda: self._mount(fault.target))

    def _mount(self, number: int) -> None:
        broker, disk = self.brokers[number], self._not_mounted.get(number)
        if disk is None:
            return
        if broker.run is not None:
            broker.kill()
        with self.copies.harm(number, "mounted again while down"):
            broker.disk = self._not_mounted.pop(number)
        self.world.later(0.3, lambda: self._start_again(broker))

    def _cut_power(self, broker: SimulatedBroker) -> None:
        with self.copies.harm(broker.broker_id, "all power while down"):
            broker.disk.lose_power(self.world.random)
            broker.kill(CrashMode.POWER)
        self.copies.touch(broker.broker_id, None, "all power while down")

    def _restore_registry(self, seconds: float, copy: RegistryCopy | None) -> None:
        if copy is None or not self.registry.is_up:
            return
        self.invariants.registry_is_touched = self.invariants.registry_is_older = True
        self.registry.go_down()

        def restore() -> None:
            copy.restore(self.registry)
            self.registered.forget()
            self.registry.come_up()

        self.world.later(seconds, restore)

    def _recover_registry(self, seconds: float, copy: RegistryCopy | None) -> None:
        if copy is None or not self.registry.is_up:
            return
        self.registry.go_down()
        recovery = RegistryRecovery(self.world, self.registry, self.brokers, copy)

        def written() -> None:
            self._recovery = None
            self.log.append(f"{self.world.now_s:.3f} the registry is recovered from {recovery.sources}")
            self.registered.forget()
            for broker in self.brokers.values():
                if broker.run is not None and not broker.run.is_stopping:
                    broker.stop() if self.world.random.random() < 0.5 else broker.kill()
                self.world.later(self.world.random.uniform(0.1, 0.5), lambda each=broker: self._start_again(each))

        self._recovery = recovery
        self.world.later(seconds, lambda: recovery.begin(written))

    def _end(self, broker: SimulatedBroker, kind: FaultKind) -> None:
        if kind is FaultKind.STOP or kind is FaultKind.KILL:
            super()._end(broker, kind)
            return
        self.copies.touch(broker.broker_id, None, f"{kind.value} while down")
        with self.copies.harm(broker.broker_id, f"{kind.value} while down"):
            broker.kill(CRASHES[kind])
            if kind is FaultKind.EMPTY_DISK:
                broker.disk = Disk()

    def _mend(self) -> None:
        # What the operator has begun ends before the registry is there for everybody.
        self.world.run_until(lambda: self._recovery is None, _RECOVERED_S)
        for number in list(self._not_mounted):
            self._mount(number)
        for broker in self.brokers.values():
            broker.hangs_until_s = 0.0
            if broker.run is not None:
                broker.run.loop.hung_until_s = 0.0
        super()._mend()

    def _all_idle(self) -> bool:
        return self.invariants.registry_is_older or super()._all_idle()

    # The end --------------------------------------------------------------------------------------------------------

    def _heal(self) -> list[str]:
        """Wait until everything is whole; call an operator for what asks for one."""
        for _ in range(_OPERATED):
            self.world.run_until(lambda: self._is_healed(), _OPERATOR_S)
            if self._is_healed() or not self._operate():
                break
        self.world.run_until(self._is_healed, _OPERATOR_S)
        if self._is_healed() or self.invariants.registry_is_older:
            return self._problems()
        reasons = {number: self._why_restart(broker.run) for number, broker in self.brokers.items()}
        why = [f"broker {number}: {reason}" for number, reason in reasons.items() if reason]
        return ["it has not healed", *self.log, *why, *self._state(), *self._problems()]

    def _compare(self) -> None:
        """Have all logs compared with their leaders', as rounds do, until nothing differs, and what differs healed."""
        for _ in range(_COMPARISONS):
            asked = [
                (run.comparison, partition.topic_partition)
                for run in self.runs()
                if run.comparison is not None
                for partition in run.replicas
                if not partition.is_leader
            ]
            for comparison, where in asked:
                # They have no rounds: those would begin later than a schedule ends.
                comparison._rounds = _ROUNDS
                comparison.compare_now([where])
            self.world.run_until(partial(_are_compared, asked), _COMPARED_S)
            self.world.run_until(self._is_healed, _OPERATOR_S)
            if _outcomes(asked) <= {SAME}:
                break

    def _operate(self) -> bool:
        """Do what the documentation has an operator do; return whether there was anything."""
        done = []
        for number, broker in self.brokers.items():
            reason = self._why_restart(broker.run)
            if reason:
                done.append(f"starts broker {number} again: {reason}")
                if broker.run is not None:
                    broker.kill()
                self.world.later(0.3, lambda each=broker: self._start_again(each))
        cluster = self.runs()[0].view.state if self.runs() else None
        lost = [
            TopicPartition(name, number)
            for name, topic in (cluster.topics.items() if cluster else ())
            for number, state in topic.partitions.items()
            if cluster is not None and is_lost(state, cluster.brokers)
        ]
        if lost:
            done.append(f"has replicas of {lost} elected uncleanly")
            self._at_controller(lambda controller: controller.elect_leaders(lost, unclean=True), lambda _: None)
        if done and self.operated[-len(done) :] == done:
            # It has not helped.
            return False
        self.operated += done
        self.log += [f"{self.world.now_s:.3f} the operator {each}" for each in done]
        return bool(done)

    def _why_restart(self, run: Run | None) -> str:
        if run is None or not run.loop.is_alive:
            return "it does not run"
        if run.failure is not None:
            return str(run.failure)
        if run.has_begun:
            for partition in run.replicas:
                if partition.storage_error is not None:
                    return str(partition.storage_error)
        return ""

    def _check_end(self) -> None:
        is_whole, ids = self._is_healed(), self._topic_ids() if self.runs() else {}
        readers = {where: LastReader(self.network, self, self.seen, where, self._start_of) for where in ids if is_whole}
        ends = {where: self._end_of(where) for where in readers}
        self.world.run_until(lambda: all(each.position >= ends[where] for where, each in readers.items()), _READ_S)
        self.world.run_for(AFTER_FAULTS_S)
        # Later, because it would find what readers are to have found.
        if is_whole:
            self._compare()
        for where, topic_id in ids.items():
            self.invariants.check_logs(where, topic_id, self.seen, readers.get(where))

    def _start_of(self, where: TopicPartition) -> int:
        found = (run.replicas.find(where) for run in self.runs())
        return max((int(each.log_start_offset) for each in found if each is not None and each.is_leader), default=0)

    def _end_of(self, where: TopicPartition) -> int:
        found = (run.replicas.find(where) for run in self.runs())
        return max((int(each.log.log_end_offset) for each in found if each is not None), default=0)


def _outcomes(asked: Sequence[tuple[Comparison, TopicPartition]]) -> set[str]:
    return {(comparison.asked(where) or (DIFFERENT,))[0] for comparison, where in asked}


def _are_compared(asked: Sequence[tuple[Comparison, TopicPartition]]) -> bool:
    return not _outcomes(asked) & {WAITING, COMPARING}


def simulation_of(schedule: Schedule) -> Simulation:
    """Return what runs a schedule."""
    return DisasterSimulation(schedule) if schedule.has_disasters else Simulation(schedule)
