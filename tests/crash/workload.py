"""What a broker is kept busy with while its disk loses power, and what it has promised so far.

A record's value is made of its topic and number alone, so whatever is found in a log afterwards can be judged by
itself. A :class:`Promise` is what the broker may not take back: it is copied from the books before the power goes.
Nothing here knows how the power goes.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.client.produce.delivery import RecordMetadata
from spark_kafkalite.errors import KafkaliteError, OffsetOutOfRange
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafkalite.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until

# Records a second of each topic, and how many of them may wait for their acknowledgement.
_RATE = 90
_MOST_UNACKNOWLEDGED = 200
_PAUSE_S = 0.004
_MOST_BEHIND_S = 0.5
_PAGE_BYTES = 4096
_EARLIEST = -2
_VALUE = re.compile(rb"([a-z0-9-]+) (\d{8}) (.*)", re.DOTALL)

# One request at a time, so that a retry does not overtake: order is kept without idempotence too.
_PLAIN: Mapping[str, object] = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1, "acks": "1"}


# Offsets that no record has, of each topic.
Holes = dict[str, list[range]]


@dataclass(frozen=True)
class Plan:
    """A topic and who writes it. An idempotent producer's records have ``number == offset`` for ever.

    With ``keys`` the records take turns with so many keys, and every seventh deletes its key's value.
    """

    topic: str
    configs: Mapping[str, str]
    producer: Mapping[str, object] = field(default_factory=dict)
    acks_are_flushed: bool = False
    shows_flushed: bool = False
    keys: int = 0
    # Somebody deletes its old records from time to time.
    is_trimmed: bool = False

    @property
    def idempotent(self) -> bool:
        return self.producer.get("enable_idempotence", True) is True

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")

    def record(self, number: int) -> tuple[bytes | None, bytes | None]:
        """Return a record's key and value."""
        if not self.keys:
            return None, value_of(self.topic, number)
        # Not in a row, so that old keys stay alive for long.
        key = b"key-%d" % ((number * 2654435761 >> 7) % self.keys)
        return key, None if number % 7 == 6 else value_of(self.topic, number)

    def number_at(self, offset: int, key: bytes | None, value: bytes | None) -> int | None:
        """Return the number of a record that was found; None when none of this topic's records is like that."""
        number = number_of(self.topic, value) if value is not None else offset
        return number if number is not None and (key, value) == self.record(number) else None


_SMALL = {"segment.bytes": "60000", "index.interval.bytes": "600", "file.delete.delay.ms": "300"}
_SHOWN = {"visibility.policy": "flushed"}
PLANS = (
    Plan("each", {**_SMALL, "flush.messages": "1"}, acks_are_flushed=True),
    Plan(
        "grouped",
        {**_SMALL, **_SHOWN, "flush.before.ack": "true"},
        {"compression_type": "lz4"},
        acks_are_flushed=True,
        shows_flushed=True,
    ),
    Plan("counted", {**_SMALL, **_SHOWN, "flush.messages": "40"}, _PLAIN, shows_flushed=True),
    Plan(
        "timed",
        {**_SMALL, **_SHOWN, "flush.ms": "30"},
        {**_PLAIN, "compression_type": "gzip"},
        shows_flushed=True,
    ),
    Plan("loose", _SMALL, _PLAIN),
    Plan("trimmed", {**_SMALL, "flush.before.ack": "true"}, acks_are_flushed=True, is_trimmed=True),
    Plan(
        "short",
        {**_SMALL, "segment.bytes": "20000", "flush.before.ack": "true", "retention.bytes": "60000"},
        acks_are_flushed=True,
    ),
    Plan(
        "compacted",
        {
            **_SMALL,
            "segment.bytes": "20000",
            "flush.before.ack": "true",
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "500",
        },
        acks_are_flushed=True,
        keys=30,
    ),
)


def value_of(topic: str, number: int) -> bytes:
    """Return a record's value: its name, and its number as often as makes a size of its own."""
    # Every fortieth takes more than two pages, so that a batch may reach the disk in part.
    size = 9000 if number % 40 == 39 else number * 7919 % 1200
    return b"%s %08d " % (topic.encode(), number) + (b"%08d" % number) * (size // 8)


def number_of(topic: str, value: bytes | None) -> int | None:
    """Return a value's number; None when it is no value of the topic, or not all of it."""
    found = _VALUE.fullmatch(value or b"")
    if found is None or found[1] != topic.encode():
        return None
    number = int(found[2])
    return number if value == value_of(topic, number) else None


def delete_records(client: RawClient, topic: str, until: int) -> int | None:
    """Delete partition 0's records below an offset; return the log start that came of it, None when it was refused."""
    partition = DeleteRecordsPartition(partition_index=0, offset=until)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=5000)
    answer = client.call(request, 2).topics[0].partitions[0]
    return int(answer.low_watermark) if answer.error_code == 0 else None


