"""One writer of partitions' states: whatever the registry answers, each change is written once, or its caller told why.

The registry is the real tree, behind a connection that takes time, loses what it carries, and reorders it.
"""

from __future__ import annotations

import ast
import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import pytest

from spark_kafkalite.errors import NotController, RegistryError
from spark_kafkalite.model import BrokerId, Incarnation, TopicPartition
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import PartitionState
from spark_kafkalite.registry.cluster.state_nodes import FencedNodes, GuardedNodes, GuardMissing, StateChange
from spark_kafkalite.registry.cluster.state_writer import StateWriter, StateWrites, WritePace
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.registry.store import (
    BadVersion,
    Check,
    ConnectionLoss,
    Create,
    Delete,
    Multi,
    NodeError,
    NoNode,
    Operation,
    OutOfRoom,
    Request,
    SessionExpired,
    SetData,
    answer,
)
from spark_kafkalite.registry.znodes import LeaderAndIsr
from spark_kafkalite.slices import Slices
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.manual_loop import ManualLoop
from tests.lab.partition_states import partition_state
from tests.paths import PROJECT
from tests.seeds import SEED, SOAK
from tests.unit.broker.replication.led_partitions import TOPIC_ID, TreeStore, encoded
from tests.unit.slice_clock import SliceClock

PACE: Final = WritePace(together=4, steps=2, alone=16, retry_s=0.5)
EPOCH_NODE: Final = znodes.TOPICS
SCHEDULES: Final = 2000 if SOAK else 30


def key_of(number: int) -> TopicPartition:
    return TopicPartition("t", number)


class Registry(TreeStore):
    """A connection with a tree. What it carries arrives after ``way_s()``, each by itself."""

    def __init__(self, loop: ManualLoop, count: int) -> None:
        super().__init__()
        self.loop = loop
        self.way_s: Callable[[], float] = lambda: 0.001
        # What becomes of a request: see ``_arrive``.
        self.fault: Callable[[Request], str | BaseException | None] = lambda _: None
        self.under_way: Counter[str] = Counter()
        self.multis: list[Sequence[SetData]] = []
        # All that each state node has ever held, in order.
        self.histories: dict[str, list[PartitionState]] = {}
        guard = znodes.topic_guard_path(TOPIC_ID)
        for path in ("/kafkalite", znodes.TOPIC_GUARDS, guard, "/brokers", znodes.TOPICS, znodes.topic_path("t")):
            self.write(Create(path))
        self.write(Create(znodes.partitions_path("t")))
        for number in range(count):
            self.write(Create(znodes.partition_path("t", number)))
            self.write(Create(znodes.state_path("t", number), encoded(partition_state(1, 2))))
            self.histories[znodes.state_path("t", number)] = [self.state(number)]

    def state(self, number: int) -> PartitionState:
        data, stat = self.tree.get(znodes.state_path("t", number), 1, None)
        return PartitionState.of((BrokerId(1), BrokerId(2)), LeaderAndIsr.decode("t", number, data), stat)

    def marks(self, number: int) -> set[int]:
        return set(self.state(number).eligible)

    def write(self, *operations: Operation) -> list[Any]:
        results = super().write(*operations)
        for each in operations:
            if isinstance(each, SetData) and each.path in getattr(self, "histories", {}) and each.data != b"{":
                number = int(each.path.split("/")[-2])
                self.histories[each.path].append(self.state(number))
        return results

    def ask(self, request: Request) -> Future[Any]:
        future: Future[Any] = Future()
        paths = []
        if isinstance(request, Multi):
            writes = [each for each in request.operations if isinstance(each, SetData)]
            assert isinstance(request.operations[0], Check) and writes
            self.multis.append(writes)
            paths = [each.path for each in writes]
        self.under_way.update(paths)
        self.loop.call_later(self.way_s(), self._arrive, request, paths, future)
        return future

    def _arrive(self, request: Request, paths: list[str], future: Future[Any]) -> None:
        fault, result, error = self.fault(request), None, None
        if fault == "late":
            # Nobody hears what becomes of it, and it is done when it has been done again.
            self.loop.call_later(1.0, self._do_late, request)
        elif isinstance(fault, BaseException):
            error = fault
        elif fault != "dropped":
            try:
                result = self._do(request)
            except Exception as refusal:
                error = refusal
        if fault in ("late", "dropped", "lost"):
            error = ConnectionLoss("the connection broke before the answer came")

        def answered() -> None:
            self.under_way.subtract(paths)
            if not future.cancelled():
                future.set_result(result) if error is None else future.set_exception(error)

        self.loop.call_later(self.way_s(), answered)

    def _do_late(self, request: Request) -> None:
        try:
            self._do(request)
        except NodeError:
            pass


