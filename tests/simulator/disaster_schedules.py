"""Schedules of disasters: what the disks, the power and the registry of a simulated cluster may suffer.

Each has one disaster or two, and a few of the ordinary faults, so that leaders change before and after it. How often
and when is drawn by the seed; which file and which bit by a number of each fault's own, so that a schedule with less in
it still damages the same.
"""

from __future__ import annotations

import random
from typing import Final

from tests.simulator.disasters import kills_and_spares_the_end
from tests.simulator.schedule import DISASTERS, OF_OLD_REGISTRIES, Fault, FaultKind, Schedule, SimulatedTopic

_FIRST_S: Final = 1.5
_LAST_S: Final = 6.0
_OF_FILES: Final = (FaultKind.FILE_MISSING, FaultKind.FILE_EMPTIED, FaultKind.FILE_CUT, FaultKind.FILE_OLDER)
# A part of the name of what is hit: files of a partition, and those of the log directory.
SEGMENT: Final = ".log"
INDEXES: Final = (".index", ".timeindex")
CHECKPOINTS: Final = ("leader-epoch-checkpoint", "log-start-offset-checkpoint", "recovery-point-offset-checkpoint")
FILES: Final = (SEGMENT, *INDEXES, *CHECKPOINTS)
# The call that hangs where not all do that write.
FLUSH: Final = "fdatasync"
# Nodes of the registry that somebody may remove: of a topic's first partition, of a topic, of a broker.
NODES: Final = ("state", "partitions", "config", "guard", "broker", "controller")
KINDS: Final = tuple(kind for kind in FaultKind if kind in DISASTERS)
_AROUND: Final = (FaultKind.KILL, FaultKind.KILL, FaultKind.STOP, FaultKind.EXPIRE_SESSION, FaultKind.POWER_CUT)
# What all replicas may suffer together.
_OF_ALL: Final = frozenset({FaultKind.FILE_MISSING, FaultKind.FILE_EMPTIED})
_RUNS_MEANWHILE: Final = frozenset({FaultKind.SHORT_READ, FaultKind.READ_ERROR})
# Timers that are to come in a short run; see UPKEEP in ``disaster_run``.
_SETTINGS: Final = (
    ("replica.high.watermark.checkpoint.interval.ms", "500"),
    ("log.flush.offset.checkpoint.interval.ms", "700"),
)


def disasters(seed: int, kind: FaultKind | None = None, what: str = "") -> Schedule:
    """Return the schedule of a seed: with this kind of disaster on this kind of file, if they are given."""
    chance = random.Random(seed)
    settings = [("segment.bytes", chance.choice(("1024", "2048", "100000"))), ("index.interval.bytes", "200")]
    settings += chance.choice(((), (("flush.ms", "500"),), (("flush.before.ack", "true"),)))
    topic = SimulatedTopic(chance.choice((1, 1, 2)), 3, 2, tuple(settings))
    faults = []
    for _ in range(chance.choice((1, 1, 2))):
        faults += _disaster(kind or chance.choice(KINDS), what, chance)
    for _ in range(chance.randint(0, 3)):
        faults.append(_around(_FIRST_S, _LAST_S + 1.0, chance))
    if chance.random() < 0.7:
        faults.append(Fault(round(chance.uniform(_LAST_S, _LAST_S + 3.0), 3), FaultKind.PREFER_LEADERS))
    faults.sort(key=lambda fault: fault.at_s)
    return Schedule(
        seed,
        3,
        (topic,),
        1.0,
        chance.choice((1.0, 2.0)),
        tuple(faults),
        chance.choice((0, 1)),
        _SETTINGS,
        has_disasters=True,
    )