def log_start(client: RawClient, topic: str) -> int | None:
    """Return partition 0's log start offset, None when nobody says."""
    asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=_EARLIEST)])
    answer = client.call(ListOffsetsRequest(replica_id=-1, topics=[asked]), 6).topics[0].partitions[0]
    return int(answer.offset) if answer.error_code == 0 else None


@dataclass
class Promise:
    """What must be on the disk: offset to number by topic, the first offsets that may be there, topics that exist and
    topics that do not."""

    kept: dict[str, dict[int, int]]
    starts: dict[str, int]
    created: set[str]
    deleted: set[str]


class Writer:
    """Sends one topic's records; its books are written by the producer's thread."""

    def __init__(self, plan: Plan, bootstrap: str) -> None:
        self.plan = plan
        self.sent = 0
        self.acknowledged: dict[int, int] = {}
        self.failures: list[Exception] = []
        self._answered = 0
        self._closing = False
        settings = {"linger_ms": 2, "batch_size": 12_000, "reconnect_backoff_max_ms": 100, **plan.producer}
        self._producer = Producer(bootstrap_servers=bootstrap, **settings)

    def send_due(self, due: int) -> None:
        while self.sent < due and self.sent - self._answered < _MOST_UNACKNOWLEDGED:
            self._send(self.sent)
            self.sent += 1

    def _send(self, number: int) -> None:
        def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
            self._answered += 1
            if error is not None:
                # What is unanswered at the end has not failed.
                if not self._closing:
                    self.failures.append(error)
            elif metadata is not None and metadata.offset >= 0:
                self.acknowledged[metadata.offset] = number

        key, value = self.plan.record(number)
        self._producer.send(self.plan.topic, value, key, partition=0, on_delivery=delivered)

    def promised(self, *, power_stays: bool = False) -> dict[int, int]:
        """Return what the acknowledgements so far promise; all of them do if only the broker dies."""
        if self.plan.acks_are_flushed or power_stays:
            return self.acknowledged.copy()
        return {}

    def forget(self) -> None:
        """Drop what was acknowledged and may have been lost with the power."""
        if not self.plan.acks_are_flushed:
            self.acknowledged = {}

    def close(self) -> None:
        self._closing = True
        self._producer.close(0.5)


