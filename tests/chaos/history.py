"""Histories: what the clients of a cluster asked and were told, which faults there were, and what the logs held in the
end.

A history is a file of JSON lines, one event each; ``what`` names its class here in small letters, the other fields are
the class's. Times are seconds of the monotonic clock, which all processes of one machine share (Java's nanoTime too).
Each client's events stand in the order in which it did them. Topics are named by their ids, so that one made again is
another; ``Topic`` says which name it has. Values are unique: whoever sends records gives each a name of its own, and
whoever reads them notes that name, or, of a record that is not as it was sent, something that nobody has sent.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

At = tuple[str, int]  # topic id, partition
OK, FAIL, UNKNOWN = "ok", "fail", "unknown"  # done; certainly not done; nobody knows


class BadHistory(ValueError):
    """A line is no event; the message names file and line."""


@dataclass(kw_only=True, slots=True)
class Event:
    """``line`` is where it stands in the file, from 1 on; 0 for one that was not read from a file."""

    who: str = ""
    begun: float = 0.0
    ended: float = 0.0
    line: int = 0


@dataclass(kw_only=True, slots=True)
class OfPartition(Event):
    topic: str
    partition: int

    @property
    def at(self) -> At:
        return self.topic, self.partition


@dataclass(kw_only=True, slots=True)
class Topic(Event):
    """``is_kept`` is false for a topic that is gone in the end: it has no final logs. ``is_busy`` is false for one that
    gets records only now and then: nothing is asked of the times between them, and nobody looks at its replicas."""

    topic: str
    name: str
    partitions: int
    replicas: int = 1
    is_compacted: bool = False
    is_kept: bool = True
    is_busy: bool = True


@dataclass(kw_only=True, slots=True)
class Client(Event):
    """``kind`` is producer, prober (it sends single records), poller (assigned by hand), member (of ``group``) or
    observer. Pollers, and groups, that ``drain`` go on until they have read to the end of what is there. Whoever judges
    a producer that ``may_renew_itself`` lets it write again, under another producer epoch, what it was not answered."""

    kind: str
    idempotent: bool = False
    may_renew_itself: bool = False
    acks: str = "all"
    group: str = ""
    drains: bool = False


@dataclass(kw_only=True, slots=True)
class Send(OfPartition):
    """``number`` counts a producer's sends. ``outcome`` is FAIL only when no attempt can have been appended. An offset
    of -1 is one that the broker did not tell."""

    value: str
    number: int
    outcome: str
    offset: int = -1
    key: str | None = None
    error: str = ""


@dataclass(kw_only=True, slots=True)
class Seek(OfPartition):
    offset: int


@dataclass(kw_only=True, slots=True)
class Poll(OfPartition):
    """``records`` are pairs of offset and value."""

    records: list[tuple[int, str]]


@dataclass(kw_only=True, slots=True)
class Assigned(Event):
    """A member got these partitions and no other; it reads on from what is committed."""

    group: str
    generation: int
    partitions: list[At]


@dataclass(kw_only=True, slots=True)
class Commit(OfPartition):
    group: str
    offset: int
    outcome: str
    generation: int = -1


@dataclass(kw_only=True, slots=True)
class Committed(OfPartition):
    """What somebody was told to be committed; -1 is nothing."""

    group: str
    offset: int


@dataclass(kw_only=True, slots=True)
class Bound(OfPartition):
    """An answer of ListOffsets; ``bound`` is earliest or latest."""

    bound: str
    offset: int


@dataclass(kw_only=True, slots=True)
class Sample(OfPartition):
    """What ``broker`` says of a partition; -1 is what it did not say. A high watermark and a log end are its own."""

    broker: int
    leader: int
    epoch: int
    isr: list[int]
    high_watermark: int = -1
    log_end: int = -1


@dataclass(kw_only=True, slots=True)
class Failure(Event):
    """An error that a client's user saw, beside those of sends and commits, which have outcomes."""

    error: str


@dataclass(kw_only=True, slots=True)
class Rewind(OfPartition):
    """Somebody asked that offsets go back: those of ``group``, or of the log itself by an unclean election."""

    group: str = ""


@dataclass(kw_only=True, slots=True)
class Fault(Event):
    """What was done to the cluster from ``begun`` until it was healed at ``ended``, and what is asked for; None is
    nothing. Its effects may last for ``settle_s`` more.

    ``longest_gap_s`` bounds the time between two acknowledgements of a partition (of those in ``partitions``, if there
    are any), ``acks_at_least`` is what each producer gets while the fault lasts, ``errors_at_most`` what clients (but
    ``errors_not_of``) see, ``isr_within_s`` when every ISR is full after the healing, ``resumes_within_s`` when every
    producer is acknowledged something again after it, ``elections`` how many leader epochs it may take from a
    partition, ``p99_factor`` how much longer than before the first fault an acknowledgement may take once its effects
    are over. ``commits_nothing``: while it lasts no high watermark moves, and nothing is acknowledged to those who ask
    for all in-sync replicas.
    """

    name: str
    target: str = ""
    settle_s: float = 0.0
    partitions: tuple[int, ...] = ()
    longest_gap_s: float | None = None
    acks_at_least: int | None = None
    errors_at_most: int | None = None
    errors_not_of: str = ""
    isr_within_s: float | None = None
    resumes_within_s: float | None = None
    elections: int | None = None
    p99_factor: float | None = None
    commits_nothing: bool = False


