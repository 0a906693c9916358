import random

import pytest

from spark_kafkalite.broker.waiting.deadlines import Deadline, Deadlines
from spark_kafkalite.testing.manual_clock import ManualClock
from tests.lab.manual_loop import ManualLoop
from tests.seeds import SEED

LATEST_S = 0.008


class Waiting:
    def __init__(self, loop: ManualLoop, asked_s: float) -> None:
        self.loop = loop
        self.asked_s = asked_s
        self.due_s = loop.time() + asked_s
        self.told_s: list[float] = []
        self.deadline: Deadline | None = None

    def time_is_up(self) -> None:
        self.told_s.append(self.loop.time())


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop(ManualClock())


def test_each_is_told_once_and_in_time_unless_dropped(loop: ManualLoop) -> None:
    seed = SEED
    print("seed", seed)
    chances = random.Random(seed)
    deadlines = Deadlines(loop)
    everybody: list[Waiting] = []
    dropped: list[Waiting] = []
    for _ in range(400):
        waiting = Waiting(loop, chances.choice((0.0, 0.001, 0.05, 0.5, 30.0)) * chances.random())
        waiting.deadline = deadlines.add(waiting, waiting.due_s - loop.time())
        everybody.append(waiting)
        if chances.random() < 0.5:
            loop.run_for(chances.choice((0.001, 0.02, 0.3)))
        other = chances.choice(everybody)
        if not other.told_s and other.deadline is not None and chances.random() < 0.7:
            other.deadline.pop(other)
            other.deadline = None
            dropped.append(other)
    loop.run_for(31.0)
    assert dropped
    for waiting in everybody:
        if waiting.deadline is None:
            assert waiting.told_s == []
        else:
            (told_s,) = waiting.told_s
            assert waiting.due_s <= told_s <= waiting.due_s + LATEST_S + waiting.asked_s / 100
    loop.close()


def test_long_waits_that_end_early_leave_little_behind(loop: ManualLoop) -> None:
    deadlines = Deadlines(loop)
    waiting = Waiting(loop, 3600.0)
    for _ in range(1_000):
        deadlines.add(waiting, 3600.0).pop(waiting)
        loop.run_for(1.0)
    assert len(deadlines) < 300
    assert waiting.told_s == []
    loop.close()


def test_the_loop_has_one_timer_however_many_wait(loop: ManualLoop) -> None:
    asked: list[float] = []
    call_at = loop.call_at
    loop.call_at = lambda when, *rest, **more: (asked.append(when), call_at(when, *rest, **more))[1]  # type: ignore
    deadlines = Deadlines(loop)
    everybody = [Waiting(loop, 0.5) for _ in range(1_000)]
    for waiting in everybody:
        waiting.deadline = deadlines.add(waiting, 0.5)
    assert len(asked) == 1
    for waiting in everybody:
        assert waiting.deadline is not None
        waiting.deadline.pop(waiting)
    loop.run_for(2.0)
    # Who dropped its deadline is not waited for on; what is left is the sleep of this test.
    assert len(asked) == 2
    loop.close()


def test_who_is_told_may_drop_another_and_wait_again(loop: ManualLoop) -> None:
    deadlines = Deadlines(loop)
    one, other = Waiting(loop, 0.1), Waiting(loop, 0.1)
    one.deadline, other.deadline = deadlines.add(one, 0.1), deadlines.add(other, 0.1)
    told: list[Waiting] = []

    def drop_the_other(me: Waiting, another: Waiting) -> None:
        told.append(me)
        assert another.deadline is not None
        another.deadline.pop(another, None)
        if len(told) == 1:
            deadlines.add(me, 0.1)

    one.time_is_up = lambda: drop_the_other(one, other)  # type: ignore[method-assign]
    other.time_is_up = lambda: drop_the_other(other, one)  # type: ignore[method-assign]
    loop.run_for(1.0)
    assert len(told) == 2
    assert told[0] is told[1]
    loop.close()
