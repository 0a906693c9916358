"""What happens to a simulated cluster, as values: written down, repeated, and shrunk to what a failure needs.

A schedule is made from its seed; the seed also decides what the faults leave open (how long a message takes, what a
torn write leaves). So the same values give the same run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final, Self

# When the first fault may come, and by when the last one has: the cluster has started, and has time to heal.
_FIRST_S: Final = 0.5
_LAST_S: Final = 7.0


class FaultKind(Enum):
    """What may happen; ``target`` is a broker unless said otherwise, ``seconds`` how long it lasts."""

    KILL = "kill"  # the process; started again after ``seconds``
    POWER_CUT = "power cut"  # what was not synced is lost; started again after ``seconds``
    TORN_POWER_CUT = "torn power cut"  # besides, a part of what was not synced is there
    EMPTY_DISK = "empty disk"  # killed, and started again after ``seconds`` with nothing on its disk
    STOP = "stop"  # in order; started again after ``seconds``
    PAUSE = "pause"  # stands still, its connections stay open
    CUT_OFF = "cut off"  # from all other brokers and clients, both ways
    DEAF = "deaf"  # hears no other broker, and is heard
    MUTE = "mute"  # is not heard by any other broker, and hears
    CUT_FROM_REGISTRY = "cut from registry"
    REGISTRY_DOWN = "registry down"  # answers nobody; ``target`` means nothing
    BREAK_REGISTRY_CONNECTION = "break registry connection"  # what is on its way is lost; it comes back by itself
    LOSE_REGISTRY_ANSWERS = "lose registry answers"  # requests are done, nothing comes back; then the connection breaks
    EXPIRE_SESSION = "expire session"
    RESET_CONNECTIONS = "reset connections"  # those of a broker to the others
    # What it sends by the connections that it has opened by now comes later, even if it has died meanwhile.
    STALL_CONNECTIONS = "stall connections"
    MAKE_TOPIC_AGAIN = "make topic again"  # delete and create; ``target`` is the topic's number
    JUMP_CLOCK = "jump clock"  # the wall clock, to ``seconds`` away from that of the others
    PREFER_LEADERS = "prefer leaders"  # elections of preferred leaders; ``target`` is the topic's number
    DELETE_RECORDS = "delete records"  # all that are committed; ``target`` is the topic's number
    # All partitions of a topic move to the brokers that ``what`` names; without any, what is moving is cancelled.
    REASSIGN = "reassign"
    # Disasters: see ``disasters``. ``what`` names the kind of file or of node. ``seconds`` is how long the broker is
    # down for it, 0: it runs meanwhile. ``apart_s`` is how much older the copy is that comes back. Where there are any,
    # ``target`` 0, -1 and -2 of a broker's fault are the replicas of the first partition: 0 is its preferred leader.
    FLIP_RECORD = "flip record"  # a bit in a record of a segment
    FLIP_HEADER = "flip header"  # a bit in a batch header
    FLIP_INDEX = "flip index"
    SHORT_READ = "short read"  # the next read of a file gives less than there is
    READ_ERROR = "read error"  # EIO, once
    BAD_SECTOR = "bad sector"  # EIO from one place of a file, until that file is replaced
    FILE_MISSING = "file missing"
    FILE_EMPTIED = "file emptied"
    FILE_CUT = "file cut"
    FILE_OLDER = "file older"
    LOG_START_RAISED = "log start raised"  # log-start-offset-checkpoint says that the first half of a log is deleted
    PARTITION_OLDER = "partition older"  # the directory of one partition
    NOT_MOUNTED = "not mounted"  # the log directory is empty at one start, and back at the next, ``apart_s`` later
    ALL_POWER = "all power"  # all hosts; any of the writes that were not flushed are lost
    WRITES_HANG = "writes hang"  # for ``seconds``, and then they go on; ``what``: only calls of this name
    NODE_DELETED = "node deleted"  # a node of the registry
    NODE_BY_HAND = "node by hand"  # the node of a partition's state, as somebody writes it who wants another leader
    REGISTRY_OLDER = "registry older"  # down, then a copy of earlier
    REGISTRY_RECOVERED = "registry recovered"  # the same, and it is completed from all logs before brokers reach it


# Those that random schedules do not have.
_NOT_DRAWN: Final = frozenset({FaultKind.DELETE_RECORDS, FaultKind.REASSIGN})
OF_TOPICS: Final = frozenset({FaultKind.MAKE_TOPIC_AGAIN, FaultKind.PREFER_LEADERS, *_NOT_DRAWN})
OF_OLD_REGISTRIES: Final = (FaultKind.REGISTRY_OLDER, FaultKind.REGISTRY_RECOVERED)
_WITHOUT_DISASTERS: Final = tuple(FaultKind)[: tuple(FaultKind).index(FaultKind.FLIP_RECORD)]
# What ``disasters`` do, and no other schedule has.
DISASTERS: Final = frozenset(FaultKind) - frozenset(_WITHOUT_DISASTERS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens at ``at_s`` simulated seconds after the start."""

    at_s: float
    kind: FaultKind
    target: int = 0
    seconds: float = 0.0
    # Of reassignments: the brokers, with commas. Of disasters: which kind of file, the seed of the rest (which file,
    # which bit), and how much older a copy is.
    what: str = ""
    draw: int = 0
    apart_s: float = 0.0

    @property
    def lasts_s(self) -> float:
        """How long it lasts."""
        if self.kind is FaultKind.JUMP_CLOCK:
            return 0.0
        return self.seconds + (self.apart_s if self.kind is FaultKind.NOT_MOUNTED else 0.0)

    def encode(self) -> list[Any]:
        """Return it as a list; what only some kinds have is at its end, and left out where it is not set."""
        of_some: list[Any] = [self.what] if self.what else []
        if self.kind in DISASTERS:
            of_some = [self.what, self.draw, self.apart_s]
        return [self.at_s, self.kind.value, self.target, self.seconds, *of_some]