@dataclass(kw_only=True, slots=True)
class Measure(Event):
    """How long something took that the cluster did, from ``begun`` to ``ended``; ``within_s`` is what it may take."""

    name: str
    within_s: float


@dataclass(kw_only=True, slots=True)
class Health(Event):
    """How a broker's process is, ``phase`` before or after; -1 is what was not measured."""

    broker: int
    phase: str
    open_files: int = -1
    resident_bytes: int = -1
    lag_p999_ms: float = -1.0
    longest_lag_ms: float = -1.0


@dataclass(kw_only=True, slots=True)
class Complaint(Event):
    """A line of a broker's output that says that something broke which nobody had thought of."""

    broker: int
    text: str


@dataclass(kw_only=True, slots=True)
class Leftover(Event):
    """A file that a broker should have removed."""

    broker: int
    path: str


@dataclass(kw_only=True, slots=True)
class State(OfPartition):
    """What the registry says of a partition in the end."""

    leader: int
    epoch: int
    isr: list[int]


@dataclass(kw_only=True, slots=True)
class Ephemeral(Event):
    """A node in the registry that lives with its owner's session, and whether that owner is there."""

    path: str
    owner: str
    owner_lives: bool


@dataclass(kw_only=True, slots=True)
class Batch:
    """``digest`` is of all its bytes, header included; ``records`` are offset, value and key. ``writer`` is an
    idempotent producer's id and epoch, "7/0"."""

    base_offset: int
    last_offset: int
    epoch: int
    digest: str
    records: list[tuple[int, str, str | None]]
    writer: str = ""


@dataclass(kw_only=True, slots=True)
class Log(OfPartition):
    """A replica as it is in the files of its broker, which is stopped. ``high_watermark`` is the checkpointed one, -1
    without. ``problem`` says why the files could not be read to their end."""

    broker: int
    start: int
    end: int
    high_watermark: int = -1
    batches: list[Batch]
    problem: str = ""


EVENTS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind
    for kind in (
        Topic, Client, Send, Seek, Poll, Assigned, Commit, Committed, Bound, Sample, Failure, Rewind, Fault, Measure,
        Health, Complaint, Leftover, State, Ephemeral, Log,
    )
}  # fmt: skip


class HistoryWriter:
    """Appends events to a file; any thread may note one. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")

    def note(self, *events: Event) -> None:
        text = "".join(f"{as_json(event)}\n" for event in events)
        with self._lock:
            self._file.write(text)
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def as_json(event: Event) -> str:
    """Return an event's line; what has its default is left out."""
    fields: dict[str, Any] = {"what": type(event).__name__.lower()}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name != "line" and value != field.default:
            fields[field.name] = round(value, 6) if isinstance(value, float) else value
    if isinstance(event, Log):
        fields["batches"] = [
            [batch.base_offset, batch.last_offset, batch.epoch, batch.digest, batch.records, batch.writer]
            for batch in event.batches
        ]
    return json.dumps(fields, separators=(",", ":"))


def from_json(text: str, line: int = 0) -> Event:
    """Return the event of a line. Raises BadHistory when it is none."""
    try:
        fields = json.loads(text)
        kind = EVENTS[fields.pop("what")]
        if kind is Poll:
            fields["records"] = [(offset, value) for offset, value in fields["records"]]
        elif kind is Assigned:
            fields["partitions"] = [(topic, partition) for topic, partition in fields["partitions"]]
        elif kind is Fault:
            fields["partitions"] = tuple(fields.get("partitions", ()))
        elif kind is Log:
            fields["batches"] = [_batch(batch) for batch in fields["batches"]]
        return kind(**fields, line=line)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadHistory(f"no event of a history ({error!r}): {text[:200]}") from None


def read_history(paths: Iterable[Path]) -> Iterator[Event]:
    """Give the events of files that together are one history. Raises BadHistory with the place of a bad line."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                try:
                    yield from_json(text, number)
                except BadHistory as error:
                    raise BadHistory(f"{path}:{number}: {error}") from None


def _batch(fields: list[Any]) -> Batch:
    base_offset, last_offset, epoch, digest, records, *writer = fields
    return Batch(
        base_offset=base_offset,
        last_offset=last_offset,
        epoch=epoch,
        digest=digest,
        records=[(offset, value, key) for offset, value, key in records],
        writer=writer[0] if writer else "",
    )
