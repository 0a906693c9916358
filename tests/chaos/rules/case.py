"""A history as rules look at it, and what they find wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tests.chaos.history import (
    OK,
    Assigned,
    At,
    Client,
    Event,
    Fault,
    Log,
    OfPartition,
    Poll,
    Rewind,
    Sample,
    Seek,
    Send,
    State,
    Topic,
)

Kind = TypeVar("Kind", bound=Event)
InPartition = TypeVar("InPartition", bound=OfPartition)


@dataclass(frozen=True, slots=True)
class Violation:
    """``rule`` is broken, and ``events`` show it; ``count`` is how often it is broken like that."""

    rule: str
    text: str
    events: tuple[Event, ...] = ()
    count: int = 1


class Case:
    """The events of one history by kind, partition and client, each list in their order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(events)
        self._by_kind: dict[type[Event], list[Event]] = defaultdict(list)
        for event in self.events:
            self._by_kind[type(event)].append(event)
        self.topics = {topic.topic: topic for topic in self.of(Topic)}
        self.clients = {client.who: client for client in self.of(Client)}
        self.faults = sorted(self.of(Fault), key=lambda fault: fault.begun)
        self.states = {state.at: state for state in self.of(State)}

    def of(self, kind: type[Kind]) -> list[Kind]:
        return self._by_kind[kind]  # type: ignore[return-value]

    def name(self, at: At) -> str:
        topic = self.topics.get(at[0])
        return f"{topic.name if topic is not None else at[0]}-{at[1]}"

    def by_partition(self, kind: type[InPartition]) -> dict[At, list[InPartition]]:
        found: dict[At, list[InPartition]] = defaultdict(list)
        for event in self.of(kind):
            found[event.at].append(event)
        return found

    @cached_property
    def sends(self) -> dict[At, list[Send]]:
        return self.by_partition(Send)

    @cached_property
    def durable_acks(self) -> dict[At, list[Send]]:
        """Acknowledged sends that no failure may take: those of producers with acks=all."""
        return {
            at: [send for send in sends if send.outcome == OK and self.is_durable(send)]
            for at, sends in self.sends.items()
        }

    def is_durable(self, send: Send) -> bool:
        client = self.clients.get(send.who)
        return client is None or client.acks == "all"

    @cached_property
    def sends_of_value(self) -> dict[str, list[Send]]:
        found: dict[str, list[Send]] = defaultdict(list)
        for send in self.of(Send):
            found[send.value].append(send)
        return found

    @cached_property
    def polls(self) -> dict[At, list[Poll]]:
        return self.by_partition(Poll)

    @cached_property
    def logs(self) -> dict[At, list[Log]]:
        return self.by_partition(Log)

    @cached_property
    def final(self) -> dict[At, FinalLog]:
        """What each partition holds in the end: the log of its last leader.

        Where nobody says who that is, the log that an election among all replicas would choose: the one whose last
        batch has the highest leader epoch, and of those the longest.
        """
        chosen = {}
        for at, logs in self.logs.items():
            state = self.states.get(at)
            named = [log for log in logs if state is not None and log.broker == state.leader]
            chosen[at] = FinalLog(named[0] if named else max(logs, key=_age))
        return chosen

    def in_sync_logs(self, at: At) -> list[Log]:
        """Return the replicas that have to have everything: the ISR, or all of them where nobody says who it is."""
        state = self.states.get(at)
        logs = self.logs.get(at, [])
        return [log for log in logs if state is None or log.broker in state.isr]

    def is_compacted(self, at: At) -> bool:
        topic = self.topics.get(at[0])
        return topic is not None and topic.is_compacted

    def is_busy(self, at: At) -> bool:
        """Whether records come to a partition all the time."""
        topic = self.topics.get(at[0])
        return topic is None or topic.is_busy

    def unclean(self, at: At) -> list[Rewind]:
        """Return the unclean elections of a partition."""
        return [rewind for rewind in self.of(Rewind) if rewind.at == at and not rewind.group]

    def window(self, fault: Fault) -> tuple[float, float]:
        """Return from when to when a fault and its effects last."""
        return fault.begun, fault.ended + fault.settle_s

    def reading(self, client: Client) -> Iterator[Seek | Assigned | Poll]:
        """Give what decides what a reader sees next, in its order."""
        for event in self.events:
            if event.who == client.who and isinstance(event, Seek | Assigned | Poll):
                yield event

    def last_samples(self) -> dict[tuple[At, int], Sample]:
        """Return the last sample of each partition and broker."""
        return {(sample.at, sample.broker): sample for sample in self.of(Sample)}


class FinalLog:
    """One log as a map of its offsets."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.start, self.end = log.start, log.end
        self.values: dict[int, str] = {}
        self.offsets: dict[str, list[int]] = defaultdict(list)
        self.last_of_key: dict[str, int] = {}
        self.epochs: dict[int, int] = {}
        self.writers: dict[int, str] = {}
        for batch in log.batches:
            for offset, value, key in batch.records:
                self.values[offset] = value
                self.epochs[offset] = batch.epoch
                self.writers[offset] = batch.writer
                self.offsets[value].append(offset)
                if key is not None:
                    self.last_of_key[key] = offset

    def holds(self, offset: int, value: str, key: str | None, *, is_compacted: bool) -> bool:
        """Return whether a record is there, or has been removed by right: below the log's start, or compacted."""
        found = self.values.get(offset)
        if found == value or offset < self.start:
            return True
        return is_compacted and found is None and key is not None and self.last_of_key.get(key, -1) > offset


def _age(log: Log) -> tuple[int, int]:
    return (log.batches[-1].epoch if log.batches else -1), log.end
