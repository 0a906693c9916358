"""When a pool begins one more file: while the processors have room for it."""

from __future__ import annotations

from spark_kafkalite.testing.manual_clock import ManualClock
from tests.pool.idle import LOOK_S, Room, Ticks, read_host_ticks


def test_each_look_at_the_processors_lets_one_file_begin() -> None:
    clock, found = ManualClock(), [Ticks(0, 0)]
    room = Room(lambda: found[-1], clock, processors=2)
    # A quarter of two processors is half a one.
    found.append(Ticks(100, 400))
    assert not room.take()
    clock.advance(s=LOOK_S)
    assert room.take()
    # Who else asks waits for the next look.
    assert not room.take()
    clock.advance(s=LOOK_S)
    found.append(Ticks(199, 800))
    assert not room.take()
    clock.advance(s=LOOK_S)
    found.append(Ticks(300, 1200))
    assert room.take()


def test_the_hosts_own_figures() -> None:
    before, now = read_host_ticks(), read_host_ticks()
    assert 0 < before.idle <= now.idle < now.all >= before.all