class Workload:
    """Writers, a reader of what is shown, somebody who makes and removes topics and who deletes old records, and pages
    written back."""

    def __init__(self, bootstrap: str, data_dir: Path, seed: int, plans: Sequence[Plan] = PLANS) -> None:
        self.plans = plans
        self.data_dir = data_dir
        self.seen: dict[str, dict[int, int]] = {plan.topic: {} for plan in plans if plan.shows_flushed}
        # Log starts that somebody has been told, and the largest that was asked for.
        self.starts: dict[str, int] = {plan.topic: 0 for plan in plans}
        self.asked_starts: dict[str, int] = {}
        self.created: set[str] = set()
        self.may_exist: set[str] = set()
        self.deleted: set[str] = set()
        self.failures: list[str] = []
        self._bootstrap = bootstrap
        self._chance = random.Random(seed)
        # What the power has taken of each topic between records that are there.
        self.holes: Holes = {}
        # Of each topic.
        self._most = math.inf
        self._stopping = threading.Event()
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic(plan.topic, 1, 1, dict(plan.configs)) for plan in plans])
            # With many logs, a start and a stop sync the file system instead of each file.
            if self._chance.random() < 0.5:
                admin.create_topic("crowd", 40, 1)
                self.created.add("crowd")
        self.created.update(plan.topic for plan in plans)
        self.writers = {plan.topic: Writer(plan, bootstrap) for plan in plans}
        self._threads = [
            threading.Thread(target=self._watched, args=(work,), name=work.__name__, daemon=True)
            for work in (self._write, self._read, self._change_topics, self._trim, self._write_back)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads. The broker should still be there to answer what they wait for."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for writer in self.writers.values():
            writer.close()

    def allow(self, count: int) -> None:
        """Let at most so many records more be sent to each topic: what there is to examine does not grow with the
        time that examinations take."""
        self._most = max(writer.sent for writer in self.writers.values()) + count

    def promise(self, *, power_stays: bool = False) -> Promise:
        """Return what the broker has promised by now."""
        kept = {topic: writer.promised(power_stays=power_stays) for topic, writer in self.writers.items()}
        for topic, seen in self.seen.items():
            kept[topic].update(seen.copy())
        return Promise(kept, self.starts.copy(), self.created.copy(), self.deleted.copy())

    def wait_until_shown(self) -> None:
        """Wait until what is acknowledged by now is shown: where only flushed records are, a flush must come."""
        self._most = math.inf
        due = {topic: set(self.writers[topic].acknowledged.copy()) for topic in self.seen}

        def unshown() -> list[str]:
            return [f"{topic} {min(left)}" for topic, seen in self.seen.items() if (left := due[topic] - seen.keys())]

        wait_until(lambda: self.problems() or not unshown(), lambda: f"{unshown()} to be shown")

    def forget_unflushed(self) -> None:
        """Take note that the power went: what was acknowledged without a flush may be gone."""
        for writer in self.writers.values():
            writer.forget()

    def problems(self) -> list[str]:
        """Return what went wrong on this side: nothing may."""
        failed = [
            f"{topic}: the producer failed: {writer.failures[0]!r}"
            for topic, writer in self.writers.items()
            if writer.failures
        ]
        return failed + self.failures

    def _watched(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:  # it has to fail the test, not this thread
            self.failures.append(f"{threading.current_thread().name}: {error!r}")

    def _write(self) -> None:
        due, before = 0.0, time.monotonic()
        while not self._stopping.wait(_PAUSE_S):
            now = time.monotonic()
            # Time in which it could not send is not made up for.
            due = min(due + min(now - before, _MOST_BEHIND_S) * _RATE, self._most)
            before = now
            for writer in self.writers.values():
                writer.send_due(int(due))

    def _read(self) -> None:
        if not self.seen:
            return
        plans = {plan.topic: plan for plan in self.plans}
        with Consumer(bootstrap_servers=self._bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([(topic, 0) for topic in self.seen])
            for topic in self.seen:
                consumer.seek((topic, 0), 0)
            while not self._stopping.is_set():
                try:
                    records = consumer.poll(50, 500)
                except OffsetOutOfRange:
                    # The log begins behind a hole that the power has made of what was never shown.
                    starts = consumer.beginning_offsets([(topic, 0) for topic in self.seen])
                    behind = {at: start for at, start in starts.items() if consumer.position(at) < start}
                    if not behind:
                        raise
                    for at, start in behind.items():
                        consumer.seek(at, start)
                    continue
                for record in records:
                    number = plans[record.topic].number_at(record.offset, record.key, record.value)
                    if number is None:
                        self.failures.append(f"{record.topic}: offset {record.offset} shown as {record.value!r:.80}")
                    else:
                        self.seen[record.topic][record.offset] = number

    def _change_topics(self) -> None:
        # Not for long: a broker whose disk is being changed is away, and what was asked of it then does not count.
        with Admin(bootstrap_servers=self._bootstrap, default_api_timeout_ms=5000) as admin:
            number = 0
            while not self._stopping.wait(self._chance.uniform(0.05, 0.4)):
                name = f"passing-{number}"
                number += 1
                self.may_exist.add(name)
                try:
                    admin.create_topic(name, self._chance.randrange(1, 4), 1)
                    self.created.add(name)
                    leaving = sorted(each for each in self.created if each.startswith("passing-"))[:-3]
                    for each in leaving:
                        self.created.discard(each)
                        admin.delete_topics([each])
                        self.deleted.add(each)
                except KafkaliteError:
                    # The broker was away: whether it has been done shows later, and nothing is promised.
                    continue

    def _trim(self) -> None:
        """Look at the log starts, which may never go back, and move those that are moved by hand."""
        while not self._stopping.wait(self._chance.uniform(0.02, 0.3)):
            try:
                with RawClient(self._bootstrap, 5.0) as client:
                    for plan in self.plans:
                        if plan.is_trimmed:
                            self._delete_records(client, plan.topic)
                        self._look_at_start(client, plan.topic)
            except OSError:  # the broker is away
                continue

    def _delete_records(self, client: RawClient, topic: str) -> None:
        written = self.writers[topic].acknowledged
        until = self._chance.randrange(max(written, default=0) + 1)
        self.asked_starts[topic] = max(until, self.asked_starts.get(topic, 0))
        told = delete_records(client, topic, until)
        if told is not None:
            self.starts[topic] = max(self.starts[topic], told)

    def _look_at_start(self, client: RawClient, topic: str) -> None:
        start = log_start(client, topic)
        if start is not None:
            if start < self.starts[topic]:
                self.failures.append(f"{topic}: the log start went from {self.starts[topic]} back to {start}")
            self.starts[topic] = max(self.starts[topic], start)

    def _write_back(self) -> None:
        """Do what the kernel may do at any time: write some pages of some files, in any order."""
        fs = OsFs()
        while not self._stopping.wait(self._chance.uniform(0.005, 0.05)):
            try:
                files = [path for path in self.data_dir.glob("*-*/*") if path.suffix in (".log", ".index", ".snapshot")]
                if files:
                    path = self._chance.choice(files[-20:])
                    file = fs.open(str(path))
                    first = self._chance.randrange(file.size() // _PAGE_BYTES + 1)
                    file.start_writeback(first * _PAGE_BYTES, self._chance.randrange(1, 4) * _PAGE_BYTES)
            except OSError:  # renamed or removed, or the disk is being changed
                continue