def _disaster(kind: FaultKind, what: str, chance: random.Random) -> list[Fault]:
    at_s = round(chance.uniform(_FIRST_S, _LAST_S), 3)
    is_down = kind is FaultKind.PARTITION_OLDER or (kind not in _RUNS_MEANWHILE and chance.random() < 0.6)
    seconds = round(chance.choice((0.2, 1.0, 3.0)) * chance.uniform(0.5, 1.5), 3) if is_down else 0.0
    apart_s = round(min(chance.uniform(0.3, 4.0), at_s - 0.2), 3)
    drawn, target = chance.randrange(1 << 16), chance.choice((0, 0, 1, 2, 3))
    # Not among those of all kinds: the leader of some, healed by rounds, keeps its hole.
    is_asked_for = what == SEGMENT
    if kind in _OF_FILES:
        what = what or chance.choice(FILES)
    elif kind in (FaultKind.FLIP_INDEX, FaultKind.SHORT_READ, FaultKind.READ_ERROR, FaultKind.BAD_SECTOR):
        # Segments twice as often.
        what = what or chance.choice(INDEXES if kind is FaultKind.FLIP_INDEX else (SEGMENT, SEGMENT, *INDEXES))
    elif kind is FaultKind.NODE_DELETED:
        what = what or chance.choice(NODES)
    elif kind in (FaultKind.ALL_POWER, FaultKind.NOT_MOUNTED, *OF_OLD_REGISTRIES, FaultKind.WRITES_HANG):
        seconds = round(chance.choice((0.5, 2.0, 4.0)) * chance.uniform(0.5, 1.5), 3)
        if kind is FaultKind.WRITES_HANG:
            seconds *= 4
            # Flushes are made in threads; writes of the loop's keep the loop from turning.
            what = what or chance.choice(("", FLUSH))
    if kind in _OF_ALL and is_asked_for and random.Random(drawn).random() < 0.3:
        return _damage_of_all(kind, at_s, random.Random(drawn))
    if kind is FaultKind.FILE_OLDER and chance.random() < 0.5:
        return _older_on_leader(what, drawn, chance)
    faults = [Fault(at_s, kind, target, round(seconds, 3), what, drawn, apart_s)]
    if kind is FaultKind.NODE_DELETED and chance.random() < 0.5:
        # Nobody who runs afterwards has seen what the node held.
        down_s = [round(chance.uniform(0.1, 0.3), 3) for _ in range(3)]
        faults = [
            Fault(round(at_s - each, 3), FaultKind.KILL, n, round(each + 0.3, 3)) for n, each in enumerate(down_s, 1)
        ] + faults
    if kind in (FaultKind.FILE_OLDER, FaultKind.PARTITION_OLDER, *OF_OLD_REGISTRIES):
        # The copy is of another leader's time.
        faults.append(_around(at_s - apart_s, at_s, chance))
    return faults


def _damage_of_all(kind: FaultKind, at_s: float, chance: random.Random) -> list[Fault]:
    """All replicas are killed, and each loses old segments, the same or others, before any of them starts again."""
    faults = []
    for _ in range(chance.choice((1, 2))):
        for number in (1, 2, 3):
            draws = iter(lambda: chance.randrange(1 << 16), None)
            drawn = next(draw for draw in draws if kills_and_spares_the_end(draw))
            faults.append(Fault(at_s, kind, number, round(chance.uniform(0.5, 2.0), 3), SEGMENT, drawn))
            at_s = round(at_s + 0.001, 3)
    return faults


def _older_on_leader(what: str, drawn: int, chance: random.Random) -> list[Fault]:
    """Who stops last, and so leads when it starts again, gets a file from before there were several epochs.

    It leads alone when it stops, so with acks=all nothing is written under its epoch.
    """
    return [
        Fault(1.2, FaultKind.KILL, 0, 1.4),
        Fault(3.8, FaultKind.PREFER_LEADERS),
        Fault(5.0, FaultKind.STOP, -1, 3.5),
        Fault(5.3, FaultKind.STOP, 0, 3.0),
        Fault(5.8, FaultKind.FILE_OLDER, -2, round(chance.uniform(0.2, 1.0), 3), what, drawn, 4.7),
    ]


def _around(first_s: float, last_s: float, chance: random.Random) -> Fault:
    at_s = round(chance.uniform(first_s, last_s), 3)
    seconds = round(chance.choice((0.1, 0.5, 2.0)) * chance.uniform(0.5, 1.5), 3)
    return Fault(at_s, chance.choice(_AROUND), chance.randint(1, 3), seconds)