@dataclass(eq=False)
class Mark:
    """A number that is to be among a state's eligible replicas."""

    number: int
    mark: int
    # Whether it goes on from what is found, or is one change of one state.
    goes_on: bool = True
    group: int = 0
    known: PartitionState | None = None
    outcome: str = ""

    @property
    def key(self) -> tuple[int, int]:
        return self.number, self.mark


class Marks(StateWrites[Mark]):
    """Writes marks. ``again`` says which errors have them done again."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.again: Callable[[Exception], bool] = lambda error: isinstance(error, (ConnectionLoss, GuardMissing))
        self.errors: list[Exception] = []
        self.ended_marks: list[Mark] = []
        self.prepared: list[list[int]] = []
        self.is_stopped = False
        # What was asked or told when it must not be: an exception would be taken for the write's.
        self.wrong: list[str] = []
        # In this pass of the loop, what was written alone: begun and answered.
        self.ends = 0

    def add(self, number: int, mark: int, **named: Any) -> Mark:
        """Return a mark made of what the registry has now."""
        return Mark(number, mark, known=self.registry.histories[znodes.state_path("t", number)][-1], **named)

    async def prepare(self, writes: Sequence[Mark]) -> None:
        self.prepared.append([each.number for each in writes])

    def may_share(self, write: Mark, other: Mark) -> bool:
        return write.group == other.group

    def see(self, may_be: bool, what: str) -> None:
        if self.is_stopped or not may_be:
            self.wrong.append(what)

    def change(self, write: Mark) -> StateChange | None:
        self.see(True, f"a change of {write.key}")
        state = write.known
        if state is None or write.mark in state.eligible:
            return None
        mark = {BrokerId(write.mark): Incarnation(write.mark)}
        return StateChange(key_of(write.number), TOPIC_ID, state, replace(state, eligible={**state.eligible, **mark}))

    def written(self, write: Mark, change: StateChange, state: PartitionState) -> None:
        is_next = (state.version, state.eligible) == (change.before.version + 1, change.after.eligible)
        self.see(is_next and not write.outcome, f"{write.key} written as {state}")
        self.ends += 1
        write.outcome = "written"

    def found(self, write: Mark, change: StateChange, state: PartitionState | None) -> None:
        is_newer = state is None or state.modified_zxid > change.before.modified_zxid
        self.see(is_newer, f"{write.key} found as {state}")
        self.ends += 1
        write.known = state if write.goes_on else None
        if state is not None and write.mark in state.eligible:
            write.outcome = "found"

    def failed(self, writes: Sequence[Mark], error: Exception) -> bool:
        self.see(True, f"{error}")
        self.errors.append(error)
        return self.again(error)

    def ended(self, write: Mark) -> None:
        self.see(write not in self.ended_marks, f"the end of {write.key}")
        self.ended_marks.append(write)


class World:
    """A writer, its caller and the registry, in time that jumps."""

    def __init__(self, count: int, pace: WritePace = PACE) -> None:
        self.loop = ManualLoop(ManualClock())
        self.registry = Registry(self.loop, count)
        self.marks = Marks(self.registry)
        self.slices = Slices(self.loop, SliceClock())
        self.pace = pace
        self.writer = self.new_writer()

    def new_writer(self) -> StateWriter[Mark]:
        nodes = GuardedNodes(lambda: self.registry)
        return StateWriter(self.loop, self.slices, nodes, self.marks, self.pace)

    def add(self, number: int, mark: int, **named: Any) -> Mark:
        mark_ = self.marks.add(number, mark, **named)
        self.writer.add(mark_)
        return mark_

    def run(self, seconds: float = 0.1) -> None:
        self.loop.run_for(seconds)

    def write_otherwise(self, number: int) -> None:
        """Write a state as somebody else does."""
        state = self.registry.state(number)
        self.registry.write(SetData(znodes.state_path("t", number), encoded(replace(state, isr=(BrokerId(1),)))))


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(count: int = 1, pace: WritePace = PACE) -> World:
        worlds.append(World(count, pace))
        return worlds[-1]

    yield make
    for each in worlds:
        each.loop.run_until_complete(each.writer.stop())
        each.loop.close()
        assert each.marks.wrong == []


# Together, alone, and again ------------------------------------------------------------------------------------------


def test_what_is_added_in_one_pass_shares_steps_in_order(world: Callable[..., World]) -> None:
    w = world(11)
    most = 0

    def way_s() -> float:
        nonlocal most
        most = max(most, len(w.registry.multis) - len(w.marks.ended_marks) // PACE.together)
        return 0.01

    w.registry.way_s = way_s
    for number in range(11):
        w.add(number, 7)
    w.run(1.0)
    assert [len(each) for each in w.registry.multis] == [4, 4, 3]
    assert [each.number for each in w.marks.ended_marks] == list(range(11))
    assert {each.outcome for each in w.marks.ended_marks} == {"written"}
    assert most == PACE.steps


def test_what_may_not_share_a_step_does_not(world: Callable[..., World]) -> None:
    w = world(6)
    for number in range(6):
        w.add(number, 7, group=number // 3)
    w.run()
    assert w.marks.prepared == [[0, 1, 2], [3, 4, 5]]


def test_none_is_under_way_twice(world: Callable[..., World]) -> None:
    w = world()
    w.registry.fault = lambda _: "dropped"
    first = w.add(0, 7)
    w.run()
    assert w.writer.is_writing(first.key)
    w.add(0, 7)
    w.registry.fault = lambda _: None
    w.run(1.0)
    assert w.marks.ended_marks == [first] and not w.writer.is_writing(first.key)


def test_one_that_is_refused_keeps_no_other(world: Callable[..., World]) -> None:
    w = world(4)
    marks = [w.add(number, 7) for number in range(4)]
    w.write_otherwise(1)
    w.registry.write(Delete(znodes.state_path("t", 3)))
    w.run()
    assert [each.outcome for each in marks] == ["written", "written", "written", ""]
    assert set(w.registry.state(1).isr) == {1} and w.registry.marks(1) == {7}
    assert [len(each) for each in w.registry.multis] == [4, 1, 1, 1, 1, 1]
    assert not w.marks.errors and len(w.marks.ended_marks) == 4


def test_a_change_of_one_state_is_not_made_of_another(world: Callable[..., World]) -> None:
    w = world()
    mark = w.add(0, 7, goes_on=False)
    w.write_otherwise(0)
    w.run()
    assert (mark.outcome, w.registry.marks(0), w.marks.ended_marks) == ("", set(), [mark])


@pytest.mark.parametrize("fault", ["lost", "dropped", "late"])
def test_an_unknown_outcome_is_made_known_after_a_pause(world: Callable[..., World], fault: str) -> None:
    w = world(3)
    w.registry.fault = lambda _: fault
    marks = [w.add(number, 7) for number in range(3)]
    w.run(0.4)
    assert len(w.registry.multis) == 1 and not w.marks.ended_marks
    w.registry.fault = lambda _: None
    w.run(2.0)
    # Together again; one by one only where that is refused, because they had been written.
    assert [len(each) for each in w.registry.multis] == ([3, 3, 1, 1, 1] if fault == "lost" else [3, 3])
    assert {each.outcome for each in marks} == {"found" if fault == "lost" else "written"}
    assert [len(history) for history in w.registry.histories.values()] == [2, 2, 2]


@pytest.mark.parametrize("error", [SessionExpired("over"), OutOfRoom("full"), RuntimeError("a bug")])
def test_what_the_caller_gives_up_ends(world: Callable[..., World], error: Exception) -> None:
    w = world(2)
    w.registry.fault = lambda _: error
    marks = [w.add(number, 7) for number in range(2)]
    w.run(2.0)
    assert (w.marks.errors, w.marks.ended_marks, len(w.registry.multis)) == ([error], marks, 1)


def test_a_guard_that_comes_late_is_waited_for(world: Callable[..., World]) -> None:
    w = world()
    w.registry.write(Delete(znodes.topic_guard_path(TOPIC_ID)))
    mark = w.add(0, 7)
    w.run(1.2)
    assert w.registry.marks(0) == set() and isinstance(w.marks.errors[0], GuardMissing)
    w.registry.write(Create(znodes.topic_guard_path(TOPIC_ID)))
    w.run(1.0)
    assert mark.outcome == "written"


def test_a_node_that_cannot_be_read_ends_its_write(world: Callable[..., World]) -> None:
    w = world(2)
    marks = [w.add(number, 7) for number in range(2)]
    w.registry.write(SetData(znodes.state_path("t", 0), b"{"))
    w.run(2.0)
    assert [type(each) for each in w.marks.errors] == [MalformedNode]
    assert [each.outcome for each in marks] == ["", "written"] and len(w.marks.ended_marks) == 2


def test_a_caller_that_errs_holds_nobody(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(2)

    def err(*_: object) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(w.marks, "written", err)
    monkeypatch.setattr(w.marks, "failed", err)
    marks = [w.marks.add(number, 7) for number in range(2)]
    w.loop.set_exception_handler(lambda *_: None)
    w.loop.run_until_complete(w.writer.write_all(marks))
    assert w.marks.ended_marks == marks


def test_single_writes_do_not_hold_the_loop(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(100, PACE._replace(alone=64))
    passed, longest = w.loop._run_once, 0

    def a_pass() -> None:
        nonlocal longest
        begun, w.marks.ends = len(w.registry.multis), 0
        passed()
        longest = max(longest, len(w.registry.multis) - begun + w.marks.ends)

    monkeypatch.setattr(w.loop, "_run_once", a_pass)
    marks = [w.marks.add(number, 7) for number in range(100)]
    for number in range(0, 100, 3):
        w.write_otherwise(number)
    w.loop.run_until_complete(w.writer.write_all((), marks))
    # One that goes on from what it has found is answered and begins again in one turn.
    assert 8 <= longest <= 16
    assert all(w.registry.marks(number) == {7} for number in range(100))


# The end -------------------------------------------------------------------------------------------------------------


def test_all_are_written_then_the_writer_has_stopped(world: Callable[..., World]) -> None:
    w = world(9)
    marks = [w.marks.add(number, 7) for number in range(9)]
    w.loop.run_until_complete(w.writer.write_all(marks[:6], marks[6:]))
    assert [len(each) for each in w.registry.multis] == [4, 2, 1, 1, 1]
    assert {each.outcome for each in marks} == {"written"}
    w.add(0, 8)
    w.run()
    assert w.registry.marks(0) == {7}
    w.loop.run_until_complete(w.new_writer().write_all(()))


def test_a_cancelled_wait_leaves_the_rest_undone(world: Callable[..., World]) -> None:
    w = world(40)
    w.registry.way_s = lambda: 0.1
    writing = w.loop.create_task(w.writer.write_all([w.marks.add(number, 7) for number in range(40)]))
    w.run(0.25)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        w.loop.run_until_complete(writing)
    w.run(5.0)
    assert len(w.marks.ended_marks) == 8 and len(w.registry.multis) == 4


# The controller's writes ---------------------------------------------------------------------------------------------


def test_nothing_more_is_begun_under_an_epoch_that_is_over(world: Callable[..., World]) -> None:
    w = world(40)

    async def fenced(operations: Sequence[Operation]) -> list[Any]:
        try:
            results = await answer(w.registry.multi([Check(EPOCH_NODE, 0), *operations]))
        except (BadVersion, NoNode) as error:
            if error.operation_index == 0:
                raise NotController("another broker is the controller") from error
            raise
        return results[1:]

    def change(mark: Mark) -> StateChange | None:
        return None if w.marks.errors else Marks.change(w.marks, mark)

    w.marks.change = change  # type: ignore[method-assign]
    w.registry.way_s = lambda: 0.1
    nodes = FencedNodes(w.registry, fenced)
    writer = StateWriter(w.loop, w.slices, nodes, w.marks, PACE)
    marks = [w.marks.add(number, 7) for number in range(40)]
    writing = w.loop.create_task(writer.write_all(marks))
    w.run(0.25)
    w.registry.write(SetData(EPOCH_NODE, b"2"))
    w.run(2.0)
    assert writing.done() and {type(each) for each in w.marks.errors} == {NotController}
    assert [each.outcome for each in marks] == ["written"] * 8 + [""] * 32
    assert len(w.registry.multis) == 4 and len(w.marks.ended_marks) == 40


# By chance -----------------------------------------------------------------------------------------------------------


class ByChance:
    """One random schedule of faults, other writers, news and a stop."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.count = self.chance.choice((1, 3, 20))
        together, alone = self.chance.choice((1, 4, 100)), self.chance.choice((1, 16))
        self.world = World(self.count, WritePace(together, self.chance.randint(1, 4), alone, 0.5))
        self.registry, self.marks = self.world.registry, self.world.marks
        self.registry.way_s = lambda: self.chance.uniform(0.0, 0.05)
        self.registry.fault = self.fault
        self.fault_rate = self.chance.choice((0.0, 0.1, 0.5))
        self.added: list[Mark] = []
        self.unreadable: set[int] = set()
        self.gone: set[int] = set()

    def fault(self, _: Request) -> str | BaseException | None:
        if self.chance.random() >= self.fault_rate:
            return None
        return self.chance.choice(("lost", "dropped", "late", ConnectionLoss("not sent"), OutOfRoom("full")))

    def act(self) -> None:
        number = self.chance.randrange(self.count)
        guard = znodes.topic_guard_path(TOPIC_ID)
        match self.chance.randrange(12):
            case 0 if number not in self.unreadable | self.gone:
                self.world.write_otherwise(number)
            case 1 if self.chance.random() < 0.1 and number not in self.gone:
                self.unreadable.add(number)
                self.registry.write(SetData(znodes.state_path("t", number), b"{"))
            case 2 if self.chance.random() < 0.1 and number not in self.gone:
                self.gone.add(number)
                self.registry.write(Delete(znodes.state_path("t", number)))
            case 3 if self.registry.tree.exists(guard, 1, None) is not None:
                self.registry.write(Delete(guard))
            case 3 | 4 if self.registry.tree.exists(guard, 1, None) is None:
                self.registry.write(Create(guard))
            case 5 | 6 if self.added:
                # What is under way is not added again.
                mark = self.chance.choice(self.added)
                if self.world.writer.is_writing(mark.key):
                    self.world.writer.add(replace(mark))
            case _:
                mark = self.marks.add(number, len(self.added) + 3, goes_on=self.chance.random() < 0.7)
                self.added.append(mark)
                self.world.writer.add(mark)

    def run(self) -> None:
        self.marks.again = lambda error: isinstance(error, RegistryError) and not isinstance(error, MalformedNode)
        for _ in range(self.chance.randrange(10, 120)):
            self.act()
            self.world.run(self.chance.choice((0.0, 0.001, 0.02, 0.3)))
            self.check()
        if self.chance.random() < 0.3:
            self.world.loop.run_until_complete(self.stop())
            self.world.run(3.0)
        else:
            self.registry.fault = lambda _: None
            guard = znodes.topic_guard_path(TOPIC_ID)
            if self.registry.tree.exists(guard, 1, None) is None:
                self.registry.write(Create(guard))
            # As many at a time as it takes.
            self.world.run(30.0)
            assert self.marks.ended_marks and sorted(each.key for each in self.marks.ended_marks) == sorted(
                each.key for each in self.added
            )
            assert not any(self.world.writer.is_writing(each.key) for each in self.added)
            for each in self.added:
                if each.number not in self.unreadable | self.gone:
                    was_written = each.mark in self.registry.marks(each.number)
                    assert was_written == (each.outcome != "") if not each.goes_on else was_written
        self.check()
        self.world.loop.run_until_complete(self.world.writer.stop())
        self.world.loop.close()

    async def stop(self) -> None:
        self.marks.is_stopped = True
        await self.world.writer.stop()

    def check(self) -> None:
        """No mark is written twice, or lost by another's write, and no write goes beyond its bounds."""
        for history in self.registry.histories.values():
            for before, after in pairwise(history):
                assert set(before.eligible) <= set(after.eligible)
                assert len(after.eligible) - len(before.eligible) <= 1
        pace = self.world.pace
        assert all(len(each) <= max(pace.together, 1) for each in self.registry.multis)
        assert self.marks.wrong == []