@dataclass(frozen=True, slots=True)
class SimulatedTopic:
    """A topic that exists from the start."""

    partitions: int
    factor: int
    min_insync: int
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cluster, what its clients do, and what happens to it."""

    seed: int
    brokers: int
    topics: tuple[SimulatedTopic, ...]
    session_timeout_s: float
    lag_time_max_s: float
    faults: tuple[Fault, ...]
    # How many producers each partition has besides, with acks=1, in a hurry.
    leader_acked: int = 0
    # The brokers' settings besides those above.
    settings: tuple[tuple[str, str], ...] = ()
    # How many producers with several batches under way each partition has besides.
    pipelined: int = 0
    # Whether ``disasters`` are played and judged: then disks are damaged, and an operator does what is left in the end.
    has_disasters: bool = False
    # Whether leaders are asked all the time whether they still lead.
    asks_leaders: bool = False

    @property
    def moves(self) -> bool:
        """Whether partitions are reassigned."""
        return any(fault.kind is FaultKind.REASSIGN for fault in self.faults)

    def encode(self) -> str:
        """Return it as JSON, to be kept with a test."""
        fields = asdict(self)
        fields["faults"] = [fault.encode() for fault in self.faults]
        if not self.has_disasters:
            del fields["has_disasters"]
        if not self.asks_leaders:
            del fields["asks_leaders"]
        return json.dumps(fields)

    @classmethod
    def decode(cls, text: str) -> Self:
        fields: dict[str, Any] = json.loads(text)
        fields["topics"] = tuple(
            SimulatedTopic(**{**topic, "settings": tuple(map(tuple, topic["settings"]))}) for topic in fields["topics"]
        )
        fields["settings"] = tuple(map(tuple, fields.get("settings", ())))
        fields["faults"] = tuple(Fault(at_s, FaultKind(kind), *others) for at_s, kind, *others in fields["faults"])
        return cls(**fields)

    def smaller(self) -> Iterator[Schedule]:
        """Yield schedules with less in them: without a half of the faults, without each one of them."""
        count = len(self.faults)
        size = count // 2
        while size:
            for first in range(0, count, size):
                yield replace(self, faults=self.faults[:first] + self.faults[first + size :])
            size //= 2


def random_schedule(seed: int) -> Schedule:
    """Return the schedule of a seed: mostly three brokers, factor 3 and min.insync.replicas 2."""
    chance = random.Random(seed)
    brokers = chance.choice((3, 3, 3, 3, 4, 5))
    topics = tuple(
        SimulatedTopic(
            chance.choice((1, 1, 2, 3)),
            chance.choice((3, 3, 3, 3, 2, 1)),
            chance.choice((2, 2, 2, 1)),
            chance.choice(((), (), (), (("flush.before.ack", "true"),), (("segment.bytes", "2048"),))),
        )
        for _ in range(chance.choice((1, 1, 2)))
    )
    faults = []
    for _ in range(chance.randint(1, 8)):
        kind = chance.choice(_KINDS)
        target = chance.randrange(len(topics)) if kind in _DRAWN_OF_TOPICS else chance.randint(1, brokers)
        faults.append(Fault(round(chance.uniform(_FIRST_S, _LAST_S), 3), kind, target, _seconds(kind, chance)))
    # Several at once find what single ones do not.
    if chance.random() < 0.5 and len(faults) > 1:
        at_s = faults[0].at_s
        faults = [
            replace(fault, at_s=round(at_s + chance.uniform(0, 0.3), 3)) if chance.random() < 0.5 else fault
            for fault in faults
        ]
    return Schedule(
        seed,
        brokers,
        topics,
        chance.choice((1.0, 3.0)),
        chance.choice((1.0, 2.0, 5.0)),
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
        chance.choice((0, 0, 1)),
        chance.choice(((), (), (), (("replica.fetch.max.bytes", "200"),))),
    )


def stops_in_order(seed: int, stops: int) -> Schedule:
    """Return a schedule of so many stops in order, while producers have several batches under way.

    Who stops stands still in the midst of it for less than clients wait, as on a machine that is overloaded: the others
    elect meanwhile, and clients hear of that from them. Nothing else happens: where a leader that is cut off is
    replaced, no log knows the repeats of all that was sent to it.
    """
    chance = random.Random(seed)
    faults = []
    at_s = _FIRST_S
    for _ in range(stops):
        at_s += chance.uniform(1.2, 2.0)
        broker = chance.randint(1, 3)
        faults.append(Fault(round(at_s, 4), FaultKind.STOP, broker, round(chance.uniform(0.5, 0.8), 4)))
        pause_at_s = at_s + chance.uniform(0, 0.03)
        faults.append(Fault(round(pause_at_s, 4), FaultKind.PAUSE, broker, round(chance.uniform(0.2, 0.4), 4)))
    return Schedule(seed, 3, (SimulatedTopic(1, 3, 2),), 3.0, 5.0, tuple(faults), pipelined=3)


def deletions(seed: int) -> Schedule:
    """Return a schedule in which records are deleted while one broker at a time is away: its log ends where theirs
    begin when it comes back, or its disk is empty."""
    chance = random.Random(seed)
    ends = (FaultKind.KILL, FaultKind.STOP, FaultKind.EMPTY_DISK, FaultKind.PAUSE, FaultKind.CUT_OFF)
    faults = []
    at_s = _FIRST_S
    for _ in range(4):
        at_s += chance.uniform(1.5, 2.5)
        seconds = round(chance.uniform(1.0, 3.0), 3)
        faults.append(Fault(round(at_s, 3), chance.choice(ends), chance.randint(1, 3), seconds))
        for _ in range(chance.randint(1, 3)):
            faults.append(Fault(round(at_s + seconds * chance.uniform(0, 1.2), 3), FaultKind.DELETE_RECORDS))
        at_s += seconds
    settings = chance.choice(((), (("segment.bytes", "2048"),)))
    faults.sort(key=lambda fault: fault.at_s)
    return Schedule(seed, 3, (SimulatedTopic(1, 3, 2, settings),), 1.0, 1.0, tuple(faults), leader_acked=1)


# As it was first drawn, so that seeds mean what they did.
_DRAWN_OF_TOPICS: Final = OF_TOPICS - _NOT_DRAWN
_FREQUENT: Final = (FaultKind.KILL, FaultKind.KILL, FaultKind.POWER_CUT, FaultKind.PAUSE, FaultKind.EXPIRE_SESSION)
_KINDS: Final = (*(kind for kind in _WITHOUT_DISASTERS if kind not in _NOT_DRAWN), *_FREQUENT)


def _seconds(kind: FaultKind, chance: random.Random) -> float:
    if kind is FaultKind.JUMP_CLOCK:
        return float(chance.choice((-3600, -5, 5, 3600)))
    if kind in (FaultKind.KILL, FaultKind.POWER_CUT, FaultKind.TORN_POWER_CUT, FaultKind.EMPTY_DISK, FaultKind.STOP):
        # Also within the session.
        return round(chance.choice((0.1, 0.5, 2.0, 6.0)) * chance.uniform(0.5, 1.5), 3)
    return round(chance.choice((0.2, 1.0, 2.5, 6.0)) * chance.uniform(0.5, 1.5), 3)
