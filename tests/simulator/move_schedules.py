"""Schedules in which partitions are reassigned, while brokers and the registry fail."""

from __future__ import annotations

import random
from typing import Final

from tests.simulator.schedule import Fault, FaultKind, Schedule, SimulatedTopic

_OTHERS: Final = (
    FaultKind.KILL,
    FaultKind.KILL,
    FaultKind.STOP,
    FaultKind.PAUSE,
    FaultKind.CUT_OFF,
    FaultKind.DEAF,
    FaultKind.MUTE,
    FaultKind.CUT_FROM_REGISTRY,
    FaultKind.BREAK_REGISTRY_CONNECTION,
    FaultKind.LOSE_REGISTRY_ANSWERS,
    FaultKind.EXPIRE_SESSION,
    FaultKind.RESET_CONNECTIONS,
    FaultKind.STALL_CONNECTIONS,
    FaultKind.PREFER_LEADERS,
    FaultKind.MAKE_TOPIC_AGAIN,
    FaultKind.POWER_CUT,
    FaultKind.EMPTY_DISK,
)
_LOSE: Final = frozenset({FaultKind.POWER_CUT, FaultKind.EMPTY_DISK})
# What copies slowly takes several rounds, so that things happen meanwhile.
_SETTINGS: Final = ((), (("replica.fetch.max.bytes", "100"),), (("replica.fetch.max.bytes", "300"),))


def moves(seed: int) -> Schedule:
    """Return a schedule of several moves of one topic, some of them cancelled, and up to six faults.

    A partition never has fewer replicas than ``min.insync.replicas``, so that one power loss takes nothing.
    """
    chance = random.Random(seed)
    brokers = chance.choice((4, 4, 5))
    min_insync = chance.choice((2, 2, 2, 1))
    factor = chance.choice((min_insync, 2, 3))
    faults = []
    at_s = 0.5
    for _ in range(chance.randint(1, 6)):
        at_s += chance.choice((0.01, 0.1, 0.5, 1.5)) * chance.uniform(0.5, 1.5)
        what = ""
        if chance.random() < 0.75 or not faults:
            size = chance.choice((min_insync, 2, 3, 3))
            what = ",".join(map(str, chance.sample(range(1, brokers + 1), max(size, min_insync))))
        faults.append(Fault(round(at_s, 4), FaultKind.REASSIGN, 0, 0.0, what))
    for _ in range(chance.choice((0, 1, 2, 3, 4, 6))):
        kind = chance.choice(_OTHERS)
        about_s = chance.choice(faults).at_s if chance.random() < 0.7 else chance.uniform(0.5, at_s + 1.0)
        target = 0 if kind in (FaultKind.PREFER_LEADERS, FaultKind.MAKE_TOPIC_AGAIN) else chance.randint(1, brokers)
        seconds = round(chance.choice((0.1, 0.5, 2.0, 4.0)) * chance.uniform(0.5, 1.5), 3)
        faults.append(
            Fault(round(about_s + chance.choice((0.01, 0.1, 0.4)) * chance.random(), 4), kind, target, seconds)
        )
    return Schedule(
        seed,
        brokers,
        (SimulatedTopic(chance.choice((1, 1, 2)), factor, min_insync),),
        chance.choice((1.0, 3.0)),
        chance.choice((1.0, 2.0, 5.0)),
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
        chance.choice((0, 0, 1)),
        chance.choice(_SETTINGS),
    )


def growth(seed: int) -> Schedule:
    """Return a schedule in which the only replica gets two more, and needs two in sync from then on: nothing fails."""
    chance = random.Random(seed)
    moved = Fault(round(chance.uniform(3.0, 5.0), 3), FaultKind.REASSIGN, 0, 0.0, "1,2,3")
    settings = (("replica.fetch.max.bytes", "100"),)
    return Schedule(seed, 3, (SimulatedTopic(1, 1, 2),), 3.0, 5.0, (moved,), 3, settings)