@pytest.mark.timeout(3600 if SOAK else 120)
def test_by_chance_each_change_is_written_once_or_its_caller_told() -> None:
    for seed in range(SEED, SEED + SCHEDULES):
        try:
            ByChance(seed).run()
        except BaseException:
            print(f"seed {seed}")
            raise


# The objects ---------------------------------------------------------------------------------------------------------

MODULES: Final = (
    "broker/replication/isr_changes.py",
    "broker/replication/isr_leaving.py",
    "broker/replication/slow_members.py",
    "registry/cluster/state_nodes.py",
    "registry/cluster/state_writer.py",
    "registry/controller/elections.py",
)


def attributes_of(node: ast.ClassDef) -> set[str]:
    """What objects of a class have: fields, and what its methods set."""
    fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    stored = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    return {each.id for each in fields if isinstance(each, ast.Name)} | {
        each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"
    }


@pytest.mark.parametrize("module", MODULES)
def test_no_object_has_more_than_twelve_attributes(module: str) -> None:
    classes = [
        each
        for each in ast.parse((PROJECT / "spark_kafkalite" / module).read_text()).body
        if isinstance(each, ast.ClassDef)
    ]
    assert classes
    assert {each.name: sorted(attributes_of(each)) for each in classes if len(attributes_of(each)) > 12} == {}
