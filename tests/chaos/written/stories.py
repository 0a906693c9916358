"""Histories written by hand: a sound one, and what is needed to change it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.history import (
    OK,
    Assigned,
    Batch,
    Client,
    Commit,
    Committed,
    Event,
    Fault,
    Log,
    Poll,
    Sample,
    Seek,
    Send,
    Topic,
)

T = "T"
AT = (T, 0)
BROKERS = (1, 2, 3)


@dataclass
class Story:
    """One partition on three brokers, ten records of an idempotent producer (one each second, in batches of two), the
    last four under leader epoch 1; a poller, a group of two, and somebody who looks. Change it, and have its events."""

    sends: list[Send] = field(default_factory=list)
    logs: dict[int, list[Batch]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    high_watermarks: dict[int, int] = field(default_factory=dict)
    shown: list[tuple[int, str]] = field(default_factory=list)
    delivered: list[tuple[int, str]] = field(default_factory=list)
    more: list[Event] = field(default_factory=list)
    fault: Fault = field(default_factory=lambda: Fault(name="nothing", begun=4.0, ended=6.0))
    is_compacted: bool = False
    may_renew_itself: bool = False

    def events(self) -> list[Event]:
        logs = [
            Log(
                topic=T,
                partition=0,
                broker=broker,
                start=self.starts.get(broker, 0),
                end=batches[-1].last_offset + 1 if batches else 0,
                high_watermark=self.high_watermarks.get(broker, -1),
                batches=batches,
            )
            for broker, batches in self.logs.items()
        ]
        return [
            Topic(topic=T, name="rows", partitions=1, replicas=3, is_compacted=self.is_compacted),
            Topic(topic="gone", name="gone", partitions=1, replicas=3, is_kept=False),
            Client(who="p", kind="producer", idempotent=True, may_renew_itself=self.may_renew_itself),
            Client(who="plain", kind="producer"),
            Client(who="loose", kind="producer", acks="1"),
            Client(who="reader", kind="poller", drains=True),
            Client(who="m1", kind="member", group="g"),
            Client(who="m2", kind="member", group="g"),
            *self.sends,
            Seek(who="reader", topic=T, partition=0, offset=0),
            Poll(who="reader", begun=11, ended=11, topic=T, partition=0, records=self.shown),
            Assigned(who="m1", group="g", generation=1, partitions=[AT]),
            Poll(who="m1", begun=11, ended=11, topic=T, partition=0, records=self.delivered),
            Commit(who="m1", begun=12, ended=12.1, topic=T, partition=0, group="g", offset=8, outcome=OK, generation=1),
            Committed(who="observer", begun=13, ended=13.1, topic=T, partition=0, group="g", offset=8),
            self.fault,
            *self.more,
            *logs,
        ]

    def log_of(self, broker: int, values: list[str], epoch_from: dict[int, int] | None = None) -> None:
        """Give a broker another log: these values, in batches of two."""
        self.logs[broker] = batches_of(values, epoch_from or {0: 0, 6: 1})

    def all_logs(self, values: list[str]) -> None:
        for broker in BROKERS:
            self.log_of(broker, values)


def sound() -> Story:
    values = [f"p-{number}" for number in range(10)]
    story = Story(sends=[send(number) for number in range(10)])
    story.all_logs(values)
    story.shown = [*enumerate(values)]
    story.delivered = [*enumerate(values)]
    return story


def send(
    number: int,
    offset: int | None = None,
    outcome: str = OK,
    who: str = "p",
    begun: float | None = None,
    lasting: float = 0.1,
    key: str | None = None,
) -> Send:
    at = float(number) if begun is None else begun
    return Send(
        who=who,
        begun=at,
        ended=at + lasting,
        topic=T,
        partition=0,
        value=f"{who}-{number}",
        number=number,
        outcome=outcome,
        offset=(number if offset is None else offset) if outcome == OK else -1,
        key=key,
    )


def batches_of(values: list[str], epoch_from: dict[int, int], keys: dict[str, str] | None = None) -> list[Batch]:
    """Return batches of two values; ``epoch_from`` says from which offset on a leader epoch is in force."""
    batches = []
    for base in range(0, len(values), 2):
        epoch = epoch_from[max(first for first in epoch_from if first <= base)]
        pair = values[base : base + 2]
        records = [(base + at, value, (keys or {}).get(value)) for at, value in enumerate(pair)]
        digest = hashlib.sha256(f"{base} {epoch} {pair}".encode()).hexdigest()[:16]
        batches.append(
            Batch(base_offset=base, last_offset=base + len(pair) - 1, epoch=epoch, digest=digest, records=records)
        )
    return batches


def sample(broker: int, epoch: int, at: float, *, leader: int = 1, hw: int = -1, end: int = -1) -> Sample:
    return Sample(
        who="observer", begun=at, ended=at + 0.05, topic=T, partition=0, broker=broker, leader=leader, epoch=epoch,
        isr=[1, 2, 3], high_watermark=hw, log_end=end,
    )  # fmt: skip


def values(*numbers: int) -> list[str]:
    return [f"p-{number}" for number in numbers]


Change = Callable[[Story], None]
# What was done to the sound story, and the rules that it breaks.
WRITTEN: list[tuple[Change, set[str]]] = []


def breaks(*rules: str) -> Callable[[Change], Change]:
    def keep(change: Change) -> Change:
        WRITTEN.append((change, set(rules)))
        return change

    return keep


allowed = breaks()


@allowed
def nothing_happens(story: Story) -> None:
    pass
