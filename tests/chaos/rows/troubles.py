"""Faults of random brokers that come and go for a row's length, whatever the other brokers are doing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

from tests.chaos.broker_program import DISK_FULL
from tests.chaos.rows.stage import Stage

PAUSE: Final = "pause"
KILL: Final = "kill"
ISOLATE: Final = "isolate"
FILL_DISK: Final = "fill disk"
_LOOK_S: Final = 0.05

Range = tuple[float, float]


class _Troubles:
    """What is done to brokers now."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        # By broker: when it is healed, how, what was done to it, and when.
        self._of: dict[int, tuple[float, Callable[[], object], str, float]] = {}

    @property
    def are_there(self) -> bool:
        return bool(self._of)

    def heal(self, now: float) -> None:
        """Heal those whose time is over."""
        for number in [each for each, trouble in self._of.items() if trouble[0] <= now]:
            _, heal, name, begun = self._of.pop(number)
            heal()
            self._stage.note_fault(begun, time.monotonic(), name, number)

    def add(self, now: float, kinds: Mapping[str, Range]) -> None:
        """Do something of these kinds to a broker that is whole, if there is one."""
        stage, chance = self._stage, self._stage.chance
        whole = sorted(stage.brokers.keys() - self._of.keys())
        if not whole:
            return
        number, name = chance.choice(whole), chance.choice(sorted(kinds))
        if name == ISOLATE and any(trouble[2] == name for trouble in self._of.values()):
            # All lines are healed at once.
            return
        self._of[number] = now + chance.uniform(*kinds[name]), self._begin(number, name), name, now

    def _begin(self, number: int, name: str) -> Callable[[], object]:
        """Begin a trouble, and return what heals it."""
        broker, cluster = self._stage.brokers[number], self._stage.cluster
        if name == PAUSE:
            broker.pause()
            return broker.resume
        if name == KILL:
            broker.kill()
            return broker.start
        if name == ISOLATE:
            cluster.lines.isolate(number)
            return cluster.lines.heal
        full = contextlib.ExitStack()
        full.enter_context(cluster.disk(number, DISK_FULL))
        return full.close


def trouble_brokers(
    stage: Stage, kinds: Mapping[str, Range], every_s: Range, meanwhile: Callable[[float], None] = lambda _: None
) -> None:
    """For the row's length do something to random brokers, and return when all are healed. ``kinds`` says how long each
    kind lasts, at least and at most, in seconds; ``meanwhile`` is called again and again with the time."""
    troubles = _Troubles(stage)
    until = time.monotonic() + stage.mixed_s
    next_at = 0.0
    while (now := time.monotonic()) < until or troubles.are_there:
        troubles.heal(now)
        if next_at <= now < until:
            next_at = now + stage.chance.uniform(*every_s)
            troubles.add(now, kinds)
        if now < until:
            meanwhile(now)
        time.sleep(_LOOK_S)
